// The library that answers to the name libcuda.so.1.
//
// It knows nothing of CUDA. Every driver entry point is one of a row of identical trampolines that
// pass their arguments on to a callback written in Python. All arguments of the calls that matter
// are integers or pointers, so a trampoline with twelve 64-bit words fits every one of them in the
// calling conventions of x86-64 and AArch64 Linux; words that the caller did not pass are never
// looked at by the callback, whose type says how many there are.
//
// The trampolines exist for two reasons. Handles that C++ code keeps are released while the Python
// interpreter goes, or after it is gone; a driver is still there then and takes them back, so from
// fakecuda_shutdown() on every call succeeds without entering Python. And a destructor may call
// while an exception is on its way: it is put aside while the callback runs.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace {

using Word = std::uint64_t;
using Entry = int (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);

constexpr int kSuccess = 0;
constexpr int kNotFound = 500;
constexpr std::size_t kSlots = 512;

std::atomic<bool> closed{false};
std::array<std::atomic<Entry>, kSlots> targets{};

// The functions of Python's C API that the loader passes in: this library links to no Python.
struct Python {
    int (*ensure)();
    void (*release)(int);
    void (*fetch)(void **, void **, void **);
    void (*restore)(void *, void *, void *);
};
Python python{};

class ExceptionAside {
  public:
    ExceptionAside() : state_(python.ensure()) { python.fetch(&type_, &value_, &trace_); }
    ~ExceptionAside() {
        python.restore(type_, value_, trace_);
        python.release(state_);
    }
    ExceptionAside(const ExceptionAside &) = delete;
    ExceptionAside &operator=(const ExceptionAside &) = delete;

  private:
    int state_;
    void *type_ = nullptr;
    void *value_ = nullptr;
    void *trace_ = nullptr;
};

template <std::size_t Slot>
int trampoline(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, Word j,
               Word k, Word l) {
    if (closed.load()) return kSuccess;
    Entry target = targets[Slot].load();
    if (!target) return kNotFound;
    ExceptionAside aside;
    return target(a, b, c, d, e, f, g, h, i, j, k, l);
}

template <std::size_t... Slot>
constexpr std::array<Entry, sizeof...(Slot)> row(std::index_sequence<Slot...>) {
    return {trampoline<Slot>...};
}

constexpr std::array<Entry, kSlots> entries = row(std::make_index_sequence<kSlots>{});

// The first slots belong to the functions that this library exports by name.
enum Named : std::size_t { kGetProcAddress, kInit, kDriverGetVersion, kErrorName, kErrorString,
                           kBatchDecompress };

}  // namespace

extern "C" {

void fakecuda_python(int (*ensure)(), void (*release)(int), void (*fetch)(void **, void **, void **),
                     void (*restore)(void *, void *, void *)) {
    python = {ensure, release, fetch, restore};
}

// Connects a slot to a callback and returns the address to hand out for it, or null past the row.
void *fakecuda_bind(std::size_t slot, void *callback) {
    if (slot >= kSlots) return nullptr;
    targets[slot].store(reinterpret_cast<Entry>(callback));
    return reinterpret_cast<void *>(entries[slot]);
}

void fakecuda_shutdown(void) { closed.store(true); }

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, Word flags, int *status) {
    return trampoline<kGetProcAddress>(Word(symbol), Word(pfn), Word(version), flags, Word(status),
                                       0, 0, 0, 0, 0, 0, 0);
}

int cuGetProcAddress(const char *symbol, void **pfn, int version, Word flags) {
    return cuGetProcAddress_v2(symbol, pfn, version, flags, nullptr);
}

int cuInit(unsigned int flags) {
    return trampoline<kInit>(flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

int cuDriverGetVersion(int *version) {
    return trampoline<kDriverGetVersion>(Word(version), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

int cuGetErrorName(int error, const char **text) {
    return trampoline<kErrorName>(Word(error), Word(text), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

int cuGetErrorString(int error, const char **text) {
    return trampoline<kErrorString>(Word(error), Word(text), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

// NVRTC asks for tables of functions that no documentation names, and does without them.
int cuGetExportTable(const void **table, const void *) {
    if (table) *table = nullptr;
    return kNotFound;
}

#ifndef FAKECUDA_WITHOUT_DECOMPRESS
int cuMemBatchDecompressAsync(void *params, std::size_t count, unsigned int flags,
                              std::size_t *index, void *stream) {
    return trampoline<kBatchDecompress>(Word(params), count, flags, Word(index), Word(stream), 0, 0,
                                        0, 0, 0, 0, 0);
}
#endif

}  // extern "C"
