// The inverse of numcodecs' PackBits: a byte that tells how many bits at the end mean nothing, then a
// bit for each byte that comes out, the highest of a byte first.
#include "unit.cuh"

// 4 bytes that are 0 or 1 from the lowest 4 bits, the highest first.
__device__ __forceinline__ u32 four_bits(u32 bits)
{
    return __byte_perm((bits & 15) * 0x00204081u & 0x01010101u, 0, 0x0123);
}

__device__ __forceinline__ uint4 sixteen_bits(u32 bits)
{
    return make_uint4(four_bits(bits >> 4), four_bits(bits), four_bits(bits >> 12), four_bits(bits >> 8));
}

// The part starts at a multiple of 8. Its status is OK, or ENDING where the first byte is wrong.
template <int LANES>
__device__ void unpack_units(const Params* params, u32 count, u32* status)
{
    __shared__ __align__(16) u8 tiles[Groups<LANES>::COUNT][TILE + BEHIND];
    const Unit* const found = operation_of<Unit, LANES>(params, count, PACKBITS);
    if (!found) return;
    const Unit unit = *found;
    const Group<LANES> group;
    u8* const tile = tiles[Groups<LANES>::own()];
    for (u64 done = 0; done < unit.room; done += TILE) {
        const u32 some = smaller(TILE, unit.room - done);
        const u64 first = 1 + (unit.start + done) / 8;
#pragma unroll 1
        for (u32 i = group.lane; 128 * i < some; i += LANES) {
            const uint4 bits = sixteen(unit.src, unit.size, first + 16 * i);
            const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
            for (u32 k = 0; k < 8; k++)
                ((uint4*)tile)[8 * i + k] = sixteen_bits(words[k / 2] >> 16 * (k % 2));
        }
        group.sync();
        write_tile(group, unit.dst + done, tile, some);
        group.sync();
    }
    if (group.lane == 0) {
        const bool good = unit.size == 0 ? unit.total == 0 : unit.src[0] == 8 * (unit.size - 1) - unit.total;
        status[Groups<LANES>::number()] = good ? OK : ENDING;
    }
}

KERNEL(packbits, unpack_units, 128, 8)
HOST_KERNEL(packbits, unpack_units)
