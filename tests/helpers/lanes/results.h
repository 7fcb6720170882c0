// What each lane gets from a collective.
#pragma once
#include <cstdint>

#include "collectives.h"

namespace lanes {

inline unsigned lowest(std::uint32_t bits) { return static_cast<unsigned>(__builtin_ctz(bits)); }
inline unsigned highest(std::uint32_t bits)
{
    return 31 - static_cast<unsigned>(__builtin_clz(bits));
}

// Where a lane's value comes from (PTX: shfl.sync); its own where that lies outside.
inline unsigned shuffled_from(const Call& call, unsigned lane)
{
    const unsigned first = lane & ~(call.width - 1), last = first + call.width - 1;
    switch (call.kind) {
    case SHFL: return first + (call.argument & (call.width - 1));
    case SHFL_UP: return lane >= first + call.argument ? lane - call.argument : lane;
    case SHFL_DOWN: return lane + call.argument <= last ? lane + call.argument : lane;
    default: return (lane ^ call.argument) <= last ? lane ^ call.argument : lane;
    }
}

// Lane: what has `call` and `result`. lanes: those of a warp, of which `mask` take part; all make
// the same call. noise(): the value of a lane that takes no part, which is undefined.
template <typename Lane, typename Noise>
class Results {
public:
    Results(Lane* lanes, std::uint32_t mask, Noise noise)
        : lanes_(lanes), mask_(mask), noise_(noise)
    {
    }

    void collect()
    {
        using Word = std::uint64_t;
        const auto as_int = [](Word value) { return static_cast<int>(value); };
        switch (lanes_[lowest(mask_)].call.kind) {
        case SYNCWARP: return;
        case BALLOT: return ballot();
        case ANY:
        case REDUCE_OR: return fold([](Word a, Word b) { return a | b; });
        case ALL:
        case REDUCE_AND: return fold([](Word a, Word b) { return a & b; });
        case REDUCE_ADD: return fold([](Word a, Word b) { return a + b; });
        case REDUCE_XOR: return fold([](Word a, Word b) { return a ^ b; });
        case REDUCE_MIN: return fold([](Word a, Word b) { return a < b ? a : b; });
        case REDUCE_MAX: return fold([](Word a, Word b) { return a > b ? a : b; });
        case REDUCE_SIGNED_MIN:
            return fold([=](Word a, Word b) { return as_int(a) < as_int(b) ? a : b; });
        case REDUCE_SIGNED_MAX:
            return fold([=](Word a, Word b) { return as_int(a) > as_int(b) ? a : b; });
        default: return shuffle();
        }
    }

private:
    template <typename Function>
    void each(std::uint32_t bits, Function function)
    {
        for (; bits; bits &= bits - 1) function(lowest(bits), lanes_[lowest(bits)]);
    }

    void give(std::uint64_t result)
    {
        each(mask_, [&](unsigned, Lane& lane) { lane.result = result; });
    }

    template <typename Function>
    void fold(Function combine)
    {
        std::uint64_t folded = lanes_[lowest(mask_)].call.value;
        each(mask_ & (mask_ - 1),
             [&](unsigned, Lane& lane) { folded = combine(folded, lane.call.value); });
        give(folded);
    }

    void ballot()
    {
        std::uint64_t votes = 0;
        each(mask_, [&](unsigned number, Lane& lane) { votes |= lane.call.value << number; });
        give(votes);
    }

    void shuffle()
    {
        each(mask_, [&](unsigned number, Lane& lane) {
            const unsigned from = shuffled_from(lane.call, number);
            lane.result = mask_ >> from & 1 ? lanes_[from].call.value : noise_();
        });
    }

    Lane* lanes_;
    std::uint32_t mask_;
    Noise noise_;
};

}  // namespace lanes
