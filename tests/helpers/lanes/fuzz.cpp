// Damages streams at random and runs a kernel of width 1 on them.
//
//     fuzz KERNEL SEEDS COUNT SEED SAMPLE CASES RESULTS
//
// SEEDS holds valid streams, as main.cpp's CASES do. COUNT cases are made of them, the same ones
// for the same SEED. Every outcome is compared with that of a plain decoder (decoders.cpp), which
// knows the format but not the rules for the end of an LZ4 block. Every SAMPLE-th case and outcome,
// and up to so many where only the kernel refuses, go to CASES and RESULTS, for another judge.
// Prints counts.
#include <dlfcn.h>

#include <fstream>
#include <string>
#include <vector>

#include "batch.h"
#include "files.h"
#include "stops.h"

extern "C" {
int fakecuda_lz4(const u8* source, std::size_t size, u8* target, std::size_t room,
                 std::size_t* written);
int fakecuda_snappy(const u8* source, std::size_t size, u8* target, std::size_t room,
                    std::size_t* written);
}

namespace {

using namespace lanes;

using Bytes = std::vector<u8>;

constexpr u32 BATCH = 32, LONGEST = 4096, SLOT = 64 << 10;
constexpr unsigned long long MOST_REFUSED = 2000;

class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull | 1) {}

    std::uint64_t operator()()
    {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_ * 0x2545f4914f6cdd1dull >> 8;
    }
    std::size_t below(std::size_t bound) { return (*this)() % bound; }
    template <typename T, std::size_t N>
    T one_of(const T (&choices)[N])
    {
        return choices[below(N)];
    }

private:
    std::uint64_t state_;
};

class Damage {
public:
    Damage(const std::vector<Case>& seeds, std::uint64_t seed) : seeds_(seeds), random_(seed) {}

    // One case: a valid stream in one of eight, else a damaged one.
    Case make(Bytes& stored)
    {
        const Case& seed = seeds_[random_.below(seeds_.size())];
        stored.assign(seed.src, seed.src + seed.src_size);
        const bool damaged = random_.below(8);
        if (damaged)
            for (int times = random_.one_of({1, 1, 1, 2, 3}); times; times--) hurt(stored);
        if (stored.size() > LONGEST) stored.resize(LONGEST);
        const u32 capacity = damaged ? some_capacity(seed.capacity) : seed.capacity;
        return {seed.algo,    static_cast<u32>(stored.size()), capacity, remainder(), remainder(),
                stored.data()};
    }

private:
    u8 remainder() { return static_cast<u8>(random_.below(16)); }

    u32 some_capacity(u32 size)
    {
        switch (random_.below(8)) {
        case 0: return std::max(size, SLOT);
        case 1: return static_cast<u32>(random_.below(size + 1));
        case 2: return static_cast<u32>(size + random_.below(41)) - std::min(size, 20u);
        default: return size;
        }
    }

    // As often near an end as anywhere.
    std::size_t place(const Bytes& stored)
    {
        const std::size_t size = stored.size(),
                          near = random_.below(std::min<std::size_t>(64, size + 1));
        return random_.one_of({near, size > near ? size - 1 - near : 0, random_.below(size + 1)});
    }

    void overwrite(Bytes& stored, std::size_t at, std::size_t size)
    {
        const std::size_t kind = random_.below(4);
        for (std::size_t i = at; i < std::min(stored.size(), at + size); i++)
            stored[i] = kind == 0   ? 0
                        : kind == 1 ? 255
                                    : static_cast<u8>(kind == 2 ? random_() : random_.below(5));
    }

    void insert(Bytes& stored, std::size_t at, const u8* from, std::size_t size)
    {
        const Bytes copied(from, from + size);
        stored.insert(stored.begin() + static_cast<std::ptrdiff_t>(at), copied.begin(),
                      copied.end());
    }

    void remove(Bytes& stored, std::size_t at, std::size_t size)
    {
        const auto first = stored.begin() + static_cast<std::ptrdiff_t>(at);
        stored.erase(first,
                     first + static_cast<std::ptrdiff_t>(std::min(size, stored.size() - at)));
    }

