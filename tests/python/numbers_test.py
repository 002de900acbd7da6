"""Numbers of Python beside tensors: whole ones stay exact or are refused, and dtypes are those of the numbers."""

import pytest

import tern

LARGE = 2**53 + 1  # float64 has its neighbours alone


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + LARGE,
        lambda x: LARGE - x,
        lambda x: x * -LARGE,
        lambda x: x == LARGE,
        lambda x: x < 2**64 + 1,
        lambda x: x**LARGE,
        lambda x: x % LARGE,
        lambda x: tern.add(x, LARGE),
        lambda x: tern.clamp(x, 0, 2**63 + 1),
        lambda x: x // LARGE,
        lambda x: tern.where(x == 1, x, LARGE),
        lambda x: tern.where(x == 1, LARGE, x),
        lambda x: tern.masked_fill(x, x == 1, LARGE),
        lambda x: tern.fill_(x, LARGE),
        lambda x: tern.full((2,), LARGE, tern.i64),
        lambda x: tern.full_like(x, LARGE),
        lambda x: tern.pad(x, 0, 1, 0, LARGE),
        lambda x: tern.scatter(x, 0, tern.tensor([0]), LARGE),
        lambda x: x.__iadd__(LARGE),
        lambda x: x.__setitem__(0, LARGE),
        lambda x: x + 10**400,
    ],
)
def test_a_whole_number_that_float64_has_not_is_refused(f):
    x = tern.tensor([1, 2])
    with pytest.raises(tern.Error, match=r"\[number\] expected one that float64 holds exactly but got"):
        f(x)
    assert x.tolist() == [1, 2]


def test_whole_numbers_that_float64_has_are_exact():
    x = tern.tensor([1, -1])
    assert (x + 2**53).tolist() == [2**53 + 1, 2**53 - 1]
    assert (x * 2**62).tolist() == [2**62, -(2**62)]
    assert (x + True).tolist() == [2, 0]
    assert tern.clamp(tern.tensor([0, LARGE + 2]), LARGE, LARGE + 1).tolist() == [LARGE, LARGE + 1]
    assert tern.clamp(tern.tensor([LARGE, -LARGE]), -(2**53), 2**53).tolist() == [2**53, -(2**53)]
    assert (tern.tensor([0]) + tern.tensor(LARGE)).tolist() == [LARGE]


def test_tensors_of_numbers_keep_them_or_are_refused():
    assert tern.tensor([2**63 - 1, -(2**63)]).tolist() == [2**63 - 1, -(2**63)]
    assert tern.tensor([2**24 + 1.0], dtype=tern.i64).tolist() == [2**24 + 1]
    assert tern.tensor([-2.7, 2.7], dtype=tern.i32).tolist() == [-2, 2]
    assert tern.tensor(2**63, dtype=tern.f64).item() == 2.0**63
    assert tern.tensor([2, 0], dtype=tern.boolean).tolist() == [True, False]
    for data, dtype in [([300], tern.u8), ([-1], tern.u8), ([2**31], tern.i32), ([float("nan")], tern.i64), (2**63, tern.i64)]:
        with pytest.raises(tern.Error, match=r"\[tensor\] expected .* holds but got"):
            tern.tensor(data, dtype=dtype)
    with pytest.raises(tern.Error, match="9223372036854775808"):
        tern.tensor(2**63)
    for edit in (lambda x: tern.fill_(x, 256), lambda x: x.__setitem__(0, -1)):
        with pytest.raises(tern.Error, match="u8 holds but got"):
            edit(tern.zeros(2, dtype=tern.u8))


def test_arange_takes_its_dtype_from_its_bounds():
    assert tern.arange(3).dtype == tern.arange(1, 7, 2).dtype == tern.i64
    assert tern.arange(0, 1, 0.25).tolist() == [0, 0.25, 0.5, 0.75]
    assert tern.arange(2.0).dtype == tern.f32
    assert tern.arange(0, 2.0, dtype=tern.i32).tolist() == [0, 1]
