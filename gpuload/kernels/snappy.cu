// The elements of Snappy, without the length in front of them (format_description.txt of the snappy
// project, sections 2.1 and 2.2).
#include "decode.cuh"

// More literals than a chain decodes to: a literal has no match behind it.
enum : u32 { ALL = 0x1000 };

// An element has a tag and another byte at least.
enum : u32 { SHORTEST = 2, LONGEST = 64 };

template <int LANES>
using SnappyWriter = Writer<LANES, Chain<LANES, SHORTEST>::MOST, LONGEST>;

template <int LANES>
struct Snappy : Decoder<LANES, SnappyWriter<LANES>> {
    typedef Chain<LANES, SHORTEST> Elements;
    typedef SnappyWriter<LANES> Output;
    typedef Decoder<LANES, Output> Base;
    using Base::capacity;
    using Base::dst;
    using Base::group;
    using Base::in;
    using Base::out;
    using Base::output;
    using Base::stage;

    __device__ __forceinline__ u32 decode()
    {
        for (;;) {
            many();
            if (in == stage.end) return OK;
            const u32 state = one();
            if (state != OK) return state;
        }
    }

private:
    // Decode literals of up to 60 bytes and matches with offsets of up to 16 bits until there is
    // something else, or something wrong.
    __device__ __forceinline__ void many()
    {
        for (;;) {
            stage.seek(in);
            const u32 at = in + group.lane;
            const u32 tag = stage[at], kind = tag % 4, high = tag / 4;
            u32 length = high + 1, size = 3;
            if (kind == 1) length = high % 8 + 4, size = 2;
            if (kind == 0) size = 1 + length;
            const bool present = kind != 3 && (kind != 0 || high < 60) && at + size <= stage.end;
            const Elements chain(group, output.memory, present, group.lane + (present ? size : 0),
                                 present ? length : 0);
            if (out + chain.total > capacity) return;
            u32 offset = 0;
            if (chain.member) offset = stage[at + 1] | (kind == 1 ? tag / 32 : stage[at + 2]) << 8;
            if (chain.member) output.add(chain.number, chain.start, length, kind ? 0 : ALL, at + 1, offset);
            if (group.sync_any(chain.member && kind != 0 && offset - 1 >= out + chain.start)) return output.drop(chain.total);
            if (chain.member && kind != 0) prefetch(dst + (out + chain.start - offset));
            output.write(dst + out, chain.total, chain.start);
            out += chain.total;
            in += chain.next;
            if (chain.next < LANES) return;
        }
    }

    // Decode one element of any kind.
    __device__ __forceinline__ u32 one()
    {
        const u32 left = stage.end - in, tag = stage.origin[in], high = tag / 4;
        if (tag % 4 == 0) {
            const u32 more = high < 60 ? 0 : high - 59;  // bytes of the length
            if (left < 1 + more) return TRUNCATED;
            const u32 length = 1 + (more ? number(in + 1, more) : high);
            in += 1 + more;
            if (length == 0 || length > capacity - out) return FULL;
            if (length > stage.end - in) return TRUNCATED;
            copy(group, dst + out, stage.origin + in, length);
            group.sync();
            out += length, in += length;
            return OK;
        }
        const u32 more = tag % 4 == 3 ? 4 : tag % 4;  // bytes of the offset
        if (left < 1 + more) return TRUNCATED;
        u32 offset = number(in + 1, more), length = high + 1;
        if (more == 1) offset |= tag / 32 << 8, length = high % 8 + 4;
        if (offset == 0 || offset > out) return OFFSET;
        if (length > capacity - out) return FULL;
        repeat(group, dst + out, offset, length);
        group.sync();
        out += length, in += 1 + more;
        return OK;
    }

    __device__ __forceinline__ u32 number(u32 at, u32 bytes) const
    {
        u32 value = 0;
        for (u32 i = 0; i < bytes; i++) value |= (u32)stage.origin[at + i] << 8 * i;
        return value;
    }
};

template <int LANES>
__device__ __forceinline__ void snappy_chunks(const Params* params, u32 count, u32* status)
{
    decode_chunks<Snappy, SNAPPY, LANES>(params, count, status);
}

KERNEL(snappy, snappy_chunks, 32, 12)
KERNEL(snappy, snappy_chunks, 128, 10)
HOST_KERNEL(snappy, snappy_chunks)
