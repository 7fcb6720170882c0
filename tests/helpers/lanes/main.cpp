// Runs one kernel on cases from a file, and writes what became of each (files.h).
//
//     main KERNEL CASES RESULTS BATCH ORDER     (ORDER: ascending, descending, random, mixed)
#include <dlfcn.h>

#include "batch.h"
#include "files.h"
#include "stops.h"

namespace {

using namespace lanes;

void check(Batch& batch, u32 count)
{
    for (u32 i = 0; i < count; i++)
        if (const char* what = batch.problem(i)) stop(WRONG, what, first_case + i);
    if (const char* what = batch.problem()) stop(WRONG, what, first_case);
}

Batch batch_for(const std::vector<Case>& cases, u32 most)
{
    u32 largest_src = 0, largest_capacity = 0;
    for (const Case& one : cases) {
        largest_src = std::max(largest_src, one.src_size);
        largest_capacity = std::max(largest_capacity, one.capacity);
    }
    return Batch(most, largest_src, largest_capacity);
}

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
    const std::vector<Case> cases = cases_in(bytes);
    std::ofstream results(arguments[3], std::ios::binary);
    const u32 most = static_cast<u32>(std::stoul(arguments[4]));
    Batch batch = batch_for(cases, most);
    watch_over();
    for (; first_case < cases.size(); first_case += most) {
        cases_in_batch = static_cast<u32>(std::min<std::size_t>(most, cases.size() - first_case));
        batch.prepare(&cases[first_case], cases_in_batch);
        alarm(patience());
        if (!batch.run(kernel, lanes_a_case, order_of(arguments[5], first_case / most)))
            stop(REFUSED, complaint(), current_case());
        alarm(0);
        check(batch, cases_in_batch);
        for (u32 i = 0; i < cases_in_batch; i++) write_result(results, batch, i);
    }
    return results.flush() ? 0 : USAGE;
}