    void hurt(Bytes& stored)
    {
        const std::size_t at = place(stored), rest = stored.size() - at;
        const Case& other = seeds_[random_.below(seeds_.size())];
        const std::size_t from = random_.below(other.src_size + 1);
        switch (random_.below(9)) {
        case 0:
            for (int times = random_.one_of({1, 1, 2, 8}); times; times--) {
                const std::size_t flipped = place(stored);
                if (flipped < stored.size())
                    stored[flipped] ^= static_cast<u8>(1 << random_.below(8));
            }
            break;
        case 1:
            if (rest) stored[at] = static_cast<u8>(random_());
            break;
        case 2: stored.resize(at); break;
        case 3: remove(stored, at, random_.one_of({1, 4, 100})); break;
        case 4:
            insert(stored, at, stored.data() + at,
                   std::min<std::size_t>(rest, random_.one_of({1, 4, 100})));
            break;
        case 5: overwrite(stored, at, random_.one_of({1, 2, 4, 8})); break;
        case 6:
            remove(stored, at, random_.one_of({0, 50, 500}));
            insert(stored, at, other.src + from, other.src_size - from);
            break;
        case 7: insert(stored, stored.size(), other.src, std::min<u32>(other.src_size, 40)); break;
        case 8: overwrite(stored, random_.one_of({0, 4}), 1 + random_.below(24)); break;
        }
    }

    const std::vector<Case>& seeds_;
    Random random_;
};

struct Counts {
    unsigned long long cases, status[LARGE + 1], bytes, stricter;
};

class Judge {
public:
    Judge(unsigned long long sample, const char* cases, const char* results)
        : sample_(sample), cases_(cases, std::ios::binary), results_(results, std::ios::binary)
    {
    }

    void judge(Batch& batch, const Case* cases, u32 count)
    {
        for (u32 i = 0; i < count; i++) {
            if (const char* what = batch.problem(i)) fail(what, i);
            if (batch.status[i] > LARGE) fail("an unknown status", i);
            const bool stricter = compare(batch, cases[i], i);
            counts.cases++;
            counts.status[batch.status[i]]++;
            counts.stricter += stricter;
            if (batch.status[i] == OK) counts.bytes += batch.actual(i);
            if (counts.cases % sample_ == 0 || (stricter && counts.stricter <= MOST_REFUSED)) {
                write_case(cases_, cases[i]);
                write_result(results_, batch, i);
            }
        }
        if (const char* what = batch.problem()) fail(what, 0);
    }

    bool finish() { return cases_.flush() && results_.flush(); }

    Counts counts{};

private:
    [[noreturn]] static void fail(const char* what, u32 i)
    {
        describe(first_case + i);
        stop(WRONG, what, first_case + i);
    }

    // Returns whether only the kernel refuses the case.
    bool compare(const Batch& batch, const Case& one, u32 i)
    {
        std::size_t written = 0;
        expected_.resize(one.capacity);
        const auto decode = one.algo == LZ4 ? fakecuda_lz4 : fakecuda_snappy;
        const bool plain =
            decode(one.src, one.src_size, expected_.data(), one.capacity, &written) == 0;
        if (batch.status[i] != OK) {
            if (plain && one.algo != LZ4) fail("the kernel refuses a valid stream", i);
            return plain;
        }
        if (!plain) fail("the kernel takes a broken stream", i);
        if (written != batch.actual(i) || std::memcmp(expected_.data(), batch.decoded(i), written))
            fail("the kernel decodes to other bytes", i);
        return false;
    }

    const unsigned long long sample_;
    std::ofstream cases_, results_;
    Bytes expected_;
};

}  // namespace

int main(int count, char** arguments)
{
    if (count != 8) return USAGE;
    const Kernel kernel = reinterpret_cast<Kernel>(dlsym(RTLD_DEFAULT, arguments[1]));
    if (!kernel) return USAGE;
    const Bytes bytes = bytes_of(arguments[2]);
    const std::vector<Case> seeds = cases_in(bytes);
    const unsigned long long total = std::stoull(arguments[3]);
    u32 largest = SLOT;
    for (const Case& seed : seeds) largest = std::max(largest, seed.capacity + 64);
    Damage damage(seeds, std::stoull(arguments[4]));
    Judge judge(std::stoull(arguments[5]), arguments[6], arguments[7]);
    Batch batch(BATCH, LONGEST, largest);
    std::vector<Bytes> stored(BATCH);
    std::vector<Case> cases(BATCH);
    watch_over(cases.data());
    for (; first_case < total; first_case += cases_in_batch) {
        cases_in_batch = static_cast<u32>(std::min<unsigned long long>(BATCH, total - first_case));
        for (u32 i = 0; i < cases_in_batch; i++) cases[i] = damage.make(stored[i]);
        batch.prepare(cases.data(), cases_in_batch);
        alarm(patience());
        if (!batch.run(kernel, 1, Order::RANDOM)) stop(REFUSED, complaint(), current_case());
        alarm(0);
        judge.judge(batch, cases.data(), cases_in_batch);
    }
    const Counts& c = judge.counts;
    std::printf("{\"cases\": %llu, \"bytes\": %llu, \"stricter\": %llu, \"status\": [%llu",
                c.cases, c.bytes, c.stricter, c.status[OK]);
    for (u32 status = OK + 1; status <= LARGE; status++) std::printf(", %llu", c.status[status]);
    std::printf("]}\n");
    return judge.finish() ? 0 : USAGE;
}
