// A group of lanes that decodes one chunk, and how its lanes talk to each other.
#pragma once
#include "batch.cuh"

// Groups lie side by side in a warp. Every member must make every call of a group's methods. Only
// `sync` orders the memory accesses of the members.
template <int LANES>
struct Group {
    u32 lane;  // within the group
    u32 upto;  // a bit for each member up to this one

    __device__ __forceinline__ Group() : lane(thread() % LANES), upto((2u << lane) - 1)
    {
#ifdef __CUDA_ARCH__
        asm volatile("" : "+r"(upto));  // or it would be computed again wherever it is used
#endif
    }

    // Those that talk through registers: all of them.
    __device__ __forceinline__ const Group& warp() const { return *this; }

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

    __device__ __forceinline__ bool sync_any(bool value) const
    {
        sync();
        return any(value);
    }

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

// A block: four warps, for batches of so few chunks that a warp for each leaves the device idle.
template <>
struct Group<128> {
    u32 lane;

    __device__ __forceinline__ Group() : lane(threadIdx.x), of_warp() {}

    __device__ __forceinline__ const Group<32>& warp() const { return of_warp; }
    __device__ __forceinline__ void sync() const { __syncthreads(); }
    __device__ __forceinline__ bool sync_any(bool value) const { return __syncthreads_or(value); }

private:
    const Group<32> of_warp;
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

__device__ __forceinline__ bool is_large(const Params& p)
{
    return (p.src_num_bytes | p.dst_num_bytes) >> 30;
}

// Blocks of 128 threads that a multiprocessor is to hold at a time: as many as `wanted`, if it can.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define RESIDENT(wanted) (wanted < 8 ? wanted : 8)
#else
#define RESIDENT(wanted) wanted
#endif

// Entry points: codec_LANES decodes operation i of the batch with the i-th group of the grid.
// blocks: registers for more of them at a time would have to be kept in memory; measured.
#define KERNEL(codec, function, lanes, blocks)                                          \
    extern "C" __global__ void __launch_bounds__(128, RESIDENT(blocks))                 \
        codec##_##lanes(const Params* params, u32 count, u32* status)                   \
    {                                                                                   \
        function<lanes>(params, count, status);                                         \
    }
#ifdef GPULOAD_HOST_LANES
#define HOST_KERNEL(codec, function) KERNEL(codec, function, 1, 1)
#else
#define HOST_KERNEL(codec, function)
#endif
