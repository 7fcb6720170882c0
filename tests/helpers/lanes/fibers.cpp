// Lanes that run one at a time and meet at collectives: those of a warp, or of a whole block.
#include <cstdarg>
#include <cstring>

#include "collectives.h"
#include "context.h"
#include "launch.h"
#include "order.h"
#include "results.h"

namespace lanes {

Three block_index, lane_index, block_size, grid_size;

namespace {

constexpr unsigned WARP = 32, MOST = 256;
// Between the places of two lanes' first frames: an odd number of cache lines.
constexpr std::size_t STAGGER = 9 * 64;

const char* const NAMES[] = {"__syncwarp",
                             "__any_sync",
                             "__all_sync",
                             "__ballot_sync",
                             "__reduce_add_sync",
                             "__reduce_min_sync",
                             "__reduce_max_sync",
                             "__reduce_min_sync (int)",
                             "__reduce_max_sync (int)",
                             "__reduce_and_sync",
                             "__reduce_or_sync",
                             "__reduce_xor_sync",
                             "__shfl_sync",
                             "__shfl_up_sync",
                             "__shfl_down_sync",
                             "__shfl_xor_sync",
                             "__syncthreads",
                             "__syncthreads_count",
                             "__syncthreads_and",
                             "__syncthreads_or"};

struct Lane {
    Context context;
    Call call;
    std::uint64_t result;
};

// Every bit of these is a lane; a lane that runs is alive and neither of the other two.
struct Warp {
    std::uint32_t alive, ready, waiting;
};

// The lanes that run together; lane i is of warp i / 32.
struct Crew {
    Lane lanes[MOST];
    Warp warps[MOST / WARP];
    Context outside;  // run() itself
    unsigned first;   // thread of the block
    unsigned count_of_warps, current, alive, in_barrier;
    std::uint64_t switches;

    Lane& lane() { return lanes[current]; }
    Lane* lanes_of_warp() { return &lanes[current / WARP * WARP]; }
    Warp& warp() { return warps[current / WARP]; }
    std::uint32_t bit() const { return 1u << current % WARP; }
};

Crew crew;
Launch running;
Schedule schedule;
std::uint64_t random_state;
bool stopped;
char said[400];

std::uint64_t random64()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545f4914f6cdd1dull;
}

unsigned one_of(std::uint32_t lanes)
{
    if (schedule.order == Order::ASCENDING) return lowest(lanes);
    if (schedule.order == Order::DESCENDING) return highest(lanes);
    const unsigned turn = random64() >> 59;
    const std::uint32_t turned = lanes >> turn | lanes << (32 - turn) % 32;
    return (lowest(turned) + turn) % 32;
}

// The lane that runs next; MOST if none can.
unsigned chosen()
{
    const unsigned count = crew.count_of_warps;
    const unsigned first = schedule.order == Order::RANDOM && count > 1 ? random64() % count : 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned warp = (first + i) % count;
        if (schedule.order == Order::DESCENDING) warp = count - 1 - warp;
        if (crew.warps[warp].ready) return warp * WARP + one_of(crew.warps[warp].ready);
    }
    return MOST;
}

[[noreturn]] void leave()
{
    order::end();
    crew.lane().context.switch_to(crew.outside);
    __builtin_unreachable();
}

[[noreturn]] __attribute__((format(printf, 1, 2))) void stop(const char* format, ...)
{
    stopped = true;
    const unsigned thread = crew.first + crew.current;
    const int used = std::snprintf(said, sizeof said, "block %u, warp %u, lane %u: ", block_index.x,
                                   thread / WARP, thread % WARP);
    va_list values;
    va_start(values, format);
    std::vsnprintf(said + used, sizeof said - static_cast<std::size_t>(used), format, values);
    va_end(values);
    leave();
}

[[noreturn]] void deadlock()
{
    // Not all wait for the block, or it would go on.
    unsigned lane = 0;
    const auto waits = [&] { return crew.warps[lane / WARP].waiting >> lane % WARP & 1; };
    while (!waits() || crew.lanes[lane].call.kind >= SYNCTHREADS) lane++;
    const Call& call = crew.lanes[lane].call;
    const std::uint32_t returned = call.mask & ~crew.warps[lane / WARP].alive;
    const char* const state = returned ? "have returned" : "wait in other calls";
    stop("no lane can go on: lane %u of warp %u waits in %s(0x%08x) for lanes 0x%08x, which %s",
         lane % WARP, (crew.first + lane) / WARP, NAMES[call.kind], call.mask,
         returned ? returned : call.mask, state);
}

// Makes a lane the one that runs.
void appoint(unsigned lane)
{
    crew.current = lane;
    crew.warp().ready &= ~crew.bit();
    lane_index.x = crew.first + lane;
}

// Lets another lane run; returns when it is this one's turn again.
void go_on()
{
    const unsigned next = chosen();
    if (next == MOST) deadlock();
    if (++crew.switches > schedule.most_switches)
        stop("more than %llu switches between lanes: it does not end",
             static_cast<unsigned long long>(schedule.most_switches));
    Lane& from = crew.lane();
    appoint(next);
    if (&from != &crew.lane()) from.context.switch_to(crew.lane().context);
}

