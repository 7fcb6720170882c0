// The headers of BGZF blocks (SAM specification, section 4.1) that have no field but BC.
#include "scan.cuh"

struct BgzfBlocks {
    // RECORD: a position, BSIZE, and what stands before it, CRC32 and ISIZE of the block before.
    enum : u32 { ALGO = SCAN_BGZF, HEAD = 18, RECORD = 4, LEAST = 28 };

    __device__ __forceinline__ static bool may_start(u32 word, const Scan&)
    {
        return word == 0x04088b1fu;  // ID1, ID2, CM = 8, FLG = FEXTRA
    }

    __device__ __forceinline__ static u32 step(const Bytes& bytes, u32 at, const Scan& scan)
    {
        // XLEN = 6, SI1 and SI2; then SLEN = 2, BSIZE.
        const u32 last = bytes.word(at + 14), size = (last >> 16) + 1;
        const bool good = may_start(bytes.word(at), scan) && bytes.word(at + 10) == 0x43420006u;
        return good && (last & 0xffff) == 2 && size >= LEAST ? size : 0;
    }

    __device__ __forceinline__ static bool ends(const Bytes&, u32) { return false; }

    __device__ __forceinline__ static void describe(const Bytes& bytes, u32 at, u32* words)
    {
        words[0] = bytes.word(at + 14) >> 16;
        words[1] = bytes.word_before(at, 8);
        words[2] = at < 8 ? 0 : bytes.word(at - 4);
    }
};

template <int LANES>
__device__ __forceinline__ void scan_bgzf_segments(const Params* params, u32 count, u32* status)
{
    scan_segments<BgzfBlocks, LANES>(params, count, status);
}

KERNEL(scan_bgzf, scan_bgzf_segments, 32, 4)
HOST_KERNEL(scan_bgzf, scan_bgzf_segments)
