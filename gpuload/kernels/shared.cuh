// Shared memory of a group, by offset from where it starts.
#pragma once
#include "batch.cuh"

// The address is kept in one register. From a pointer the compiler finds it out again before every
// access, with four instructions.
struct Shared {
#ifdef __CUDA_ARCH__
    u32 base;

    __device__ __forceinline__ explicit Shared(void* memory)
        : base((u32)__cvta_generic_to_shared(memory))
    {
        asm volatile("" : "+r"(base));
    }
    // at: less than what the memory is aligned to.
    __device__ __forceinline__ u32 byte(u32 at) const
    {
        u32 value;
        asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(base | at));
        return value;
    }
    // The byte here unless `elsewhere` is negative: then that one, and without a branch.
    __device__ __forceinline__ u32 byte_or(u32 at, int elsewhere, const u8* there) const
    {
        u32 value;
        asm volatile("{ .reg .pred here; setp.ge.s32 here, %3, 0;"
                     " @here ld.shared.u8 %0, [%1]; @!here ld.global.u8 %0, [%2]; }"
                     : "=r"(value) : "r"(base | at), "l"(there), "r"(elsewhere));
        return value;
    }
    __device__ __forceinline__ u32 word(u32 at) const
    {
        u32 value;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(base + at));
        return value;
    }
    __device__ __forceinline__ uint2 pair(u32 at) const
    {
        uint2 value;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(base + at));
        return value;
    }
    __device__ __forceinline__ void join_word(u32 at, u32 bits) const
    {
        asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(base + at), "r"(bits));
    }
    __device__ __forceinline__ void set_word(u32 at, u32 value) const
    {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(base + at), "r"(value));
    }
    __device__ __forceinline__ void set_pair(u32 at, u32 x, u32 y) const
    {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(base + at), "r"(x), "r"(y));
    }
#else
    u8* base;

    explicit Shared(void* memory) : base((u8*)memory) {}
    u32 byte(u32 at) const { return base[at]; }
    u32 byte_or(u32 at, int elsewhere, const u8* there) const { return elsewhere < 0 ? *there : byte(at); }
    u32 word(u32 at) const { return *(const u32*)(base + at); }
    uint2 pair(u32 at) const { return make_uint2(word(at), word(at + 4)); }
    void join_word(u32 at, u32 bits) const { atomicOr((u32*)(base + at), bits); }
    void set_word(u32 at, u32 value) const { *(u32*)(base + at) = value; }
    void set_pair(u32 at, u32 x, u32 y) const { set_word(at, x), set_word(at + 4, y); }
#endif
};
