"""Everyday lines as users of NumPy and PyTorch type them."""

import copy
import pickle

import numpy as np
import pytest

import tern
from tern import nn, train


def test_sizes_one_by_one():
    assert tern.zeros(2, 3).shape == tern.ones((2, 3)).shape == tern.empty([2, 3]).shape == (2, 3)
    assert tern.randn(64, 784).shape == (64, 784) and tern.rand(2, 3, 4, dtype=tern.f64).dtype == tern.f64
    assert tern.zeros(2, 3).dtype == tern.f32 and tern.zeros(2, 3, tern.i64).dtype == tern.i64
    assert tern.zeros(4).shape == (4,) and tern.zeros(()).shape == () and tern.zeros(size=(2, 3)).shape == (2, 3)
    assert tern.full((2, 3), 7).sum().item() == 42 and tern.full(2, 3).tolist() == [3, 3]
    assert tern.zeros(np.int64(2), np.int64(3)).shape == tern.zeros(*np.ones((2, 3)).shape).shape == (2, 3)
    x = tern.arange(6).reshape(2, 3)
    assert x.reshape(3, -1).shape == x.reshape((3, -1)).shape == tern.reshape(x, 3, -1).shape == x.view(3, 2).shape == (3, 2)
    assert x.permute(1, 0).shape == x.permute((1, 0)).shape == (3, 2) and x.reshape(-1).shape == x.flatten().shape == (6,)
    assert x.expand(4, -1, -1).shape == x.broadcast_to(4, 2, 3).shape == (4, 2, 3) and x.tile(2, 1).shape == (4, 3)
    assert x.flip(0, 1).tolist() == [[5, 4, 3], [2, 1, 0]] and x.unsqueeze(0).squeeze().shape == (2, 3)
    assert x.sum(0, True).shape == (1, 3)
    with pytest.raises(TypeError):
        x.repeat(2, 1)  # PyTorch's is tile, NumPy's names the axis
    assert x.repeat(2, axis=1).shape == (2, 6)


def test_numbers_are_no_dtypes_and_truth_is_no_number():
    x = tern.ones(2, 3)
    for wrong in (
        lambda: tern.zeros((2,), 3),
        lambda: tern.zeros((2,), dtype=1),
        lambda: x.to(2),
        lambda: tern.cast(x, 0),
        lambda: tern.one_hot(tern.tensor([1]), 3, 5),
        lambda: tern.tensor([1], dtype=3),
        lambda: tern.autocast(3),
        lambda: tern.zeros(True),
        lambda: tern.zeros(2, True),
        lambda: tern.zeros((True, 2)),
        lambda: tern.eye(True),
        lambda: x.sum(True),
        lambda: x.squeeze(True),
        lambda: x.transpose(False, True),
        lambda: nn.Linear(True, 2),
        lambda: tern.manual_seed(2.5),
        lambda: tern.zeros(2.0, 3.0),
    ):
        with pytest.raises(TypeError):
            wrong()


@pytest.mark.parametrize("name", ["sum", "mean", "max", "prod", "var", "stddev", "any", "all", "norm", "logsumexp", "softmax", "cumsum", "argmax", "flip"])
def test_dimensions_by_any_name(name):
    x = tern.randn(2, 3)
    f = getattr(tern, name)
    want = f(x, 1).tolist()
    assert f(x, dim=1).tolist() == f(x, dims=1).tolist() == f(x, axis=1).tolist() == want
    assert getattr(x, name)(dim=1).tolist() == getattr(x, name)(axis=1).tolist() == getattr(x, name)(1).tolist() == want


