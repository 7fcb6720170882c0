// Stacks of their own for lanes, and going from one to another.
//
// By hand on x86-64, where that takes a few nanoseconds; ucontext (with two system calls a switch)
// elsewhere, and where LANES_UCONTEXT asks for it.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if !defined(__x86_64__) && !defined(LANES_UCONTEXT)
#define LANES_UCONTEXT
#endif
#ifdef LANES_UCONTEXT
#include <ucontext.h>
#endif

#ifdef __SANITIZE_ADDRESS__
#error "the machinery of lanes is compiled without sanitizers; LANES_ASAN tells it of them"
#endif
#ifdef LANES_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, std::size_t* size);
}
#endif
#ifdef LANES_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}
#endif

namespace lanes {

// A stack with a page below it that must not be touched.
class Stack {
public:
    void map(std::size_t size)
    {
        const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        void* at = mmap(nullptr, page + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED ||
            mprotect(static_cast<char*>(at) + page, size, PROT_READ | PROT_WRITE)) {
            std::perror("lanes: no memory for a lane's stack");
            std::abort();
        }
        bottom = static_cast<char*>(at) + page;
        this->size = size;
    }

    char* bottom = nullptr;
    std::size_t size = 0;
};

#ifdef LANES_UCONTEXT

struct Registers {
    ucontext_t at;
};
inline void exchange(Registers& from, Registers& to) { swapcontext(&from.at, &to.at); }
inline void prepare(Registers& registers, const Stack& stack, std::size_t unused, void (*entry)())
{
    getcontext(&registers.at);
    registers.at.uc_stack.ss_sp = stack.bottom;
    registers.at.uc_stack.ss_size = stack.size - unused;
    registers.at.uc_link = nullptr;
    makecontext(&registers.at, entry, 0);
}

#else

struct Registers {
    void** stack_pointer;
};
// What a function must preserve (System V ABI) goes to the stack, and the stack is exchanged.
asm(R"(
    .text
    .p2align 4
    .type lanes_exchange, @function
lanes_exchange:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    retq
    .size lanes_exchange, . - lanes_exchange
)");
extern "C" void lanes_exchange(Registers* from, Registers* to) asm("lanes_exchange");
inline void exchange(Registers& from, Registers& to) { lanes_exchange(&from, &to); }
inline void prepare(Registers& registers, const Stack& stack, std::size_t unused, void (*entry)())
{
    constexpr int PUSHED = 6;
    // On entry to a function the stack is 8 bytes past a multiple of 16, as a call leaves it.
    void** top = reinterpret_cast<void**>(stack.bottom + stack.size - unused);
    *--top = nullptr;  // what `entry` would return to; walks of the stack end here
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < PUSHED; i++) *--top = nullptr;
    registers.stack_pointer = top;
}

#endif

// A stack and what runs on it: a lane, or whoever called run().
class Context {
public:
    // The calling thread's own; it is switched from before it is switched to.
    void adopt()
    {
#ifdef LANES_TSAN
        fiber_ = __tsan_get_current_fiber();
#endif
    }

    // Have `entry` run when this is switched to. `unused` bytes at the top of the stack are left
    // alone: lanes whose frames lie at the same place of their stacks compete for the cache.
    void start(std::size_t size, std::size_t unused, void (*entry)())
    {
        if (!stack_.bottom) {
            stack_.map(size);
#ifdef LANES_TSAN
            fiber_ = __tsan_create_fiber(0);
#endif
        }
        fake_stack_ = nullptr;
        prepare(registers_, stack_, unused, entry);
    }

    // Go to `other`; returns when somebody comes back.
    void switch_to(Context& other)
    {
#ifdef LANES_ASAN
        __sanitizer_start_switch_fiber(&fake_stack_, other.stack_.bottom, other.stack_.size);
#endif
#ifdef LANES_TSAN
        constexpr unsigned NO_SYNCHRONISATION = 1;
        __tsan_switch_to_fiber(other.fiber_, NO_SYNCHRONISATION);
#endif
        exchange(registers_, other.registers_);
        arrived();
    }

    // To be called first by what runs on a new stack, with where it came from.
    void arrived([[maybe_unused]] Context* adopted = nullptr)
    {
#ifdef LANES_ASAN
        const void* bottom;
        std::size_t size;
        __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &size);
        if (adopted && !adopted->stack_.bottom) {
            adopted->stack_.bottom = static_cast<char*>(const_cast<void*>(bottom));
            adopted->stack_.size = size;
        }
#endif
    }

private:
    Registers registers_{};
    Stack stack_;
    void* fake_stack_ = nullptr;
#ifdef LANES_TSAN
    void* fiber_ = nullptr;
#endif
};

}  // namespace lanes
