// The inverse of numcodecs' FixedScaleOffset: what is stored, divided by a number, plus another one.
//
// Integers become doubles first; floats are computed with as floats, and the numbers become such.
#include "unit.cuh"

struct Scaled {
    u64 size, room;  // bytes that go in and that come out
    u64 unused;
    const u8* src;
    u8* dst;
    u32 algo;
    u32 kinds;  // what goes in, a Kind, and from bit 8 on the bytes of a float that comes out
    double scale, offset;
};
static_assert(sizeof(Scaled) == sizeof(Params), "filters take the parameters of decoders");

// The bytes of an element, and bits that tell signed integers and floats from others.
enum Kind : u32 { SIGNED = 16, FLOAT = 32 };

// Elements that a lane reads before it computes with them.
enum : u32 { AT_ONCE = 4 };

// Elements `first`, `first` + LANES, and so on, of which those from `count` on are not there.
template <class In, int LANES, class Number>
__device__ __forceinline__ void read(const u8* src, u32 first, u32 count, Number (&values)[AT_ONCE])
{
    const bool aligned = ((u64)src & (sizeof(In) - 1)) == 0;
    union {
        In value;
        u8 bytes[sizeof(In)];
    } found[AT_ONCE];
#pragma unroll
    for (u32 k = 0; k < AT_ONCE; k++) {
        const u32 at = first + k * LANES;
        found[k].value = 0;
        if (at >= count) continue;
        if (aligned) {
            found[k].value = __ldg((const In*)src + at);
        } else {
#pragma unroll
            for (u32 i = 0; i < sizeof(In); i++) found[k].bytes[i] = __ldg(src + at * sizeof(In) + i);
        }
    }
#pragma unroll
    for (u32 k = 0; k < AT_ONCE; k++) values[k] = (Number)found[k].value;
}

template <int LANES>
__device__ __forceinline__ void read_any(u32 kind, const u8* src, u32 first, u32 count, double (&values)[AT_ONCE])
{
    switch (kind) {
    case 1: read<u8, LANES>(src, first, count, values); break;
    case 2: read<u16, LANES>(src, first, count, values); break;
    case 4: read<u32, LANES>(src, first, count, values); break;
    case 8: read<u64, LANES>(src, first, count, values); break;
    case SIGNED | 1: read<signed char, LANES>(src, first, count, values); break;
    case SIGNED | 2: read<short, LANES>(src, first, count, values); break;
    case SIGNED | 4: read<int, LANES>(src, first, count, values); break;
    case SIGNED | 8: read<long long, LANES>(src, first, count, values); break;
    case FLOAT | 8: read<double, LANES>(src, first, count, values); break;
    }
}

template <int LANES>
__device__ __forceinline__ void read_any(u32, const u8* src, u32 first, u32 count, float (&values)[AT_ONCE])
{
    read<float, LANES>(src, first, count, values);
}

// What processors make of a NaN that is computed with, and converted: a quiet one with the same digits
// behind. GPUs make one of their own.
__device__ __forceinline__ void put_nan(u8* place, u32 out, float value)
{
    union {
        float value;
        u32 bits;
    } found;
    found.value = value;
    const u32 bits = found.bits | 1u << 22;
    if (out == 4)
        *(u32*)place = bits;
    else
        *(u64*)place = (u64)(bits >> 31) << 63 | 0x7ffull << 52 | (u64)(bits & 0x7fffff) << 29;
}

__device__ __forceinline__ void put_nan(u8* place, u32 out, double value)
{
    union {
        double value;
        u64 bits;
    } found;
    found.value = value;
    const u64 bits = found.bits | 1ull << 51;
    if (out == 8)
        *(u64*)place = bits;
    else
        *(u32*)place = (u32)(bits >> 63) << 31 | 0xffu << 23 | ((u32)(bits >> 29) & 0x7fffff);
}

template <class Number, int LANES>
__device__ __forceinline__ void scale_all(const Group<LANES>& group, u8* tile, const Scaled& unit)
{
    const Number scale = (Number)unit.scale, offset = (Number)unit.offset;
    const u32 kind = unit.kinds & 255, in = kind & 15, out = unit.kinds >> 8, most = TILE / out;
    const u64 count = unit.room / out;
    for (u64 done = 0; done < count; done += most) {
        const u32 some = smaller(most, count - done);
        for (u32 first = group.lane; first < some; first += AT_ONCE * LANES) {
            Number values[AT_ONCE] = {};
            read_any<LANES>(kind, unit.src + done * in, first, some, values);
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; k++) {
                const u32 at = first + k * LANES;
                const Number value = values[k] / scale + offset;
                if (at >= some) continue;
                if (values[k] != values[k])
                    put_nan(tile + at * out, out, values[k]);
                else if (out == 4)
                    ((float*)tile)[at] = (float)value;
                else
                    ((double*)tile)[at] = (double)value;
            }
        }
        group.sync();
        write_tile(group, unit.dst + done * out, tile, some * out);
        group.sync();
    }
}

template <int LANES>
__device__ void scale_units(const Params* params, u32 count, u32*)
{
    __shared__ __align__(16) u8 tiles[Groups<LANES>::COUNT][TILE + BEHIND];
    const Scaled* const found = operation_of<Scaled, LANES>(params, count, SCALE);
    if (!found) return;
    const Scaled unit = *found;
    const Group<LANES> group;
    u8* const tile = tiles[Groups<LANES>::own()];
    if ((unit.kinds & 255) == (FLOAT | 4))
        scale_all<float>(group, tile, unit);
    else
        scale_all<double>(group, tile, unit);
}

KERNEL(scale, scale_units, 128, 8)
HOST_KERNEL(scale, scale_units)
