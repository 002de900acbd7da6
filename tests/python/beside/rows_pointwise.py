"""Functions of each element, and operators."""

import math
import operator

import torch
import torch.nn.functional as F

import tern

from .compare import Case
from .draw import EVERY, FLOATS, WHOLE, Operand
from .table import both_ways, op_of, row

NUMBERS = FLOATS + WHOLE
MOVES = {"neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "relu": torch.relu}
SMOOTH = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
}
STEPS = {
    "tan": lambda x: torch.sin(x) / torch.cos(x),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "silu": lambda x: x * torch.sigmoid(x),
}


@row(*MOVES, dtypes=NUMBERS)
def moved(d, name):
    return Case([d.tensor()], getattr(tern, name), MOVES[name], exact=True)


@row("square", dtypes=NUMBERS)
def squared(d, name):
    return Case([d.tensor()], tern.square, lambda x: x * x, kink=True)


@row(*SMOOTH)
def smooth(d, name):
    return Case([d.tensor()], getattr(tern, name), SMOOTH[name], formula=STEPS.get(name), composed=name == "tan")


@row("hardswish")
def hardswish(d, name):
    # PyTorch has -0 below -3, and overflows where 6 x does.
    return Case([d.tensor(kind="tame")], lambda x: tern.hardswish(x) + 0, lambda x: F.hardswish(x) + 0, kink=True)


@row("isnan", "isinf", "isfinite", dtypes=EVERY)
def classes(d, name):
    return Case([d.tensor()], getattr(tern, name), getattr(torch, name), exact=True)


@row("softplus")
def softplus(d, name):
    beta = d.choose(1, 0.5, 3.0, 20.0)
    threshold = 700  # where exp is almost infinite: PyTorch's own, 20, shows in float64
    return Case([d.tensor()], lambda x: tern.softplus(x, beta), lambda x: F.softplus(x, beta, threshold), f" beta {beta}")


@row("leaky_relu")
def leaky_relu(d, name):
    slope = d.choose(0.01, 0.1, -0.5, 2.0)
    return Case([d.tensor()], lambda x: tern.leaky_relu(x, slope), lambda x: F.leaky_relu(x, slope), f" slope {slope}", kink=True)


@row("elu")
def elu(d, name):
    alpha = d.choose(1.0, 0.5, 1.7)
    steps = lambda x: torch.where(x > 0, x, torch.expm1(x.clamp(max=0)) * alpha)  # noqa: E731
    return Case([d.tensor()], lambda x: tern.elu(x, alpha), lambda x: F.elu(x, alpha), f" alpha {alpha}", steps, kink=True, composed=True)


@row("clamp", dtypes=NUMBERS)
def clamp(d, name):
    low, high = sorted(d.choose(-2, -1, 0, 0.5, 1, 2.5, 3) for _ in range(2))
    if d.slip():
        low, high = high + 1, low
    return Case([d.tensor()], lambda x: tern.clamp(x, low, high), lambda x: x.clamp(low, high), f" {low}, {high}", exact=True)


BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
}
COMPARE = {name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
FIRST = ("sub", "div", "pow", "remainder", "floor_divide")  # take a number before the tensor as well


def two(d, kind=None):
    """Two operands that broadcast: of one dtype, or now and then of two."""
    one, other = d.broadcast(2)
    second = d.random.choice(EVERY) if d.chance(0.1) else d.dtype
    return [d.tensor(one, kind=kind), d.tensor(other, second, kind=kind)]


def number(d):
    return d.choose(0, 1, -1, 2, 3, 0.5, -2.5, 1e5, 7, 0.0, 3.0, math.inf, math.nan)


def beside_number(x, n):
    """x and a number as a tensor, for functions of PyTorch that take no number."""
    whole = math.isfinite(n) and n == int(n)
    x = x if x.is_floating_point() or whole else x.float()
    return x, torch.tensor(n if x.is_floating_point() else int(n), dtype=x.dtype)


@row(*BINARY, dtypes=NUMBERS, share=2)
def binary(d, name):
    f, g = getattr(tern, name), BINARY[name]
    exact = name in ("minimum", "maximum", "floor_divide")
    how = d.random.random()
    if how < 0.7:
        formula = torch.add if name == "sub" else None  # the sum of absolute values
        return Case(two(d), f, g, formula=formula, exact=exact, kink=True, multilinear=name in ("add", "sub", "mul"))
    n = number(d)
    if name in FIRST and how < 0.85:
        theirs = {"sub": lambda x: n - x, "div": lambda x: n / x, "pow": lambda x: torch.pow(n, x)}.get(name, lambda x: g(torch.tensor(n), x))
        if name in ("remainder", "floor_divide"):
            theirs = {"remainder": lambda x: torch.remainder(n, x), "floor_divide": lambda x: n // x}[name]
        return Case([d.tensor()], lambda x: f(n, x), theirs, f" {n} first", exact=exact, kink=True)
    if name in ("minimum", "maximum"):
        return Case([d.tensor()], lambda x: f(x, n), lambda x: g(*beside_number(x, n)), f" {n}", exact=True)
    return Case([d.tensor()], lambda x: f(x, n), lambda x: g(x, n), f" {n}", exact=exact, kink=True)


@row(*COMPARE, dtypes=EVERY)
def compared(d, name):
    f, g = getattr(tern, name), COMPARE[name]
    if d.chance(0.7):
        return Case(two(d), f, g, exact=True)
    n = number(d)
    return Case([d.tensor()], lambda x: f(x, n), lambda x: g(x, n), f" {n}", exact=True)


@row("logical_and", "logical_or", "logical_not", dtypes=[torch.bool])
def logical(d, name):
    operands = [d.tensor(shape) for shape in d.broadcast(1 if name == "logical_not" else 2)]
    return Case(operands, getattr(tern, name), getattr(torch, name), exact=True)


@row("atan2")
def atan2(d, name):
    return Case(two(d), tern.atan2, torch.atan2)


@row(*both_ways("swiglu"))
def swiglu(d, name):
    shape = d.shape()
    theirs = lambda gate, x: F.silu(gate) * x  # noqa: E731
    return Case([d.tensor(shape), d.tensor(shape)], op_of(name), theirs, formula=lambda g, x: STEPS["silu"](g) * x, plain=op_of("plain swiglu"))


@row("isclose", "allclose", dtypes=FLOATS)
def close(d, name):
    relative, absolute, nan = d.choose(1e-5, 0.1, 0.0), d.choose(1e-8, 0.5, 0.0), d.flag()
    a, b = d.tensor(kind=d.choose("small", "special", None)), None
    b = d.tensor(a.tensor.shape, kind="small") if d.flag() else Operand(a.tensor * (1 + d.choose(0, 1e-3, 0.2)))
    f, g = getattr(tern, name), getattr(torch, name)
    return Case([a, b], lambda a, b: f(a, b, relative, absolute, nan), lambda a, b: g(a, b, relative, absolute, nan), f" {relative} {absolute} {nan}", exact=True)


@row("where", dtypes=NUMBERS)
def where(d, name):
    shapes = d.broadcast(3)
    mask = d.tensor(shapes[0], torch.bool)
    if d.chance(0.6):
        return Case([mask, d.tensor(shapes[1]), d.tensor(shapes[2])], tern.where, torch.where, exact=True)
    n = d.choose(0, 1, 2.5, math.inf, -1)
    if d.flag():
        return Case([mask, d.tensor(shapes[1])], lambda m, x: tern.where(m, x, n), lambda m, x: torch.where(m, x, n), f" {n} last", exact=True)
    return Case([mask, d.tensor(shapes[1])], lambda m, x: tern.where(m, n, x), lambda m, x: torch.where(m, n, x), f" {n} first", exact=True)


@row("masked_fill", dtypes=NUMBERS)
def masked_fill(d, name):
    whole, part = d.broadcast(2)
    whole = torch.broadcast_shapes(whole, part) if not d.slip() and fits(whole, part) else whole
    n = d.choose(0, 1, -1, 2.5, math.inf, -math.inf, math.nan, 1e30)
    return Case([d.tensor(whole), d.tensor(part, torch.bool)], lambda x, m: tern.masked_fill(x, m, n), lambda x, m: x.masked_fill(m, n), f" {n}", exact=True)


def fits(*shapes):
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return False
    return True


OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod, "**": operator.pow}
IN_PLACE = {"+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv, "//=": operator.ifloordiv, "%=": operator.imod, "**=": operator.ipow}
LOGICAL = {"&": operator.and_, "|": operator.or_, "^": operator.xor}


@row("x op y", dtypes=NUMBERS, covers=(), share=2)
def operators(d, name):
    sign = d.random.choice([*OPERATORS])
    f = OPERATORS[sign]
    exact, kink = sign == "//", True  # an exponent that is off by a little is no whole one
    if d.flag():
        return Case(two(d), f, f, f" {sign}", exact=exact, kink=kink)
    n = number(d)
    if d.flag():
        return Case([d.tensor()], lambda x: f(n, x), lambda x: f(n, x), f" {n} {sign}", exact=exact, kink=kink)
    return Case([d.tensor()], lambda x: f(x, n), lambda x: f(x, n), f" {sign} {n}", exact=exact, kink=kink)


EDITS = {"+=": "add_", "-=": "sub_", "*=": "mul_", "/=": "div_", "//=": "floor_divide_", "%=": "remainder_", "**=": "pow_"}


@row("x op= y", dtypes=NUMBERS, covers=tuple(EDITS.values()), share=2)
def in_place(d, name):
    sign = d.random.choice([*IN_PLACE])
    g = IN_PLACE[sign]
    f = g if d.flag() else getattr(tern, EDITS[sign])
    shape = d.shape()
    part = shape[d.whole(0, len(shape)) :] if d.flag() else shape
    x = d.tensor(shape)
    if x.tensor.numel() and 0 in x.tensor.stride() and not d.slip():
        x = Operand(x.tensor.contiguous())
    if d.flag():
        return Case([x, d.tensor(part)], lambda x, y: f(ours_copy(x), y), lambda x, y: g(x.clone(), y), f" {sign}", exact=sign == "//=", orders=0)
    n = number(d)
    return Case([x], lambda x: f(ours_copy(x), n), lambda x: g(x.clone(), n), f" {sign} {n}", exact=sign == "//=", orders=0)


def ours_copy(x):
    """A copy with negative strides, to be written to."""
    every = tuple(range(x.dims))
    return tern.flip(tern.clone(tern.flip(x, every)), every) if x.dims else tern.clone(x)


@row("x bits y", dtypes=WHOLE, covers=())
def bits(d, name):
    sign = d.choose("&", "|", "^", "<<", ">>", "~")
    f = {**LOGICAL, "<<": operator.lshift, ">>": operator.rshift}.get(sign, lambda a, b: ~a)
    one, other = d.broadcast(2)
    n = d.below(other, torch.iinfo(d.dtype).bits if d.dtype in WHOLE else 8) if sign in ("<<", ">>") else None
    return Case([d.tensor(one), d.tensor(other) if n is None else d.given(n.to(d.dtype))], f, f, f" {sign}", exact=True)


@row("x logic y", dtypes=[torch.bool], covers=())
def logic(d, name):
    sign = d.random.choice([*LOGICAL])
    f = LOGICAL[sign]
    if d.chance(0.7):
        return Case([d.tensor(shape) for shape in d.broadcast(2)], f, f, f" {sign}", exact=True)
    return Case([d.tensor()], lambda x: f(x, True), lambda x: f(x, True), f" {sign} True", exact=True)
