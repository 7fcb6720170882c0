// xxHash-32 (xxhash_spec.md, "XXH32 Algorithm Description").
#include "xxh.cuh"

struct Xxh32 {
    typedef u32 Word;
    enum : Word {
        P1 = 0x9e3779b1u,
        P2 = 0x85ebca77u,
        P3 = 0xc2b2ae3du,
        P4 = 0x27d4eb2fu,
        P5 = 0x165667b1u,
    };

    __device__ static Word rotated(Word a, u32 by) { return a << by | a >> (32 - by); }
    __device__ static Word start(u32 number)
    {
        return number == 0 ? P1 + P2 : number == 1 ? (Word)P2 : number == 2 ? 0 : 0 - P1;
    }
    __device__ static Word word(const u32* parts) { return *parts; }
    __device__ static Word round(Word sum, Word word) { return rotated(sum + word * P2, 13) * P1; }
    __device__ static Word of_none() { return P5; }
    __device__ static Word merged(const Word (&sums)[4])
    {
        return rotated(sums[0], 1) + rotated(sums[1], 7) + rotated(sums[2], 12) + rotated(sums[3], 18);
    }
    __device__ static Word with_word(Word sum, Word word) { return rotated(sum + word * P3, 17) * P4; }
    __device__ static Word with_half(Word sum, u32) { return sum; }
    __device__ static Word with_byte(Word sum, u8 byte) { return rotated(sum + byte * P5, 11) * P1; }
    __device__ static u32 mixed(Word sum)
    {
        sum = (sum ^ sum >> 15) * P2;
        sum = (sum ^ sum >> 13) * P3;
        return sum ^ sum >> 16;
    }
};

template <int LANES>
__device__ __forceinline__ void xxh32_chunks(const Params* params, u32 count, u32* status)
{
    xxh_chunks<Xxh32, XXH32, LANES>(params, count, status);
}

KERNEL(xxh32, xxh32_chunks, 4, 4)
HOST_KERNEL(xxh32, xxh32_chunks)
