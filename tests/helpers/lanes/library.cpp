// The kernels as a shared library, for a double of the CUDA driver: launch one by its name.
#include <dlfcn.h>

#include <cstdio>
#include <mutex>

#include "launch.h"

namespace {

std::mutex one_at_a_time;  // shared memory and the lanes' stacks exist once
thread_local char why[500];

template <typename... Values>
int failed(const char* format, Values... values)
{
    std::snprintf(why, sizeof why, format, values...);
    return -1;
}

// Names are looked up in this library only, however it was loaded.
void* found(const char* kernel)
{
    Dl_info self;
    if (!dladdr(reinterpret_cast<void*>(&found), &self)) return nullptr;
    void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!library) return nullptr;
    void* function = dlsym(library, kernel);
    dlclose(library);
    return function;
}

}  // namespace

extern "C" {

// Returns 0, or -1 where lanes_error() says why.
int lanes_launch_grid(const char* kernel, unsigned grid, unsigned block, const void* params,
                      unsigned count, unsigned* status)
{
    const unsigned width = lanes::width_of(kernel);
    void* function = width ? found(kernel) : nullptr;
    if (!function) return failed("there is no kernel %s", kernel);
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    const lanes::Launch launch{
        reinterpret_cast<lanes::Kernel>(function), grid, block, params, count, status, width > 32};
    if (!lanes::run(launch, {})) return failed("%s: %s", kernel, lanes::complaint());
    return 0;
}

int lanes_launch(const char* kernel, const void* params, unsigned count, unsigned* status)
{
    const unsigned width = lanes::width_of(kernel);
    return lanes_launch_grid(kernel, lanes::grid_of(count, width), lanes::BLOCK, params, count,
                             status);
}

const char* lanes_error() { return why; }

}  // extern "C"
