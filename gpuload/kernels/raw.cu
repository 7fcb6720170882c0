// RAW: the stored bytes are the decoded ones.
#include "batch.cuh"
#include "copy.cuh"

template <int LANES>
__device__ void copy_chunks(const Params* params, u32 count, u32* status)
{
    const u32 chunk = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (chunk >= count || params[chunk].algo != RAW) return;
    const Group<LANES> group;
    const Params& p = params[chunk];
    u32 state = is_large(p) ? LARGE : p.src_num_bytes > p.dst_num_bytes ? FULL : OK;
    if (state == OK) copy(group, p.dst, p.src, (u32)p.src_num_bytes);
    if (group.lane == 0) {
        *p.dst_act_bytes = state == OK ? (u32)p.src_num_bytes : 0;
        status[chunk] = state;
    }
}

KERNEL(raw, copy_chunks, 32, 16)
KERNEL(raw, copy_chunks, 128, 16)
HOST_KERNEL(raw, copy_chunks)
