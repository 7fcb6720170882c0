// Runs a kernel of checksums on cases from a file, and writes the status word of each.
//
//     sums KERNEL CASES RESULTS BATCH ORDER     (as main.cpp)
//
// Cases: for each one algo and stored size, the decoded size and the part's place of which the
// kernel is told (32 bits each), the remainder by 16 of the address, whether it is told them (8 bits
// each), 2 bytes of nothing, then the stored bytes.
#include <dlfcn.h>

#include "files.h"
#include "stops.h"

namespace {

using namespace lanes;

struct Sum {
    u32 algo, size, actual, before;
    u8 at, bounded;
    const u8* bytes;
};

std::vector<Sum> sums_in(const std::vector<u8>& bytes)
{
    constexpr std::size_t HEADER = 20;
    std::vector<Sum> sums;
    for (std::size_t at = 0; at + HEADER <= bytes.size();) {
        u32 words[4];
        std::memcpy(words, &bytes[at], sizeof words);
        const u8* const rest = bytes.data() + at + sizeof words;
        sums.push_back({words[0], words[1], words[2], words[3], rest[0], rest[1], rest + 4});
        at += HEADER + words[1];
    }
    return sums;
}

// Operations in buffers of exact size.
class Sums {
public:
    Sums(const std::vector<Sum>& all, u32 most)
        : params_(most * sizeof(Params)), status_(most * sizeof(u32)), actual_(most * APART)
    {
        for (const Sum& one : all) largest_ = std::max(largest_, one.size);
        for (u32 i = 0; i < most; i++) sources_.emplace_back(largest_);
    }

    bool run(Kernel kernel, const Sum* sums, u32 count, Order order)
    {
        params = reinterpret_cast<Params*>(params_.buffer(count * sizeof(Params), 0));
        status = reinterpret_cast<u32*>(status_.buffer(count * sizeof(u32), 0));
        u8* actual = actual_.buffer(count * APART, 0);
        for (u32 i = 0; i < count; i++) {
            const Sum& one = sums[i];
            u8* src = sources_[i].buffer(one.size, one.at);
            std::memcpy(src, one.bytes, one.size);
            u32* word = reinterpret_cast<u32*>(actual + i * APART);
            *word = one.actual;
            forbid(word + one.bounded, APART - one.bounded * sizeof(u32));
            params[i] = {one.size, one.before, one.bounded ? word : nullptr, src, nullptr, one.algo, {}};
            status[i] = UNTOUCHED;
        }
#ifdef LANES_WIDTH1
        const Launch launch{kernel, count, 1, params, count, status, false};
#else
        const Launch launch{kernel, grid_of(count, lanes_a_case), BLOCK, params, count, status, false};
#endif
        return lanes::run(launch, {order, first_case + 1, (4096 + std::uint64_t{largest_}) * 1024});
    }

    bool intact(const Sum* sums, u32 count)
    {
        bool good = params_.intact() && status_.intact() && actual_.intact();
        for (u32 i = 0; i < count; i++)
            good &= sources_[i].intact() && !std::memcmp(params[i].src, sums[i].bytes, sums[i].size);
        return good;
    }

    u32* status = nullptr;

private:
    static constexpr u32 APART = 16, UNTOUCHED = 0xcdcdcdcd;

    Place params_, status_, actual_;
    Params* params = nullptr;
    std::deque<Place> sources_;
    u32 largest_ = 0;
};

}  // namespace

int main(int count, char** arguments)
{
    if (count != 6) return USAGE;
    const char* name = arguments[1];
    const Kernel kernel = reinterpret_cast<Kernel>(dlsym(RTLD_DEFAULT, name));
    if (!kernel || !(lanes_a_case = width_of(name))) {
        std::fprintf(stderr, "lanes: there is no kernel %s\n", name);
        return USAGE;
    }
    const std::vector<u8> bytes = bytes_of(arguments[2]);
    const std::vector<Sum> all = sums_in(bytes);
    std::ofstream results(arguments[3], std::ios::binary);
    const u32 most = static_cast<u32>(std::stoul(arguments[4]));
    Sums sums(all, most);
    watch_over();
    for (; first_case < all.size(); first_case += most) {
        cases_in_batch = static_cast<u32>(std::min<std::size_t>(most, all.size() - first_case));
        alarm(patience());
        const Order order = order_of(arguments[5], first_case / most);
        if (!sums.run(kernel, &all[first_case], cases_in_batch, order))
            stop(REFUSED, complaint(), current_case());
        alarm(0);
        if (!sums.intact(&all[first_case], cases_in_batch))
            stop(WRONG, "something else than a status was written to", first_case);
        write_bytes(results, sums.status, cases_in_batch * sizeof(u32));
    }
    return results.flush() ? 0 : USAGE;
}
