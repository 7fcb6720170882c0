// The files of main.cpp and fuzz.cpp.
//
// Cases: for each one algo, stored size and capacity (32 bits each), the remainders by 16 of both
// addresses (8 bits each), 2 bytes of nothing, then the stored bytes. Results: for each case its
// status word and decoded size (32 bits each), then, if it is OK, the decoded bytes.
#pragma once
#include <fstream>
#include <iterator>
#include <vector>

#include "batch.h"

namespace lanes {

inline std::vector<u8> bytes_of(const char* path)
{
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::vector<Case> cases_in(const std::vector<u8>& bytes)
{
    constexpr std::size_t HEADER = 16;
    std::vector<Case> cases;
    for (std::size_t at = 0; at + HEADER <= bytes.size();) {
        u32 words[3];
        std::memcpy(words, &bytes[at], sizeof words);
        const u8 *remainders = &bytes[at + sizeof words], *src = bytes.data() + at + HEADER;
        cases.push_back({words[0], words[1], words[2], remainders[0], remainders[1], src});
        at += HEADER + words[1];
    }
    return cases;
}

inline void write_bytes(std::ofstream& file, const void* bytes, std::size_t size)
{
    file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
}

inline void write_case(std::ofstream& file, const Case& one)
{
    const u32 words[3] = {one.algo, one.src_size, one.capacity};
    const u8 remainders[4] = {one.src_at, one.dst_at, 0, 0};
    write_bytes(file, words, sizeof words);
    write_bytes(file, remainders, sizeof remainders);
    write_bytes(file, one.src, one.src_size);
}

inline void write_result(std::ofstream& file, const Batch& batch, u32 i)
{
    const u32 words[2] = {batch.status[i], batch.actual(i)};
    write_bytes(file, words, sizeof words);
    if (words[0] == OK) write_bytes(file, batch.decoded(i), words[1]);
}

}  // namespace lanes
