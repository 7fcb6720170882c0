// Boxes of elements that are copied from one place to another, each with its own distances.
//
// The axes come in the order of falling distances where the box goes to. Those that are no more than
// a longer one in both places are put together first. What is left is gone through in the order of the
// axes: a part takes its share of the runs along the last one, or of the elements, or of the tiles.
#pragma once
#include "copy.cuh"
#include "unit.cuh"

enum : u32 { MOST_AXES = 8 };

struct Box {
    const long long* extents;    // of each axis, from 1 to 2^30
    u64 unused;
    const long long* distances;  // in bytes: `axes` of the source, and as many of the destination
    const u8* src;
    u8* dst;
    u32 algo;
    u32 axes;     // at most MOST_AXES
    u32 element;  // 1, 2, 4, 8 or 16 bytes, of which all addresses and distances are multiples
    u32 part, parts;
    u32 unused_too;
};
static_assert(sizeof(Box) == sizeof(Params), "filters take the parameters of decoders");

struct Axis {
    long long src, dst;
    u32 extent;
};

// In shared memory. Axis 0 is the last one: neighbours there are closest where the box goes to.
struct Axes {
    Axis axes[MOST_AXES];
    u32 count;
    u32 element;  // bytes of what is copied at once: of several elements, if they always go together
    bool tiled;   // whether neighbours along axis 1 are closer in the source than those along axis 0
};

// Fewer elements along an axis are not worth a tile.
enum : u32 { WORTH_A_TILE = 8 };

__device__ __forceinline__ u64 absolute(long long value) { return value < 0 ? 0 - (u64)value : (u64)value; }

// Axes of one element are left out, and those that go on where the one before ends are joined to it.
__device__ __forceinline__ void join_axes(Axes& found)
{
    const u32 given = found.count;
    u32 count = 0;
    for (u32 i = 0; i < given; i++) {
        const Axis axis = found.axes[i];
        if (axis.extent == 1) continue;
        if (count) {
            Axis& last = found.axes[count - 1];
            const bool goes_on = axis.src == last.src * last.extent && axis.dst == last.dst * last.extent;
            if (goes_on && (u64)last.extent * axis.extent <= 1u << 30) {
                last.extent *= axis.extent;
                continue;
            }
        }
        found.axes[count++] = axis;
    }
    if (!count) found.axes[count++] = {0, 0, 1};
    found.count = count;
}

__device__ __forceinline__ void widen(const Box& box, Axes& found)
{
    Axis& last = found.axes[0];
    u32 size = box.element;
    if (last.src == size && last.dst == size) {
        u64 bits = (u64)box.src | (u64)box.dst | (u64)last.extent * size;
        for (u32 i = 1; i < found.count; i++) bits |= (u64)found.axes[i].src | (u64)found.axes[i].dst;
        while (size < 16 && bits % (2 * size) == 0) size *= 2;
        last = {size, size, last.extent / (size / box.element)};
    }
    found.element = size;
}

// Puts the axis first whose neighbours are closest in the source, behind axis 0.
__device__ __forceinline__ void choose_tiles(Axes& found)
{
    const Axis along = found.axes[0];
    u32 across = 0;
    for (u32 i = 1; i < found.count; i++)
        if (found.axes[i].src && absolute(found.axes[i].src) < absolute(found.axes[across].src)) across = i;
    const Axis other = found.axes[across];
    found.tiled = across && along.extent >= WORTH_A_TILE && other.extent >= WORTH_A_TILE;
    if (!found.tiled) return;
    for (u32 i = across; i > 1; i--) found.axes[i] = found.axes[i - 1];
    found.axes[1] = other;
}

// The axes of a box; the lanes have synchronised when they return.
template <int LANES>
__device__ __forceinline__ void find_axes(const Group<LANES>& group, const Box& box, Axes& found)
{
    for (u32 i = group.lane; i < box.axes; i += LANES) {
        const u32 axis = box.axes - 1 - i;
        found.axes[i] = {box.distances[axis], box.distances[box.axes + axis], (u32)box.extents[axis]};
    }
    group.sync();
    if (group.lane == 0) {
        found.count = box.axes;
        join_axes(found);
        widen(box, found);
        choose_tiles(found);
    }
    group.sync();
}

// Where something is in both places, in bytes.
struct Offsets {
    long long src, dst;
};

// Of what has a number among all that are counted along the axes from `first` on.
__device__ __forceinline__ Offsets offsets_of(const Axes& found, u32 first, u64 number)
{
    Offsets sum{0, 0};
    for (u32 i = first; i < found.count && number; i++) {
        const Axis& axis = found.axes[i];
        u64 next;
        u32 place;
        if (number >> 32) {
            next = number / axis.extent;
            place = (u32)(number - next * axis.extent);
        } else {
            next = (u32)number / axis.extent;
            place = (u32)number - (u32)next * axis.extent;
        }
        sum.src += place * axis.src;
        sum.dst += place * axis.dst;
        number = next;
    }
    return sum;
}

__device__ __forceinline__ u64 count_from(const Axes& found, u32 first)
{
    u64 count = 1;
    for (u32 i = first; i < found.count; i++) count *= found.axes[i].extent;
    return count;
}

// A part's share of some things.
struct Share {
    u64 first, last;

    __device__ __forceinline__ Share(const Box& box, u64 count)
    {
        const u64 each = count / box.parts, more = count % box.parts;
        first = box.part * each + (box.part < more ? box.part : more);
        last = first + each + (box.part < more);
    }
};
