// Tells ThreadSanitizer which memory accesses of lanes are ordered: those before a sync of some
// lanes and those after it, and nothing else. Shuffles and votes promise no order.
//
// A lane can be one call ahead of others, so the calls of a group use two addresses in turn.
#pragma once
#include "collectives.h"

#ifdef LANES_TSAN
extern "C" {
void __tsan_acquire(void* at);
void __tsan_release(void* at);
}
#endif

namespace lanes::order {

#ifdef LANES_TSAN

struct Turns {
    unsigned char number;
    char at[2];
};
inline Turns turns_of_groups[256], turns_of_block;
inline char started, ended;

inline Turns* turns_of(const Call& call, unsigned lane)
{
    if (call.kind >= SYNCTHREADS) return &turns_of_block;
    if (call.kind != SYNCWARP || !call.mask) return nullptr;
    return &turns_of_groups[lane / 32 * 32 + static_cast<unsigned>(__builtin_ctz(call.mask))];
}

// A lane comes to a call.
inline void* release(const Call& call, unsigned lane)
{
    Turns* const turns = turns_of(call, lane);
    if (!turns) return nullptr;
    void* const at = &turns->at[turns->number & 1];
    __tsan_release(at);
    return at;
}

// All lanes of a call have come.
inline void next_turn(const Call& call, unsigned lane)
{
    if (Turns* const turns = turns_of(call, lane)) turns->number++;
}

// A lane goes on.
inline void acquire(void* at)
{
    if (at) __tsan_acquire(at);
}

// Before all lanes, and at the start of each; at the end of each, and after all of them.
inline void before() { __tsan_release(&started); }
inline void begin() { __tsan_acquire(&started); }
inline void end() { __tsan_release(&ended); }
inline void after() { __tsan_acquire(&ended); }

#else

inline void* release(const Call&, unsigned) { return nullptr; }
inline void next_turn(const Call&, unsigned) {}
inline void acquire(void*) {}
inline void before() {}
inline void begin() {}
inline void end() {}
inline void after() {}

#endif

}  // namespace lanes::order
