// The inverse of numcodecs' Delta for integers: running sums, which wrap around.
//
// A unit that is cut into parts takes three launches: the sum of every part, then what stands before
// each of them, then the running sums of each.
#include "unit.cuh"

struct Part {
    u64 size, room;  // bytes that go in and that come out
    u64* sums;       // of this part (or all of a unit's), then what stands before; may be null
    const u8* src;
    u8* dst;
    u32 algo;
    u32 kinds;  // bytes of what goes in, 16 more if it is signed; from bit 8 on of what comes out
    u32 stage;
    u32 parts;  // of the unit
    u64 unused;
};
static_assert(sizeof(Part) == sizeof(Params), "filters take the parameters of decoders");

enum DeltaStage : u32 { SUM = 0, ADD_UP = 1, RUN = 2 };

// Bytes of shared memory for a thread, and bytes of what comes out that it sums up.
enum : u32 { OWN = 32 };

// The sum of the values of lower lanes, and of all.
template <int LANES>
__device__ __forceinline__ u64 sum_before(const Group<LANES>& group, u64 value, u64* warps, u64& all)
{
    const Group<32>& warp = group.warp();
    u64 upto = value;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u64 other = __shfl_up_sync(0xffffffffu, upto, distance);
        if (warp.lane >= distance) upto += other;
    }
    if (warp.lane == 31) warps[group.lane / 32] = upto;
    group.sync();
    u64 before = 0;
    all = 0;
#pragma unroll
    for (u32 i = 0; i < LANES / 32; i++) {
        if (i < group.lane / 32) before += warps[i];
        all += warps[i];
    }
    group.sync();
    return before + upto - value;
}

template <>
__device__ __forceinline__ u64 sum_before<1>(const Group<1>&, u64 value, u64*, u64& all)
{
    all = value;
    return 0;
}

__device__ __forceinline__ u64 any_element(const u8* at, u32 kind)
{
    const u32 size = kind & 15;
    u64 value = 0;
    for (u32 i = 0; i < size; i++) value |= (u64)at[i] << 8 * i;
    const u32 unused = 64 - 8 * size;
    return kind & 16 ? (u64)((long long)(value << unused) >> unused) : value;
}

template <class Word>
__device__ __forceinline__ Word sum_of(const uint4& row)
{
    const u32 words[4] = {row.x, row.y, row.z, row.w};
    Word sum = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if (sizeof(Word) == 8) sum += (Word)((u64)words[i] << 32 * (i % 2));
#pragma unroll
        for (u32 shift = 0; sizeof(Word) < 8 && shift < 32; shift += 8 * sizeof(Word)) sum += (Word)(words[i] >> shift);
    }
    return sum;
}

// Bytes behind the last whole row are 0, which is nothing to a sum.
template <class Word, int LANES>
__device__ __forceinline__ u64 sum_rows(const Group<LANES>& group, const Part& part)
{
    Word sum = 0;
    for (u64 done = 0; done < part.size; done += TILE)
        each_row(group, part.src, part.size, done, smaller(TILE, part.size - done),
                 [&](u32, const uint4& row) { sum += sum_of<Word>(row); });
    return sum;
}

template <int LANES>
__device__ __forceinline__ void sum_part(const Group<LANES>& group, const Part& part, u64* warps)
{
    const u32 kind = part.kinds & 255, size = kind & 15;
    u64 sum = 0, all;
    if (size != part.kinds >> 8)
        for (u64 at = (u64)size * group.lane; at < part.size; at += size * LANES) sum += any_element(part.src + at, kind);
    else if (size == 1)
        sum = sum_rows<u8>(group, part);
    else if (size == 2)
        sum = sum_rows<u16>(group, part);
    else if (size == 4)
        sum = sum_rows<u32>(group, part);
    else
        sum = sum_rows<u64>(group, part);
    sum_before(group, sum, warps, all);
    if (group.lane == 0) *part.sums = all;
}

template <int LANES>
__device__ __forceinline__ void add_up(const Group<LANES>& group, const Part& unit, u64* warps)
{
    u64 before = 0, all;
    for (u32 first = 0; first < unit.parts; first += LANES) {
        const bool mine = first + group.lane < unit.parts;
        u64* const sum = unit.sums + first + group.lane;
        const u64 own = before + sum_before(group, mine ? *sum : 0, warps, all);
        if (mine) *sum = own;
        before += all;
    }
}

