// Copies of bytes by a group of lanes.
#pragma once
#include "group.cuh"

__device__ __forceinline__ u32 misaligned(const void* address) { return (u32)(u64)address & 3; }

// Have a byte that is read soon come nearer.
__device__ __forceinline__ void prefetch(const u8* address)
{
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
#endif
}

template <int LANES>
__device__ __forceinline__ void copy_bytes(const Group<LANES>& group, u8* dst, const u8* src, u32 size)
{
    for (u32 i = group.lane; i < size; i += LANES) dst[i] = src[i];
}

// dst and src do not overlap. Reads and writes nothing outside of the two.
template <int LANES>
__device__ void copy(const Group<LANES>& group, u8* dst, const u8* src, u32 size)
{
    if (size < 32) return copy_bytes(group, dst, src, size);
    // Words of dst are whole; those of src straddle two, the first of which starts before the bytes
    // that are wanted: 4 bytes more in front keep it within src.
    const u32 head = (4 - misaligned(dst)) + 4;
    copy_bytes(group, dst, src, head);
    dst += head, src += head, size -= head;
    const u32 skew = misaligned(src);
    const u32* from = (const u32*)(src - skew);
    u32* to = (u32*)dst;
    const u32 words = (size - (skew ? 4 - skew : 0)) / 4;
    if (skew == 0) {
#pragma unroll 4
        for (u32 i = group.lane; i < words; i += LANES) to[i] = from[i];
    } else {
#pragma unroll 4
        for (u32 i = group.lane; i < words; i += LANES)
            to[i] = __funnelshift_r(from[i], from[i + 1], 8 * skew);
    }
    copy_bytes(group, dst + 4 * words, src + 4 * words, size - 4 * words);
}

// Writes size bytes at dst that repeat the offset bytes before it. What lies before dst was written
// by the group, and its lanes have synchronised since.
template <int LANES>
__device__ void repeat(const Group<LANES>& group, u8* dst, u32 offset, u32 size)
{
    // What is copied doubles the period of what can be copied next.
    while (size > offset) {
        copy(group, dst, dst - offset, offset);
        group.sync();
        dst += offset, size -= offset;
        offset = offset < 0x40000000u ? 2 * offset : offset;
    }
    copy(group, dst, dst - offset, size);
}
