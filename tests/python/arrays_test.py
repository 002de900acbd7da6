"""Memory that NumPy, PyTorch and tensors share: the same addresses, owners that live as long as they are needed, writes that both sides see."""

import array
import binascii
import gc
import threading
import weakref

import numpy as np
import pytest

import tern

DTYPES = [
    (np.float32, tern.f32),
    (np.float64, tern.f64),
    (np.float16, tern.f16),
    (np.int32, tern.i32),
    (np.int64, tern.i64),
    (np.uint8, tern.u8),
    (np.bool_, tern.boolean),
]


class Owner(np.ndarray):
    """An array that can be watched: it has weak references."""


def watched(values):
    owner = np.array(values).view(Owner)
    return owner, weakref.ref(owner)


def address(a):
    return a.__array_interface__["data"][0]


@pytest.mark.parametrize("numpy_dtype, dtype", DTYPES)
def test_from_numpy_shares_memory(numpy_dtype, dtype):
    a = np.arange(6).reshape(2, 3).astype(numpy_dtype)
    t = tern.from_numpy(a)
    assert t.data_ptr() == address(a) and t.dtype == dtype and t.shape == (2, 3)
    assert t.tolist() == a.tolist()
    a[1, 2] = 0
    assert t[1, 2].item() == 0
    t[0, 1] = 0
    assert a[0, 1] == 0


@pytest.mark.parametrize("numpy_dtype, dtype", DTYPES)
@pytest.mark.parametrize("convert", [np.asarray, lambda t: t.numpy(), np.from_dlpack])
def test_to_numpy_shares_memory(numpy_dtype, dtype, convert):
    t = tern.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    a = convert(t)
    assert address(a) == t.data_ptr() and a.dtype == numpy_dtype and a.shape == (2, 3)
    t[0, 0] = 1
    assert a[0, 0] == 1


@pytest.mark.parametrize("view", [np.s_[::2, 1:], np.s_[::-1], np.s_[:, ::-2], np.s_[1], np.s_[:0]])
def test_strides_of_any_sign_come_over(view):
    a = np.arange(24, dtype=np.float32).reshape(4, 6)[view]
    assert tern.from_numpy(a).data_ptr() == address(a) or a.size == 0
    np.testing.assert_array_equal(tern.from_numpy(a).numpy(), a)
    np.testing.assert_array_equal(tern.from_dlpack(a).numpy(), a)
    np.testing.assert_array_equal((tern.from_numpy(a) + 1).numpy(), a + 1)


def test_a_transposed_tensor_is_a_transposed_array():
    t = tern.arange(6, dtype=tern.f32).reshape(2, 3).T
    assert t.numpy().strides == (4, 12) and address(t.numpy()) == t.data_ptr()


@pytest.mark.parametrize("take", [tern.from_numpy, tern.from_dlpack])
def test_a_tensor_keeps_the_array_alive(take):
    owner, alive = watched([1.0, 2.0, 3.0])
    t = take(owner)
    del owner
    gc.collect()
    assert alive() is not None
    view = t[1:]
    del t
    gc.collect()
    assert alive() is not None and view.tolist() == [2.0, 3.0]
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("convert", [np.asarray, lambda t: t.numpy(), np.from_dlpack, memoryview])
def test_an_array_keeps_the_memory_alive(convert):
    owner, alive = watched(np.arange(1000.0))
    t = tern.from_numpy(owner)
    del owner
    a = convert(t)
    del t
    gc.collect()
    assert alive() is not None and a[999] == 999
    del a
    gc.collect()
    assert alive() is None


class Holder(tern.nn.Module):
    buffers = ("seen",)


def test_an_array_stays_where_its_tensor_was_when_that_moves():
    owner, alive = watched(np.float32([1, 2]))
    holder = Holder()
    holder.seen = tern.from_numpy(owner)
    del owner
    a = holder.seen.numpy()
    holder.to(tern.f64)  # behind the handles
    gc.collect()
    assert alive() is not None and a.tolist() == [1, 2] and holder.seen.dtype == tern.f64
    del a
    gc.collect()
    assert alive() is None


def test_a_graph_keeps_the_array_alive_until_it_is_freed():
    owner, alive = watched(np.float32([1, 2]))
    w = tern.ones(2).requires_grad_()
    y = (w * tern.from_numpy(owner)).sum()
    del owner
    gc.collect()
    assert alive() is not None
    y.backward()  # frees what it saved, without the GIL
    gc.collect()
    assert w.grad.tolist() == [1.0, 2.0] and alive() is None


def test_the_last_tensor_of_an_array_may_go_in_a_thread_that_computes():
    for _ in range(50):
        owner, alive = watched(np.ones(64, dtype=np.float32))
        y = tern.exp(tern.ones(64).requires_grad_() * tern.from_numpy(owner)).sum()
        del owner
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()
        del y, thread
        gc.collect()
        assert alive() is None


def test_read_only_memory_is_refused_by_ops_in_place():
    a = np.ones(3)
    a.flags.writeable = False
    t = tern.from_numpy(a)
    with pytest.raises(tern.Error, match="read-only"):
        t += 1
    assert a.tolist() == [1, 1, 1] and not t.numpy().flags.writeable
    assert tern.from_numpy(b"ab").tolist() == [97, 98]


