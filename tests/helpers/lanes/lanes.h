// What CUDA C++ has and g++ lacks, so that the kernels' sources run on a CPU.
//
// g++ is told to include this file before a kernel's source. A warp's lanes are fibers (fibers.cpp)
// that run one at a time: a lane runs until it calls a collective (a shuffle, a vote, a sync), and
// goes on once every lane of the call's mask has made the same call. Which lane runs next comes
// from a seed, so that lanes which ought to have synchronised, and did not, see wrong bytes. Warps
// run one after another, or together where one operation takes a whole block.
//
// With LANES_WIDTH1 a block has one lane and no fibers, and a collective is what it means to a lane
// on its own: nothing. That runs at native speed.
//
// Meanings are those of the CUDA C++ programming guide ("Warp Vote Functions", "Warp Reduce
// Functions", "Warp Shuffle Functions") and of the CUDA Math API ("Integer Intrinsics"). What they
// leave undefined is refused here, or gives noise. What is not here, kernels have no need of.
#pragma once
#ifndef __cplusplus
#error "kernels are C++: compile them with g++ -x c++"
#endif

#define GPULOAD_HOST_LANES 1

#include "collectives.h"

// Declarations

#define __global__
#define __host__
// Several kernels are linked into one program and include the same functions: build.py has the
// linker take the first of equals.
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// One block runs at a time.
#define __shared__ static
#define __constant__ static

#define threadIdx (lanes::lane_index)
#define blockIdx (lanes::block_index)
#define blockDim (lanes::block_size)
#define gridDim (lanes::grid_size)
#define warpSize 32

// Vector types

#define LANES_VECTORS(type, name, size)                                                            \
    struct __align__(2 * size) name##2 { type x, y; };                                             \
    struct __align__(4 * size) name##4 { type x, y, z, w; };                                       \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                               \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
LANES_VECTORS(unsigned char, uchar, 1)
LANES_VECTORS(unsigned short, ushort, 2)
LANES_VECTORS(int, int, 4)
LANES_VECTORS(unsigned, uint, 4)
struct __align__(16) ulonglong2 { unsigned long long x, y; };
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

// Collectives

#ifdef LANES_WIDTH1
#define LANES_MEET(kind, mask, width, argument, value, alone) ((void)(mask), (alone))
#else
#define LANES_MEET(kind, mask, width, argument, value, alone)                                      \
    lanes::meet({lanes::kind, mask, (unsigned)(width), (unsigned)(argument),                       \
                 (unsigned long long)(value)})
#endif

inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    (void)LANES_MEET(SYNCWARP, mask, 0, 0, 0, 0);
}
inline unsigned __ballot_sync(unsigned mask, int yes)
{
    return (unsigned)LANES_MEET(BALLOT, mask, 0, 0, yes != 0, yes ? mask : 0);
}
inline void __syncthreads() { (void)LANES_MEET(SYNCTHREADS, 0, 0, 0, 0, 0); }

#define LANES_VOTE(name, kind)                                                                     \
    inline int name(unsigned mask, int yes)                                                        \
    {                                                                                              \
        return (int)LANES_MEET(kind, mask, 0, 0, yes != 0, yes != 0);                              \
    }
#define LANES_VOTE_OF_BLOCK(name, kind)                                                            \
    inline int name(int yes) { return (int)LANES_MEET(kind, 0, 0, 0, yes != 0, yes != 0); }
LANES_VOTE(__any_sync, ANY)
LANES_VOTE(__all_sync, ALL)
LANES_VOTE_OF_BLOCK(__syncthreads_count, SYNCTHREADS_COUNT)
LANES_VOTE_OF_BLOCK(__syncthreads_and, SYNCTHREADS_AND)
LANES_VOTE_OF_BLOCK(__syncthreads_or, SYNCTHREADS_OR)

#define LANES_REDUCTION(type, name, kind)                                                          \
    inline type name(unsigned mask, type value)                                                    \
    {                                                                                              \
        return (type)LANES_MEET(kind, mask, 0, 0, value, value);                                   \
    }
LANES_REDUCTION(unsigned, __reduce_add_sync, REDUCE_ADD)
LANES_REDUCTION(unsigned, __reduce_min_sync, REDUCE_MIN)
LANES_REDUCTION(unsigned, __reduce_max_sync, REDUCE_MAX)
LANES_REDUCTION(int, __reduce_add_sync, REDUCE_ADD)
LANES_REDUCTION(int, __reduce_min_sync, REDUCE_SIGNED_MIN)
LANES_REDUCTION(int, __reduce_max_sync, REDUCE_SIGNED_MAX)
LANES_REDUCTION(unsigned, __reduce_and_sync, REDUCE_AND)
LANES_REDUCTION(unsigned, __reduce_or_sync, REDUCE_OR)
LANES_REDUCTION(unsigned, __reduce_xor_sync, REDUCE_XOR)

#define LANES_SHUFFLE(type, name, kind, what)                                                      \
    inline type name(unsigned mask, type value, what argument, int width = 32)                     \
    {                                                                                              \
        (void)argument, (void)width;                                                               \
        return (type)LANES_MEET(kind, mask, width, argument, value, value);                        \
    }
