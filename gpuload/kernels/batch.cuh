// What every kernel takes: the driver's parameters of an operation, and the word that says how it went.
//
// The sources also compile with g++ (tests/helpers/lanes), so they use nothing but what that header
// has: the intrinsics of a warp, shared memory, and plain C++.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// CUmemDecompressParams (CUDA driver API, cuMemBatchDecompressAsync); gpuload/batch.py has the same.
struct Params {
    u64 src_num_bytes;
    u64 dst_num_bytes;  // the slot's capacity: nothing is written behind it
    u32* dst_act_bytes;
    const u8* src;
    u8* dst;
    u32 algo;
    u8 padding[20];
};

enum Algo : u32 { SNAPPY = 2, LZ4 = 4, RAW = 256, CRC32 = 512, CRC32C = 513, XXH32 = 514, XXH64 = 515 };

// Why an operation failed; gpuload/engines/sm.py has a sentence for each.
enum Status : u32 {
    OK = 0,
    TRUNCATED = 1,  // the stored bytes end inside an element
    OFFSET = 2,     // a match with offset 0, or from before the first decoded byte
    FULL = 3,       // more bytes than the slot takes
    ENDING = 4,     // the stored bytes end otherwise than the format allows
    LARGE = 5,      // a size from 1 GiB on, for which positions of 32 bits are not enough
};
