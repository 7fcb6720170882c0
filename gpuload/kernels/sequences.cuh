// Literals and matches, many at a time.
//
// Each lane reads an element as if one started at its byte. Which ones really start there is found by
// doubling pointers: from its element a lane jumps to the next, then over two, four, and so on. Then
// every lane produces one byte of the output, wherever its element began, so that short elements keep
// all lanes busy.
#pragma once
#include "stage.cuh"

// Elements that start within LANES bytes, each of at least SHORTEST bytes.
template <int LANES, int SHORTEST>
struct Chain {
    static const int MOST = (LANES + SHORTEST - 1) / SHORTEST;

    u32 members;  // lanes at whose byte an element starts
    u32 next;     // the byte behind the last of them, from the first lane's
    u32 total;    // bytes that they decode to
    u32 start;    // bytes that those before this lane's decode to

    // end: byte behind this lane's element, below 256; the lane's own number if it has none.
    // length: bytes that it decodes to; 0 if the lane has none.
    __device__ __forceinline__ Chain(const Group<LANES>& group, bool present, u32 end, u32 length)
    {
        u32 packed = end | length << 8;  // where this lane jumps to, and the bytes that it passes
        u32 found = present ? 1u << group.lane : 0;
#pragma unroll
        for (int reach = 1; reach < MOST; reach *= 2) {
            const u32 there = group.get(packed, packed), more = group.get(found, packed);
            if ((packed & 255) < LANES) {
                packed = (packed & ~255u) + there;
                found |= more;
            }
        }
        members = group.get(found, 0);
        const u32 all = group.get(packed, 0);
        next = all & 255;
        total = all >> 8;
        start = total - (packed >> 8);
    }
};

#ifndef ROUNDS
#define ROUNDS 1
#endif

// A group's shared memory.
template <int LANES, int MOST>
struct __align__(RING) Work {
    u8 ring[RING];
    // For each member of a chain: where its literals end (16 bits), what to add to a position for the
    // place of the literal there (16 bits); the offset of its match. Positions count from the chain's
    // first output byte.
    uint2 sequences[MOST];
    u32 sources[ROUNDS > 1 ? LANES * (ROUNDS - 1) : 1];
};

template <int LANES, int MOST>
struct Writer {
    typedef Work<LANES, MOST> Memory;
    enum : u32 {
        SEQUENCES = RING,
        SOURCES = RING + 8 * MOST,
        SPAN = LANES * ROUNDS,  // output bytes at a time
        LITERAL = 0x1000,       // sources from here on are places of the ring
    };

    const Group<LANES>& group;
    const Shared memory;

    __device__ __forceinline__ void add(u32 number, u32 start, u32 literals, u32 place, u32 offset) const
    {
        memory.set_pair(SEQUENCES + 8 * number, start + literals | (place - start) << 16, offset);
    }

    // Write the output of a chain to out. start: this lane's, or beyond the total if it is no member.
    __device__ __forceinline__ void write(u8* out, u32 total, u32 start) const
    {
        u32 seen = ~0u;  // sequences that start before, less one
        for (u32 base = 0; base < total; base += SPAN) {
            u32 source[ROUNDS], value[ROUNDS];
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                if (r && base + r * LANES >= total) break;
                source[r] = find(base, r * LANES, start, seen);
            }
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                if (r && base + r * LANES >= total) break;
                value[r] = 0;
                if (source[r] - LITERAL < RING) value[r] = memory.byte(source[r] % RING);
                else value[r] = out[(int)(base + source[r])];
            }
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                const u32 position = base + r * LANES + group.lane;
                if (position < total) out[position] = value[r];
            }
            group.sync();
        }
    }

private:
    // Where the byte at base + first + lane comes from: a place of the ring, or a byte before base.
    __device__ __forceinline__ u32 find(u32 base, u32 first, u32 start, u32& seen) const
    {
        const u32 starts = group.join(bit_or_none(start - (base + first)));
        const u32 which = seen + __popc(starts & group.upto);
        seen += __popc(starts);
        const u32 position = base + first + group.lane;
        const uint2 s = memory.pair(SEQUENCES + 8 * which);
        u32 source = first + group.lane - s.y;
        if (position < (s.x & 0xffff)) source = LITERAL + (position + (s.x >> 16)) % RING;
        // A byte that this very round writes comes from where that one comes from.
        while (group.any(source - first < LANES)) {
            const u32 there = group.get(source, source);
            if (source - first < LANES) source = there;
        }
        if (ROUNDS > 1) {
            if (source < first) source = memory.word(SOURCES + 4 * source);
            if (first + LANES < SPAN) memory.set_word(SOURCES + 4 * (first + group.lane), source);
            group.sync();
        }
        return source;
    }
};
