// The size words of an LZ4 frame's blocks (LZ4 frame format, "Data Blocks").
#include "scan.cuh"

struct Lz4Blocks {
    // RECORD: a position, the size word, and what stands before it, a checksum of the block before.
    enum : u32 { ALGO = SCAN_LZ4, HEAD = 4, RECORD = 3 };

    __device__ __forceinline__ static bool may_start(u32 word, const Scan& scan)
    {
        return word && (word & 0x7fffffffu) <= scan.longest;
    }

    // From one header to the next; 0 if there is none.
    __device__ __forceinline__ static u32 step(const Bytes& bytes, u32 at, const Scan& scan)
    {
        const u32 word = bytes.word(at);
        return may_start(word, scan) ? 4 + (word & 0x7fffffffu) + (scan.summed ? 4 : 0) : 0;
    }

    // The end mark, behind which a checksum of the content may stand.
    __device__ __forceinline__ static bool ends(const Bytes& bytes, u32 at)
    {
        const u32 rest = bytes.size - at;
        return (rest == 4 || rest == 8) && !bytes.word(at);
    }

    __device__ __forceinline__ static void describe(const Bytes& bytes, u32 at, u32* words)
    {
        words[0] = bytes.word(at);
        words[1] = bytes.word_before(at, 4);
    }
};

template <int LANES>
__device__ __forceinline__ void scan_lz4_segments(const Params* params, u32 count, u32* status)
{
    scan_segments<Lz4Blocks, LANES>(params, count, status);
}

KERNEL(scan_lz4, scan_lz4_segments, 32, 4)
HOST_KERNEL(scan_lz4, scan_lz4_segments)
