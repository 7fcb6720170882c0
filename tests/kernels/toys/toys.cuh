// What the toys share. A toy decodes nothing: src holds what it is asked, dst gets the answer.
#pragma once
#include "batch.cuh"

// An entry point whose body runs in every lane of the group that has operation `p`.
#define TOY(name, lanes)                                                                           \
    __device__ static void name##_body(const Params& p, u32 lane, u32 mask);                       \
    extern "C" __global__ void name##_##lanes(const Params* params, u32 count, u32* status)        \
    {                                                                                              \
        const u32 operation = (blockIdx.x * blockDim.x + threadIdx.x) / lanes;                     \
        if (operation >= count) return;                                                            \
        const u32 lane = threadIdx.x % lanes, first = lanes < 32 ? threadIdx.x % 32 - lane : 0;    \
        const u32 mask = lanes < 32 ? (1u << lanes % 32) - 1 : ~0u;                                \
        name##_body(params[operation], lane, mask << first);                                       \
        if (lane) return;                                                                          \
        *params[operation].dst_act_bytes = (u32)params[operation].dst_num_bytes;                   \
        status[operation] = OK;                                                                    \
    }                                                                                              \
    __device__ static void name##_body([[maybe_unused]] const Params& p,                           \
                                       [[maybe_unused]] u32 lane, [[maybe_unused]] u32 mask)

__device__ static inline void put(const Params& p, u32 index, u32 value)
{
    for (u32 i = 0; i < 4; i++) p.dst[4 * index + i] = (u8)(value >> 8 * i);
}

__device__ static inline u32 ask(const Params& p, u32 index)
{
    u32 value = 0;
    for (u32 i = 0; i < 4; i++) value |= (u32)p.src[4 * index + i] << 8 * i;
    return value;
}
