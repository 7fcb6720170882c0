// Runs a kernel that finds headers on cases from a file, and writes what it found in each.
//
//     scans KERNEL CASES RESULTS BATCH ORDER     (as main.cpp)
//
// Cases: for each one algo, the size of the range, the start and end of the segment, the entry, the
// longest chunk, whether chunks have checksums, the room for the output, and the remainder by 32 of
// the range's address (32 bits each), then the range. Results: for each case its status word, then
// the output.
#include <dlfcn.h>

#include "files.h"
#include "stops.h"

namespace {

using namespace lanes;

// As in gpuload/kernels/scan.cuh.
struct Scan {
    u64 size, room, unused;
    const u8* range;
    u32* output;
    u32 algo, start, end, entry, longest, summed;
};
static_assert(sizeof(Scan) == sizeof(Params), "scans take the parameters of decoders");

struct Segment {
    u32 algo, size, start, end, entry, longest, summed, room, at;
    const u8* bytes;
};

std::vector<Segment> segments_in(const std::vector<u8>& bytes)
{
    constexpr std::size_t HEADER = 36;
    std::vector<Segment> segments;
    for (std::size_t at = 0; at + HEADER <= bytes.size();) {
        Segment one;
        std::memcpy(&one, &bytes[at], HEADER);
        one.bytes = bytes.data() + at + HEADER;
        segments.push_back(one);
        at += HEADER + one.size;
    }
    return segments;
}

// Operations in buffers of exact size.
class Scans {
public:
    Scans(const std::vector<Segment>& all, u32 most) : params_(most * sizeof(Params)), status_(most * 4)
    {
        u32 room = 0;
        for (const Segment& one : all) {
            largest_ = std::max(largest_, one.size);
            room = std::max(room, one.room);
        }
        for (u32 i = 0; i < most; i++) {
            sources_.emplace_back(largest_ + 32);
            outputs_.emplace_back(room);
        }
    }

    bool run(Kernel kernel, const Segment* segments, u32 count, Order order)
    {
        params = reinterpret_cast<Scan*>(params_.buffer(count * sizeof(Scan), 0));
        status = reinterpret_cast<u32*>(status_.buffer(count * 4, 0));
        for (u32 i = 0; i < count; i++) {
            const Segment& one = segments[i];
            u8* range = sources_[i].buffer(one.size, one.at);
            std::memcpy(range, one.bytes, one.size);
            u8* output = outputs_[i].buffer(one.room, 0);
            std::memset(output, NOTHING_WRITTEN, one.room);
            params[i] = {one.size, one.room, 0,       range,       reinterpret_cast<u32*>(output), one.algo,
                         one.start, one.end, one.entry, one.longest, one.summed};
            std::memset(&status[i], NOTHING_WRITTEN, 4);
        }
#ifdef LANES_WIDTH1
        const Launch launch{kernel, count, 1, params, count, status, false};
#else
        const Launch launch{kernel, grid_of(count, lanes_a_case), BLOCK, params, count, status, false};
#endif
        return lanes::run(launch, {order, first_case + 1, (4096 + std::uint64_t{largest_}) * 1024});
    }

    bool intact(const Segment* segments, u32 count)
    {
        bool good = params_.intact() && status_.intact();
        for (u32 i = 0; i < count; i++) {
            const Segment& one = segments[i];
            good &= outputs_[i].intact() && sources_[i].intact();
            good &= !std::memcmp(params[i].range, one.bytes, one.size);
        }
        return good;
    }

    Scan* params = nullptr;
    u32* status = nullptr;

private:
    static constexpr int NOTHING_WRITTEN = 0xcd;

    Place params_, status_;
    std::deque<Place> sources_, outputs_;
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
    const std::vector<Segment> all = segments_in(bytes);
    std::ofstream results(arguments[3], std::ios::binary);
    const u32 most = static_cast<u32>(std::stoul(arguments[4]));
    Scans scans(all, most);
    watch_over();
    for (; first_case < all.size(); first_case += most) {
        cases_in_batch = static_cast<u32>(std::min<std::size_t>(most, all.size() - first_case));
        alarm(patience());
        const Order order = order_of(arguments[5], first_case / most);
        if (!scans.run(kernel, &all[first_case], cases_in_batch, order))
            stop(REFUSED, complaint(), current_case());
        alarm(0);
        if (!scans.intact(&all[first_case], cases_in_batch))
            stop(WRONG, "something else than an output was written to", first_case);
        for (u32 i = 0; i < cases_in_batch; i++) {
            write_bytes(results, &scans.status[i], 4);
            write_bytes(results, scans.params[i].output, all[first_case + i].room);
        }
    }
    return results.flush() ? 0 : USAGE;
}
