// The low half of xxHash-64 (xxhash_spec.md, "XXH64 Algorithm Description").
#include "xxh.cuh"

struct Xxh64 {
    typedef u64 Word;
    enum : Word {
        P1 = 0x9e3779b185ebca87u,
        P2 = 0xc2b2ae3d27d4eb4fu,
        P3 = 0x165667b19e3779f9u,
        P4 = 0x85ebca77c2b2ae63u,
        P5 = 0x27d4eb2f165667c5u,
    };

    __device__ static Word rotated(Word a, u32 by) { return a << by | a >> (64 - by); }
    __device__ static Word start(u32 number)
    {
        return number == 0 ? P1 + P2 : number == 1 ? (Word)P2 : number == 2 ? 0 : 0 - P1;
    }
    __device__ static Word word(const u32* parts) { return (Word)parts[1] << 32 | parts[0]; }
    __device__ static Word round(Word sum, Word word) { return rotated(sum + word * P2, 31) * P1; }
    __device__ static Word of_none() { return P5; }
    __device__ static Word merged(const Word (&sums)[4])
    {
        Word sum = rotated(sums[0], 1) + rotated(sums[1], 7) + rotated(sums[2], 12) + rotated(sums[3], 18);
        for (int i = 0; i < 4; i++) sum = (sum ^ round(0, sums[i])) * P1 + P4;
        return sum;
    }
    __device__ static Word with_word(Word sum, Word word) { return rotated(sum ^ round(0, word), 27) * P1 + P4; }
    __device__ static Word with_half(Word sum, u32 half) { return rotated(sum ^ half * P1, 23) * P2 + P3; }
    __device__ static Word with_byte(Word sum, u8 byte) { return rotated(sum ^ byte * P5, 11) * P1; }
    __device__ static u32 mixed(Word sum)
    {
        sum = (sum ^ sum >> 33) * P2;
        sum = (sum ^ sum >> 29) * P3;
        return (u32)(sum ^ sum >> 32);
    }
};

template <int LANES>
__device__ __forceinline__ void xxh64_chunks(const Params* params, u32 count, u32* status)
{
    xxh_chunks<Xxh64, XXH64, LANES>(params, count, status);
}

KERNEL(xxh64, xxh64_chunks, 4, 4)
HOST_KERNEL(xxh64, xxh64_chunks)
