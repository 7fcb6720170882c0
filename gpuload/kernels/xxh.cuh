// xxHashes of 32 and 64 bits, of the seed 0 (xxhash_spec.md of the xxHash project).
//
// Four accumulators take in the words of each stripe, one each, and every step needs the one before
// it. So the lanes of a group have one each, and a warp has eight groups to be busy with. Words are
// read in vectors of 16 bytes, each lane whole stripes of its own, and change hands in registers.
//
// Stripes as they are read are aligned, those of the hash start at the first byte. So a lane has the
// words of one column of the aligned ones, shifted by less than a word, and whose accumulator that is
// depends on the alignment.
#pragma once
#include "sums.cuh"

// Hash: the constants, rounds and ends of one of the hashes.
template <class Hash, int LANES>
struct Xxh {
    typedef typename Hash::Word Word;
    static const u32 COLUMNS = 4, WORD = sizeof(Word), STRIPE = COLUMNS * WORD;
    static const u32 PARTS = STRIPE / 4;
    static const u32 OWN = COLUMNS / LANES;  // accumulators of a lane
    static const u32 AT_ONCE = 5;            // the most words that are left over by whole vectors
    static const u32 ALL = 0xffffffffu;
    // Stripes of a lane that are underway, 16 vectors: with few chunks there are few warps to wait for
    // memory side by side.
    static const u32 AHEAD = 16 / (STRIPE / 16);

    const u8* src;
    const u64 size;
    const u32 lane;
    const u32 skew, turned;  // the first byte's place in an aligned stripe, and its column there
    u64 word;                // the next one of this lane's
    Word sums[OWN];

    __device__ __forceinline__ Xxh(const u8* src, u64 size)
        : src(src), size(size), lane(threadIdx.x % LANES), skew((u32)(u64)src % STRIPE), turned(skew / WORD),
          word(OWN == 1 ? (lane - turned) % COLUMNS : 0)
    {
#pragma unroll
        for (u32 i = 0; i < OWN; i++) sums[i] = Hash::start((u32)word + i);
    }

    // All lanes of the warp have to call it.
    __device__ __forceinline__ u32 sum()
    {
        if (LANES == COLUMNS) by_vectors();
#pragma unroll
        for (u32 i = 0; i < OWN; i++) by_words(word + i, sums[i]);
        Word all[COLUMNS];
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++)
            all[i] = OWN == 1 ? __shfl_sync(ALL, sums[0], (i + turned) % COLUMNS, COLUMNS) : sums[i % OWN];
        return lane == 0 ? end(all) : 0;
    }

