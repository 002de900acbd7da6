"""What each library makes of a case, with gradients of both orders, and how far apart the two may be.

Note [Bounds]: the reference is PyTorch in float64, on operands that the case's dtype holds. An element agrees if it is within `ulps` spacings
of the dtype. Otherwise the rounding of the steps in between may explain it, which is measured and not guessed:
- a sum of products (`multilinear`): the same sum of absolute values, times the dtype's epsilon, times 4 + sqrt(depth);
- linear algebra and variances (`normwise`): as any other op, with 64 times the farthest element's bound for all, and 64 epsilons of the largest result;
- any other op: PyTorch's formula runs 16 times in float64, with each operand and each step's result off by up to one epsilon; the bound is 8
  times the farthest of these results.
The epsilon is that of the arithmetic: float32's for the forward pass of 16-bit floats, unless the op is a composition that rounds in between.
What float64 alone can represent (a square of 1e30) is set beside PyTorch in the dtype itself. NaN, infinities and the signs of zeros are exact:
a bound of 0 excuses none."""

import dataclasses
import math
import typing

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tern

from .draw import Operand

NAMES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "uint8": "u8", "bool": "boolean"}


@dataclasses.dataclass
class Case:
    """One call, as both libraries write it."""

    operands: list[Operand]
    ours: typing.Callable
    theirs: typing.Callable
    text: str = ""  # the arguments that are no tensors
    formula: typing.Optional[typing.Callable] = None  # PyTorch's, in the steps that round, where `theirs` hides them
    plain: typing.Optional[typing.Callable] = None  # tern's composition, of a fused op
    exact: bool = False  # moves, compares or rounds: no element may be off, and in gradients only sums may
    multilinear: bool = False  # a sum of products of the operands
    kink: bool = False  # a small step of an operand may choose another branch
    normwise: bool = False  # an algorithm whose error is one of the whole matrix
    composed: bool = False  # 16-bit floats are rounded between steps of the forward pass
    orders: int = 2
    ulps: float = 2


class Torch:
    def __init__(self, dtype=None, change=lambda x: x, change_leaf=None):
        self.dtype, self.change, self.change_leaf = dtype, change, change_leaf or change

    def convert(self, x, change):
        return change(x.to(self.dtype)) if self.dtype and x.is_floating_point() else x

    def leaf(self, operand, order):
        x = self.convert(operand.tensor.detach(), self.change_leaf)
        return x.detach().requires_grad_(order > 0 and operand.differentiable and x.is_floating_point())

    def weight(self, x, order):
        return self.convert(x, self.change).detach().clone().requires_grad_(order > 1)

    def grad(self, outputs, inputs, weights, create):
        return torch.autograd.grad(outputs, inputs, weights, create_graph=create, allow_unused=True)

    def back(self, x):
        return x.detach() if isinstance(x, torch.Tensor) else torch.tensor(x)


def to_tern(x, mirrored=(), device="cpu"):
    y = tern.from_dlpack((x.flip(mirrored) if mirrored else x).detach())
    y = y.to(device) if device != "cpu" else y
    return tern.flip(y, mirrored) if mirrored else y


def to_torch(x):
    if not isinstance(x, tern.Tensor):
        return torch.tensor(x)
    x = x.detach().to("cpu")
    return torch.from_dlpack(x.contiguous()) if x.numel() else torch.empty(x.shape, dtype=getattr(torch, LONG[str(x.dtype).removeprefix("DType.")]))


LONG = {short: long for long, short in NAMES.items()}


class Tern:
    def __init__(self, device="cpu", dtype=None):
        self.device, self.dtype = device, dtype

    def leaf(self, operand, order):
        x = operand.tensor if operand.view is None else operand.base
        x = to_tern(x.to(self.dtype) if self.dtype and x.is_floating_point() else x, operand.mirrored, self.device)
        x = x if operand.view is None else operand.view(x)
        if order > 0 and operand.differentiable and operand.tensor.is_floating_point():
            x.requires_grad_()
        return x

    def weight(self, x, order):
        x = to_tern(x.to(self.dtype) if self.dtype else x, (), self.device)
        return x.requires_grad_() if order > 1 else x

    def grad(self, outputs, inputs, weights, create):
        return tern.grad(outputs, inputs, weights, create)

    def back(self, x):
        return to_torch(x)


def needs_grad(x):
    return getattr(x, "requires_grad", False)


def results(lib, f, operands, order, weights):
    """Every result by its name: "y0", ..., first derivatives "dx0", second ones "ddx0" and "ddg0", of the operands and of the factors."""
    leaves = [lib.leaf(x, order) for x in operands]
    outputs = f(*leaves)
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    found = {f"y{i}": lib.back(x) for i, x in enumerate(outputs)}
    inputs = {i: x for i, x in enumerate(leaves) if needs_grad(x)}
    picked = {i: x for i, x in enumerate(outputs) if needs_grad(x)}
    if order == 0 or not inputs or not picked:
        return found
    g = {i: lib.weight(weights(f"g{i}", found[f"y{i}"]), order) for i in picked}
    first = dict(zip(inputs, lib.grad(list(picked.values()), list(inputs.values()), list(g.values()), order > 1)))
    found |= {f"dx{i}": lib.back(x) for i, x in first.items() if x is not None}
    again = {i: x for i, x in first.items() if x is not None and needs_grad(x)}
    if order == 1 or not again:
        return found
    h = [lib.weight(weights(f"h{i}", found[f"dx{i}"]), 1) for i in again]
    names = [f"ddx{i}" for i in inputs] + [f"ddg{i}" for i in g]
    second = lib.grad(list(again.values()), [*inputs.values(), *g.values()], h, False)
    return found | {name: lib.back(x) for name, x in zip(names, second) if x is not None}