def test_other_spellings():
    x = tern.randn(2, 3)
    assert x.sum(axis=1, keepdims=True).shape == x.sum(dim=1, keepdim=True).shape == (2, 1)
    assert tern.cat([x, x], dim=1).shape == tern.cat((x, x), axis=1).shape == (2, 6) and tern.stack((x, x), axis=2).shape == (2, 3, 2)
    assert x.clamp(min=0).min().item() >= 0 >= x.clamp(max=0).max().item() and x.clamp(-1, 1).abs().max() <= 1
    assert tern.arange(5).clamp(min=2).tolist() == [2, 2, 2, 3, 4] and tern.arange(5).clamp(max=2).dtype == tern.i64
    with pytest.raises(TypeError, match=r"sum\(\) got 'dims' and 'axis', which are one parameter"):
        x.sum(dims=0, axis=1)
    with pytest.raises(TypeError) as caught:
        x.sum("0", dmi=0)
    assert str(caught.value) == "[sum] expected sum(x: Tensor, dims: int | Sequence[int] = (), keepdim: bool = False) -> Tensor but got (Tensor, str, dmi=int)"
    with pytest.raises(TypeError, match=r"^\[clamp\] expected clamp\(x: Tensor, .* but got \(str\)$"):
        tern.clamp("x")
    with pytest.raises(TypeError, match=r"^\[add\] expected add\(a: Tensor, b: Tensor\) -> Tensor or add\(a: Tensor, b: float\) -> Tensor but got \(Tensor, str\)$"):
        x.add("1")
    assert x.sum(**{"".join(["a", "xis"]): 0}).shape == (3,)
    assert tern.einsum("ij,kj->ik", x, x).tolist() == tern.einsum("ij,kj->ik", [x, x]).tolist()


def test_methods():
    x = tern.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
    assert x.max().item() == 5 and x.abs().max(1).tolist() == [3, 6] and x.argmax(1).tolist() == [2, 1]
    assert x.exp().log().allclose(x, absolute=1e-5) and x.norm().item() == pytest.approx(91**0.5)
    assert (x.t().shape, x.T.shape, x.mT.shape, x.numel(), x.ndim, x.dim(), x.size(), x.size(0), x.nbytes) == ((3, 2), (3, 2), (3, 2), 6, 2, 2, (2, 3), 2, 24)
    dtypes = [x.float().dtype, x.double().dtype, x.half().dtype, x.bfloat16().dtype, x.int().dtype, x.long().dtype, x.bool().dtype]
    assert dtypes == [tern.f32, tern.f64, tern.f16, tern.bf16, tern.i32, tern.i64, tern.boolean]
    assert x.cpu().is_same(x) and x.to("cpu", tern.f64).dtype == x.to(device="cpu", dtype=tern.f64).dtype == tern.f64
    assert (x > 0).all(0).tolist() == [True, False, False] and (x == x).all()
    assert x.softmax(-1).sum(-1).tolist() == pytest.approx([1, 1]) and x.relu().sum().item() == 13
    values, indices = x.topk(1)
    assert values.tolist() == [[3], [5]] and x.gather(1, indices).tolist() == values.tolist()
    y = x.clone()
    assert y.add_(1).is_same(y) and y.mul_(2)[0, 0] == 4 and y.zero_().sum() == 0 and y.fill_(2).mean() == 2 and y.copy_(x).allclose(x)
    assert y.uniform_(0, 1).max() < 1 and y.normal_().shape == x.shape
    with pytest.raises(tern.Error, match=r"\[view\] expected strides that allow a view .* use reshape"):
        x.t().view(6)
    view = x.view(6)
    view[0] = 9
    assert x[0, 0] == 9
    assert x.exp.__doc__ == tern.exp.__doc__ and "e^x" in tern.Tensor.exp.__doc__


def test_names_of_other_libraries():
    x = tern.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
    assert x.std(0).tolist() == tern.std(x, dim=0).tolist() == x.stddev(0).tolist() and x.amax(1).tolist() == [3, 5] and x.amin(axis=1).tolist() == [-2, -6]
    assert x.clip(-1, 1).tolist() == x.clamp(-1, 1).tolist() and [r.tolist() for r in x.unbind(0)] == x.tolist() and tern.concatenate([x, x], axis=1).shape == (2, 6)
    assert pickle.loads(pickle.dumps(tern.std)) is tern.std and repr(tern.std) == "<function tern.std>" and tern.std.__name__ == "std"