def test_other_buffers_are_taken_as_well():
    numbers = array.array("d", [1, 2])
    t = tern.from_numpy(numbers)
    t *= 3
    assert numbers.tolist() == [3, 6]
    with pytest.raises(BufferError):
        numbers.append(1)  # its memory is in use
    del t
    gc.collect()
    numbers.append(1)


@pytest.mark.parametrize("bad", [np.zeros(2, np.int16), np.zeros(2, np.complex64), np.zeros(2, ">f4"), np.zeros(2, "U3")])
def test_from_numpy_says_which_types_there_are(bad):
    with pytest.raises(tern.Error, match=r"\[from_numpy\] expected f32, f64"):
        tern.from_numpy(bad)


def test_a_field_of_a_structure_is_no_tensor():
    a = np.zeros(3, dtype=[("a", np.uint8), ("b", np.float32)])
    with pytest.raises(tern.Error, match="whole elements"):
        tern.from_numpy(a["b"])


def test_what_cannot_be_an_array_says_so():
    w = tern.ones(2).requires_grad_()
    for convert in (np.asarray, lambda t: t.numpy(), np.from_dlpack):
        with pytest.raises(tern.Error, match="requires no gradient"):
            convert(w)
        assert convert(w.detach()).tolist() == [1, 1]
    half = tern.ones(2, dtype=tern.bf16)
    for convert in (np.asarray, lambda t: t.numpy()):
        with pytest.raises(tern.Error, match="bf16"):
            convert(half)
    with pytest.raises(BufferError, match="bf16"):
        memoryview(half)
    with pytest.raises(BufferError, match="contiguous"):
        binascii.hexlify(tern.ones((2, 3)).T)


def test_asarray_converts_where_it_is_asked_to():
    assert np.asarray(tern.ones(2), dtype=np.float64).dtype == np.float64
    copy = np.array(tern.ones(2))
    assert copy.flags.owndata


def test_numpy_on_the_left_is_an_error_and_no_array_of_objects():
    with pytest.raises(TypeError):
        np.ones(2) + tern.ones(2)


def test_dlpack_of_both_versions():
    t = tern.ones((2, 3))
    assert t.__dlpack_device__() == (1, 0)
    for version, name in (((1, 1), "dltensor_versioned"), (None, "dltensor")):
        capsule = t.__dlpack__(max_version=version)
        assert f'"{name}"' in repr(capsule)
        back = tern.from_dlpack(capsule)
        assert back.data_ptr() == t.data_ptr()
        with pytest.raises(tern.Error, match="taken"):
            tern.from_dlpack(capsule)
    copy = tern.from_dlpack(t.__dlpack__(max_version=(1, 1), copy=True))
    assert copy.data_ptr() != t.data_ptr() and copy.tolist() == t.tolist()
    with pytest.raises(BufferError):
        t.__dlpack__(dl_device=(2, 0))


def test_a_capsule_that_nobody_takes_lets_the_memory_go():
    owner, alive = watched([1.0])
    for version in ((1, 1), None):
        capsule = tern.from_numpy(owner).__dlpack__(max_version=version)
        del capsule
    del owner
    gc.collect()
    assert alive() is None


def test_dlpack_carries_bf16_between_tensors():
    t = tern.tensor([1.5, 2.5], dtype=tern.bf16)
    assert tern.from_dlpack(t).dtype == tern.bf16 and tern.from_dlpack(t).tolist() == [1.5, 2.5]


class BeforeVersionOne:
    """An object whose __dlpack__ knows no max_version."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, stream=None):
        return self.inner.__dlpack__()

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


def test_objects_from_before_version_one_are_taken():
    a = np.ones(3, dtype=np.float32)
    assert tern.from_dlpack(BeforeVersionOne(a)).data_ptr() == address(a)
    with pytest.raises(tern.Error, match="__dlpack__"):
        tern.from_dlpack([1])


def test_tensor_copies():
    a = np.ones((2, 2))
    for source in (a, tern.from_numpy(a), [[1.0, 1.0], [1.0, 1.0]]):
        t = tern.tensor(source, dtype=tern.f64)
        t[0, 0] = 7
        assert a[0, 0] == 1 and t.dtype == tern.f64
    assert tern.tensor([1, 2]).dtype == tern.i64 and tern.tensor([1, 2.5]).dtype == tern.f32
    assert tern.tensor([True, False]).dtype == tern.boolean and tern.tensor(3).shape == ()
    assert tern.tensor([]).shape == (0,) and tern.tensor([[], []]).shape == (2, 0)
    assert tern.tensor(0.1, dtype=tern.f64).item() == 0.1
    assert tern.tensor([2**62 + 1]).item() == 2**62 + 1
    assert tern.tensor([1.0], requires_grad=True).requires_grad
    for ragged in ([[1], [1, 2]], [1, [2]], [[1], 2]):
        with pytest.raises(tern.Error, match="one length and depth"):
            tern.tensor(ragged)
    with pytest.raises(tern.Error, match="numbers"):
        tern.tensor(["a"])
