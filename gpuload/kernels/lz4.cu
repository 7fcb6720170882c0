// LZ4 blocks, from the block format's description (lz4_Block_format.md of the lz4 project).
#include "decode.cuh"

// The end of a block, by the same description: the last 5 bytes are literals, and the last match
// starts at least 12 bytes before the end. Decoders rely on it, so all of them hold blocks to it.
enum : u32 { LAST_LITERALS = 5, MATCH_LIMIT = 12 };
// A sequence that is not the last has behind its literals an offset, a token and the last literals.
enum : u32 { AFTER_LITERALS = 2 + 1 + LAST_LITERALS };
// Literals of a sequence that is decoded together with others.
enum : u32 { FEW = 62 };

// A sequence has a token and an offset at least.
enum : u32 { SHORTEST = 3, LONGEST = FEW + 4 + 15 + 254 };

template <int LANES>
using Lz4Writer = Writer<LANES, Chain<LANES, SHORTEST>::MOST, LONGEST>;

template <int LANES>
struct Lz4 : Decoder<LANES, Lz4Writer<LANES>> {
    typedef Chain<LANES, SHORTEST> Sequences;
    typedef Lz4Writer<LANES> Output;
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
            const u32 state = one();
            if (state != MORE) return state;
        }
    }

private:
    enum : u32 { MORE = 0x100 };

    // Decode sequences with few literals until there is one that is not, or is wrong.
    __device__ __forceinline__ void many()
    {
        for (;;) {
            stage.seek(in);
            const u32 at = in + group.lane;
            const u32 token = stage[at];
            u32 literals = token >> 4, place = at + 1;
            if (literals == 15) literals += stage[place++];
            const u32 behind = place + literals;
            bool present = literals <= FEW && behind + AFTER_LITERALS <= stage.end;
            u32 match = 4 + token % 16, end = behind + 2;
            if (match == 19 && present) {
                const u32 more = stage[end++];
                match += more;
                present = more != 255 && end + LAST_LITERALS - 1 <= stage.end;
            }
            const Sequences chain(group, output.memory, present, present ? end - in : group.lane,
                                  present ? literals + match : 0);
            // What comes close to the end of the slot is looked at one by one.
            if (out + chain.total + MATCH_LIMIT > capacity) return;
            u32 offset = 0;
            if (chain.member) offset = stage[behind] | stage[behind + 1] << 8;
            if (chain.member) output.add(chain.number, chain.start, literals + match, literals, place, offset);
            if (group.sync_any(chain.member && offset - 1 >= out + chain.start + literals)) return output.drop(chain.total);
            if (chain.member) prefetch(dst + (out + chain.start + literals - offset));
            output.write(dst + out, chain.total, chain.start);
            out += chain.total;
            in += chain.next;
            if (chain.next < LANES) return;
        }
    }

    // Decode one sequence of any kind.
    __device__ __forceinline__ u32 one()
    {
        const u32 size = stage.end;
        const u8* src = stage.origin;
        if (in >= size) return TRUNCATED;
        const u32 token = src[in++];
        u32 literals = token >> 4, match = 4 + token % 16;
        if (literals == 15 && !extend(literals)) return TRUNCATED;
        if (literals > capacity - out) return FULL;
        if (literals > size - in) return TRUNCATED;
        const bool last = capacity - out - literals < MATCH_LIMIT || size - in - literals < AFTER_LITERALS;
        if (last && literals != size - in) return ENDING;
        copy(group, dst + out, src + in, literals);
        out += literals, in += literals;
        if (last) return OK;
        const u32 offset = src[in] | src[in + 1] << 8;
        in += 2;
        if (match == 19 && (!extend(match) || size - in < LAST_LITERALS - 1)) return TRUNCATED;
        if (offset == 0 || offset > out) return OFFSET;
        if (capacity - out < LAST_LITERALS || match > capacity - out - LAST_LITERALS) return FULL;
        group.sync();
        repeat(group, dst + out, offset, match);
        group.sync();
        out += match;
        return MORE;
    }

    // Add to a length the bytes that continue it; false if they do not end.
    __device__ __forceinline__ bool extend(u32& length)
    {
        const u32 width = LANES < 32 ? LANES : 32;  // every warp for itself
        for (;;) {
            const u32 at = in + group.warp().lane;
            const u32 byte = at < stage.end ? stage.origin[at] : 0;
            const u32 ends = group.warp().ballot(byte != 255);
            const u32 full = ends ? __ffs(ends) - 1 : width;
            length += 255 * full;
            in += full;
            if (ends) {
                length += group.warp().get(byte, full);
                return ++in <= stage.end;
            }
            // Far more than there can be, and the sum must not overflow.
            if (length > 0x7fff0000u) return false;
        }
    }
};

template <int LANES>
__device__ __forceinline__ void lz4_chunks(const Params* params, u32 count, u32* status)
{
    decode_chunks<Lz4, LZ4, LANES>(params, count, status);
}

KERNEL(lz4, lz4_chunks, 32, 12)
KERNEL(lz4, lz4_chunks, 128, 10)
HOST_KERNEL(lz4, lz4_chunks)
