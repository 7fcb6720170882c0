// Finding the headers of a file's chunks, each of which says where the next one stands.
//
// An operation is a segment of a range of the file. Where a chain of headers runs through it nobody
// knows, so a warp looks for the first position from which one does, and walks along. What looks like
// headers may be bytes of a chunk: whoever knows one true header tells the true chain from others.
//
// Scans take the parameters of decoders and read them otherwise. What becomes of an operation's
// status is why it stopped. Its output is three words, the number of records, the position of the
// first header and that behind the last one; then the records, each of which starts with a position.
#pragma once
#include "group.cuh"

enum ScanAlgo : u32 { SCAN_LZ4 = 768, SCAN_SNAPPY = 769, SCAN_BGZF = 770, SCAN_ZSTD = 771 };

// gpuload/engines/scan_plan.py has the same.
enum Stop : u32 {
    LEFT = 0,     // the next header is not in the segment
    CUT = 1,      // it is not wholly in the range
    END = 2,      // an end mark
    BROKEN = 3,   // no header stands where one should
    FILLED = 4,   // the output has no room for more
    NOTHING = 5,  // no chain was found
};

// Positions count from the first byte of the range.
struct Scan {
    u64 size;  // of the range; nothing before or behind it is read
    u64 room;  // bytes of the output
    u64 unused;
    const u8* range;
    u32* output;
    u32 algo;
    u32 start, end;  // of the segment
    u32 entry;       // a header of the true chain, or UNKNOWN
    u32 longest;     // stored bytes of a chunk
    u32 summed;      // whether a checksum follows each chunk
};
static_assert(sizeof(Scan) == sizeof(Params), "scans take the parameters of decoders");

const u32 UNKNOWN = 0xffffffffu;

// The bytes of a range.
struct Bytes {
    const u8* first;
    u32 size;

    // 4 bytes, all of which must be there.
    __device__ __forceinline__ u32 word(u32 at) const
    {
        const u8* const from = first + at;
        return from[0] | from[1] << 8 | from[2] << 16 | (u32)from[3] << 24;
    }

    // The 4 bytes that end `distance` bytes before a position, or 0 if the range does not have them.
    __device__ __forceinline__ u32 word_before(u32 at, u32 distance) const
    {
        return at < distance ? 0 : word(at - distance);
    }

    // The same from an aligned address; bytes that are not there are 0.
    __device__ __forceinline__ u32 word_or_zeros(int at) const
    {
        if (at >= 0 && at + 4 <= (int)size) return *(const u32*)(first + at);
        u32 word = 0;
        for (int i = 0; i < 4; i++)
            if (at + i >= 0 && at + i < (int)size) word |= (u32)first[at + i] << 8 * i;
        return word;
    }
};

// Format: what headers look like, and what is recorded of each.
template <class Format, int LANES>
struct Scanner {
    const Group<LANES> group;
    const Scan& scan;
    const Bytes bytes;
    const u32 end, most;
    u32 count, first, position;  // as they are put out; the next header while walking

    __device__ __forceinline__ explicit Scanner(const Scan& scan)
        : group(), scan(scan), bytes{scan.range, (u32)scan.size},
          end(scan.end < bytes.size ? scan.end : bytes.size), most(records(scan.room)), count(0), first(UNKNOWN),
          position(UNKNOWN)
    {
    }

    __device__ __forceinline__ Stop run()
    {
        if (scan.entry != UNKNOWN) return scan.entry < end ? walk(scan.entry) : NOTHING;
        u32 walked = 0;
        for (u32 from = scan.start; walked < MOST_WALKED;) {
            const u32 found = find(from);
            if (found == UNKNOWN) break;
            const Stop why = walk(found);
            if (why != BROKEN) return why;
            // A chain that breaks was none.
            walked += count + 1;
            from = found + 1;
        }
        count = 0;
        first = position = UNKNOWN;
        return NOTHING;
    }

private:
    // Bytes that a lane looks at once, and their words and one more.
    static const u32 ROW = 32, WORDS = ROW / 4 + 1;
    // Headers in a row that are taken for a chain.
    static const u32 CHAIN = 8;
    // What bytes that look like many headers may take: headers of broken chains, and rounds of looking
    // whether chains start with any of them.
    static const u32 MOST_WALKED = 4096, MOST_ROUNDS = 8192;

    u32 rounds = 0;

    __device__ __forceinline__ static u32 records(u64 room)
    {
        const u64 most = (room - 12) / (4 * Format::RECORD);
        return most < 1u << 30 ? (u32)most : 1u << 30;
    }

