// From planes, the first bytes of all elements, their second bytes, and so on, to elements.
#pragma once
#include "unit.cuh"

// The smallest element that is taken byte by byte without a tile.
enum : u32 { LARGE_ELEMENT = 257 };

// Elements of SIZE bytes, four at a time: a word of each plane. The tile has room for whole fours.
template <int SIZE, int LANES, class Bytes>
__device__ __forceinline__ void join_fours(
    const Group<LANES>& group, u8* tile, const Bytes& bytes, u64 first, u64 pitch, u32 elements)
{
#pragma unroll(SIZE >= 8 ? 1 : 8 / SIZE)
    for (u32 four = group.lane; 4 * four < elements; four += LANES) {
        u32 words[SIZE], joined[SIZE];
#pragma unroll
        for (u32 plane = 0; plane < SIZE; plane++) words[plane] = bytes.word(first + plane * pitch + 4 * four);
        if constexpr (SIZE == 2) {
            joined[0] = __byte_perm(words[0], words[1], 0x5140);
            joined[1] = __byte_perm(words[0], words[1], 0x7362);
            *(uint2*)(tile + 8 * four) = make_uint2(joined[0], joined[1]);
        } else {
#pragma unroll
            for (u32 part = 0; part < SIZE / 4; part++) {
                u32 turned[4];
                turn(words[4 * part], words[4 * part + 1], words[4 * part + 2], words[4 * part + 3], turned);
#pragma unroll
                for (u32 k = 0; k < 4; k++) joined[k * (SIZE / 4) + part] = turned[k];
            }
#pragma unroll
            for (u32 k = 0; k < SIZE; k += 4)
                *(uint4*)(tile + 4 * SIZE * four + 4 * k) =
                    make_uint4(joined[k], joined[k + 1], joined[k + 2], joined[k + 3]);
        }
    }
}

// Elements of any size: a byte of each plane.
template <int LANES>
__device__ __forceinline__ void join_bytes(
    const Group<LANES>& group, u8* tile, const u8* planes, u64 pitch, u32 elements, u32 size)
{
    for (u32 element = group.lane; element < elements; element += LANES) {
        const u8* from = planes + element;
        u8* const to = tile + element * size;
#pragma unroll 8
        for (u32 plane = 0; plane < size; plane++, from += pitch) to[plane] = *from;
    }
}