def test_printing_and_numbers(capsys):
    loss = tern.tensor(0.69314718)
    print(3, loss, f"{loss:.3f} {loss:8.2e} {loss}", "{:5.1f}".format(loss), "%.2f" % loss)
    assert capsys.readouterr().out == "3 0.6931 0.693 6.93e-01 0.6931   0.7 0.69\n"
    assert repr(loss) == "tensor(0.6931, f32)" and repr(tern.tensor(True)) == "tensor(True, bool)" and repr([tern.tensor(3)]) == "[tensor(3, i64)]"
    assert f"{tern.tensor(7):03d}" == "007" and f"{tern.tensor([2.5]):.1f}" == "2.5" and str(tern.ones(2)) == "[1., 1.]\nf32 (2,) on cpu"
    assert str(tern.tensor([True, False])) == "[ True, False]\nbool (2,) on cpu" and str(tern.tensor(False)) == "False"
    with pytest.raises(TypeError, match=r"unsupported format string passed to Tensor.__format__: .* \(2,\)"):
        f"{tern.ones(2):.3f}"
    with pytest.raises(ValueError):
        f"{loss:d}"
    assert (float(loss), int(tern.tensor(2.7)), bool(tern.tensor(0)), round(float(loss), 2)) == (pytest.approx(0.693147), 2, False, 0.69)
    x = tern.tensor([[1, 2], [3, 4]])
    assert len(x) == 2 and [row.sum().item() for row in x] == [3, 7] and 3 in x and 5 not in x and 2.5 not in x and tern.tensor(4) in x
    assert sum(x[0]) == 3 and max(x[1]) == 4 and list(range(5))[x[0, 1]] == 2


def test_indices_out_of_range_are_pythons():
    x = tern.ones(2, 3)
    for far in (2**70, -(2**70)):
        with pytest.raises(IndexError, match="cannot fit 'int'"):
            x[far]
        with pytest.raises(IndexError):
            x[0, far] = 1
    with pytest.raises(IndexError, match=r"\[select\] expected an index in \[-2, 2\) but got 5"):
        x[5]
    with pytest.raises(tern.Error):
        x[0, 0, 0]
    assert x[: 2**70, -(2**70) :].shape == (2, 3)
    with pytest.raises(IndexError):
        x["a"]
    assert issubclass(tern.InvalidIndex, (tern.Error, IndexError))


def test_loops_over_named_parameters():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert {n: p.shape for n, p in net.named_parameters()} == {"0.weight": (3, 2), "0.bias": (3,), "2.weight": (1, 3), "2.bias": (1,)}
    assert list(net.state_dict()) == list(dict(net.named_parameters())) and net.eval() is net and net.train() is net and net.requires_grad_(True) is net
    assert not net.to(tern.f64).eval().training and net.train().training


def test_forgetting_super_is_one_clear_line():
    class Assigns(nn.Module):
        def __init__(self):
            self.fc = nn.Linear(2, 2)

    class Silent(nn.Module):
        def __init__(self):
            self.width = 3

        def forward(self, x):
            return x

    with pytest.raises(TypeError, match=r"^Assigns.__init__\(\) must call super\(\).__init__\(\) before it assigns self.fc$"):
        Assigns()
    with pytest.raises(TypeError, match=r"^Silent.__init__\(\) must call super\(\).__init__\(\)$"):
        Silent()(tern.ones(1))


def test_functions_pickle_by_name():
    assert pickle.loads(pickle.dumps(tern.relu)) is tern.relu and copy.deepcopy(tern.relu) is tern.relu
    assert repr(tern.relu) == "<function tern.relu>" and tern.relu.__name__ == "relu" and "relu" in repr(tern.ones(1).relu)


def test_a_training_as_it_is_typed():
    tern.manual_seed(1)
    x, y = tern.randn(64, 8), tern.arange(64) % 4
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = train.AdamW(net.parameters(), lr=1e-2)
    first = last = None
    for step in range(60):
        optimizer.zero_grad()
        loss = tern.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        last = float(loss)
        first = last if first is None else first
    assert last < first / 2 and 0 <= (net(x).argmax(-1) == y).float().mean() <= 1