private:
    // A stripe of the aligned ones, and then the words of one column in as many.
    struct Vector {
        u32 part[PARTS];
    };

    __device__ __forceinline__ u64 words() const { return size / STRIPE * COLUMNS; }

    template <class Number>
    __device__ __forceinline__ Number read(u64 at) const
    {
        Number value = 0;
#pragma unroll
        for (u32 i = 0; i < sizeof(Number); i++) value |= (Number)src[at + i] << 8 * i;
        return value;
    }

    __device__ __forceinline__ void by_words(u64 word, Word& sum) const
    {
        const u64 end = words();
#pragma unroll 1
        for (; word < end; word += AT_ONCE * COLUMNS) {
            Word value[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (word + i * COLUMNS < end) value[i] = read<Word>((word + i * COLUMNS) * WORD);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (word + i * COLUMNS < end) sum = Hash::round(sum, value[i]);
        }
    }

    // Stripes that are whole when aligned, four at a time, as long as there is one more behind them.
    __device__ __forceinline__ void by_vectors()
    {
        const u64 first = skew ? 1 : 0, end = (skew + size) / STRIPE;
        const u64 most = 1u << 28;  // what is left of 16 GiB and more is taken word by word
        const u64 whole = end > first ? end - first : 0, turns = whole ? (whole - 1) / COLUMNS : 0;
        const u32 mine = (u32)(turns < most ? turns : most);
        const u64 loads = whole > lane ? (whole - lane + COLUMNS - 1) / COLUMNS : 0;
        const u32 there = (u32)(loads < most ? loads : most);
        const u8* at = src - skew + (first + lane) * STRIPE;
        if (mine && first && lane >= turned) {
            sums[0] = Hash::round(sums[0], read<Word>(word * WORD));
            word += COLUMNS;
        }
        word += (u64)mine * COLUMNS * COLUMNS;
        Vector ahead[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) ahead[i] = vector(at, i, there);
#pragma unroll 1
        for (u32 turn = 0; __any_sync(ALL, turn < mine); turn += AHEAD, at += AHEAD * COLUMNS * STRIPE) {
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                const Vector column = own_column(ahead[i], ahead[(i + 1) % AHEAD]);
                const Word taken = with_column(sums[0], column);
                sums[0] = turn + i < mine ? taken : sums[0];  // and no branch
                const u32 later = turn + AHEAD;
                ahead[i] = vector(at + AHEAD * COLUMNS * STRIPE, i, there > later ? there - later : 0);
            }
        }
    }

    __device__ __forceinline__ static Vector vector(const u8* at, u32 number, u32 there)
    {
        Vector loaded;
        const uint4* const from = (const uint4*)(at + number * COLUMNS * STRIPE);
#pragma unroll
        for (u32 i = 0; i < PARTS; i += 4) {
            uint4 four = make_uint4(0, 0, 0, 0);
            if (number < there) four = fetch(from + i / 4);
            loaded.part[i] = four.x, loaded.part[i + 1] = four.y;
            loaded.part[i + 2] = four.z, loaded.part[i + 3] = four.w;
        }
        return loaded;
    }

    __device__ __forceinline__ static Word with_column(Word sum, const Vector& column)
    {
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) sum = Hash::round(sum, Hash::word(&column.part[i * (WORD / 4)]));
        return sum;
    }

    // Of what four lanes have of four stripes, the words of this lane's column; the stripe behind
    // them starts what the first lane has `behind`.
    __device__ __forceinline__ Vector own_column(const Vector& now, const Vector& behind) const
    {
        Vector moved = shifted(now, behind);
#pragma unroll
        for (u32 i = 0; i < WORD / 4; i++) transpose(moved, i);
        return moved;
    }

    __device__ __forceinline__ Vector shifted(const Vector& now, const Vector& behind) const
    {
        u32 part[PARTS + WORD / 4];
#pragma unroll
        for (u32 i = 0; i < PARTS; i++) part[i] = now.part[i];
#pragma unroll
        for (u32 i = 0; i < WORD / 4; i++) {
            const u32 start = lane == 0 ? behind.part[i] : now.part[i];
            part[PARTS + i] = __shfl_sync(ALL, start, lane + 1, COLUMNS);
        }
        if (WORD == 8) {
            const bool half = skew & 4;
#pragma unroll
            for (u32 i = 0; i <= PARTS; i++) part[i] = half ? part[i + WORD / 8] : part[i];
        }
        Vector moved;
#pragma unroll
        for (u32 i = 0; i < PARTS; i++) moved.part[i] = __funnelshift_r(part[i], part[i + 1], 8 * (skew & 3));
        return moved;
    }

    // Of the words' parts with a number.
    __device__ __forceinline__ void transpose(Vector& v, u32 number) const
    {
        const u32 next = WORD / 4;
        exchange(v.part[number], v.part[number + next], 1);
        exchange(v.part[number + 2 * next], v.part[number + 3 * next], 1);
        exchange(v.part[number], v.part[number + 2 * next], 2);
        exchange(v.part[number + next], v.part[number + 3 * next], 2);
    }

    // One of the two against the other one of the lane at a distance.
    __device__ __forceinline__ void exchange(u32& even, u32& odd, u32 distance) const
    {
        const bool is_odd = lane & distance;
        const u32 got = __shfl_xor_sync(ALL, is_odd ? even : odd, distance);
        even = is_odd ? got : even;
        odd = is_odd ? odd : got;
    }

    // The sum of four accumulators and of what is behind the stripes.
    __device__ __forceinline__ u32 end(const Word (&all)[COLUMNS]) const
    {
        Word sum = (size < STRIPE ? Hash::of_none() : Hash::merged(all)) + (Word)size;
        u64 at = size / STRIPE * STRIPE;
#pragma unroll 1
        for (; size - at >= WORD; at += WORD) sum = Hash::with_word(sum, read<Word>(at));
        if (WORD == 8 && size - at >= 4) sum = Hash::with_half(sum, read<u32>(at)), at += 4;
#pragma unroll 1
        for (; at < size; at++) sum = Hash::with_byte(sum, src[at]);
        return Hash::mixed(sum);
    }
};

template <class Hash, u32 ALGO, int LANES>
__device__ __forceinline__ void xxh_chunks(const Params* params, u32 count, u32* status)
{
    const u32 chunk = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    const bool ours = chunk < count && params[chunk].algo == ALGO;
    if (!__any_sync(0xffffffffu, ours)) return;
    const u64 size = ours ? bytes_to_sum(params[chunk]) : 0;
    Xxh<Hash, LANES> hash(ours ? params[chunk].src : nullptr, size);
    const u32 sum = hash.sum();
    if (ours && hash.lane == 0) status[chunk] = sum;
}
