"""Memory that PyTorch and tensors share, by DLPack; skipped where PyTorch is not installed."""

import gc

import pytest

import tern

torch = pytest.importorskip("torch")


def test_memory_goes_both_ways():
    a = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    t = tern.from_dlpack(a)
    assert t.data_ptr() == a.data_ptr() and t.tolist() == a.tolist()
    t += 1
    assert a[0, 0].item() == 1
    back = torch.from_dlpack(t)
    assert back.data_ptr() == a.data_ptr()
    del a, t
    gc.collect()
    assert back.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"])
def test_every_dtype_comes_and_goes(name):
    a = torch.tensor([[1, 0], [2, 3]]).to(getattr(torch, name)).T
    t = tern.from_dlpack(a)
    assert t.strides == a.stride() and t.tolist() == a.tolist()
    back = torch.from_dlpack(t)
    assert back.dtype == a.dtype and back.data_ptr() == a.data_ptr() and back.stride() == a.stride()


def test_gradients_equal_pytorchs():
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    t = tern.from_dlpack(x.detach()).requires_grad_()
    torch.nn.functional.gelu(x).log_softmax(-1).square().sum().backward()
    tern.square(tern.log_softmax(tern.gelu(t))).sum().backward()
    assert torch.allclose(torch.from_dlpack(t.grad), x.grad, rtol=1e-12, atol=1e-14)


def test_a_tensor_with_a_gradient_is_detached_first():
    with pytest.raises(tern.Error, match="detach"):
        torch.from_dlpack(tern.ones(1).requires_grad_())
