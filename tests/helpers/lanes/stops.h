// How a run ends early: which case was at fault, and an exit status that says why.
#pragma once
#include <signal.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "batch.h"
#include "launch.h"

#if defined(LANES_ASAN)
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

namespace lanes {

enum Exit { USAGE = 64, WRONG = 65, SANITIZER = 66, REFUSED = 67, SLOW = 68 };

// Of the batch that runs.
inline unsigned long long first_case;
inline unsigned lanes_a_case = 1;
inline unsigned cases_in_batch;
inline const Case* described;  // the batch's cases, if reports are to hold their bytes

inline unsigned long long current_case()
{
    const unsigned long long within = current_thread() / lanes_a_case;
    return first_case + (within < cases_in_batch ? within : cases_in_batch - 1);
}

// Safe in a signal's handler and while a sanitizer reports.
inline void tell(const char* what, unsigned long long number)
{
    char text[200];
    const int size = std::snprintf(text, sizeof text, "lanes: case %llu: %s\n", number, what);
    if (write(STDERR_FILENO, text, static_cast<size_t>(size)) < 0) _exit(USAGE);
}

// The bytes of a case, which nobody else has.
inline void describe(unsigned long long number)
{
    if (!described || number < first_case) return;
    const Case& one = described[number - first_case];
    std::fprintf(stderr, "lanes: capacity %u, remainders %u and %u, stored bytes ", one.capacity,
                 one.src_at, one.dst_at);
    for (unsigned i = 0; i < one.src_size; i++) std::fprintf(stderr, "%02x", one.src[i]);
    std::fputc('\n', stderr);
}

[[noreturn]] inline void stop(Exit status, const char* what, unsigned long long number)
{
    tell(what, number);
    _exit(status);
}

inline void on_death()
{
    tell("a sanitizer stopped it", current_case());
    describe(current_case());
}
inline void on_alarm(int)
{
    describe(current_case());
    stop(SLOW, "it does not end", current_case());
}

[[maybe_unused]] inline void on_fault(int)
{
    stop(SANITIZER, "an access to memory that is not mapped", current_case());
}

// Seconds that a batch may take; most take milliseconds.
inline unsigned patience()
{
    const char* given = std::getenv("LANES_PATIENCE");
    return given ? static_cast<unsigned>(std::atoi(given)) : 120;
}

inline void watch_over(const Case* cases = nullptr)
{
    described = cases;
#ifdef LANES_ASAN
    __sanitizer_set_death_callback(on_death);
#elif !defined(LANES_TSAN)
    // On a stack of its own: a lane's may be full.
    static char space[64 << 10];
    stack_t stack{};
    stack.ss_sp = space;
    stack.ss_size = sizeof space;
    sigaltstack(&stack, nullptr);
    struct sigaction action{};
    action.sa_handler = on_fault;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
#endif
    signal(SIGALRM, on_alarm);
}

}  // namespace lanes

#ifdef LANES_ASAN
extern "C" inline __attribute__((used, visibility("default"))) const char* __asan_default_options()
{
    return "exitcode=66:detect_leaks=0:handle_abort=1";
}
// libubsan calls this before it prints; it exits without calling the other one back.
extern "C" inline __attribute__((used, visibility("default"))) void __ubsan_on_report()
{
    lanes::on_death();
}
extern "C" inline __attribute__((used, visibility("default"))) const char* __ubsan_default_options()
{
    return "exitcode=66:print_stacktrace=1";
}
#endif
#ifdef LANES_TSAN
extern "C" inline __attribute__((used, visibility("default"))) const char* __tsan_default_options()
{
    return "exitcode=66:halt_on_error=1";
}
#endif