#define LANES_SHUFFLES(type)                                                                       \
    LANES_SHUFFLE(type, __shfl_sync, SHFL, int)                                                    \
    LANES_SHUFFLE(type, __shfl_up_sync, SHFL_UP, unsigned)                                         \
    LANES_SHUFFLE(type, __shfl_down_sync, SHFL_DOWN, unsigned)                                     \
    LANES_SHUFFLE(type, __shfl_xor_sync, SHFL_XOR, int)
LANES_SHUFFLES(int)
LANES_SHUFFLES(unsigned)
LANES_SHUFFLES(long)
LANES_SHUFFLES(unsigned long)
LANES_SHUFFLES(long long)
LANES_SHUFFLES(unsigned long long)

// Bits and bytes

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }
inline int __clz(int value) { return value ? __builtin_clz((unsigned)value) : 32; }
inline int __clzll(long long value)
{
    return value ? __builtin_clzll((unsigned long long)value) : 64;
}

inline unsigned __brev(unsigned value)
{
    value = __builtin_bswap32(value);
    value = (value >> 4 & 0x0f0f0f0fu) | (value & 0x0f0f0f0fu) << 4;
    value = (value >> 2 & 0x33333333u) | (value & 0x33333333u) << 2;
    return (value >> 1 & 0x55555555u) | (value & 0x55555555u) << 1;
}
inline unsigned long long __brevll(unsigned long long value)
{
    return (unsigned long long)__brev((unsigned)value) << 32 | __brev((unsigned)(value >> 32));
}

namespace lanes {
constexpr unsigned long long pair(unsigned low, unsigned high)
{
    return (unsigned long long)high << 32 | low;
}
constexpr unsigned clamped(unsigned shift) { return shift < 32 ? shift : 32; }
}  // namespace lanes

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(lanes::pair(low, high) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(lanes::pair(low, high) << lanes::clamped(shift) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(lanes::pair(low, high) >> (shift & 31));
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(lanes::pair(low, high) >> lanes::clamped(shift));
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    // The guide selects with three bits; the instruction behind it gives the fourth a meaning.
    if (selector & 0x8888) lanes::refuse("__byte_perm: bit 3 of a selector is set");
    unsigned long long bytes = lanes::pair(low, high);
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return result;
}

inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}

// Memory: caches are not modelled

template <typename T> inline T __ldg(const T* from) { return *from; }
template <typename T> inline T __ldca(const T* from) { return *from; }
template <typename T> inline T __ldcg(const T* from) { return *from; }
template <typename T> inline T __ldcs(const T* from) { return *from; }
template <typename T> inline T __ldlu(const T* from) { return *from; }
template <typename T> inline void __stcg(T* to, T value) { *to = value; }
template <typename T> inline void __stcs(T* to, T value) { *to = value; }
template <typename T> inline void __stwb(T* to, T value) { *to = value; }

#define LANES_ATOMIC(type, name, builtin)                                                          \
    inline type name(type* at, type value) { return builtin(at, value, __ATOMIC_RELAXED); }
#define LANES_ATOMIC_CHOICE(type, name, better)                                                    \
    inline type name(type* at, type value)                                                         \
    {                                                                                              \
        type old = __atomic_load_n(at, __ATOMIC_RELAXED);                                          \
        if (value better old) __atomic_store_n(at, value, __ATOMIC_RELAXED);                       \
        return old;                                                                                \
    }
#define LANES_ATOMICS(type)                                                                        \
    LANES_ATOMIC(type, atomicAdd, __atomic_fetch_add)                                              \
    LANES_ATOMIC(type, atomicAnd, __atomic_fetch_and)                                              \
    LANES_ATOMIC(type, atomicOr, __atomic_fetch_or)                                                \
    LANES_ATOMIC(type, atomicXor, __atomic_fetch_xor)                                              \
    LANES_ATOMIC(type, atomicExch, __atomic_exchange_n)                                            \
    LANES_ATOMIC_CHOICE(type, atomicMin, <)                                                        \
    LANES_ATOMIC_CHOICE(type, atomicMax, >)
LANES_ATOMICS(int)
LANES_ATOMICS(unsigned)
LANES_ATOMICS(unsigned long long)

// Smaller and larger: for the pairs of types for which CUDA has them, with CUDA's results

#define LANES_CHOICE(type, a, b)                                                                   \
    inline type min(a left, b right)                                                               \
    {                                                                                              \
        return (type)left < (type)right ? (type)left : (type)right;                                \
    }                                                                                              \
    inline type max(a left, b right)                                                               \
    {                                                                                              \
        return (type)left > (type)right ? (type)left : (type)right;                                \
    }
#define LANES_CHOICES(type)                                                                        \
    LANES_CHOICE(type, type, type)                                                                 \
    LANES_CHOICE(unsigned type, unsigned type, unsigned type)                                      \
    LANES_CHOICE(unsigned type, type, unsigned type)                                               \
    LANES_CHOICE(unsigned type, unsigned type, type)
LANES_CHOICES(int)
LANES_CHOICES(long)
LANES_CHOICES(long long)
