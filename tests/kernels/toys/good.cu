// Toys that do nothing wrong.
#include "toys.cuh"

// Words: which collective, of what width; then each lane's value, then each lane's argument.
TOY(collective, 32)
{
    const u32 value = ask(p, 2 + lane), argument = ask(p, 34 + lane), width = ask(p, 1);
    u32 result = 0;
    switch (ask(p, 0)) {
    case 0: result = __any_sync(mask, value); break;
    case 1: result = __all_sync(mask, value); break;
    case 2: result = __ballot_sync(mask, value); break;
    case 3: result = __reduce_add_sync(mask, value); break;
    case 4: result = __reduce_min_sync(mask, value); break;
    case 5: result = __reduce_max_sync(mask, value); break;
    case 6: result = __reduce_min_sync(mask, (int)value); break;
    case 7: result = __reduce_max_sync(mask, (int)value); break;
    case 8: result = __reduce_and_sync(mask, value); break;
    case 9: result = __reduce_or_sync(mask, value); break;
    case 10: result = __reduce_xor_sync(mask, value); break;
    case 11: result = __shfl_sync(mask, value, argument, width); break;
    case 12: result = __shfl_up_sync(mask, value, argument, width); break;
    case 13: result = __shfl_down_sync(mask, value, argument, width); break;
    case 14: result = __shfl_xor_sync(mask, value, argument, width); break;
    }
    put(p, lane, result);
}

// The same of four groups of eight lanes: the value of each lane's right neighbour in its group.
TOY(neighbour, 8) { put(p, lane, __shfl_sync(mask, ask(p, lane), lane + 1, 8)); }

// Prefix sum, by shuffles.
TOY(prefix, 32)
{
    u32 sum = ask(p, lane);
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u32 before = __shfl_up_sync(mask, sum, distance);
        if (lane >= distance) sum += before;
    }
    put(p, lane, sum);
}

// Groups that meet a different number of times each.
TOY(countdown, 8)
{
    u32 met = 0;
    for (u32 left = ask(p, 0); __any_sync(mask, left); left--) met++;
    if (lane == 0) put(p, 0, met);
}

// Words: which function, then three operands.
TOY(bits, 1)
{
    const u32 a = ask(p, 1), b = ask(p, 2), c = ask(p, 3);
    const u64 wide = (u64)b << 32 | a;
    u32 result = 0;
    switch (ask(p, 0)) {
    case 0: result = __popc(a); break;
    case 1: result = __popcll(wide); break;
    case 2: result = __ffs(a); break;
    case 3: result = __ffsll(wide); break;
    case 4: result = __clz(a); break;
    case 5: result = __clzll(wide); break;
    case 6: result = __brev(a); break;
    case 7: result = (u32)(__brevll(wide) >> 16); break;
    case 8: result = __funnelshift_l(a, b, c); break;
    case 9: result = __funnelshift_lc(a, b, c); break;
    case 10: result = __funnelshift_r(a, b, c); break;
    case 11: result = __funnelshift_rc(a, b, c); break;
    case 12: result = __byte_perm(a, b, c); break;
    case 13: result = __umulhi(a, b); break;
    case 14: result = min(a, b); break;
    case 15: result = max((int)a, (int)b); break;
    case 16: result = min((int)a, b); break;
    }
    put(p, 0, result);
}

// Bytes in reverse, through shared memory.
TOY(reverse, 32)
{
    __shared__ u8 bytes[4][32];
    const u32 warp = threadIdx.x / 32;
    __syncwarp(mask);
    bytes[warp][lane] = p.src[lane];
    __syncwarp(mask);
    p.dst[lane] = bytes[warp][31 - lane];
}

// The same of a block: its warps wait for each other.
TOY(mirror, 128)
{
    __shared__ u8 bytes[128];
    __syncthreads();
    bytes[lane] = p.src[lane];
    __syncthreads();
    p.dst[lane] = bytes[127 - lane];
}

// Votes of a block, in which some lanes have returned.
TOY(block, 128)
{
    if (lane >= ask(p, 0)) return;
    const u32 yes = lane < ask(p, 1);
    const u32 votes[3] = {(u32)__syncthreads_count(yes), (u32)__syncthreads_and(yes),
                          (u32)__syncthreads_or(yes)};
    if (lane + 1 != ask(p, 0)) return;
    for (u32 i = 0; i < 3; i++) put(p, i, votes[i]);
}

// All lanes add to one word of shared memory, and find its least and its largest value.
TOY(atomics, 32)
{
    __shared__ u32 sum[4], least[4], most[4], bits[4];
    const u32 warp = threadIdx.x / 32, value = ask(p, lane);
    __syncwarp(mask);
    if (lane == 0) sum[warp] = 0, least[warp] = ~0u, most[warp] = 0, bits[warp] = 0;
    __syncwarp(mask);
    atomicAdd(&sum[warp], value);
    atomicMin(&least[warp], value);
    atomicMax(&most[warp], value);
    atomicOr(&bits[warp], value);
    __syncwarp(mask);
    if (lane) return;
    put(p, 0, sum[warp]), put(p, 1, least[warp]), put(p, 2, most[warp]), put(p, 3, bits[warp]);
}

// 16 bytes at once, aligned as they must be.
TOY(vectors, 1) { *(uint4*)p.dst = __ldg((const uint4*)p.src); }

// Leaves operations that are not LZ4 alone.
extern "C" __global__ void choosy_32(const Params* params, u32 count, u32* status)
{
    const u32 operation = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (operation >= count || params[operation].algo != LZ4 || threadIdx.x % 32) return;
    *params[operation].dst_act_bytes = 0;
    status[operation] = FULL;
}
