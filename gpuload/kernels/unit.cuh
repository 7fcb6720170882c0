// What the kernels of filters have in common.
//
// A unit is a chunk, or a block of one, whose bytes a filter rearranges. An operation is a part of
// what comes out of a unit, which a block of threads puts together in shared memory, tile by tile, so
// that whatever lies where, it is written in rows of 16 bytes from aligned addresses.
//
// Filters take the parameters of decoders and read them otherwise (gpuload/filters/plan.py has the
// same layouts). Every read is inside of the unit, every write inside of the part.
#pragma once
#include "group.cuh"

enum FilterAlgo : u32 {
    UNSHUFFLE = 1024, BIT_UNSHUFFLE = 1025, DELTA = 1026, SCALE = 1027, PACKBITS = 1028, SWAP = 1029, BOXES = 1030,
};

struct Unit {
    u64 size;        // bytes that go in, of the whole unit
    u64 room;        // bytes that come out, of this part
    u64 start;       // where this part starts among those of the unit
    const u8* src;   // of the unit
    u8* dst;         // of the part
    u32 algo;
    u32 element;     // bytes
    u64 total;       // bytes that come out of the whole unit
    u64 unused;
};
static_assert(sizeof(Unit) == sizeof(Params), "filters take the parameters of decoders");

// Bytes of a tile, and those behind it that may be read as part of a word.
enum : u32 { TILE = 8192, BEHIND = 16 };

__device__ __forceinline__ u32 smaller(u64 a, u64 b) { return (u32)(a < b ? a : b); }

// How many bytes of a part are among the first `whole` ones of its unit.
__device__ __forceinline__ u64 of_whole(const Unit& unit, u64 whole)
{
    const u64 rest = unit.start < whole ? whole - unit.start : 0;
    return unit.room < rest ? unit.room : rest;
}

// The bytes of a unit, in words from any address. Those ways to read them that have
// no branches let many reads be under way: whoever uses them knows what is there.
struct Aligned {
    const u8* first;

    __device__ __forceinline__ u32 word(u64 at) const { return __ldg((const u32*)(first + at)); }
};

// Reads up to 3 bytes in front of a word, and up to 7 behind.
struct Skewed {
    const u8* first;

    __device__ __forceinline__ u32 word(u64 at) const
    {
        const u8* const from = first + at;
        const u32 skew = (u32)(u64)from & 3;
        const u32* const words = (const u32*)(from - skew);
        return __funnelshift_r(__ldg(words), __ldg(words + (skew != 0)), 8 * skew);
    }
};

// Aligned ones in shared memory.
struct Near {
    const u8* first;

    __device__ __forceinline__ u32 word(u64 at) const { return *(const u32*)(first + at); }
};

// Bytes that are not there are 0.
struct Checked {
    const u8* first;
    u64 size;

    __device__ __forceinline__ u32 word(u64 at) const
    {
        u32 word = 0;
        for (u32 i = 0; i < 4; i++)
            if (at + i < size) word |= (u32)__ldg(first + at + i) << 8 * i;
        return word;
    }
};

// 16 bytes that stand one behind the other; those that are not there are 0.
__device__ __forceinline__ uint4 sixteen(const u8* first, u64 size, u64 at)
{
    const u8* const from = first + at;
    const u32 skew = (u32)(u64)from & 3;
    if (at + 16 <= size && !((u64)from & 15)) return __ldg((const uint4*)from);
    if (at >= skew && at - skew + 20 <= size) {
        const u32* const words = (const u32*)(from - skew);
        const u32 a = __ldg(words), b = __ldg(words + 1), c = __ldg(words + 2), d = __ldg(words + 3);
        const u32 e = __ldg(words + 3 + (skew != 0)), by = 8 * skew;
        return make_uint4(__funnelshift_r(a, b, by), __funnelshift_r(b, c, by), __funnelshift_r(c, d, by),
                          __funnelshift_r(d, e, by));
    }
    const Checked bytes{first, size};
    return make_uint4(bytes.word(at), bytes.word(at + 4), bytes.word(at + 8), bytes.word(at + 12));
}

