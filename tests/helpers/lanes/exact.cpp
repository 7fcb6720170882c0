// Checks of every access to the byte, for builds with -fsanitize=kernel-address.
//
// AddressSanitizer itself cannot forbid the first bytes of a granule of 8 and allow the others, so
// that it does not see an access right before a buffer that starts inside one. In this mode g++ has
// every access call a function and leaves those functions to the program; these know the buffers.
#include <dlfcn.h>

#include "buffers.h"
#include "stops.h"

namespace {

__attribute__((always_inline)) inline void check(const void* at, std::size_t size, const char* what)
{
    if (!lanes::Place::outside(at, size)) return;
    void* const from = __builtin_return_address(0);
    Dl_info program;
    if (dladdr(from, &program))
        std::fprintf(stderr, "lanes: addr2line -ife %s %#tx\n", program.dli_fname,
                     static_cast<char*>(from) - static_cast<char*>(program.dli_fbase) - 1);
    lanes::describe(lanes::current_case());
    lanes::stop(lanes::SANITIZER, what, lanes::current_case());
}

}  // namespace

#define LANES_ACCESS(size)                                                                         \
    void __asan_load##size##_noabort(const void* at)                                               \
    {                                                                                              \
        check(at, size, "a read outside of a buffer");                                             \
    }                                                                                              \
    void __asan_store##size##_noabort(const void* at)                                              \
    {                                                                                              \
        check(at, size, "a write outside of a buffer");                                            \
    }

extern "C" {
LANES_ACCESS(1)
LANES_ACCESS(2)
LANES_ACCESS(4)
LANES_ACCESS(8)
LANES_ACCESS(16)
void __asan_loadN_noabort(const void* at, std::size_t size)
{
    check(at, size, "a read outside of a buffer");
}
void __asan_storeN_noabort(const void* at, std::size_t size)
{
    check(at, size, "a write outside of a buffer");
}
void __asan_handle_no_return() {}
}
