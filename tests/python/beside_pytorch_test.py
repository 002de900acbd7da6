"""Ops beside PyTorch's in some thousand drawn cases (scripts/differential.py ops runs more); skipped without PyTorch. What differs on purpose
is in docs/from-pytorch.md."""

import math
import pathlib
import warnings

import pytest

import tern

torch = pytest.importorskip("torch")

from beside import run, documented  # noqa: E402, I001  they need PyTorch; run fills the table, which documented reads
from beside.compare import to_tern, to_torch  # noqa: E402


def outcomes(numbers, **options):
    fuzzer = run.Fuzzer(seed=2, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of what it takes all the same
        return [(number, *fuzzer.run(number)) for number in numbers]


def test_every_function_has_a_row_or_a_reason_and_every_difference_a_page():
    assert run.unlisted() == ([], [])
    documented.check_pages(pathlib.Path(__file__).parents[2])


@pytest.mark.parametrize("part", range(8))
def test_drawn_cases_agree(part):
    found = outcomes(range(part, 4000, 8))
    assert [f"case {number}: {run.describe(difference)}" for number, outcome, difference in found if outcome == "different"] == []
    assert sum(outcome.startswith("equal") for _, outcome, _ in found) > 0.8 * len(found)


def test_a_fused_op_is_its_composition():
    rows = [name for name in run.ROWS if f"plain {name}" in run.ROWS or name == "linear_cross_entropy"]
    found = outcomes(range(400), against="plain", only=rows)
    assert [f"case {number}: {run.describe(difference)}" for number, outcome, difference in found if outcome == "different"] == []
    assert sum(outcome.startswith("equal") for _, outcome, _ in found) > 0.8 * len(found)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("exp", lambda x: tern.mul(EXP(x), 1 + 1e-6)),  # eight times what float32 rounds by
        ("sum", lambda x, dims, keep: tern.neg(SUM(tern.neg(x), dims, keep))),  # the sign of 0
        ("sort", lambda x, dim, down: (SORT(x, dim, down)[0], tern.flip(SORT(x, dim, down)[1]))),
    ],
)
def test_a_wrong_op_is_noticed(monkeypatch, name, wrong):
    monkeypatch.setattr(tern, name, wrong)
    assert sum(outcome == "different" for _, outcome, _ in outcomes(range(40), only=[name])) > 3


EXP, SUM, SORT = tern.exp, tern.sum, tern.sort


def test_a_case_is_its_number():
    first, again = (run.Fuzzer(seed=2).case(7) for _ in range(2))
    assert first[0] == again[0] and [x.tensor.tolist() for x in first[1].operands] == [x.tensor.tolist() for x in again[1].operands]


def test_clamp_of_integers_beyond_float64():
    edge, last = 2**53, 2**63 - 1
    x = torch.tensor([0, edge + 1, edge + 3, -edge - 1, last - 1, -last])
    for low, high in [(-edge, edge), (edge + 1, edge + 3), (-last + 2, last - 2), (-last - 1, last), (last, last)]:
        assert tern.clamp(to_tern(x), low, high).tolist() == x.clamp(low, high).tolist()


def given(shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_rmsprop(centered, momentum, weight_decay):
    options = {"lr": 0.125, "alpha": 0.9, "eps": 1e-6, "weight_decay": weight_decay, "momentum": momentum, "centered": centered}
    p = given((33,)).requires_grad_()
    own = to_tern(p.clone()).requires_grad_()
    theirs, ours = torch.optim.RMSprop([p], **options), tern.train.RMSprop([own], **options)
    for step in range(6):
        gradient = given((33,), step)
        p.grad, own.grad = gradient, to_tern(gradient.clone())
        theirs.step()
        ours.step()
        assert torch.allclose(to_torch(own), p.detach(), rtol=1e-10, atol=1e-10)


def test_plateaus():
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    generator = torch.Generator().manual_seed(3)
    for mode, options in [("min", {"patience": 2, "cooldown": 3, "factor": 0.5}), ("max", {"patience": 0, "threshold": 0.1, "factor": 0.9})]:
        optimizer.param_groups[0]["lr"] = 1.0
        theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, eps=0, **options)
        ours = tern.train.ReduceLROnPlateau(maximize=mode == "max", **options)
        for value in (torch.rand(60, generator=generator) + 1).tolist() + [math.nan] * 5:
            theirs.step(value)
            assert ours.update(value) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        again = tern.train.ReduceLROnPlateau(maximize=mode == "max", **options)
        again.load(ours.state())
        assert again.update(1.5) == ours.update(1.5)


def test_modules_at_other_sizes():
    theirs = torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    ours = tern.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    assert {name: tuple(p.shape) for name, p in dict(ours.named_parameters()).items()} == {n: tuple(p.shape) for n, p in theirs.named_parameters()}
    for name, p in theirs.named_parameters():
        setattr(ours, name, to_tern(p.clone()))
    x = given((2, 4, 5, 5), 0, torch.float32)
    for own, other in [(ours, theirs), (tern.nn.AdaptiveAvgPool2d(1), torch.nn.AdaptiveAvgPool2d(1)), (tern.nn.AdaptiveMaxPool2d((2, 3)), torch.nn.AdaptiveMaxPool2d((2, 3)))]:
        assert torch.allclose(to_torch(own(to_tern(x))), other(x).detach(), rtol=1e-5, atol=1e-5)
