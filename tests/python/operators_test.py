"""Operators of tensors: those of the array API standard's array object, beside Python's own of numbers."""

import operator

import pytest

import tern

# The standard's list (2024.12), without the shifts and the bitwise operators of integers, which the library has not.
BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
OTHERS = ["abs", "neg", "pos", "invert", "eq", "ne", "lt", "le", "gt", "ge", "bool", "float", "int", "index", "getitem", "setitem", "len"]
OTHERS += ["dlpack", "dlpack_device"]


@pytest.mark.parametrize("name", BINARY)
def test_every_operator_has_its_three_forms(name):
    assert all(hasattr(tern.Tensor, f"__{form}{name}__") for form in ("", "r", "i"))


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_method_is_there(name):
    assert hasattr(tern.Tensor, f"__{name}__")


@pytest.mark.parametrize("f", [operator.floordiv, operator.mod, operator.pow])
def test_quotients_and_powers_are_pythons(f):
    a, b = [7, -7, 7, -7, 0, 6], [2, 2, -2, -2, 3, -3]
    if f is operator.pow:
        b = [2, 0, 1, 3, 0, 2]
    want = [f(x, y) for x, y in zip(a, b)]
    for dtype in (tern.i32, tern.i64, tern.f32, tern.f64):
        x, y = tern.tensor(a, dtype=dtype), tern.tensor(b, dtype=dtype)
        assert f(x, y).tolist() == want and f(x, y).dtype == dtype
        assert f(x, 2).tolist() == [f(n, 2) for n in a]
        assert f(-7, y).tolist() == [f(-7, n) for n in b]


