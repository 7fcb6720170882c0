// Boxes of elements, from chunks to where they belong; see boxes.cuh.
#include "boxes.cuh"

// Bytes of a run along the last axis that a warp copies at a time, and elements from which on one does.
enum : u32 { RUN_BYTES = 4096, LONG = 64 };

template <int LANES>
struct Warps {
    enum : u32 { WIDTH = LANES < 32 ? LANES : 32, COUNT = LANES / WIDTH };
};

// Bytes that stand one behind the other in both places, by a warp.
template <int WIDTH>
__device__ __forceinline__ void copy_run(const Group<WIDTH>& warp, u8* dst, const u8* src, u32 size)
{
    if ((((u64)dst | (u64)src | size) & 15) == 0) {
#pragma unroll 4
        for (u32 i = warp.lane; i < size / 16; i += WIDTH) ((uint4*)dst)[i] = __ldg((const uint4*)src + i);
    } else {
        copy(warp, dst, src, size);
    }
}

// Elements that stand apart, by a warp.
template <class Element, int WIDTH>
__device__ __forceinline__ void copy_apart(
    const Group<WIDTH>& warp, u8* dst, const u8* src, const Axis& axis, u32 count)
{
#pragma unroll 4
    for (u32 i = warp.lane; i < count; i += WIDTH)
        *(Element*)(dst + i * axis.dst) = __ldg((const Element*)(src + i * axis.src));
}

// Long runs along the last axis: a warp takes a piece of one.
template <int LANES>
__device__ __forceinline__ void copy_runs(const Group<LANES>& group, const Box& box, const Axes& found)
{
    typedef Warps<LANES> Of;
    const Axis axis = found.axes[0];
    const u32 size = found.element, each = RUN_BYTES / size, pieces = (axis.extent + each - 1) / each;
    const bool dense = axis.src == size && axis.dst == size;
    const Share share(box, count_from(found, 1) * pieces);
    const Group<Of::WIDTH> warp;
    for (u64 number = share.first + group.lane / Of::WIDTH; number < share.last; number += Of::COUNT) {
        const u64 run = number / pieces;
        const u32 first = (u32)(number - run * pieces) * each;
        const u32 count = axis.extent - first < each ? axis.extent - first : each;
        const Offsets at = offsets_of(found, 1, run);
        u8* const dst = box.dst + at.dst + first * axis.dst;
        const u8* const src = box.src + at.src + first * axis.src;
        if (dense)
            copy_run(warp, dst, src, count * size);
        else if (size == 1)
            copy_apart<u8>(warp, dst, src, axis, count);
        else if (size == 2)
            copy_apart<u16>(warp, dst, src, axis, count);
        else if (size == 4)
            copy_apart<u32>(warp, dst, src, axis, count);
        else if (size == 8)
            copy_apart<u64>(warp, dst, src, axis, count);
        else
            copy_apart<uint4>(warp, dst, src, axis, count);
    }
}

template <class Element>
__device__ __forceinline__ void copy_element(u8* dst, const u8* src)
{
    *(Element*)dst = __ldg((const Element*)src);
}

// Short ones: every lane looks for its own elements.
template <int LANES>
__device__ __forceinline__ void copy_elements(const Group<LANES>& group, const Box& box, const Axes& found)
{
    const u32 size = found.element;
    const Share share(box, count_from(found, 0));
#pragma unroll 1
    for (u64 number = share.first + group.lane; number < share.last; number += LANES) {
        const Offsets at = offsets_of(found, 0, number);
        u8* const dst = box.dst + at.dst;
        const u8* const src = box.src + at.src;
        switch (size) {
        case 1: copy_element<u8>(dst, src); break;
        case 2: copy_element<u16>(dst, src); break;
        case 4: copy_element<u32>(dst, src); break;
        case 8: copy_element<u64>(dst, src); break;
        case 16: copy_element<uint4>(dst, src); break;
        }
    }
}

