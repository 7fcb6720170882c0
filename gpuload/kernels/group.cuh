// A group of lanes that decodes one chunk, and how its lanes talk to each other.
#pragma once
#include "batch.cuh"

// Groups lie side by side in a warp. Every member must make every call of a group's methods. Only
// `sync` orders the memory accesses of the members.
template <int LANES>
struct Group {
    u32 lane;  // within the group
    u32 upto;  // a bit for each member up to this one

    __device__ __forceinline__ Group() : lane(thread() % LANES), upto((2u << lane) - 1) {}

    __device__ __forceinline__ u32 first() const { return threadIdx.x % 32 - lane; }

    __device__ __forceinline__ u32 mask() const
    {
        return LANES == 32 ? 0xffffffffu : ((1u << (LANES & 31)) - 1) << first();
    }

    __device__ __forceinline__ void sync() const { __syncwarp(mask()); }

    // from: modulo the number of lanes.
    __device__ __forceinline__ u32 get(u32 value, u32 from) const
    {
        return __shfl_sync(mask(), value, from, LANES);
    }

    // Bit i of the result is member i's.
    __device__ __forceinline__ u32 ballot(bool value) const
    {
        const u32 votes = __ballot_sync(mask(), value);
        return LANES == 32 ? votes : votes >> first();
    }

    __device__ __forceinline__ bool any(bool value) const { return __any_sync(mask(), value); }

    __device__ __forceinline__ u32 join(u32 bits) const
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
        for (int distance = LANES / 2; distance; distance /= 2)
            bits |= __shfl_xor_sync(mask(), bits, distance, LANES);
        return bits;
#else
        return __reduce_or_sync(mask(), bits);
#endif
    }

private:
    // Read once: the compiler would rather read it again and again than keep it.
    __device__ __forceinline__ static u32 thread()
    {
#ifdef __CUDA_ARCH__
        u32 id;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
        return id;
#else
        return threadIdx.x;
#endif
    }
};

// 1 << shift, and 0 where that lies outside of the word.
__device__ __forceinline__ u32 bit_or_none(u32 shift)
{
#ifdef __CUDA_ARCH__
    u32 bit;
    asm("shl.b32 %0, 1, %1;" : "=r"(bit) : "r"(shift));  // PTX clamps where C++ says nothing
    return bit;
#else
    return shift < 32 ? 1u << shift : 0;
#endif
}

// Entry points: codec_LANES decodes operation i of the batch with the i-th group of the grid.
#define KERNEL(codec, function, lanes, blocks)                                          \
    extern "C" __global__ void __launch_bounds__(128, blocks)                           \
        codec##_##lanes(const Params* params, u32 count, u32* status)                   \
    {                                                                                   \
        function<lanes>(params, count, status);                                         \
    }
#ifdef GPULOAD_HOST_LANES
#define HOST_KERNEL(codec, function) KERNEL(codec, function, 1, 1)
#else
#define HOST_KERNEL(codec, function)
#endif
