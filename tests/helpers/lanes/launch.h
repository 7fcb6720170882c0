// Running a kernel on the CPU: what the programs that do so share with the two ways of doing it,
// fibers.cpp (a warp of lanes) and alone.cpp (one lane).
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace lanes {

using Kernel = void (*)(const void* params, unsigned count, unsigned* status);

struct Launch {
    Kernel kernel;
    unsigned grid, block;
    const void* params;
    unsigned count;
    unsigned* status;
    // Whether the warps of a block run together, so that they can meet, or one after another.
    bool together;
};

enum class Order { ASCENDING, DESCENDING, RANDOM };

// By a name that programs are given; "mixed" has one after another.
inline Order order_of(const char* name, unsigned long long turn)
{
    if (!std::strcmp(name, "mixed")) return static_cast<Order>(turn % 3);
    if (!std::strcmp(name, "ascending")) return Order::ASCENDING;
    return std::strcmp(name, "descending") ? Order::RANDOM : Order::DESCENDING;
}

// Which lane runs next, and how long a warp (or a block, if its warps run together) may run.
struct Schedule {
    Order order = Order::RANDOM;
    std::uint64_t seed = 1;
    std::uint64_t most_switches = ~0ull;  // from lane to lane
};

// Runs all blocks, one after another. Returns false where the kernel did what CUDA leaves
// undefined, or took too long; complaint() then says what.
bool run(const Launch& launch, const Schedule& schedule);
const char* complaint();

// The thread of the grid that runs, or ran last.
unsigned long long current_thread();

// Bytes of stack for each lane; reports of sanitizers need most of them.
constexpr unsigned long STACK = 256 << 10;

// Threads of a block, as the SM engine launches it.
constexpr unsigned BLOCK = 128;

// How many lanes decode one operation: the number at the end of a kernel's name. 0 if it has none.
inline unsigned width_of(const char* kernel)
{
    const char* number = std::strrchr(kernel, '_');
    const long width = number ? std::strtol(number + 1, nullptr, 10) : 0;
    const bool possible = width > 0 && width <= BLOCK && (width & (width - 1)) == 0;
    return possible ? static_cast<unsigned>(width) : 0;
}

// Blocks of a grid.
inline unsigned grid_of(unsigned count, unsigned width)
{
    return static_cast<unsigned>((std::uint64_t{count} * width + BLOCK - 1) / BLOCK);
}

}  // namespace lanes
