// Where a lane is in its grid, and how it meets the others: what lanes.h is built on.
#pragma once

namespace lanes {

struct Three {
    unsigned x, y, z;
};

// The kinds of collectives; all lanes of a mask call the same one.
enum Kind : unsigned {
    SYNCWARP, ANY, ALL, BALLOT, REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_SIGNED_MIN,
    REDUCE_SIGNED_MAX, REDUCE_AND, REDUCE_OR, REDUCE_XOR, SHFL, SHFL_UP, SHFL_DOWN, SHFL_XOR,
    // Of a whole block: these have no mask.
    SYNCTHREADS, SYNCTHREADS_COUNT, SYNCTHREADS_AND, SYNCTHREADS_OR
};

// What one lane brings to a collective.
struct Call {
    Kind kind;
    unsigned mask;
    unsigned width;            // of shuffles: lanes that shuffle among themselves
    unsigned argument;         // of shuffles: the other lane, or the distance to it
    unsigned long long value;
};

// Waits for the other lanes of the mask; returns this lane's result. (fibers.cpp)
unsigned long long meet(const Call& call);

// Says what a kernel did that CUDA leaves undefined, and stops it. (fibers.cpp)
[[noreturn]] void refuse(const char* what);

extern Three block_index, grid_size;
#ifdef LANES_WIDTH1
constexpr Three lane_index{0, 0, 0}, block_size{1, 1, 1};
#else
extern Three lane_index, block_size;
#endif

}  // namespace lanes
