// What the kernels of all checksums have in common.
//
// They take the parameters of decoders and read them otherwise: src and src_num_bytes are the bytes
// to sum up, nothing is written to dst, and what becomes of an operation's status is its sum.
//
// Where dst_act_bytes is not null, it is the decoded size of a chunk, of which these bytes are a
// part: the one that starts dst_num_bytes behind the first. It may end before src_num_bytes then.
#pragma once
#include "group.cuh"

__device__ __forceinline__ u64 bytes_to_sum(const Params& p)
{
    if (!p.dst_act_bytes) return p.src_num_bytes;
    const u64 decoded = *p.dst_act_bytes, before = p.dst_num_bytes;
    const u64 present = decoded > before ? decoded - before : 0;
    return present < p.src_num_bytes ? present : p.src_num_bytes;
}

// Reads of memory that nobody writes to meanwhile, and that is no block's own.
__device__ __forceinline__ u32 fetch(const u32* from)
{
#ifdef __CUDA_ARCH__
    u32 value;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
#else
    return *from;
#endif
}

__device__ __forceinline__ uint4 fetch(const uint4* from)
{
#ifdef __CUDA_ARCH__
    uint4 value;
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(from));
    return value;
#else
    return *from;
#endif
}