def test_divmod_is_both():
    for a, b in [(tern.tensor([7.5, -7.5]), tern.tensor([2.0])), (tern.tensor([7, -7]), 2), (7, tern.tensor([2, -2]))]:
        quotient, rest = divmod(a, b)
        assert quotient.tolist() == (a // b).tolist() and rest.tolist() == (a % b).tolist()
        assert (quotient * b + rest).tolist() == (a.tolist() if isinstance(a, tern.Tensor) else [a, a])


def test_floor_division_of_floats_is_exact():
    # 1 / 0.1 rounds to 10, and 0.1 is a little more than a tenth.
    assert (tern.tensor(1.0, dtype=tern.f64) // 0.1).item() == 1.0 // 0.1 == 9
    x = tern.tensor([1.0, -1.0, 0.0], dtype=tern.f64)
    assert (x // 0).tolist()[:2] == [float("inf"), -float("inf")] and (x // 0)[2].item() != (x // 0)[2].item()
    with pytest.raises(tern.Error, match=r"\[floor_divide\] expected a number other than 0"):
        tern.tensor([1]) // 0
    assert (tern.tensor([1]) // tern.tensor([0])).tolist() == [0]
    assert (tern.tensor([7]) // 0.5).dtype == tern.f32


@pytest.mark.parametrize(
    "f, number, want",
    [
        (operator.ifloordiv, 2, [3, -4]),
        (operator.imod, 4, [3, 1]),
        (operator.ipow, 2, [49, 49]),
        (operator.ifloordiv, tern.tensor([2, -2]), [3, 3]),
        (operator.imod, tern.tensor([4, -4]), [3, -3]),
        (operator.ipow, tern.tensor([1, 2]), [7, 49]),
    ],
)
def test_in_place_forms_edit_the_memory(f, number, want):
    x = tern.tensor([7, -7])
    view = x[0:2]
    y = f(x, number)
    assert y is x and x.tolist() == view.tolist() == want


def test_in_place_forms_refuse_what_does_not_fit():
    x = tern.tensor([7, -7])
    for edit in (lambda: operator.ifloordiv(x, 0), lambda: operator.imod(x, 0.5), lambda: operator.ipow(x, -1)):
        with pytest.raises(tern.Error, match="expected a"):
            edit()
    a = tern.ones((2, 2))
    with pytest.raises(tern.Error, match=r"expected a result of the target's f32 \(2, 2\) but got f32 \(2, 3\)"):
        a @= tern.ones((2, 3))
    with pytest.raises(tern.Error):
        a @= tern.ones((2, 2), dtype=tern.f64)
    leaf = tern.ones((2, 2)).requires_grad_()
    with pytest.raises(tern.Error):
        leaf @= tern.ones((2, 2))
    assert x.tolist() == [7, -7] and a.tolist() == leaf.tolist() == [[1, 1], [1, 1]]


def test_products_in_place():
    a = tern.tensor([[1.0, 2.0], [3.0, 4.0]])
    view = a[0]
    b = a
    a @= tern.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert a is b and a.tolist() == [[2, 1], [4, 3]] and view.tolist() == [2, 1]


def test_logical_operators_take_true_and_false():
    x = tern.tensor([True, False])
    assert (x & True).tolist() == (True & x).tolist() == [True, False]
    assert (x | True).tolist() == (True | x).tolist() == [True, True]
    assert (x ^ True).tolist() == (True ^ x).tolist() == [False, True]
    view = x[0:2]
    x ^= tern.tensor([True, True])
    assert x.tolist() == view.tolist() == [False, True]
    x |= tern.tensor([True, False])
    x &= tern.tensor([True, False])
    assert view.tolist() == [True, False]
    x |= True
    x &= tern.tensor([False, True])
    x ^= True
    assert view.tolist() == [True, False]
    with pytest.raises(tern.Error, match="expected integers beside a number but got bool"):
        x & 2
    with pytest.raises(tern.Error, match="integers or bool tensors but got f32"):
        tern.tensor([1.5]) & tern.tensor([1])


def test_bits_of_integers_take_numbers_on_either_side():
    x = tern.tensor([5, -6])
    assert (x & 3).tolist() == (3 & x).tolist() == [1, 2] and (x & x).tolist() == [5, -6]
    assert (x | 2**60).tolist() == (2**60 | x).tolist() == [5 | 2**60, -6 | 2**60]
    assert (x ^ (2**60 + 1)).tolist() == ((2**60 + 1) ^ x).tolist() == [5 ^ (2**60 + 1), -6 ^ (2**60 + 1)]
    assert (~x).tolist() == [-6, 5] and (x << 1).tolist() == [10, -12] and (x >> 1).tolist() == [2, -3]
    assert (1 << tern.tensor([0, 3])).tolist() == [1, 8] and (64 >> tern.tensor([0, 3])).tolist() == [64, 8]
    x <<= 2
    x >>= tern.tensor([1, 2])
    assert x.tolist() == [10, -6]
    for wrong in (lambda: x & 1.5, lambda: x << 0.5):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(tern.Error, match="u8"):
        x.to(tern.u8) | 256


def test_conversions_to_numbers():
    assert abs(tern.tensor([-1.5])).tolist() == (+tern.tensor([1.5])).tolist() == [1.5]
    assert (float(tern.tensor(1.5)), int(tern.tensor(1.5)), bool(tern.tensor(0)), complex(tern.tensor(2.0))) == (1.5, 1, False, 2 + 0j)
    assert [10, 20, 30][tern.tensor(1)] == 20 and len(tern.ones((3, 2))) == 3
    for f in (float, int, bool):
        with pytest.raises(tern.Error, match="one element"):
            f(tern.ones(2))
    with pytest.raises(TypeError):
        [1][tern.tensor(0.0)]


def test_gradients_of_quotients():
    x = tern.tensor([5.0, 7.0], requires_grad=True)
    (x // 2).sum().backward()
    assert x.grad.tolist() == [0, 0]
    y = tern.tensor([2.0, 4.0], requires_grad=True)
    (7 % y).sum().backward()
    assert y.grad.tolist() == [-3, -1]
