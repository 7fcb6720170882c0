// Stored bytes on their way through shared memory: whole aligned lines, the next one fetched ahead.
// Memory of the host that is mapped to the device is read over the link once, and in order.
#pragma once
#include "group.cuh"
#include "shared.cuh"

// Places count from the start of the aligned line that the first stored byte lies in.
template <int LANES>
struct Stage {
    // A ring of two lines: the one with the current place, and the one behind it.
    static const u32 LINE = LANES <= 32 ? 128 : 4 * LANES, RING = 2 * LINE;
    static const int WORDS = LINE / 4 / LANES;  // of a line, for each lane

    const Group<LANES>& group;
    const u8* origin;  // place 0, which need not be ours
    u32 begin, end;    // places of the first stored byte, and behind the last
    Shared ring;       // of RING bytes, aligned to as many
    u32 staged;        // the place behind the staged lines
    u32 ahead[WORDS];  // the line there, as far as this lane stages it

    __device__ __forceinline__ Stage(const Group<LANES>& group, const u8* src, u32 size, Shared ring)
        : group(group), origin(src - (u32)(u64)src % LINE), begin((u32)(u64)src % LINE),
          end(begin + size), ring(ring), staged(0)
    {
        fetch();
    }

    // Bytes place to place + LINE are in the ring from here on, as far as there are any.
    __device__ __forceinline__ void seek(u32 place)
    {
        if (place + LINE < staged) return;
        if (place >= staged + LINE) {
            staged = place / LINE * LINE;
            fetch();
        }
        do advance();
        while (place + LINE >= staged);
    }

    // The byte at a place that is staged; anything where there is none.
    __device__ __forceinline__ u32 operator[](u32 place) const { return ring.byte(place % RING); }

private:
    __device__ __forceinline__ void advance()
    {
        group.sync();
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            ring.set_word(staged % RING + 4 * (group.lane + i * LANES), ahead[i]);
        staged += LINE;
        fetch();
        group.sync();
    }

    __device__ __forceinline__ void fetch()
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) ahead[i] = word(staged + 4 * (group.lane + i * LANES));
    }

    // The word at a place, without the bytes that are not ours.
    __device__ __forceinline__ u32 word(u32 place) const
    {
        if (place >= begin && place + 4 <= end) return *(const u32*)(origin + place);
        u32 value = 0;
#pragma unroll 1
        for (u32 i = 0; i < 4; i++)
            if (place + i >= begin && place + i < end) value |= (u32)origin[place + i] << 8 * i;
        return value;
    }
};
