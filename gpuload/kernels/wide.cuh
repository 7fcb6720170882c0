// The same by a block, which looks at 128 bytes at a time and writes as many.
//
// Every warp links the elements of its own 32 bytes for each byte that they may begin at, without
// knowing which it is. Then a walk of at most one step a warp finds where each begins.
#pragma once
#include "sequences.cuh"

enum : u32 { SPAN = 128 };  // output bytes at a time

template <int MOST, int LONGEST>
struct __align__(Stage<128>::RING) WideWork {
    static const u32 SPANS = (MOST * LONGEST + SPAN - 1) / SPAN;

    u8 ring[Stage<128>::RING];
    u32 sources[2][SPAN];  // of the bytes that are written now, and of the next
    u32 links[128];        // what each lane's links say, and the number of elements
    // For each 32 output bytes: which of them elements start with, and whose the first one is.
    uint2 starts[SPANS * SPAN / 32];
    uint2 sequences[MOST];
};

enum : u32 { SOURCES = Stage<128>::RING, LINKS = SOURCES + 8 * SPAN, STARTS = LINKS + 4 * 128 };

template <int SHORTEST>
struct Chain<128, SHORTEST> {
    typedef Links<32, SHORTEST> Parts;
    static const int MOST = 4 * Parts::MOST;

    bool member;
    u32 number, start, next, total;

    __device__ __forceinline__ Chain(const Group<128>& group, Shared memory, bool present, u32 end, u32 length)
        : member(false), number(0), start(~0u), next(0), total(0)
    {
        const Group<32>& warp = group.warp();
        const u32 before = group.lane - warp.lane;
        const Parts parts(warp, present, end - before, length);
        memory.set_word(LINKS + 4 * group.lane, parts.packed | __popc(parts.members) << 22);
        group.sync();
        u32 entry = ~0u, passed = 0, reached = 0;  // lengths from bit 8 on, numbers from bit 22 on
        for (;;) {
            const u32 link = memory.word(LINKS + 4 * next);
            if (next - before < 32) entry = next, reached = passed + link;
            passed += link & ~255u;
            next = (next & ~31u) + Parts::next(link);
            if (Parts::next(link) < 32 || next >= 128) break;
        }
        total = bytes(passed);
        if (entry == ~0u) return;
        const u32 members = warp.get(parts.members, entry);
        member = members >> warp.lane & 1;
        if (!member) return;
        start = bytes(reached) - Parts::length(parts.packed);
        number = (reached >> 22) - __popc(members & ~(warp.upto >> 1));
    }

private:
    __device__ __forceinline__ static u32 bytes(u32 packed) { return packed >> 8 & 0x3fff; }
};

template <int MOST, int LONGEST>
struct Writer<128, MOST, LONGEST> {
    typedef WideWork<MOST, LONGEST> Memory;
    enum : u32 {
        RING = Stage<128>::RING,
        WORDS = Memory::SPANS * SPAN / 32,
        SEQUENCES = STARTS + 8 * WORDS,
        LITERAL = 0x1000,
    };

    const Group<128>& group;
    const Shared memory;

    __device__ __forceinline__ Writer(const Group<128>& group, Shared memory) : group(group), memory(memory)
    {
        drop(32 * WORDS);
        group.sync();
    }

    __device__ __forceinline__ void add(u32 number, u32 start, u32 length, u32 literals, u32 place, u32 offset) const
    {
        memory.set_pair(SEQUENCES + 8 * number, start + literals | (place - start) << 16, offset);
        memory.join_word(STARTS + 8 * (start / 32), 1u << start % 32);
        for (u32 word = (start + 31) / 32; 32 * word < start + length; word++)
            memory.set_word(STARTS + 8 * word + 4, number);
    }

    __device__ __forceinline__ void drop(u32 total) const
    {
        for (u32 i = group.lane; i <= total / 32 && i < WORDS; i += 128) memory.set_pair(STARTS + 8 * i, 0, 0);
    }

    __device__ __forceinline__ void write(u8* out, u32 total, u32) const
    {
        const u32 first = group.lane - group.warp().lane;
        u32 sources = SOURCES;
        for (u32 base = 0; base < total; base += SPAN, sources ^= 4 * SPAN) {
            const bool busy = base + first < total;
            u32 source = LITERAL;
            if (busy) {
                source = find(base, total);
                memory.set_word(sources + 4 * group.lane, source);
            }
            group.sync();
            if (!busy) continue;
            // A byte that another warp writes now comes from where that one comes from, which is
            // no byte of that warp.
            while (source < first) source = memory.word(sources + 4 * source);
            const u32 value = memory.byte_or(source % RING, (int)source, out + (int)(base + source));
            if (base + group.lane < total) out[base + group.lane] = value;
            if (group.warp().lane == 0) memory.set_word(STARTS + (base + first) / 4, 0);
        }
        group.sync();
    }

private:
    // Where the byte at base + lane comes from: a place of the ring, or a byte before this warp's.
    __device__ __forceinline__ u32 find(u32 base, u32 total) const
    {
        const Group<32>& warp = group.warp();
        const u32 first = group.lane - warp.lane;
        const uint2 starts = memory.pair(STARTS + (base + first) / 4);
        const u32 which = starts.y + __popc(starts.x & warp.upto & ~1u);
        const u32 position = base + group.lane;
        const uint2 s = memory.pair(SEQUENCES + 8 * which);
        u32 source = group.lane - s.y;
        if (position < (s.x & 0xffff)) source = LITERAL + (position + (s.x >> 16)) % RING;
        if (position >= total) source = LITERAL;  // nothing starts there: what was read is old
        while (warp.any(source - first < 32)) {
            const u32 there = warp.get(source, source);
            if (source - first < 32) source = there;
        }
        return source;
    }
};