void check(const Call& call)
{
    const char* const name = NAMES[call.kind];
    if (!(call.mask & crew.bit()))
        stop("%s(0x%08x): the mask does not name the calling lane", name, call.mask);
    if (call.mask & ~crew.warp().alive)
        stop("%s(0x%08x): lanes 0x%08x have returned, or are not in the block", name, call.mask,
             call.mask & ~crew.warp().alive);
    if (call.kind < SHFL) return;
    if (call.width == 0 || call.width > WARP || call.width & (call.width - 1))
        stop("%s: width %u is no power of two up to 32", name, call.width);
    if (call.kind > SHFL && call.argument >= WARP)
        stop("%s: lane mask or distance %u is above 31", name, call.argument);
}

void agree(const Call& call, std::uint32_t lanes)
{
    for (; lanes; lanes &= lanes - 1) {
        const Call& theirs = crew.lanes_of_warp()[lowest(lanes)].call;
        if (theirs.kind != call.kind || theirs.mask != call.mask)
            stop("%s(0x%08x), but lane %u waits in %s(0x%08x)", NAMES[call.kind], call.mask,
                 lowest(lanes), NAMES[theirs.kind], theirs.mask);
        if (theirs.width != call.width)
            stop("%s: width %u, but lane %u has %u", NAMES[call.kind], call.width, lowest(lanes),
                 theirs.width);
    }
}

void meet_warp(const Call& call)
{
    check(call);
    Warp& warp = crew.warp();
    const std::uint32_t others = warp.waiting & call.mask;
    warp.waiting |= crew.bit();
    if ((others | crew.bit()) != call.mask) return agree(call, others & -others);
    agree(call, others);
    Results(crew.lanes_of_warp(), call.mask, random64).collect();
    order::next_turn(call, crew.current);
    warp.waiting &= ~call.mask;
    warp.ready |= call.mask;
}

template <typename Function>
void each_alive(Function function)
{
    for (unsigned i = 0; i < crew.count_of_warps * WARP; i++)
        if (crew.warps[i / WARP].alive >> i % WARP & 1) function(crew.lanes[i]);
}

// Lets a block go on, if all its lanes that have not returned wait for that.
void open_barrier()
{
    if (crew.in_barrier != crew.alive) return;
    unsigned votes = 0;
    const Call* last = nullptr;
    each_alive([&](Lane& lane) { last = &lane.call, votes += lane.call.value != 0; });
    each_alive([&](Lane& lane) {
        if (lane.call.kind != last->kind)
            stop("lanes of the block wait in %s and in %s", NAMES[lane.call.kind],
                 NAMES[last->kind]);
        if (last->kind == SYNCTHREADS_COUNT) lane.result = votes;
        if (last->kind == SYNCTHREADS_AND) lane.result = votes == crew.alive;
        if (last->kind == SYNCTHREADS_OR) lane.result = votes > 0;
    });
    order::next_turn(*last, 0);
    crew.in_barrier = 0;
    for (unsigned i = 0; i < crew.count_of_warps; i++)
        crew.warps[i] = {crew.warps[i].alive, crew.warps[i].alive, 0};
}

void meet_block(const Call& call)
{
    if (!running.together && running.block > WARP)
        stop("%s: only kernels for groups of more than a warp may wait for other warps",
             NAMES[call.kind]);
    crew.warp().waiting |= crew.bit();
    crew.in_barrier++;
    open_barrier();
}

void lane_main()
{
    crew.lane().context.arrived(&crew.outside);
    order::begin();
    running.kernel(running.params, running.count, running.status);
    order::end();
    crew.warp().alive &= ~crew.bit();
    if (--crew.alive == 0) leave();
    open_barrier();
    go_on();
    __builtin_unreachable();
}

// Runs lanes from a thread of the block on, until all have returned or one is stopped.
void run_crew(unsigned first, unsigned lanes)
{
    crew.first = first;
    crew.count_of_warps = (lanes + WARP - 1) / WARP;
    crew.alive = lanes;
    crew.in_barrier = 0;
    crew.switches = 0;
    for (unsigned i = 0; i < lanes; i++) crew.lanes[i].context.start(STACK, i * STAGGER, lane_main);
    for (unsigned i = 0; i < crew.count_of_warps; i++) {
        const unsigned left = lanes - i * WARP;
        const std::uint32_t all = left >= WARP ? ~0u : (1u << left) - 1;
        crew.warps[i] = {all, all, 0};
    }
    crew.outside.adopt();
    appoint(chosen());
    order::before();
    crew.outside.switch_to(crew.lane().context);
    order::after();
}

}  // namespace

unsigned long long meet(const Call& call)
{
    Lane& lane = crew.lane();
    lane.call = call;
    void* const order = order::release(call, crew.current);
    call.kind < SYNCTHREADS ? meet_warp(call) : meet_block(call);
    go_on();
    order::acquire(order);
    return lane.result;
}

void refuse(const char* what) { stop("%s", what); }

const char* complaint() { return said; }

unsigned long long current_thread()
{
    return std::uint64_t{block_index.x} * block_size.x + lane_index.x;
}

bool run(const Launch& launch, const Schedule& how)
{
    running = launch;
    schedule = how;
    random_state = how.seed * 0x9e3779b97f4a7c15ull | 1;
    stopped = false;
    said[0] = 0;
    grid_size = {launch.grid, 1, 1};
    block_size = {launch.block, 1, 1};
    const unsigned most = launch.together ? MOST : WARP;
    for (unsigned block = 0; block < launch.grid; block++) {
        block_index = {block, 0, 0};
        for (unsigned first = 0; first < launch.block && !stopped; first += most)
            run_crew(first, launch.block - first < most ? launch.block - first : most);
        if (stopped) return false;
    }
    return true;
}

}  // namespace lanes