    // The first position of the segment from `from` on at which a chain starts.
    __device__ __forceinline__ u32 find(u32 from)
    {
        const u32 skew = (u32)(u64)bytes.first % ROW;
        for (u32 row = (from + skew) / ROW; row * ROW < end + skew && from < end; row += LANES) {
            const int start = (int)((row + group.lane) * ROW) - (int)skew;
            u32 likely = candidates(start, from), found = UNKNOWN;
            while (group.any(likely)) {
                if (likely) {
                    const u32 at = (u32)(start + __ffs((int)likely) - 1);
                    likely &= likely - 1;
                    if (is_chain(at)) {
                        found = at;
                        likely = 0;
                    }
                }
                const u32 votes = group.ballot(found != UNKNOWN);
                // Those behind are of no interest any more.
                if (votes & (group.upto >> 1)) likely = 0;
                if (++rounds > MOST_ROUNDS) return UNKNOWN;
            }
            const u32 votes = group.ballot(found != UNKNOWN);
            if (votes) return group.get(found, (u32)__ffs((int)votes) - 1);
        }
        return UNKNOWN;
    }

    // A bit for each of a row's positions where a header may stand.
    __device__ __forceinline__ u32 candidates(int start, u32 from) const
    {
        u32 words[WORDS];
        load(start, words);
        u32 likely = 0;
#pragma unroll
        for (u32 i = 0; i < ROW; i++) {
            const u32 word = __funnelshift_r(words[i / 4], words[i / 4 + 1], 8 * (i % 4));
            likely |= (u32)Format::may_start(word, scan) << i;
        }
        const int whole = (int)bytes.size - (int)Format::HEAD + 1;
        const int last = (whole < (int)end ? whole : (int)end) - start, early = (int)from - start;
        if (last <= 0 || early >= (int)ROW) return 0;
        if (last < (int)ROW) likely &= (1u << last) - 1;
        return early > 0 ? likely & ~0u << early : likely;
    }

    // start: of a row, whose address is aligned.
    __device__ __forceinline__ void load(int start, u32 (&words)[WORDS]) const
    {
        if (start >= 0 && start + (int)ROW + 4 <= (int)bytes.size) {
            const uint4* const from = (const uint4*)(bytes.first + start);
#pragma unroll
            for (u32 i = 0; i < ROW / 16; i++) {
                const uint4 four = from[i];
                words[4 * i] = four.x, words[4 * i + 1] = four.y;
                words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
            }
            words[WORDS - 1] = *(const u32*)(from + ROW / 16);
        } else {
#pragma unroll
            for (u32 i = 0; i < WORDS; i++) words[i] = bytes.word_or_zeros(start + 4 * (int)i);
        }
    }

    __device__ __forceinline__ bool is_chain(u32 at) const
    {
        for (u32 i = 0; i < CHAIN; i++) {
            if (at + Format::HEAD > bytes.size) return true;
            const u32 step = Format::step(bytes, at, scan);
            if (!step) return Format::ends(bytes, at);
            at += step;
        }
        return true;
    }

    // Visit the headers from one on. Every lane does so; each keeps the position of one of them until
    // there are enough to be written together.
    __device__ __forceinline__ Stop walk(u32 at)
    {
        first = at;
        count = 0;
        u32 mine = 0;
        Stop why = LEFT;
        while (at < end) {
            if (at + Format::HEAD > bytes.size) {
                why = CUT;
                break;
            }
            const u32 step = Format::step(bytes, at, scan);
            if (!step || count == most) {
                why = step ? FILLED : Format::ends(bytes, at) ? END : BROKEN;
                break;
            }
            if (count % LANES == group.lane) mine = at;
            if (++count % LANES == 0) write(count - LANES, LANES, mine);
            at += step;
        }
        write(count - count % LANES, count % LANES, mine);
        position = at;
        return why;
    }

    __device__ __forceinline__ void write(u32 number, u32 some, u32 at) const
    {
        if (group.lane >= some) return;
        u32* const record = scan.output + 3 + (u64)(number + group.lane) * Format::RECORD;
        record[0] = at;
        Format::describe(bytes, at, record + 1);
    }
};

template <class Format, int LANES>
__device__ __forceinline__ void scan_segments(const Params* params, u32 count, u32* status)
{
    const u32 number = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (number >= count || params[number].algo != Format::ALGO) return;
    const Scan& scan = reinterpret_cast<const Scan&>(params[number]);
    if (scan.room < 12) {
        if (threadIdx.x % LANES == 0) status[number] = FILLED;
        return;
    }
    Scanner<Format, LANES> scanner(scan);
    const Stop why = scan.size >> 30 ? NOTHING : scanner.run();
    if (scanner.group.lane == 0) {
        scan.output[0] = scanner.count;
        scan.output[1] = scanner.first;
        scan.output[2] = scanner.position;
        status[number] = why;
    }
}
