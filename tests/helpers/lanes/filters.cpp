// Runs a kernel of filters or boxes on cases from a file, and writes what it made of each.
//
//     filters KERNEL CASES RESULTS BATCH ORDER     (as main.cpp)
//
// Cases: for each one the parameters, in which addresses count from the start of a buffer; then 32
// bits each of the sizes of the source, of the destination and of a table that some kernels have
// beside them, the remainders by 16 of the addresses of the first two, and which of the words 0 and 2
// of the parameters are addresses of the table (bits 0 and 2); then the source and the table. Results:
// for each case its status word, the destination and the table.
#include <dlfcn.h>

#include "files.h"
#include "stops.h"

namespace {

using namespace lanes;

struct Operation {
    Params params;
    u32 src_size, dst_size, table_size, src_at, dst_at, of_table;
    const u8 *src, *table;
};

std::vector<Operation> operations_in(const std::vector<u8>& bytes)
{
    constexpr std::size_t HEADER = sizeof(Params) + 24;
    std::vector<Operation> found;
    for (std::size_t at = 0; at + HEADER <= bytes.size();) {
        Operation one;
        std::memcpy(&one, &bytes[at], HEADER);
        one.src = bytes.data() + at + HEADER;
        one.table = one.src + one.src_size;
        found.push_back(one);
        at += HEADER + one.src_size + one.table_size;
    }
    return found;
}

// Operations in buffers of exact size.
class Buffers {
public:
    Buffers(const std::vector<Operation>& all, u32 most) : params_(most * sizeof(Params)), status_(most * 4)
    {
        u32 src = 0, dst = 0, table = 0;
        for (const Operation& one : all) {
            src = std::max(src, one.src_size);
            dst = std::max(dst, one.dst_size);
            table = std::max(table, one.table_size);
        }
        largest_ = src + dst;
        for (u32 i = 0; i < most; i++) {
            sources_.emplace_back(src);
            targets_.emplace_back(dst);
            tables_.emplace_back(table);
        }
    }

    bool run(Kernel kernel, const Operation* operations, u32 count, Order order)
    {
        params = reinterpret_cast<Params*>(params_.buffer(count * sizeof(Params), 0));
        status = reinterpret_cast<u32*>(status_.buffer(count * 4, 0));
        places.assign(count, {});
        for (u32 i = 0; i < count; i++) place(i, operations[i]);
        std::memset(status, UNTOUCHED, count * 4);
#ifdef LANES_WIDTH1
        const Launch launch{kernel, count, 1, params, count, status, false};
#else
        const Launch launch{kernel, grid_of(count, lanes_a_case), BLOCK, params, count, status, lanes_a_case > 32};
#endif
        return lanes::run(launch, {order, first_case + 1, (65536 + std::uint64_t{largest_}) * 4096});
    }

    bool intact(const Operation* operations, u32 count)
    {
        bool good = params_.intact() && status_.intact();
        for (u32 i = 0; i < count; i++) {
            good &= sources_[i].intact() && targets_[i].intact() && tables_[i].intact();
            good &= !std::memcmp(places[i].src, operations[i].src, operations[i].src_size);
        }
        return good;
    }

    struct Places {
        u8 *src, *dst, *table;
    };
    std::vector<Places> places;
    Params* params = nullptr;
    u32* status = nullptr;

private:
    static constexpr int UNTOUCHED = 0xcd;

    void place(u32 i, const Operation& one)
    {
        u8* const src = sources_[i].buffer(one.src_size, one.src_at);
        u8* const dst = targets_[i].buffer(one.dst_size, one.dst_at);
        u8* const table = tables_[i].buffer(one.table_size, 0);
        std::memcpy(src, one.src, one.src_size);
        std::memset(dst, UNTOUCHED, one.dst_size);
        std::memcpy(table, one.table, one.table_size);
        places[i] = {src, dst, table};
        u64 words[sizeof(Params) / 8];
        std::memcpy(words, &one.params, sizeof words);
        for (u32 word : {0, 2})
            if (one.of_table >> word & 1) words[word] += reinterpret_cast<u64>(table);
        words[3] += reinterpret_cast<u64>(src);
        words[4] += reinterpret_cast<u64>(dst);
        std::memcpy(static_cast<void*>(&params[i]), words, sizeof words);
    }

    Place params_, status_;
    std::deque<Place> sources_, targets_, tables_;
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
    const std::vector<Operation> all = operations_in(bytes);
    std::ofstream results(arguments[3], std::ios::binary);
    const u32 most = static_cast<u32>(std::stoul(arguments[4]));
    Buffers buffers(all, most);
    watch_over();
    for (; first_case < all.size(); first_case += most) {
        cases_in_batch = static_cast<u32>(std::min<std::size_t>(most, all.size() - first_case));
        alarm(patience());
        const Order order = order_of(arguments[5], first_case / most);
        const Operation* const operations = &all[first_case];
        if (!buffers.run(kernel, operations, cases_in_batch, order)) stop(REFUSED, complaint(), current_case());
        alarm(0);
        if (!buffers.intact(operations, cases_in_batch))
            stop(WRONG, "something else than a destination was written to", first_case);
        for (u32 i = 0; i < cases_in_batch; i++) {
            write_bytes(results, &buffers.status[i], 4);
            write_bytes(results, buffers.places[i].dst, operations[i].dst_size);
            write_bytes(results, buffers.places[i].table, operations[i].table_size);
        }
    }
    return results.flush() ? 0 : USAGE;
}
