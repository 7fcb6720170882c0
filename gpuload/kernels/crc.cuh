// CRCs of 32 bits, reflected, with the initial and the final complement that all formats ask for.
//
// The bytes are the coefficients of a polynomial over GF(2), and its remainder modulo P of degree 32
// is wanted. A warp reads them in rows of 32 words. With y = x^1024, which is the step from one row
// to the next, P(y) = P(x)^1024: squaring takes each term of a sum on its own. So P(y) is a multiple
// of P(x), and a lane may reduce its column modulo P(y), whose coefficients are words as they are
// read: for each word a few XORs with earlier ones of the same lane, no table and no shift. What is
// left of any number of rows is 32 of them; only these are reduced modulo P(x) itself.
#pragma once
#include "sums.cuh"

// POLY has the coefficients below x^32, that of x^i in bit i. Remainders have that of x^0 in bit 31.
template <u32 POLY>
struct Remainders {
    static const u32 ONE = 0x80000000u;

    __device__ static constexpr u32 reflected()
    {
        u32 bits = 0;
        for (int i = 0; i < 32; i++) bits |= (POLY >> i & 1) << (31 - i);
        return bits;
    }

    __device__ static constexpr u32 times_x(u32 a) { return a >> 1 ^ (a & 1 ? reflected() : 0); }

    // P has the term 1, so that x has an inverse.
    __device__ static constexpr u32 over_x(u32 a)
    {
        return a & ONE ? (a ^ reflected()) << 1 | 1 : a << 1;
    }

    __device__ static constexpr u32 product(u32 a, u32 b)
    {
        u32 sum = 0;
        for (int i = 0; i < 32; i++, a <<= 1, b = times_x(b)) sum ^= a & ONE ? b : 0;
        return sum;
    }
};

template <u32 POLY, int LANES>
struct CrcTables {
    typedef Remainders<POLY> R;
    static const int LOWEST = -127, POWERS = 256, DIGITS = 7;

    u32 powers[POWERS];      // x^8 to the power of LOWEST and up
    u32 next[DIGITS][32];    // by 5 bits of a remainder, what they are a row later
    u32 row;                 // x to the power of a row's bits

    __device__ constexpr CrcTables() : powers(), next(), row(R::ONE)
    {
        u32 power = R::ONE;
        for (int i = 0; i < -8 * LOWEST; i++) power = R::over_x(power);
        for (int i = 0; i < POWERS; i++) {
            powers[i] = power;
            for (int bit = 0; bit < 8; bit++) power = R::times_x(power);
        }
        for (int i = 0; i < 32 * LANES; i++) row = R::times_x(row);
        u32 shifted = row;
        for (int bit = 31; bit >= 0; bit--, shifted = R::times_x(shifted)) {
            const int digit = bit / 5, place = 1 << bit % 5;
            for (int low = 0; low < 32; low++)
                if (low & place) next[digit][low] ^= shifted;
        }
    }
};

template <u32 POLY, int LANES>
__device__ constexpr CrcTables<POLY, LANES> crc_tables;

template <u32 POLY, int LANES>
struct Crc {
    typedef Remainders<POLY> R;
    typedef CrcTables<POLY, LANES> Tables;
    static const u32 ROW = 4 * LANES;
    static const int ROWS = 32;  // the degree of P

    const u8* src;
    const u64 size;
    const u32 lane, skew;  // the first byte's place in its row

    __device__ __forceinline__ Crc(const u8* src, u64 size)
        : src(src), size(size), lane(threadIdx.x % LANES), skew((u32)(u64)src % ROW)
    {
    }

    __device__ __forceinline__ u32 sum() const
    {
        // The initial complement is one of the first 4 bytes, which may be more than there are.
        const u64 rows = (skew + (size < 4 ? 4 : size) + ROW - 1) / ROW, blocks = (rows + ROWS - 1) / ROWS;
        const u32 empty = (u32)(blocks * ROWS - rows);  // rows of zeros in front, which do not count
        const u32 last = edge((rows - 1) * ROW);
        u64 at = (u64)src - skew - (u64)empty * ROW + 4 * lane;
        u32 words[ROWS], left[ROWS];
        const u32 complement = behind_first_row();
        first_block((const u32*)at, empty, blocks == 1, last, complement, words);
        u32 flipped = empty == ROWS - 1 ? complement : 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) left[i] = 0;
#pragma unroll 1
        for (u64 block = 1; block < blocks; block++) {
            at += ROWS * ROW;
            const u32* const more = (const u32*)at;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                left[i] = reduced(words[i], left, i, 1);
                // Fetched as soon as there is a register for it, so that as many are always underway.
                if (i < ROWS - 1) words[i] = fetch(more + i * LANES);
                if (i == 0) words[0] ^= flipped;
            }
            words[ROWS - 1] = last;
            if (block + 1 < blocks) words[ROWS - 1] = fetch(more + (ROWS - 1) * LANES);
            flipped = 0;
        }
        return ~of_grid(words, left, (u32)(rows * ROW - skew - size));
    }

