// CRC-32 (RFC 1952, section 8; ITU-T V.42).
#include "crc.cuh"

template <int LANES>
__device__ __forceinline__ void crc32_chunks(const Params* params, u32 count, u32* status)
{
    crc_chunks<0x04c11db7, CRC32, LANES>(params, count, status);
}

KERNEL(crc32, crc32_chunks, 32, 5)
HOST_KERNEL(crc32, crc32_chunks)