def spacing(x, dtype):
    """The distance of `dtype`'s numbers about x, which is float64."""
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    size = x.abs().nan_to_num(0.0, posinf=info.max).clamp(max=info.max)
    return torch.where(size == 0, least, torch.ldexp(torch.full_like(size, info.eps), torch.frexp(size)[1] - 1).clamp(min=least))


def agree(got, want, dtype, ulps, slack=None):
    """By element: is `got`, of `dtype`, what `want` (float64) rounds to, but for so many spacings and a slack?"""
    got, most = got.double(), torch.finfo(dtype).max
    step = spacing(want, dtype)
    bound = ulps * step if slack is None else ulps * step + slack
    signed = got.signbit() == want.signbit()
    near = (got - want).abs() <= bound
    zero = (got == 0) & ((want == 0) | (want.to(dtype) == 0))
    if slack is not None:
        signed = signed | (slack > 0)
    beyond = got.isinf() & want.isfinite() & signed & (want.abs() + bound >= most + step / 2)
    return torch.where(zero, signed, near | (got == want) | (got.isnan() & want.isnan()) | beyond)


NOISE = 2 * torch.rand(1 << 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1


class Rounding(TorchDispatchMode):
    """Moves the result of every step by up to an epsilon and the dtype's smallest number; a 0 and small whole numbers of exact
    arithmetic stay as they are."""

    MOVES = {"detach", "alias", "clone", "_to_copy", "copy_", "fill_", "zeros_like", "ones_like", "new_zeros", "empty_like", "scalar_tensor"}
    MOVES |= {"_efficientzerotensor", "masked_fill", "where", "index", "gather", "slice_backward", "select_backward", "repeat", "cat", "stack", "neg"}
    MOVES |= {"amax", "amin", "maximum", "minimum", "clamp", "relu", "abs", "sgn", "floor", "round", "tril", "triu", "_unsafe_view"}

    def __init__(self, epsilon, least, at):
        super().__init__()
        self.noise, self.least, self.at = 1 + epsilon * NOISE, least * NOISE, at

    def off(self, x, packet=""):
        n = x.numel()
        if not x.is_floating_point() or not 0 < n < 4096 or x.device.type != "cpu":
            return x
        self.at = (self.at * 5 + 12345 + n) % (len(NOISE) - 4096)
        noise, least = (y[self.at : self.at + n].view(x.shape) for y in (self.noise, self.least))
        moved = torch.where(x == 0, x, x * noise + least)
        return torch.where((x == x.round()) & (x.abs() < 2048), x, moved) if packet in ("add", "sub", "rsub", "mul") else moved

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        packet = function.overloadpacket.__name__
        if packet in ("sigmoid_", "tanh_", "add_", "mul_"):  # recurrent cells edit in place
            return result.copy_(self.off(result, packet))
        if packet in self.MOVES or packet.endswith("_") or getattr(function, "is_view", False):
            return result
        if isinstance(result, torch.Tensor):
            return self.off(result, packet)
        if isinstance(result, (tuple, list)) and not packet.endswith("_backward"):  # which holds undefined tensors
            return type(result)(self.off(x) if isinstance(x, torch.Tensor) else x for x in result)
        return result


def error_of(off, result, epsilon):
    """The reference's own error, as far as it is one of rounding."""
    return off.abs().nan_to_num(0.0, posinf=0.0).clamp(max=64 * epsilon * float(result.abs().nan_to_num(0.0, posinf=0.0).max()) if result.numel() else 0.0)


def rounding_slacks(case, order, weights, epsilon, least, samples=16):
    """The bounds by name of Note [Bounds], for arithmetic of an epsilon: growing ones, from more and more of the samples."""
    f = case.formula or case.theirs
    if case.multilinear:
        sizes = results(Torch(torch.float64, torch.abs), f, case.operands, order, weights)
        depth = max([x.tensor.numel() for x in case.operands] + [1])
        yield {name: epsilon * (4 + math.sqrt(depth)) * x.abs() for name, x in sizes.items() if x.is_floating_point()}
        return
    base = results(Torch(torch.float64), f, case.operands, order, weights)
    own = results(Torch(torch.float64), case.theirs, case.operands, order, weights) if case.formula else base
    slack = {name: error_of(own[name] - x, own[name], epsilon) for name, x in base.items() if name in own and x.is_floating_point()}
    for sample in range(samples):
        mode = Rounding(epsilon, least, 7919 * sample)
        with mode:
            moved = results(Torch(torch.float64, mode.off, (lambda x: x) if case.kink or case.exact else None), f, case.operands, order, weights)
        for name in slack:
            if name in moved:
                slack[name] = torch.maximum(slack[name], 8 * (moved[name] - base[name]).abs().nan_to_num(0.0, posinf=0.0))
        if case.normwise:
            most = max(float(x.abs().nan_to_num(0.0, posinf=0.0).max()) for x in base.values() if x.numel())
            yield {"": 64 * epsilon * most} | {name: torch.full_like(x, 64 * float(x.max()) + 64 * epsilon * most) if x.numel() else x for name, x in slack.items()}
        else:
            yield slack