private:
    // The word at a place of the grid that is not ours as a whole.
    __device__ __forceinline__ u32 edge(u64 row) const
    {
        u32 word = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u64 at = row + 4 * lane + i - skew;  // beyond any size if it is in front
            u32 byte = 0;
            if (at < size) byte = src[at];
            if (at < 4) byte ^= 255;
            word |= byte << 8 * i;
        }
        return word;
    }

    // What is complemented of the second row.
    __device__ __forceinline__ u32 behind_first_row() const
    {
        return lane == 0 && skew + 4 > ROW ? (1u << 8 * (skew + 4 - ROW)) - 1 : 0;
    }

    __device__ __forceinline__ void first_block(const u32* at, u32 empty, bool only, u32 last, u32 complement,
                                                u32 (&words)[ROWS]) const
    {
        const u32 first = edge(0);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const u32 row = i - empty;
            words[i] = row == 0 ? first : 0;
            if (i == ROWS - 1 && only) words[i] = last;
            else if (row - 1 < ROWS) words[i] = fetch(at + i * LANES);
            if (row == 1 && !(i == ROWS - 1 && only)) words[i] ^= complement;
        }
    }

    // A word in row i and what is carried there from rows that are at least `least` before it.
    __device__ __forceinline__ static u32 reduced(u32 word, const u32 (&left)[ROWS], int i, int least)
    {
        u32 sum = left[i];
#pragma unroll
        for (int back = ROWS - 1; back >= 1; back--)  // the newest last
            if (back >= least && POLY >> (ROWS - back) & 1) sum ^= left[(i - back) & (ROWS - 1)];
        return sum ^ word;
    }

    // The remainder of the last rows, with all that is carried there, without so many bytes behind.
    __device__ __forceinline__ u32 of_grid(const u32 (&words)[ROWS], const u32 (&left)[ROWS], u32 behind) const
    {
        const Tables& tables = crc_tables<POLY, LANES>;
        u32 next[Tables::DIGITS], sum = reduced(words[0], left, 0, 1);
#pragma unroll
        for (int i = 0; i < Tables::DIGITS; i++) next[i] = tables.next[i][lane];
#pragma unroll
        for (int i = 1; i < ROWS; i++) sum = a_row_later(sum, next) ^ reduced(words[i], left, i, i + 1);
        // 32 bits are those that every CRC appends.
        const int exponent = 4 + 4 * (LANES - 1 - (int)lane) - (int)behind;
        sum = R::product(sum, tables.powers[exponent - Tables::LOWEST]);
        for (int distance = LANES / 2; distance; distance /= 2)
            sum ^= __shfl_xor_sync(0xffffffffu, sum, distance);
        return sum;
    }

    __device__ __forceinline__ static u32 a_row_later(u32 sum, const u32 (&next)[Tables::DIGITS])
    {
        if (LANES < 32) return R::product(sum, crc_tables<POLY, LANES>.row);
        u32 later = 0;
#pragma unroll
        for (int i = 0; i < Tables::DIGITS; i++) later ^= __shfl_sync(0xffffffffu, next[i], sum >> 5 * i);
        return later;
    }
};

template <u32 POLY, u32 ALGO, int LANES>
__device__ __forceinline__ void crc_chunks(const Params* params, u32 count, u32* status)
{
    const u32 chunk = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (chunk >= count || params[chunk].algo != ALGO) return;
    const Params& p = params[chunk];
    const Crc<POLY, LANES> crc(p.src, bytes_to_sum(p));
    const u32 sum = crc.sum();
    if (crc.lane == 0) status[chunk] = sum;
}
