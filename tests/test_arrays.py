"""What a load returns, as other libraries see it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from gpuload.arrays import Array


def make(dtype=np.int32, shape=(3, 4)):
    data = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    return data, Array(data)


class TestAttributes:
    @pytest.mark.parametrize("shape", [(5,), (0,), (3, 4), (2, 0, 3), ()])
    @pytest.mark.parametrize("dtype", [np.uint8, np.float32, ">i2", np.bool_, np.complex64])
    def test_shape_and_type(self, dtype, shape):
        data, array = make(dtype, shape)
        assert array.shape == shape
        assert array.dtype == np.dtype(dtype)
        assert array.nbytes == data.nbytes
        assert array.device == "cpu"

    def test_length(self):
        assert len(make(shape=(3, 4))[1]) == 3
        with pytest.raises(TypeError):
            len(make(shape=())[1])

    def test_bytes(self):
        assert bytes(Array(np.frombuffer(b"abc", np.uint8))) == b"abc"
        assert bytes(make(">i2", (2,))[1]) == b"\0\0\0\1"

    def test_repr(self):
        text = repr(make()[1])
        assert "(3, 4)" in text
        assert "int32" in text
        assert "cpu" in text


class TestNumpy:
    @pytest.mark.parametrize("shape", [(5,), (0,), (3, 4), ()])
    def test_asarray_copies_nothing(self, shape):
        data, array = make(shape=shape)
        view = np.asarray(array)
        assert view.shape == shape
        assert view.dtype == data.dtype
        assert view.__array_interface__["data"] == data.__array_interface__["data"]

    def test_view_of_a_part_copies_nothing(self):
        whole = np.arange(100, dtype=np.uint8)
        view = np.asarray(Array(whole[10:20]))
        assert np.shares_memory(view, whole)
        assert view.tolist() == list(range(10, 20))

    def test_to_host_copies_nothing(self):
        data, array = make()
        assert array.to_host() is data

    def test_array_copies(self):
        data, array = make()
        copied = np.array(array)
        assert not np.shares_memory(copied, data)
        assert (copied == data).all()

    @pytest.mark.parametrize("dtype", [np.float64, np.int64, ">i4", "U3"])
    def test_other_type(self, dtype):
        data, array = make()
        converted = np.asarray(array, dtype)
        assert converted.dtype == np.dtype(dtype)
        assert (converted == data.astype(dtype)).all()
        assert not np.shares_memory(converted, data)
        assert (np.array(array, dtype) == data.astype(dtype)).all()

    def test_copy_false_with_its_own_type(self):
        data, array = make()
        for dtype in (None, np.int32, "<i4"):
            assert np.shares_memory(array.__array__(dtype, copy=False), data)

    def test_copy_false_with_an_equal_type_of_another_name(self):
        data = np.arange(100, dtype=np.int64)
        assert np.shares_memory(Array(data).__array__(np.longlong, copy=False), data)

    def test_copy_false_of_a_part_with_an_equal_type_of_another_name(self):
        whole = np.arange(100, dtype=np.int64)
        view = Array(whole[10:20]).__array__(np.longlong, copy=False)
        assert np.shares_memory(view, whole)

    @pytest.mark.parametrize("dtype", [np.float64, np.int64, ">i4"])
    def test_copy_false_with_another_type(self, dtype):
        _, array = make()
        with pytest.raises(ValueError, match="without a copy"):
            array.__array__(dtype, copy=False)

    def test_copy_true(self):
        data, array = make()
        for dtype in (None, np.int32, np.float32):
            copied = array.__array__(dtype, copy=True)
            assert not np.shares_memory(copied, data)
            assert (copied == data).all()

    @pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="needs NumPy 2")
    def test_asarray_passes_copy_on(self):
        data, array = make()
        assert np.shares_memory(np.asarray(array, copy=False), data)
        assert not np.shares_memory(np.asarray(array, copy=True), data)
        with pytest.raises(ValueError, match="without a copy"):
            np.asarray(array, np.float64, copy=False)

    def test_arithmetic_takes_it(self):
        data, array = make()
        assert (np.add(array, 1) == data + 1).all()

    def test_view_keeps_the_memory(self):
        data = np.arange(1000)
        alive = weakref.ref(data)
        view = np.asarray(Array(data))
        del data
        gc.collect()
        assert alive() is not None
        assert view.sum() == 499_500


class TestDlpack:
    @pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float64, np.complex64])
    @pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
    def test_from_dlpack_copies_nothing(self, dtype, shape):
        data, array = make(dtype, shape)
        view = np.from_dlpack(array)
        assert view.shape == shape
        assert view.dtype == data.dtype
        assert np.shares_memory(view, data)
        assert (view == data).all()

    def test_device(self):
        device = make()[1].__dlpack_device__()
        assert device == (1, 0)
        assert [type(number) for number in device] == [int, int]

    def test_type_that_dlpack_does_not_know(self):
        with pytest.raises(BufferError):
            np.from_dlpack(make(">i4")[1])

    @pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="needs NumPy 2.1")
    def test_options_are_passed_on(self):
        data, array = make()
        assert not np.shares_memory(np.from_dlpack(array, copy=True), data)
        assert np.shares_memory(np.from_dlpack(array, copy=False), data)
        array.__dlpack__(stream=None, max_version=(1, 0), dl_device=(1, 0), copy=None)

    def test_view_keeps_the_memory(self):
        data = np.arange(1000)
        alive = weakref.ref(data)
        view = np.from_dlpack(Array(data))
        del data
        gc.collect()
        assert alive() is not None
        assert view.sum() == 499_500
