// CRC-32C, Castagnoli's polynomial (RFC 3720, section 12.1), not masked.
#include "crc.cuh"

template <int LANES>
__device__ __forceinline__ void crc32c_chunks(const Params* params, u32 count, u32* status)
{
    crc_chunks<0x1edc6f41, CRC32C, LANES>(params, count, status);
}

KERNEL(crc32c, crc32c_chunks, 32, 5)
HOST_KERNEL(crc32c, crc32c_chunks)
