// Literals and matches, many at a time.
//
// Each lane reads an element as if one started at its byte. Which ones really start there is found by
// doubling pointers: from its element a lane jumps to the next, then over two, four, and so on. Then
// every lane produces one byte of the output, wherever its element began, so that short elements keep
// all lanes busy.
#pragma once
#include "stage.cuh"

// Where the elements lead from a byte on, of LANES bytes. Each has at least SHORTEST bytes.
template <int LANES, int SHORTEST>
struct Links {
    static const int MOST = (LANES + SHORTEST - 1) / SHORTEST;  // elements that follow one another

    u32 packed;   // the byte behind the last element from this lane's on, and what they decode to
    u32 members;  // lanes at whose byte those elements start

    // end: byte behind this lane's element, below 256; the lane's own number if it has none.
    // length: bytes that it decodes to; 0 if the lane has none.
    __device__ __forceinline__ Links(const Group<LANES>& group, bool present, u32 end, u32 length)
        : packed(end | length << 8), members(present ? 1u << group.lane : 0)
    {
#pragma unroll
        for (int reach = 1; reach < MOST; reach *= 2) {
            const u32 there = group.get(packed, packed), more = group.get(members, packed);
            join(there, more);
        }
    }
    __device__ __forceinline__ static u32 next(u32 packed) { return packed & 255; }
    __device__ __forceinline__ static u32 length(u32 packed) { return packed >> 8; }

private:
    // Add what follows if it starts within the lanes.
    __device__ __forceinline__ void join(u32 there, u32 more)
    {
#ifdef __CUDA_ARCH__
        if (LANES == 32) {
            asm("{ .reg .pred inside; .reg .u32 rest;"
                " and.b32 rest, %0, 0xe0; setp.eq.u32 inside, rest, 0; and.b32 rest, %0, 0xffffff00;"
                " @inside add.u32 %0, rest, %2; @inside or.b32 %1, %1, %3; }"
                : "+r"(packed), "+r"(members) : "r"(there), "r"(more));
            return;
        }
#endif
        if (next(packed) >= LANES) return;
        packed = (packed & ~255u) + there;
        members |= more;
    }
};

// The elements that follow one another from the first lane's byte on.
template <int LANES, int SHORTEST>
struct Chain {
    typedef Links<LANES, SHORTEST> Parts;
    static const int MOST = Parts::MOST;

    bool member;  // whether one starts at this lane's byte
    u32 number;   // which it is
    u32 start;    // bytes that those before it decode to; beyond the total if it is no member
    u32 next;     // the byte behind the last one, from the first lane's
    u32 total;    // bytes that they decode to

    __device__ __forceinline__ Chain(const Group<LANES>& group, Shared, bool present, u32 end, u32 length)
    {
        const Parts parts(group, present, end, length);
        const u32 members = group.get(parts.members, 0), all = group.get(parts.packed, 0);
        member = members >> group.lane & 1;
        number = __popc(members & group.upto) - 1;
        next = Parts::next(all);
        total = Parts::length(all);
        start = member ? total - Parts::length(parts.packed) : ~0u;
    }
};

// A group's shared memory, for chains of MOST elements.
template <int LANES, int MOST>
struct __align__(Stage<LANES>::RING) Work {
    u8 ring[Stage<LANES>::RING];
    // For each member of a chain: where its literals end (16 bits), what to add to a position for the
    // place of the literal there (16 bits); the offset of its match. Positions count from the chain's
    // first output byte.
    uint2 sequences[MOST];
};

// LONGEST: bytes that an element decodes to at most.
template <int LANES, int MOST, int LONGEST>
struct Writer {
    typedef Work<LANES, MOST> Memory;
    enum : u32 {
        RING = Stage<LANES>::RING,
        SEQUENCES = RING,
        LITERAL = 0x1000,  // sources from here on are places of the ring
    };

    const Group<LANES>& group;
    const Shared memory;

    // Note an element of the chain: which it is, its first output byte and how many there are, how
    // many of them are literals, and their place; the offset of its match.
    __device__ __forceinline__ void add(u32 number, u32 start, u32, u32 literals, u32 place, u32 offset) const
    {
        memory.set_pair(SEQUENCES + 8 * number, start + literals | (place - start) << 16, offset);
    }

    // Forget the elements that were added.
    __device__ __forceinline__ void drop(u32) const {}

    // Write the output of a chain to out. start: this lane's, or beyond the total if it is no member.
    __device__ __forceinline__ void write(u8* out, u32 total, u32 start) const
    {
#ifdef __CUDA_ARCH__
        asm volatile("" : "+r"(total));
#endif
        u32 seen = ~0u;  // sequences that start before, less one
        for (u32 base = 0; base < total; base += LANES) {
            const u32 source = find(base, start, seen);
            const u32 value = memory.byte_or(source % RING, (int)source, out + (int)(base + source));
            if (base + group.lane < total) out[base + group.lane] = value;
            group.sync();
        }
    }

private:
    // Where the byte at base + lane comes from: a place of the ring, or a byte before base.
    __device__ __forceinline__ u32 find(u32 base, u32 start, u32& seen) const
    {
        const u32 starts = group.join(bit_or_none(start - base));
        const u32 which = seen + __popc(starts & group.upto);
        seen += __popc(starts);
        const u32 position = base + group.lane;
        const uint2 s = memory.pair(SEQUENCES + 8 * which);
        u32 source = group.lane - s.y;
        if (position < (s.x & 0xffff)) source = LITERAL + (position + (s.x >> 16)) % RING;
        // A byte that is written together with this one comes from where that one comes from.
        while (group.any(source < LANES)) {
            const u32 there = group.get(source, source);
            if (source < LANES) source = there;
        }
        return source;
    }
};
