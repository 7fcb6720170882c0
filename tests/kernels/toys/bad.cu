// Toys that do what they must not do.
#include "toys.cuh"

// Reversal with nothing between the writes and the reads.
TOY(racy, 32)
{
    __shared__ u8 bytes[4][32];
    const u32 warp = threadIdx.x / 32;
    __syncwarp(mask);
    bytes[warp][lane] = p.src[lane];
    p.dst[lane] = bytes[warp][31 - lane];
}

// Reversal with a vote in between, which does not order memory accesses.
TOY(voted, 32)
{
    __shared__ u8 bytes[4][32];
    const u32 warp = threadIdx.x / 32;
    __syncwarp(mask);
    bytes[warp][lane] = p.src[lane];
    (void)__ballot_sync(mask, 1);
    p.dst[lane] = bytes[warp][31 - lane];
}

// The same of a block.
TOY(careless, 128)
{
    __shared__ u8 bytes[128];
    __syncthreads();
    bytes[lane] = p.src[lane];
    __syncwarp();
    p.dst[lane] = bytes[127 - lane];
}

// Calls of a block that CUDA leaves undefined; word 0 says which.
TOY(unblocked, 128)
{
    switch (ask(p, 0)) {
    case 0: lane < 64 ? __syncthreads() : (void)__syncthreads_or(1); break;
    case 1: lane != 70 ? __syncthreads() : __syncwarp(); break;
    }
}

// Lanes that read what others wrote to the slot.
TOY(unordered, 32)
{
    p.dst[lane] = p.src[lane];
    (void)__shfl_sync(mask, lane, 0);
    if (lane == 31) p.dst[0] = p.dst[1];
}

// Calls that CUDA leaves undefined; word 0 says which.
TOY(undefined, 32)
{
    switch (ask(p, 0)) {
    case 0: lane < 16 ? (void)__any_sync(mask, 1) : (void)__ballot_sync(mask, 1); break;
    case 1: __syncwarp(lane < 16 ? mask : mask & ~1u); break;
    case 2: __syncwarp(mask & ~(1u << lane)); break;
    case 3: if (lane != 5) __syncwarp(mask); break;
    case 4: __syncwarp(lane < 16 ? 0x0001ffffu : 0xffff8000u); break;
    case 5: for (;;) __syncwarp(mask); break;
    case 6: (void)__shfl_sync(mask, lane, 0, lane < 16 ? 16 : 32); break;
    case 7: (void)__shfl_sync(mask, lane, 0, 12); break;
    case 8: (void)__shfl_down_sync(mask, lane, 32); break;
    case 9: (void)__byte_perm(lane, lane, 0x8000); break;
    case 10: if (lane == 3) return; __syncwarp(mask); break;
    case 11: __syncthreads(); break;
    }
}

// The value of a lane outside of the mask, which is undefined.
TOY(foreign, 8) { put(p, lane, __shfl_sync(mask, lane, (threadIdx.x + 8) % 32, 32)); }

// Accesses outside of what there is: word 0 says what, word 1 where.
TOY(outside, 32)
{
    __shared__ u32 words[32];
    const u32 what = ask(p, 0), index = ask(p, 1);
    volatile u32 sink = 0;
    if (lane != 17) return;
    switch (what) {
    case 0: sink = p.src[(int)index]; break;
    case 1: p.dst[(int)index] = 1; break;
    case 2: ((volatile u32*)words)[index] = 1; break;
    case 3: {
        volatile u8 local[16] = {0};
        sink = ((volatile u8*)local)[(int)index];
        break;
    }
    case 4: {
        volatile u8* heap = new u8[p.dst_num_bytes];
        sink = heap[index];
        delete[] heap;
        break;
    }
    case 5: sink = *(const volatile u32*)(p.src + index); break;
    case 6: sink = 1u << index; break;
    case 7: p.dst_act_bytes[index] = 1; break;
    case 8: sink = ((const volatile u8*)&p)[index]; break;
    case 9: ((volatile u8*)p.src)[index] = 1; break;
    }
}

__device__ static u32 deeper(u32 depth)
{
    volatile u8 frame[1024];
    frame[depth % 1024] = (u8)depth;
    return depth ? deeper(depth - 1) + frame[depth % 1024] : 0;
}
TOY(deep, 32) { put(p, lane, deeper(ask(p, 0))); }

TOY(endless, 32)
{
    for (volatile bool forever = true; forever;) {
    }
}

// Says that one byte less was decoded than was written.
extern "C" __global__ void untidy_1(const Params* params, u32 count, u32* status)
{
    const u32 operation = blockIdx.x * blockDim.x + threadIdx.x;
    if (operation >= count) return;
    const Params& p = params[operation];
    for (u32 i = 0; i < p.dst_num_bytes; i++) p.dst[i] = 0;
    *p.dst_act_bytes = (u32)p.dst_num_bytes - 1;
    status[operation] = OK;
}

// Says nothing.
extern "C" __global__ void silent_1(const Params* params, u32 count, u32*)
{
    const u32 operation = blockIdx.x * blockDim.x + threadIdx.x;
    if (operation < count) *params[operation].dst_act_bytes = 0;
}
