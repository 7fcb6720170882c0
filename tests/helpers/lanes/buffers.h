// Buffers whose every neighbour is forbidden.
//
// Under AddressSanitizer nothing but a buffer's own bytes may be accessed: exactly at the end, and
// up to 7 bytes early at the start, since a granule of 8 bytes is forbidden from some byte on or as
// a whole. exact.cpp checks to the byte. Guards of known bytes show what was written in builds
// without either. What lies 4 GiB before and behind is not mapped, so that no 32-bit offset reaches
// another buffer.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#ifdef LANES_ASAN
extern "C" {
void __asan_poison_memory_region(const volatile void* at, std::size_t size);
void __asan_unpoison_memory_region(const volatile void* at, std::size_t size);
}
#endif

namespace lanes {

inline void forbid(const void* at, std::size_t size)
{
#ifdef LANES_ASAN
    __asan_poison_memory_region(at, size);
#else
    (void)at, (void)size;
#endif
}

inline void allow(const void* at, std::size_t size)
{
#ifdef LANES_ASAN
    __asan_unpoison_memory_region(at, size);
#else
    (void)at, (void)size;
#endif
}

// Memory for one buffer at a time, of up to a given size.
class Place {
public:
    explicit Place(std::size_t most)
    {
        const std::size_t inside = (GUARDED + 16 + most + GUARDED + 0xffff) & ~std::size_t{0xffff};
        void* at = mmap(nullptr, UNMAPPED + UNMAPPED + inside + UNMAPPED, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        // Buffers are found by the upper half of an address.
        const std::uintptr_t start =
            (reinterpret_cast<std::uintptr_t>(at) / UNMAPPED + 2) * UNMAPPED;
        area_ = reinterpret_cast<std::uint8_t*>(start);
        if (at == MAP_FAILED || inside > UNMAPPED ||
            mprotect(area_, inside, PROT_READ | PROT_WRITE)) {
            std::perror("lanes: no memory for a buffer");
            std::abort();
        }
        std::memset(area_, GUARD, inside);
        forbid(area_, inside);
        all()[start / UNMAPPED] = this;
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Whether an access is to memory around some buffer.
    static bool outside(const void* at, std::size_t size)
    {
        const auto found = all().find(reinterpret_cast<std::uintptr_t>(at) / UNMAPPED);
        if (found == all().end()) return false;
        const Place& place = *found->second;
        const std::size_t distance =
            static_cast<std::size_t>(static_cast<const std::uint8_t*>(at) - place.at_);
        return distance > place.size_ || size > place.size_ - distance;
    }

    // A buffer at an address of which the remainder by 16 is given.
    std::uint8_t* buffer(std::size_t size, unsigned remainder)
    {
        clear();
        at_ = area_ + GUARDED + remainder;
        size_ = size;
        allow(at_, size);
        return at_;
    }

    // Whether the guards hold what they should.
    bool intact()
    {
        const std::uint8_t* start = at_ - NEAR;
        allow(start, NEAR + size_ + NEAR);
        bool good = true;
        for (std::size_t i = 0; i < NEAR; i++) good &= start[i] == GUARD && at_[size_ + i] == GUARD;
        forbid(start, NEAR + size_ + NEAR);
        allow(at_, size_);
        return good;
    }

private:
    static constexpr std::size_t UNMAPPED = std::size_t{4} << 30, GUARDED = 64 << 10, NEAR = 64;
    static constexpr std::uint8_t GUARD = 0xa5;

    static std::unordered_map<std::uintptr_t, Place*>& all()
    {
        static std::unordered_map<std::uintptr_t, Place*> places;
        return places;
    }

    void clear()
    {
        if (!at_) return;
        allow(at_ - NEAR, NEAR + size_ + NEAR);
        std::memset(at_ - NEAR, GUARD, NEAR + size_ + NEAR);
        forbid(at_ - NEAR, NEAR + size_ + NEAR);
    }

    std::uint8_t* area_;
    std::uint8_t* at_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace lanes
