// The bytes of every element in reverse. Bytes that are no whole element stay at the end.
#include "unit.cuh"

__device__ __forceinline__ u32 reversed(u32 word) { return __byte_perm(word, 0, 0x0123); }
__device__ __forceinline__ u32 reversed_pairs(u32 word) { return __byte_perm(word, 0, 0x2301); }

__device__ __forceinline__ uint4 swapped(const uint4& row, u32 size)
{
    if (size == 2)
        return make_uint4(reversed_pairs(row.x), reversed_pairs(row.y), reversed_pairs(row.z), reversed_pairs(row.w));
    const uint4 words = make_uint4(reversed(row.x), reversed(row.y), reversed(row.z), reversed(row.w));
    if (size == 4) return words;
    if (size == 8) return make_uint4(words.y, words.x, words.w, words.z);
    return make_uint4(words.w, words.z, words.y, words.x);
}

template <int LANES>
__device__ void swap_units(const Params* params, u32 count, u32*)
{
    __shared__ __align__(16) u8 tiles[Groups<LANES>::COUNT][TILE + BEHIND];
    const Unit* const found = operation_of<Unit, LANES>(params, count, SWAP);
    if (!found) return;
    const Unit unit = *found;
    const Group<LANES> group;
    u8* const tile = tiles[Groups<LANES>::own()];
    const u32 size = unit.element;
    const u64 bytes = of_whole(unit, unit.size / size * size);
    copy_tail(group, unit.dst + bytes, unit.src + unit.start + bytes, unit.room - bytes);
    if (size != 2 && size != 4 && size != 8 && size != 16) {
        for (u64 i = group.lane; i < bytes; i += LANES) {
            const u64 at = unit.start + i;
            unit.dst[i] = unit.src[at + size - 1 - 2 * (at % size)];
        }
        return;
    }
    for (u64 done = 0; done < bytes; done += TILE) {
        const u32 some = smaller(TILE, bytes - done);
        each_row(group, unit.src, unit.size, unit.start + done, some,
                 [&](u32 i, const uint4& row) { ((uint4*)tile)[i] = swapped(row, size); });
        group.sync();
        write_tile(group, unit.dst + done, tile, some);
        group.sync();
    }
}

KERNEL(swap, swap_units, 128, 8)
HOST_KERNEL(swap, swap_units)
