// Batches of operations in buffers of exact size, and what must hold after a kernel ran.
#pragma once
#include <algorithm>
#include <deque>
#include <vector>

#include "lanes.h"
//
#include "batch.cuh"
#include "buffers.h"
#include "launch.h"

namespace lanes {

struct Case {
    u32 algo, src_size, capacity;
    u8 src_at, dst_at;  // remainders of the addresses by 16
    const u8* src;
};

class Batch {
public:
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    Batch(u32 most_cases, u32 largest_src, u32 largest_capacity)
        : params_(most_cases * sizeof(Params)),
          status_(most_cases * sizeof(u32)),
          actual_(most_cases * APART)
    {
        for (u32 i = 0; i < most_cases; i++) {
            sources_.emplace_back(largest_src);
            targets_.emplace_back(largest_capacity);
        }
        // What memory holds before anybody writes to it.
        noise_.resize(largest_capacity + STARTS);
        std::uint64_t state = 1;
        for (u8& byte : noise_)
            byte = static_cast<u8>((state = state * 6364136223846793005ull + 1) >> 56);
    }

    void prepare(const Case* cases, u32 count)
    {
        cases_ = cases;
        count_ = count;
        turn_++;
        params = reinterpret_cast<Params*>(params_.buffer(count * sizeof(Params), 0));
        status = reinterpret_cast<u32*>(status_.buffer(count * sizeof(u32), 0));
        u8* actual = actual_.buffer(count * APART, 0);
        for (u32 i = 0; i < count; i++) {
            const Case& one = cases[i];
            u8* src = sources_[i].buffer(one.src_size, one.src_at);
            std::memcpy(src, one.src, one.src_size);
            u8* dst = targets_[i].buffer(one.capacity, one.dst_at);
            std::memcpy(dst, noise(i), one.capacity);
            u32* word = reinterpret_cast<u32*>(actual + i * APART);
            forbid(word + 1, APART - sizeof(u32));
            params[i] = {one.src_size, one.capacity, word, src, dst, one.algo, {}};
            status[i] = *word = UNTOUCHED;
        }
        given_.assign(params, params + count);
    }

    bool run(Kernel kernel, unsigned width, Order order)
    {
#ifdef LANES_WIDTH1
        const Launch launch{kernel, count_, 1, params, count_, status, false};
#else
        const Launch launch{kernel,    grid_of(count_, width), BLOCK, params, count_, status,
                            width > 32};
#endif
        const std::uint64_t most = MOST_SWITCHES * work() * std::max(32u, width) / width;
        return lanes::run(launch, {order, turn_, most * std::max(1u, width / 32)});
    }

    // What is wrong with the outcome of a case, whatever it should decode to; nullptr if nothing
    // is.
    const char* problem(u32 i)
    {
        const Case& one = cases_[i];
        if (!sources_[i].intact() || std::memcmp(params[i].src, one.src, one.src_size))
            return "the source was written to";
        if (!targets_[i].intact()) return "bytes outside of the slot were written to";
        if (status[i] == UNTOUCHED) return untouched(i) ? nullptr : "no status was written";
        if (status[i] != OK) return nullptr;
        if (actual(i) > one.capacity) return "the decoded size is above the capacity";
        if (std::memcmp(params[i].dst + actual(i), noise(i) + actual(i), one.capacity - actual(i)))
            return "bytes of the slot behind the decoded ones were written to";
        return nullptr;
    }

    // The same of the whole batch.
    const char* problem()
    {
        if (std::memcmp(given_.data(), params, count_ * sizeof(Params)))
            return "the parameters were written to";
        if (!params_.intact() || !status_.intact() || !actual_.intact())
            return "bytes outside of an array were written to";
        return nullptr;
    }

    u32 actual(u32 i) const { return *params[i].dst_act_bytes; }
    const u8* decoded(u32 i) const { return params[i].dst; }

    Params* params = nullptr;
    u32* status = nullptr;

    static constexpr u32 UNTOUCHED = 0xcdcdcdcd;

private:
    // Of the words that receive sizes: what lies between them must not be accessed.
    static constexpr u32 APART = 16, STARTS = 4096;
    // From lane to lane for each byte, stored and decoded: 32 collectives of 32 lanes, which is far
    // more than any kernel needs.
    static constexpr std::uint64_t MOST_SWITCHES = 32 * 32;

    const u8* noise(u32 i) const { return noise_.data() + (turn_ * 61 + i * 7) % STARTS; }

    // Of the largest operation.
    std::uint64_t work() const
    {
        std::uint64_t bytes = 0;
        for (u32 i = 0; i < count_; i++)
            bytes = std::max(bytes, std::uint64_t{cases_[i].src_size} + cases_[i].capacity);
        return 1024 + bytes;
    }

    bool untouched(u32 i) const
    {
        return actual(i) == UNTOUCHED && !std::memcmp(params[i].dst, noise(i), cases_[i].capacity);
    }

    Place params_, status_, actual_;
    std::deque<Place> sources_, targets_;
    std::vector<u8> noise_;
    std::vector<Params> given_;
    const Case* cases_ = nullptr;
    u32 count_ = 0;
    std::uint64_t turn_ = 0;
};

}  // namespace lanes