// Elements along the last axis and along the one that is the last in the source, as many of either as
// make 64 to 256 bytes.
__device__ __forceinline__ u32 side_of(u32 size) { return size <= 2 ? 64 : size <= 8 ? 32 : 16; }

enum : u32 { SQUARE_BYTES = 8704 };

struct Square {
    u8* dst;
    const u8* src;
    Axis along, other;  // their extents are those of the square
};

template <class Element, int LANES>
__device__ __forceinline__ void copy_square(const Group<LANES>& group, const Square& square, u8* tile)
{
    const u32 SIZE = sizeof(Element), SIDE = SIZE <= 2 ? 64 : SIZE <= 8 ? 32 : 16;
    // Neighbours of a column are in different banks of shared memory.
    const u32 PITCH = SIDE * SIZE + (SIZE < 4 ? 4 : SIZE);
    static_assert(SIDE * PITCH <= SQUARE_BYTES, "the tile has room");
    const Axis &along = square.along, &other = square.other;
#pragma unroll 4
    for (u32 i = group.lane; i < SIDE * SIDE; i += LANES) {
        const u32 x = i / SIDE, y = i % SIDE;
        if (x < along.extent && y < other.extent)
            *(Element*)(tile + x * PITCH + y * SIZE) =
                __ldg((const Element*)(square.src + x * along.src + y * other.src));
    }
    group.sync();
#pragma unroll 4
    for (u32 i = group.lane; i < SIDE * SIDE; i += LANES) {
        const u32 x = i % SIDE, y = i / SIDE;
        if (x < along.extent && y < other.extent)
            *(Element*)(square.dst + x * along.dst + y * other.dst) = *(const Element*)(tile + x * PITCH + y * SIZE);
    }
    group.sync();
}

template <int LANES>
__device__ __forceinline__ void copy_squares(const Group<LANES>& group, const Box& box, const Axes& found, u8* tile)
{
    const Axis along = found.axes[0], other = found.axes[1];
    const u32 size = found.element, side = side_of(size);
    const u32 columns = (along.extent + side - 1) / side, rows = (other.extent + side - 1) / side;
    const Share share(box, count_from(found, 2) * columns * rows);
    for (u64 number = share.first; number < share.last; number++) {
        const u64 row_number = number / columns;
        const u32 x = (u32)(number % columns) * side, y = (u32)(row_number % rows) * side;
        const Offsets at = offsets_of(found, 2, row_number / rows);
        Square square{box.dst + at.dst + x * along.dst + y * other.dst, box.src + at.src + x * along.src + y * other.src,
                      along, other};
        square.along.extent = along.extent - x < side ? along.extent - x : side;
        square.other.extent = other.extent - y < side ? other.extent - y : side;
        switch (size) {
        case 1: copy_square<u8>(group, square, tile); break;
        case 2: copy_square<u16>(group, square, tile); break;
        case 4: copy_square<u32>(group, square, tile); break;
        case 8: copy_square<u64>(group, square, tile); break;
        case 16: copy_square<uint4>(group, square, tile); break;
        }
    }
}

template <int LANES>
__device__ void copy_boxes(const Params* params, u32 count, u32*)
{
    // Only a block has tiles: what a warp copies is small.
    __shared__ __align__(16) u8 tiles[Groups<LANES>::COUNT][LANES == 32 ? 16 : SQUARE_BYTES];
    __shared__ Axes all[Groups<LANES>::COUNT];
    const Box* const given = operation_of<Box, LANES>(params, count, BOXES);
    if (!given) return;
    const Box box = *given;
    const Group<LANES> group;
    u8* const tile = tiles[Groups<LANES>::own()];
    Axes& found = all[Groups<LANES>::own()];
    find_axes(group, box, found);
    if (LANES != 32 && found.tiled)
        copy_squares(group, box, found, tile);
    else if (found.axes[0].extent >= LONG)
        copy_runs(group, box, found);
    else
        copy_elements(group, box, found);
}

KERNEL(boxes, copy_boxes, 32, 6)
KERNEL(boxes, copy_boxes, 128, 6)
HOST_KERNEL(boxes, copy_boxes)
