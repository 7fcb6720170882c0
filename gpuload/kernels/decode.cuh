// What the kernels of all codecs have in common.
#pragma once
#include "copy.cuh"
#include "sequences.cuh"
#include "wide.cuh"

// Where a codec's decoder is in the stored bytes and in the slot.
template <int LANES, class Writer>
struct Decoder {
    const Group<LANES>& group;
    Stage<LANES>& stage;
    const Writer output;
    u8* dst;
    u32 capacity;
    u32 in, out;  // a place of the stage, and bytes decoded so far
};

// Codec<LANES>: a Decoder with `u32 decode()`, which returns a Status.
template <template <int> class Codec, u32 ALGO, int LANES>
__device__ __forceinline__ void decode_chunks(const Params* params, u32 count, u32* status)
{
    __shared__ typename Codec<LANES>::Output::Memory work[LANES < 128 ? 128 / LANES : 1];
    const u32 chunk = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (chunk >= count || params[chunk].algo != ALGO) return;
    const Params& p = params[chunk];
    const Group<LANES> group;
    u32 state = LARGE, decoded = 0;
    if (!is_large(p)) {
        const Shared memory(&work[threadIdx.x / LANES]);
        Stage<LANES> stage(group, p.src, (u32)p.src_num_bytes, memory);
        Codec<LANES> codec{{group, stage, {group, memory}, p.dst, (u32)p.dst_num_bytes, stage.begin, 0}};
        state = codec.decode();
        decoded = codec.out;
    }
    if (group.lane == 0) {
        *p.dst_act_bytes = state == OK ? decoded : 0;
        status[chunk] = state;
    }
}
