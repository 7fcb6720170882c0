// The inverse of the byte shuffles of Blosc 1, HDF5 and numcodecs: byte 0 of every element comes first,
// then byte 1 of every element, and so on. Bytes that are no whole element stay at the end.
#include "planes.cuh"

// Elements from `first` on of a unit of `count`, to a tile.
template <int SIZE, int LANES>
__device__ __forceinline__ void join_words(
    const Group<LANES>& group, u8* tile, const Unit& unit, u64 count, u64 first, u32 elements)
{
    const bool whole = elements % 4 == 0;
    const bool aligned = (((u64)unit.src | count | first) & 3) == 0;
    const bool inside = first >= 4 && first + elements + 8 <= count;
    if (aligned && whole)
        join_fours<SIZE>(group, tile, Aligned{unit.src}, first, count, elements);
    else if (inside)
        join_fours<SIZE>(group, tile, Skewed{unit.src}, first, count, elements);
    else
        join_fours<SIZE>(group, tile, Checked{unit.src, unit.size}, first, count, elements);
}

template <int LANES>
__device__ __forceinline__ void join_large(const Group<LANES>& group, const Unit& unit, u64 count, u64 bytes)
{
    for (u64 i = group.lane; i < bytes; i += LANES) {
        const u64 at = unit.start + i;
        unit.dst[i] = unit.src[at % unit.element * count + at / unit.element];
    }
}

template <int LANES>
__device__ void unshuffle_units(const Params* params, u32 count, u32*)
{
    __shared__ __align__(16) u8 tiles[Groups<LANES>::COUNT][TILE + BEHIND];
    const Unit* const found = operation_of<Unit, LANES>(params, count, UNSHUFFLE);
    if (!found) return;
    const Unit unit = *found;
    const Group<LANES> group;
    u8* const tile = tiles[Groups<LANES>::own()];
    const u64 elements = unit.size / unit.element, whole = elements * unit.element;
    const u64 bytes = of_whole(unit, whole);
    copy_tail(group, unit.dst + bytes, unit.src + unit.start + bytes, unit.room - bytes);
    if (unit.element >= LARGE_ELEMENT) return join_large(group, unit, elements, bytes);
    const u32 step = TILE / unit.element * unit.element;
    for (u64 done = 0; done < bytes; done += step) {
        const u32 size = smaller(step, bytes - done), some = size / unit.element;
        const u64 first = (unit.start + done) / unit.element;
        switch (unit.element) {
        case 2: join_words<2>(group, tile, unit, elements, first, some); break;
        case 4: join_words<4>(group, tile, unit, elements, first, some); break;
        case 8: join_words<8>(group, tile, unit, elements, first, some); break;
        case 16: join_words<16>(group, tile, unit, elements, first, some); break;
        default: join_bytes(group, tile, unit.src + first, elements, some, unit.element);
        }
        group.sync();
        write_tile(group, unit.dst + done, tile, size);
        group.sync();
    }
}

KERNEL(unshuffle, unshuffle_units, 128, 8)
HOST_KERNEL(unshuffle, unshuffle_units)
