"""Numbers of the driver's ABI, as cuda.h of CUDA 13.0 lists them."""

from __future__ import annotations

import enum

SIZE_MAX = 2**64 - 1

#: cuMemBatchDecompressAsync arrived with this driver.
DECOMPRESS_SINCE = 12080


class Code(enum.IntEnum):
    """``CUresult``: only the codes that the double gives or injects."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    DEINITIALIZED = 4
    NO_DEVICE = 100
    INVALID_DEVICE = 101
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    NO_BINARY_FOR_GPU = 209
    ECC_UNCORRECTABLE = 214
    INVALID_HANDLE = 400
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    CONTEXT_IS_DESTROYED = 709
    HOST_MEMORY_ALREADY_REGISTERED = 712
    HOST_MEMORY_NOT_REGISTERED = 713
    MISALIGNED_ADDRESS = 716
    LAUNCH_FAILED = 719
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    UNKNOWN = 999


class CudaError(Exception):
    """A call is answered with this code, and nothing happened."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(f"{code}: {why}")
        self.code = int(code)


class DeviceFaultError(Exception):
    """Work on the device failed in a way that ends the context."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = int(code)


class LocationType(enum.IntEnum):
    """``CUmemLocationType``."""

    INVALID = 0
    DEVICE = 1
    HOST = 2
    HOST_NUMA = 3
    HOST_NUMA_CURRENT = 4


class Codec(enum.IntEnum):
    """``CUmemDecompressAlgorithm``, which are also the bits of the device's mask."""

    DEFLATE = 1
    SNAPPY = 2
    LZ4 = 4


class Access(enum.IntEnum):
    """``CUmemAccess_flags``."""

    NONE = 0
    READ = 1
    READ_WRITE = 3


#: ``CUmemAllocationProp.allocFlags.usage`` and ``CUmemPoolProps.usage``.
MEM_USAGE_TILE_POOL = 1
MEM_USAGE_HW_DECOMPRESS = 2
POOL_USAGE_HW_DECOMPRESS = 2


class DeviceAttribute(enum.IntEnum):
    """``CUdevice_attribute``: those that the double computes instead of keeping in a table."""

    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MEM_DECOMPRESS_ALGORITHM_MASK = 136
    MEM_DECOMPRESS_MAXIMUM_LENGTH = 137
    HOST_NUMA_ID = 134


class PointerAttribute(enum.IntEnum):
    """``CUpointer_attribute``."""

    CONTEXT = 1
    MEMORY_TYPE = 2
    DEVICE_POINTER = 3
    HOST_POINTER = 4
    P2P_TOKENS = 5
    SYNC_MEMOPS = 6
    BUFFER_ID = 7
    IS_MANAGED = 8
    DEVICE_ORDINAL = 9
    IS_LEGACY_CUDA_IPC_CAPABLE = 10
    RANGE_START_ADDR = 11
    RANGE_SIZE = 12
    MAPPED = 13
    ALLOWED_HANDLE_TYPES = 14
    IS_GPU_DIRECT_RDMA_CAPABLE = 15
    ACCESS_FLAGS = 16
    MEMPOOL_HANDLE = 17
    MAPPING_SIZE = 18
    MAPPING_BASE_ADDR = 19
    MEMORY_BLOCK_ID = 20
    IS_HW_DECOMPRESS_CAPABLE = 21


class FunctionAttribute(enum.IntEnum):
    """``CUfunction_attribute``."""

    MAX_THREADS_PER_BLOCK = 0
    SHARED_SIZE_BYTES = 1
    CONST_SIZE_BYTES = 2
    LOCAL_SIZE_BYTES = 3
    NUM_REGS = 4
    PTX_VERSION = 5
    BINARY_VERSION = 6
    CACHE_MODE_CA = 7
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
    PREFERRED_SHARED_MEMORY_CARVEOUT = 9
    CLUSTER_SIZE_MUST_BE_SET = 10
    REQUIRED_CLUSTER_WIDTH = 11
    REQUIRED_CLUSTER_HEIGHT = 12
    REQUIRED_CLUSTER_DEPTH = 13
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
    CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15


class PoolAttribute(enum.IntEnum):
    """``CUmemPool_attribute``."""

    REUSE_FOLLOW_EVENT_DEPENDENCIES = 1
    REUSE_ALLOW_OPPORTUNISTIC = 2
    REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3
    RELEASE_THRESHOLD = 4
    RESERVED_MEM_CURRENT = 5
    RESERVED_MEM_HIGH = 6
    USED_MEM_CURRENT = 7
    USED_MEM_HIGH = 8