// Elements that stay as large as they are.
template <class Word, int LANES>
__device__ __forceinline__ void run(const Group<LANES>& group, const Part& part, u8* tile, u64* warps, u64 before)
{
    const u32 most = LANES * OWN;
    for (u64 done = 0; done < part.size; done += most) {
        const u32 some = smaller(most, part.size - done);
        each_row(group, part.src, part.size, done, some, [&](u32 i, const uint4& row) { ((uint4*)tile)[i] = row; });
        group.sync();
        union {
            uint4 rows[OWN / 16];
            Word words[OWN / sizeof(Word)];
        } own;
        uint4* const rows = (uint4*)(tile + OWN * group.lane);
#pragma unroll
        for (u32 i = 0; i < OWN / 16; i++) own.rows[i] = rows[i];
#pragma unroll
        for (u32 i = 1; i < OWN / sizeof(Word); i++) own.words[i] += own.words[i - 1];
        u64 all;
        const Word add = (Word)(before + sum_before(group, own.words[OWN / sizeof(Word) - 1], warps, all));
#pragma unroll
        for (u32 i = 0; i < OWN / sizeof(Word); i++) own.words[i] += add;
#pragma unroll
        for (u32 i = 0; i < OWN / 16; i++) rows[i] = own.rows[i];
        before += all;
        group.sync();
        write_tile(group, part.dst + done, tile, some);
        group.sync();
    }
}

// Elements that become larger or smaller, each thread as many as it has memory for.
template <class Word, int LANES>
__device__ __forceinline__ void run_any(const Group<LANES>& group, const Part& part, u8* tile, u64* warps, u64 before)
{
    const u32 kind = part.kinds & 255, size = kind & 15, each = OWN / sizeof(Word), most = LANES * each;
    const u64 count = part.room / sizeof(Word);
    for (u64 done = 0; done < count; done += most) {
        const u32 some = smaller(most, count - done);
        const u32 first = each * group.lane, mine = first < some ? smaller(each, some - first) : 0;
        Word* const own = (Word*)tile + first;
        const u8* const from = part.src + (done + first) * size;
        u64 sum = 0, all;
        for (u32 i = 0; i < mine; i++) own[i] = (Word)(sum += any_element(from + i * size, kind));
        const Word add = (Word)(before + sum_before(group, sum, warps, all));
        for (u32 i = 0; i < mine; i++) own[i] += add;
        before += all;
        group.sync();
        write_tile(group, part.dst + done * sizeof(Word), tile, some * (u32)sizeof(Word));
        group.sync();
    }
}

template <class Word, int LANES>
__device__ __forceinline__ void run_part(const Group<LANES>& group, const Part& part, u8* tile, u64* warps)
{
    const u64 before = part.sums ? *part.sums : 0;
    if ((part.kinds & 15) == sizeof(Word))
        run<Word>(group, part, tile, warps, before);
    else
        run_any<Word>(group, part, tile, warps, before);
}

template <int LANES>
__device__ void delta_units(const Params* params, u32 count, u32*)
{
    __shared__ __align__(16) u8 tiles[Groups<LANES>::COUNT][LANES * OWN + BEHIND];
    __shared__ u64 warps[4];
    const Part* const found = operation_of<Part, LANES>(params, count, DELTA);
    if (!found) return;
    const Part part = *found;
    const Group<LANES> group;
    u8* const tile = tiles[Groups<LANES>::own()];
    if (part.stage == SUM) return sum_part(group, part, warps);
    if (part.stage == ADD_UP) return add_up(group, part, warps);
    switch (part.kinds >> 8) {
    case 1: run_part<u8>(group, part, tile, warps); break;
    case 2: run_part<u16>(group, part, tile, warps); break;
    case 4: run_part<u32>(group, part, tile, warps); break;
    case 8: run_part<u64>(group, part, tile, warps); break;
    }
}

KERNEL(delta, delta_units, 128, 8)
HOST_KERNEL(delta, delta_units)
