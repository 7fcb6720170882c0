// The frames of a Zstandard file (RFC 8878, section 3.1.1), which end where their blocks do.
#include "scan.cuh"

struct ZstdFrames {
    // HEAD: of the shortest header with a content size, and its block.
    // RECORD: a position, the content size, marks, and what stands before, a checksum of the frame before.
    enum : u32 { ALGO = SCAN_ZSTD, HEAD = 9, RECORD = 4, MAGIC = 0xfd2fb528u, SKIPPABLE = 0x184d2a50u };
    // Blocks of a frame. Whoever follows the true chain visits longer frames on its own.
    enum : u32 { MOST_BLOCKS = 64, BLOCK_LIMIT = 128 << 10, BLOCK_HEADER = 3 };
    enum Kind : u32 { RLE = 1, COMPRESSED = 2, RESERVED = 3 };

    struct Frame {
        Stop why;     // LEFT if it is one, CUT if the range ends in its headers, or BROKEN
        u32 size;     // from its magic to behind its checksum
        u32 content;  // decoded bytes
        u32 marks;    // descriptor, window descriptor (16 bits in all), and the number of its blocks
    };

    __device__ __forceinline__ static bool may_start(u32 word, const Scan&) { return word == MAGIC; }

    __device__ __forceinline__ static u32 step(const Bytes& bytes, u32 at, const Scan&)
    {
        const Frame frame = frame_at(bytes, at);
        return frame.why == LEFT ? frame.size : 0;
    }

    // A skippable frame that nothing follows, such as a seek table, or a frame that the range ends in.
    __device__ __forceinline__ static bool ends(const Bytes& bytes, u32 at)
    {
        if ((bytes.word(at) & ~15u) == SKIPPABLE) return bytes.word(at + 4) >= bytes.size - at - 8;
        return frame_at(bytes, at).why == CUT;
    }

    __device__ __forceinline__ static void describe(const Bytes& bytes, u32 at, u32* words)
    {
        const Frame frame = frame_at(bytes, at);
        words[0] = frame.content;
        words[1] = frame.marks;
        words[2] = bytes.word_before(at, 4);
    }

private:
    // At least HEAD bytes of the range are left.
    __device__ static Frame frame_at(const Bytes& bytes, u32 at)
    {
        const u32 rest = bytes.size - at, flags = bytes.word(at + 4), descriptor = flags & 0xff;
        if (bytes.word(at) != MAGIC || descriptor & 8) return {BROKEN, 0, 0, 0};
        // Section 3.1.1.1.1: what the descriptor says of the fields.
        const u32 single = descriptor >> 5 & 1, id = descriptor & 3, code = descriptor >> 6;
        const u32 id_size = id == 3 ? 4 : id, size = code ? 1u << code : single;
        const u32 id_at = 6 - single, content_at = id_at + id_size, blocks_at = content_at + size;
        if (!size) return {BROKEN, 0, 0, 0};
        // Wherever a field is, there are 4 bytes from its first one on.
        if (rest < blocks_at + BLOCK_HEADER) return {CUT, 0, 0, 0};
        const u32 high = size == 8 ? bytes.word(at + content_at + 4) : 0;
        if (low_bytes(bytes.word(at + id_at), id_size) || high) return {BROKEN, 0, 0, 0};
        const u32 low = low_bytes(bytes.word(at + content_at), size), content = low + (size == 2 ? 256 : 0);
        const u64 window = single ? content : window_size(flags >> 8 & 0xff);
        const u32 limit = window < BLOCK_LIMIT ? (u32)window : BLOCK_LIMIT;
        Frame frame = blocks(bytes, at, blocks_at, limit, content);
        frame.size += descriptor & 4;
        frame.marks = frame.marks << 16 | (flags & (single ? 0xff : 0xffff));
        return frame;
    }

    // Walk along the headers of a frame's blocks (section 3.1.1.2); `marks` is their number.
    __device__ __forceinline__ static Frame
    blocks(const Bytes& bytes, u32 at, u32 place, u32 limit, u32 content)
    {
        const u32 rest = bytes.size - at;
        u32 bound = 0;
#pragma unroll 1
        for (u32 count = 1; count <= MOST_BLOCKS; count++) {
            if (rest < place + BLOCK_HEADER) return {CUT, 0, 0, 0};
            const u32 header = bytes.word(at + place - 1) >> 8, kind = header >> 1 & 3, size = header >> 3;
            if (size > limit || kind == RESERVED) break;
            bound += kind == COMPRESSED ? limit : size;
            place += BLOCK_HEADER + (kind == RLE ? 1 : size);
            if (!(header & 1)) continue;
            if (content > bound) break;
            return {LEFT, place, content, count};
        }
        return {BROKEN, 0, 0, 0};
    }

    // Section 3.1.1.1.2: exponent and mantissa.
    __device__ __forceinline__ static u64 window_size(u32 descriptor)
    {
        const u64 base = 1ull << (10 + (descriptor >> 3));
        return base + base / 8 * (descriptor & 7);
    }

    // count: at most 8; of a word there are no more than 4.
    __device__ __forceinline__ static u32 low_bytes(u32 word, u32 count)
    {
        return count < 4 ? word & ((1u << 8 * count) - 1) : word;
    }
};

template <int LANES>
__device__ __forceinline__ void scan_zstd_segments(const Params* params, u32 count, u32* status)
{
    scan_segments<ZstdFrames, LANES>(params, count, status);
}

KERNEL(scan_zstd, scan_zstd_segments, 32, 4)
HOST_KERNEL(scan_zstd, scan_zstd_segments)
