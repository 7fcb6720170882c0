// The inverse of Blosc 1's bit shuffle: bit 0 of byte 0 of every element comes first, then bit 1 of
// byte 0, and so on. Elements behind a multiple of 8 stay at the end, and so do bytes that are no whole
// element.
//
// Rows of bits become planes of bytes first, and these become elements.
#include "planes.cuh"

// 32 elements' bytes from a word of each of the 8 rows of their bits.
__device__ __forceinline__ void join_bits(const u32 (&rows)[8], u32 (&bytes)[8])
{
    u32 low[4], high[4];
    turn(rows[0], rows[1], rows[2], rows[3], low);
    turn(rows[4], rows[5], rows[6], rows[7], high);
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u32 x = low[k], y = high[k], flipped;
        flipped = (x ^ x >> 7) & 0x00aa00aa, x ^= flipped ^ flipped << 7;
        flipped = (y ^ y >> 7) & 0x00aa00aa, y ^= flipped ^ flipped << 7;
        flipped = (x ^ x >> 14) & 0x0000cccc, x ^= flipped ^ flipped << 14;
        flipped = (y ^ y >> 14) & 0x0000cccc, y ^= flipped ^ flipped << 14;
        flipped = (x ^ y << 4) & 0xf0f0f0f0, x ^= flipped, y ^= flipped >> 4;
        bytes[2 * k] = x, bytes[2 * k + 1] = y;
    }
}

// Planes of `pitch` elements, a multiple of 32. first: of the elements, a multiple of 8.
template <int LANES, class Bytes>
__device__ __forceinline__ void join_rows(
    const Group<LANES>& group, u8* planes, const Bytes& bytes, u64 first, u64 row, u32 elements, u32 pitch, u32 size)
{
    const u32 words = (elements + 31) / 32;
#pragma unroll 2
    for (u32 i = group.lane; i < words * size; i += LANES) {
        const u32 plane = i / words, word = i % words;
        u32 rows[8], joined[8];
#pragma unroll
        for (u32 bit = 0; bit < 8; bit++) rows[bit] = bytes.word((8 * plane + bit) * row + first / 8 + 4 * word);
        join_bits(rows, joined);
        uint4* const to = (uint4*)(planes + plane * pitch + 32 * word);
        to[0] = make_uint4(joined[0], joined[1], joined[2], joined[3]);
        to[1] = make_uint4(joined[4], joined[5], joined[6], joined[7]);
    }
}

template <int LANES>
__device__ __forceinline__ void join_any_rows(
    const Group<LANES>& group, u8* planes, const Unit& unit, u64 first, u64 count, u32 elements, u32 pitch)
{
    const u64 row = count / 8;
    const bool aligned = (((u64)unit.src | row | first / 8) & 3) == 0;
    const bool inside = first >= 32 && first + elements + 96 <= count;
    if (aligned && elements % 32 == 0)
        join_rows(group, planes, Aligned{unit.src}, first, row, elements, pitch, unit.element);
    else if (inside)
        join_rows(group, planes, Skewed{unit.src}, first, row, elements, pitch, unit.element);
    else
        join_rows(group, planes, Checked{unit.src, unit.size}, first, row, elements, pitch, unit.element);
}

template <int LANES>
__device__ __forceinline__ void join_large(const Group<LANES>& group, const Unit& unit, u64 count, u64 bytes)
{
    for (u64 i = group.lane; i < bytes; i += LANES) {
        const u64 element = (unit.start + i) / unit.element, plane = (unit.start + i) % unit.element;
        u32 joined = 0;
        for (u32 bit = 0; bit < 8; bit++)
            joined |= (unit.src[(8 * plane + bit) * (count / 8) + element / 8] >> element % 8 & 1u) << bit;
        unit.dst[i] = (u8)joined;
    }
}

template <int LANES>
__device__ void bit_unshuffle_units(const Params* params, u32 count, u32*)
{
    __shared__ __align__(16) u8 all_planes[Groups<LANES>::COUNT][TILE + BEHIND];
    __shared__ __align__(16) u8 tiles[Groups<LANES>::COUNT][TILE + BEHIND];
    const Unit* const found = operation_of<Unit, LANES>(params, count, BIT_UNSHUFFLE);
    if (!found) return;
    const Unit unit = *found;
    const Group<LANES> group;
    u8* const planes = all_planes[Groups<LANES>::own()];
    u8* const tile = tiles[Groups<LANES>::own()];
    const u32 size = unit.element;
    const u64 elements = unit.size / size / 8 * 8;
    const u64 bytes = of_whole(unit, elements * size);
    copy_tail(group, unit.dst + bytes, unit.src + unit.start + bytes, unit.room - bytes);
    if (size >= LARGE_ELEMENT) return join_large(group, unit, elements, bytes);
    const u32 pitch = TILE / size / 32 * 32 ? TILE / size / 32 * 32 : 32;
    for (u64 done = 0; done < bytes; done += pitch * size) {
        const u32 some = smaller(pitch, (bytes - done) / size);
        join_any_rows(group, planes, unit, (unit.start + done) / size, elements, some, pitch);
        group.sync();
        switch (size) {
        case 1: break;
        case 2: join_fours<2>(group, tile, Near{planes}, 0, pitch, some); break;
        case 4: join_fours<4>(group, tile, Near{planes}, 0, pitch, some); break;
        case 8: join_fours<8>(group, tile, Near{planes}, 0, pitch, some); break;
        case 16: join_fours<16>(group, tile, Near{planes}, 0, pitch, some); break;
        default: join_bytes(group, tile, planes, pitch, some, size);
        }
        if (size > 1) group.sync();
        write_tile(group, unit.dst + done, size == 1 ? planes : tile, some * size);
        group.sync();
    }
}

KERNEL(bit_unshuffle, bit_unshuffle_units, 128, 8)
HOST_KERNEL(bit_unshuffle, bit_unshuffle_units)