// Calls use(i, row) for rows of 16 bytes that stand behind one another, up to one that has byte `some`.
template <int LANES, class Use>
__device__ __forceinline__ void each_row(
    const Group<LANES>& group, const u8* first, u64 size, u64 at, u32 some, Use use)
{
    const u32 rows = (some + 15) / 16;
    if (!((u64)(first + at) & 15) && at + 16 * rows <= size) {
        const uint4* const from = (const uint4*)(first + at);
#pragma unroll 4
        for (u32 i = group.lane; i < rows; i += LANES) use(i, __ldg(from + i));
    } else {
        for (u32 i = group.lane; i < rows; i += LANES) use(i, sixteen(first, size, at + 16 * i));
    }
}

// The bytes that 4 bytes of each of 4 words make, taken one of each word at a time.
__device__ __forceinline__ void turn(u32 a, u32 b, u32 c, u32 d, u32 (&turned)[4])
{
    const u32 ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
    const u32 high_ab = __byte_perm(a, b, 0x7362), high_cd = __byte_perm(c, d, 0x7362);
    turned[0] = __byte_perm(ab, cd, 0x5410);
    turned[1] = __byte_perm(ab, cd, 0x7632);
    turned[2] = __byte_perm(high_ab, high_cd, 0x5410);
    turned[3] = __byte_perm(high_ab, high_cd, 0x7632);
}

// Writes the first bytes of a tile to memory. The lanes have synchronised since the tile was made, and
// do so before it is made again.
template <int LANES>
__device__ __forceinline__ void write_tile(const Group<LANES>& group, u8* dst, const u8* tile, u32 size)
{
    const u32 head = smaller((0 - (u64)dst) & 15, size), rows = (size - head) / 16;
    uint4* const to = (uint4*)(dst + head);
    if (head == 0) {
        const uint4* const from = (const uint4*)tile;
#pragma unroll 4
        for (u32 i = group.lane; i < rows; i += LANES) to[i] = from[i];
    } else {
        const u32 skew = head & 3;
        const u32* const words = (const u32*)(tile + (head - skew));
        for (u32 i = group.lane; i < head; i += LANES) dst[i] = tile[i];
        for (u32 i = group.lane; i < rows; i += LANES) {
            u32 five[5];
#pragma unroll
            for (u32 k = 0; k < 5; k++) five[k] = words[4 * i + k];
#pragma unroll
            for (u32 k = 0; k < 4; k++) five[k] = __funnelshift_r(five[k], five[k + 1], 8 * skew);
            to[i] = make_uint4(five[0], five[1], five[2], five[3]);
        }
    }
    for (u32 i = head + 16 * rows + group.lane; i < size; i += LANES) dst[i] = tile[i];
}

template <int LANES>
__device__ __forceinline__ void copy_tail(const Group<LANES>& group, u8* dst, const u8* src, u64 size)
{
    for (u64 i = group.lane; i < size; i += LANES) dst[i] = src[i];
}

// Groups of a block; each has memory of its own. On a device there is one.
template <int LANES>
struct Groups {
    enum : u32 { COUNT = LANES < 128 ? 128 / LANES : 1 };

    __device__ __forceinline__ static u32 own() { return threadIdx.x / LANES; }
    __device__ __forceinline__ static u32 number() { return blockIdx.x * (blockDim.x / LANES) + own(); }
};

// The operation of a group, or nullptr if it is none of this kernel's.
template <class Operation, int LANES>
__device__ __forceinline__ const Operation* operation_of(const Params* params, u32 count, u32 algo)
{
    const u32 number = Groups<LANES>::number();
    if (number >= count || params[number].algo != algo) return nullptr;
    return reinterpret_cast<const Operation*>(params + number);
}
