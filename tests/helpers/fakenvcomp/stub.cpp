// The library that answers for libnvcomp.so: nvCOMP's C ABI, and nothing behind it.
//
// Every function passes its arguments on to one callback written in Python, which checks them and
// decodes on the double of the driver. This file is in C++ for the sake of the structures that are
// passed by value, as in nvCOMP's headers.
//
// FAKENVCOMP_VERSION is 1000 * major + 100 * minor. Before 6.0 the function that gives the size of
// the temporary memory had another name and no stream; before 5.2 statuses had no description.

#include <cstddef>
#include <cstdint>

namespace {

using Word = std::uint64_t;

enum Function : int { kAlignments, kTempSize, kDecompress };
enum Method : int { kDeflate, kSnappy, kLZ4, kZstd, kGdeflate };

struct Options {
    int backend;
    char rest[60];
};
static_assert(sizeof(Options) == 64, "all of them have 64 bytes");

struct Alignments {
    std::size_t input, output, temp;
};

struct Properties {
    std::uint32_t version, cudart_version;
};

using Callback = int (*)(int function, int method, const Options *options, const Word *arguments);
Callback callback = nullptr;

template <typename... Argument>
int pass(Function function, Method method, const Options &options, Argument... argument) {
    const Word words[] = {Word(argument)...};
    return callback ? callback(function, method, &options, words) : 10000;
}

}  // namespace

extern "C" {

void fakenvcomp_bind(Callback given) { callback = given; }

int nvcompGetProperties(Properties *properties) {
    if (!properties) return 10;
    *properties = {FAKENVCOMP_VERSION, 13000};
    return 0;
}

#if FAKENVCOMP_VERSION >= 5200
const char *nvcompGetStatusString(int status) {
    return status == 1000 ? "a CUDA error, says the double" : "some status of the double";
}
#endif

#if FAKENVCOMP_VERSION >= 6000
#define TEMP_SIZE(method)                                                                       \
    int nvcompBatched##method##DecompressGetTempSize(std::size_t count, std::size_t largest,    \
                                                     Options options, std::size_t *temp,        \
                                                     std::size_t total, void *stream) {         \
        return pass(kTempSize, k##method, options, count, largest, temp, total, stream);        \
    }
#else
#define TEMP_SIZE(method)                                                                       \
    int nvcompBatched##method##DecompressGetTempSizeAsync(                                      \
        std::size_t count, std::size_t largest, Options options, std::size_t *temp,             \
        std::size_t total) {                                                                    \
        return pass(kTempSize, k##method, options, count, largest, temp, total, Word(0));       \
    }
#endif

#define METHOD(method)                                                                          \
    int nvcompBatched##method##DecompressGetRequiredAlignments(Options options,                 \
                                                               Alignments *needed) {            \
        return pass(kAlignments, k##method, options, needed);                                   \
    }                                                                                           \
    TEMP_SIZE(method)                                                                           \
    int nvcompBatched##method##DecompressAsync(                                                 \
        const void *const *sources, const std::size_t *source_sizes,                            \
        const std::size_t *capacities, std::size_t *sizes, std::size_t count, void *temp,       \
        std::size_t temp_size, void *const *targets, Options options, int *statuses,            \
        void *stream) {                                                                         \
        return pass(kDecompress, k##method, options, sources, source_sizes, capacities, sizes,  \
                    count, temp, temp_size, targets, statuses, stream);                         \
    }

METHOD(Deflate)
METHOD(Snappy)
METHOD(LZ4)
METHOD(Zstd)
METHOD(Gdeflate)

}  // extern "C"
