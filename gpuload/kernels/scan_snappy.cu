// The headers of a Snappy stream's data chunks (Snappy framing format, sections 4.2 and 4.3).
#include "scan.cuh"

struct SnappyChunks {
    // A type and a length of 3 bytes, a checksum, and the 5 bytes that the decoded length may take.
    // RECORD: a position, then these 13 bytes in four words.
    enum : u32 { ALGO = SCAN_SNAPPY, HEAD = 13, RECORD = 5, CHECKSUM = 4, MOST_DECODED = 65536 };

    __device__ __forceinline__ static bool may_start(u32 word, const Scan& scan)
    {
        const u32 kind = word & 0xff, length = word >> 8;
        return kind <= 1 && length >= CHECKSUM && length <= (kind ? CHECKSUM + MOST_DECODED : scan.longest);
    }

    __device__ __forceinline__ static u32 step(const Bytes& bytes, u32 at, const Scan& scan)
    {
        const u32 word = bytes.word(at);
        return may_start(word, scan) ? 4 + (word >> 8) : 0;
    }

    __device__ __forceinline__ static bool ends(const Bytes&, u32) { return false; }

    __device__ __forceinline__ static void describe(const Bytes& bytes, u32 at, u32* words)
    {
        for (u32 i = 0; i < 3; i++) words[i] = bytes.word(at + 4 * i);
        words[3] = bytes.first[at + 12];
    }
};

template <int LANES>
__device__ __forceinline__ void scan_snappy_segments(const Params* params, u32 count, u32* status)
{
    scan_segments<SnappyChunks, LANES>(params, count, status);
}

KERNEL(scan_snappy, scan_snappy_segments, 32, 4)
HOST_KERNEL(scan_snappy, scan_snappy_segments)
