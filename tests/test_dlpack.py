"""DLPack capsules, which need no device to be made and taken apart."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from gpuload.dlpack import CUDA, capsule
from tests.helpers.dlpack_consumer import is_unused, take
from tests.helpers.fresh import fresh_python

#: ``DLDataTypeCode``: signed, unsigned, floating point, complex, bool; a lane is `bits` wide.
NUMPY_TYPES = {
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "complex64": (5, 64),
    "complex128": (5, 128),
    "bool": (6, 8),
}
#: The codes of the types of ml_dtypes (dlpack.h): bfloat16 is 4, the others follow from 7 on.
ML_TYPES = {
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}
#: What weights come in, and what therefore must have a name.
NEEDED = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
ADDRESS = 0x7F00_0000_0000


class Owner:
    pass


class Producer:
    def __init__(self, owner):
        self._owner = owner

    def __dlpack__(self, **_):
        return make(owner=self._owner)

    def __dlpack_device__(self):
        return CUDA, 0


def make(shape=(3,), dtype="uint8", device_id=0, owner=None):
    return capsule(ADDRESS, shape, np.dtype(dtype), device_id, owner)


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (2, 3), (4, 0, 7), (1, 2, 3, 4, 5), ()])
def test_fields(shape):
    taken = take(make(shape, "float32", device_id=3))
    assert taken.data == ADDRESS
    assert taken.device == (CUDA, 3) == (2, 3)
    assert taken.shape == shape
    assert taken.strides is None, "C-contiguous"
    taken.release()


def test_sizes_beyond_32_bits():
    taken = take(make((1 << 40, 3)))
    assert taken.shape == (1 << 40, 3)
    taken.release()


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_types_of_numpy(name):
    taken = take(make(dtype=name))
    assert taken.dtype == (*NUMPY_TYPES[name], 1)
    taken.release()


@pytest.mark.parametrize("name", ML_TYPES)
def test_types_of_ml_dtypes(name):
    """The right name or none, never that of another type."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    dtype = np.dtype(getattr(ml_dtypes, name))
    try:
        made = capsule(ADDRESS, (3,), dtype, 0, None)
    except BufferError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert name not in NEEDED
        assert name in said
        return
    taken = take(made)
    assert taken.dtype == (*ML_TYPES[name], 1)
    taken.release()


@pytest.mark.parametrize(
    "name", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float6_e2m3fn"]
)
def test_types_smaller_than_a_byte_have_no_name(name):
    """NumPy holds one of them in each byte, DLPack packs them."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    with pytest.raises(BufferError, match="DLPack has no name for elements of type"):
        make(dtype=getattr(ml_dtypes, name))


@pytest.mark.parametrize("dtype", [">u2", ">f4", "S3", "U3", "M8[s]", "m8[s]", "V5", "u1,u2", "O"])
def test_types_without_a_name(dtype):
    with pytest.raises(BufferError, match="DLPack has no name for elements of type"):
        make(dtype=dtype)


def test_extended_precision_is_not_another_type():
    """Its 16 bytes are 80 bits of value; no consumer has a type of that code and width."""
    if np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("this machine's longdouble is a float64")
    taken = take(make(dtype=np.longdouble))
    assert taken.dtype == (2, 128, 1)
    taken.release()


def owned():
    """Return an owner and what tells whether it still lives."""
    owner = Owner()
    return owner, weakref.ref(owner)


def test_the_owner_lives_until_the_consumer_is_done():
    owner, alive = owned()
    made = make(owner=owner)
    del owner
    taken = take(made)
    del made
    gc.collect()
    assert alive()
    taken.release()
    assert alive() is None


def test_a_capsule_that_nobody_takes_frees_its_owner():
    owner, alive = owned()
    made = make(owner=owner)
    assert is_unused(made)
    del owner
    assert alive()
    del made
    assert alive() is None


def test_a_capsule_that_was_taken_leaves_its_tensor_to_the_consumer():
    owner, alive = owned()
    made = make(owner=owner)
    del owner
    taken = take(made)
    assert not is_unused(made)
    del made
    assert alive()
    assert taken.shape == (3,)
    taken.release()
    assert alive() is None


def test_a_capsule_that_is_dropped_while_an_exception_is_raised():
    """NumPy says no to tensors of CUDA: its exception survives, and nothing of the capsule."""
    owner, alive = owned()
    producer = Producer(owner)
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(producer)
    del owner, producer
    gc.collect()
    assert alive() is None


def test_functions_that_other_libraries_share_stay_as_they_are():
    """Many set the argument types of ctypes.pythonapi's functions to what they themselves need."""
    fresh_python(
        "import ctypes, weakref, numpy as np\n"
        "from gpuload import dlpack\n"
        "for name in ('PyCapsule_IsValid', 'PyCapsule_GetPointer'):\n"
        "    function = getattr(ctypes.pythonapi, name)\n"
        "    assert function.argtypes is None, name\n"
        "    function.argtypes = [ctypes.py_object, ctypes.c_char_p]\n"
        "class Owner: pass\n"
        "owner = Owner()\n"
        "alive = weakref.ref(owner)\n"
        "dlpack.capsule(4096, (3,), np.dtype('u1'), 0, owner)\n"
        "del owner\n"
        "assert alive() is None\n"
    )


def test_capsules_are_independent():
    owners = [Owner() for _ in range(5)]
    alive = [weakref.ref(owner) for owner in owners]
    taken = [take(make((n,), owner=owner)) for n, owner in enumerate(owners)]
    owners.clear()
    taken.pop(2).release()
    assert [ref() is None for ref in alive] == [False, False, True, False, False]
    assert [one.shape for one in taken] == [(0,), (1,), (3,), (4,)]
    for one in taken:
        one.release()
    assert all(ref() is None for ref in alive)


def test_the_deleter_may_be_called_by_another_thread():
    owner, alive = owned()
    taken = take(make(owner=owner))
    del owner
    thread = threading.Thread(target=taken.release)
    thread.start()
    thread.join()
    assert alive() is None


def test_many_capsules_in_many_threads():
    alive = []

    def work():
        for _ in range(100):
            for use in (lambda made: take(made).release(), lambda made: None):
                owner, ref = owned()
                alive.append(ref)
                use(make(owner=owner))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert len(alive) == 800
    assert not any(ref() for ref in alive)


@pytest.mark.parametrize("kept", ["made", "take(made)"])
def test_a_capsule_that_outlives_the_interpreter(kept):
    fresh_python(
        "import numpy as np, sys\n"
        "from gpuload.dlpack import capsule\n"
        "from tests.helpers.dlpack_consumer import take\n"
        "made = capsule(4096, (3,), np.dtype('u1'), 0, object())\n"
        f"sys.kept = {kept}\n"
    )
