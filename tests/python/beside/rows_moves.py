"""Ops that move elements: views, joins, orders, indices, copies, and new tensors."""

import math

import numpy as np
import torch

import tern

from .compare import LONG, NAMES, Case
from .draw import EVERY, FLOATS, WHOLE
from .table import NO_ROW, row

NUMBERS = FLOATS + WHOLE


def theirs_dtype(short):
    return getattr(torch, LONG[short])


@row("reshape", "view", dtypes=EVERY)
def reshape(d, name):
    x = d.tensor(layouts=name == "reshape")  # a view of some strides is refused
    n, to = x.tensor.numel(), []
    while n > 1 and len(to) < 4:
        part = d.random.choice([k for k in range(1, n + 1) if n % k == 0])
        to, n = [*to, part], n // part
    to = [*to, n] if n != 1 or not to else to
    if to and d.chance(0.3):
        to[d.whole(0, len(to) - 1)] = -1
    if d.slip():
        to = [*to, 2]
    f = getattr(tern, name)
    return Case([x], lambda x: f(x, to), lambda x: x.reshape(to), f" {to}", exact=True)


@row("flatten", dtypes=EVERY)
def flatten(d, name):
    x = d.tensor()
    first, last = d.dim(x.tensor.dim()), d.dim(x.tensor.dim())
    if not d.slip(0.1) and x.tensor.dim() and first % x.tensor.dim() > last % x.tensor.dim():
        first, last = last, first
    return Case([x], lambda x: tern.flatten(x, first, last), lambda x: x.flatten(first, last), f" {first} {last}", exact=True)


@row("transpose", "movedim", dtypes=EVERY)
def exchanged(d, name):
    x = d.tensor()
    a, b = d.dim(x.tensor.dim()), d.dim(x.tensor.dim())
    f, g = getattr(tern, name), getattr(torch, name)
    return Case([x], lambda x: f(x, a, b), lambda x: g(x, a, b), f" {a} {b}", exact=True)


@row("permute", dtypes=EVERY)
def permute(d, name):
    x = d.tensor()
    order = d.random.sample(range(x.tensor.dim()), x.tensor.dim())
    order = [i - len(order) if d.chance(0.2) else i for i in order]
    if order and d.slip():
        order[0] = order[-1]
    return Case([x], lambda x: tern.permute(x, order), lambda x: x.permute(order), f" {order}", exact=True)


@row("broadcast_to", "expand", dtypes=EVERY)
def broadcast(d, name):
    x = d.tensor([1 if d.chance(0.4) else size for size in d.shape()])
    to = [d.choose(1, 2, 5) if size == 1 else size for size in x.tensor.shape]
    if name == "expand":
        to = [-1 if d.chance(0.3) else size for size in to]
    to = [d.choose(1, 2, 3) for _ in range(d.whole(0, 2))] + to
    if to and d.slip():
        to[-1] += 1
    f = getattr(tern, name)
    return Case([x], lambda x: f(x, to), lambda x: x.expand(to), f" {to}", multilinear=True)


@row("slice", "x[...]", dtypes=EVERY, covers=("slice",))
def sliced(d, name):
    x = d.tensor(d.shape(1))
    if name == "slice":
        dim = d.dim(x.tensor.dim())
        start, stop, step = d.whole(-6, 6), d.choose(None, d.whole(-6, 40)), d.choose(1, 1, 2, 3)
        at = (slice(None),) * (dim % max(x.tensor.dim(), 1)) + (slice(start, stop, step),)

        def theirs(x):
            if not -x.dim() <= dim < x.dim():
                raise IndexError("dim")
            return x[at]

        return Case([x], lambda x: tern.slice(x, dim, start, stop, step), theirs, f" {dim} {start}:{stop}:{step}", exact=True)
    index, operands = [], [x]
    for size in x.tensor.shape:
        what = d.random.random()
        if what < 0.25 and size:
            index.append(d.whole(-size, size - 1 + d.slip()))
        elif what < 0.6:
            index.append(slice(d.choose(None, d.whole(-5, 5)), d.choose(None, d.whole(-5, 9)), d.choose(None, 1, 2)))
        elif what < 0.7:
            index.append(None)
        elif what < 0.8 and size and len(operands) == 1:
            operands.append(d.given(d.below(d.choose((), (3,), (2, 2)), size, -size)))
            index.append("ids")
        elif what < 0.9 and len(operands) == 1:
            operands.append(d.given(d.values((size,), torch.bool)))
            index.append("ids")
        elif ... not in index:
            index.append(...)
            break
    put = lambda ids: tuple(ids[0] if isinstance(i, str) else i for i in index)  # noqa: E731
    return Case(operands, lambda x, *ids: x[put(ids)], lambda x, *ids: x[put(ids)], f" {index}", multilinear=True)


@row("select", dtypes=EVERY)
def select(d, name):
    x = d.tensor(d.shape(1))
    dim = d.dim(x.tensor.dim())
    size = x.tensor.size(dim) if -x.tensor.dim() <= dim < x.tensor.dim() else 1
    at = d.whole(-size, size - 1 + d.slip()) if size else 0
    return Case([x], lambda x: tern.select(x, dim, at), lambda x: x.select(dim, at), f" {dim} {at}", exact=True)


@row("squeeze", "unsqueeze", dtypes=EVERY)
def squeeze(d, name):
    x = d.tensor()
    if name == "unsqueeze":
        dim = d.whole(-x.tensor.dim() - 1, x.tensor.dim() + d.slip())
        return Case([x], lambda x: tern.unsqueeze(x, dim), lambda x: x.unsqueeze(dim), f" {dim}", exact=True)
    ones = [i for i, size in enumerate(x.tensor.shape) if size == 1]
    if not ones or d.flag():
        return Case([x], tern.squeeze, torch.squeeze, exact=True)
    dim = d.dim(x.tensor.dim()) if d.slip() else d.random.choice(ones)
    return Case([x], lambda x: tern.squeeze(x, dim), lambda x: x.squeeze(dim), f" {dim}", exact=True)


@row("split", "chunk", "unstack", dtypes=EVERY)
def pieces(d, name):
    x = d.tensor(d.full_shape(1) if d.chance(0.95) else d.shape(1))
    dim = d.dim(x.tensor.dim())
    size = x.tensor.size(dim) if -x.tensor.dim() <= dim < x.tensor.dim() else 1
    if name == "unstack":
        return Case([x], lambda x: tern.unstack(x, dim), lambda x: x.unbind(dim), f" {dim}", exact=True)
    if name == "split" and d.flag():
        cut = d.whole(0, size)
        sizes = [cut, size - cut + d.slip()]
        return Case([x], lambda x: tern.split(x, sizes, dim), lambda x: x.split(sizes, dim), f" {sizes} {dim}", exact=True)
    n = d.whole(1 - d.slip(), size + 2)
    f = getattr(tern, name)
    return Case([x], lambda x: f(x, n, dim), lambda x: getattr(x, name)(n, dim), f" {n} {dim}", exact=True)


@row("diagonal", dtypes=EVERY)
def diagonal(d, name):
    x = d.tensor(d.shape(2))
    offset = d.whole(-3, 3)
    a, b = d.random.sample(range(max(x.tensor.dim(), 2)), 2)
    return Case([x], lambda x: tern.diagonal(x, offset, a, b), lambda x: x.diagonal(offset, a, b), f" {offset} {a} {b}", exact=True)


@row("diag", dtypes=EVERY)
def diag(d, name):
    offset = d.whole(-3, 3)
    return Case([d.tensor(d.shape(1, 2))], lambda x: tern.diag(x, offset), lambda x: x.diag(offset), f" {offset}", exact=True)


@row("flip", dtypes=EVERY)
def flip(d, name):
    x = d.tensor()
    dims = d.dims(x.tensor.dim())
    return Case([x], lambda x: tern.flip(x, dims), lambda x: x.flip(dims or tuple(range(x.dim()))), f" {dims}", exact=True)


@row("roll", dtypes=EVERY)
def roll(d, name):
    x = d.tensor(d.shape(1))
    shift, dim = d.choose(d.whole(-40, 40), 2**62), d.dim(x.tensor.dim())
    return Case([x], lambda x: tern.roll(x, shift, dim), lambda x: x.roll(shift, dim), f" {shift} {dim}", exact=True)


@row("repeat", "repeat_interleave", dtypes=EVERY)
def repeat(d, name):
    x = d.tensor(d.shape(1))
    count, dim = d.whole(-d.slip(), 3), d.dim(x.tensor.dim())
    f = getattr(tern, name)
    return Case([x], lambda x: f(x, count, dim=dim), lambda x: x.repeat_interleave(count, dim), f" {count} {dim}", multilinear=True)


@row("tile", dtypes=EVERY)
def tile(d, name):
    counts = [d.whole(0, 3) for _ in range(d.whole(0, 4))]
    return Case([d.tensor(d.shape(limit=100))], lambda x: tern.tile(x, counts), lambda x: torch.tile(x, counts), f" {counts}", multilinear=True)


@row("sliding_window", dtypes=EVERY)
def windows(d, name):
    x = d.tensor(d.full_shape(1))
    dim = d.dim(x.tensor.dim())
    size = x.tensor.size(dim) if -x.tensor.dim() <= dim < x.tensor.dim() else 1
    width, step = d.whole(1, size + d.slip()), d.whole(1, 3)
    return Case([x], lambda x: tern.sliding_window(x, dim, width, step), lambda x: x.unfold(dim, width, step), f" {dim} {width} {step}", multilinear=True)


@row("cat", "stack", dtypes=EVERY)
def joined(d, name):
    shape = list(d.shape(1 if name == "cat" else 0))
    dim = d.dim(len(shape)) if name == "cat" else d.whole(-len(shape) - 1, len(shape))
    operands = []
    for _ in range(d.whole(1, 4)):
        one = list(shape)
        if one and (d.slip() or (name == "cat" and -len(one) <= dim < len(one) and d.flag())):
            one[dim if name == "cat" and d.chance(0.97) and -len(one) <= dim < len(one) else 0] = d.whole(0, 4)
        operands.append(d.tensor(one, d.random.choice(EVERY) if d.slip() else None))
    f, g = getattr(tern, name), getattr(torch, name)
    return Case(operands, lambda *xs: f(list(xs), dim), lambda *xs: g(xs, dim), f" {dim}", exact=True)


@row("pad", dtypes=NUMBERS)
def pad(d, name):
    x = d.tensor(d.shape(1))
    dim, before, after, value = d.dim(x.tensor.dim()), d.whole(-d.slip(), 3), d.whole(0, 3), d.choose(0, 1, 2.5, -math.inf)

    def theirs(x):
        if not -x.dim() <= dim < x.dim():
            raise IndexError("dim")
        return torch.nn.functional.pad(x, (0, 0) * (x.dim() - 1 - dim % x.dim()) + (before, after), value=value)

    return Case([x], lambda x: tern.pad(x, dim, before, after, value), theirs, f" {dim} {before} {after} {value}", exact=True)


@row("tril", "triu", dtypes=EVERY)
def triangle(d, name):
    k = d.choose(d.whole(-5, 5), 2**62)
    f, g = getattr(tern, name), getattr(torch, name)
    return Case([d.tensor(d.shape(2))], lambda x: f(x, k), lambda x: g(x, k), f" {k}", exact=True)


def indexed(d, same, least=1):
    """x, a dimension, and an index whose other sizes are x's."""
    x = d.tensor(d.full_shape(least) if d.chance(0.9) else d.shape(least))
    dim = d.dim(x.tensor.dim())
    dims = x.tensor.dim()
    size = x.tensor.size(dim) if -dims <= dim < dims else 1
    shape = list(x.tensor.shape) if same else [d.whole(0, 6)]
    if same and -dims <= dim < dims:
        shape[dim] = d.whole(0, 6)
    low = -1 if d.slip() else 0
    index = d.below(shape, size + d.slip(), low) if size or not math.prod(shape) else torch.zeros(shape, dtype=torch.int64)
    return x, dim, index


@row("gather", dtypes=EVERY)
def gather(d, name):
    x, dim, index = indexed(d, same=True)
    return Case([x, d.given(index)], lambda x, i: tern.gather(x, dim, i), lambda x, i: x.gather(dim, i), f" {dim}", multilinear=True)


@row("scatter", "scatter_add", dtypes=NUMBERS)
def scatter(d, name):
    x, dim, index = indexed(d, same=True)
    if name == "scatter":  # of repeated indices any may win: none repeat
        dims = x.tensor.dim()
        if -dims <= dim < dims and index.numel() and 0 <= int(index.min()):
            size = x.tensor.size(dim)
            n = min(index.size(dim), size)
            index = torch.argsort(d.uniform(tuple(size if i == dim % dims else s for i, s in enumerate(index.shape))), dim).narrow(dim, 0, n)
        if d.chance(0.3):
            n = d.choose(0, 1, -1, 2.5, math.inf)
            return Case([x, d.given(index)], lambda x, i: tern.scatter(x, dim, i, n), lambda x, i: x.scatter(dim, i, n), f" {dim} {n}", exact=True)
    f = getattr(tern, name)
    g = getattr(torch, name)
    how = {"exact": True} if name == "scatter" else {"multilinear": True}
    return Case([x, d.given(index), d.tensor(index.shape)], lambda x, i, y: f(x, dim, i, y), lambda x, i, y: g(x, dim, i, y), f" {dim}", **how)


@row("index_select", "index_add", "index_copy_", dtypes=NUMBERS)
def by_index(d, name):
    x, dim, index = indexed(d, same=False)
    if name == "index_select":
        return Case([x, d.given(index)], lambda x, i: tern.index_select(x, dim, i), lambda x, i: x.index_select(dim, i), f" {dim}", multilinear=True)
    dims = x.tensor.dim()
    shape = list(x.tensor.shape)
    if -dims <= dim < dims:
        if name == "index_copy_":
            index = torch.randperm(shape[dim], generator=d.generator)[: len(index)]
        shape[dim] = len(index)
    operands = [x, d.given(index), d.tensor(shape)]
    if name == "index_copy_":
        return Case(operands, lambda x, i, y: tern.index_copy_(tern.clone(x), dim, i, y), lambda x, i, y: x.clone().index_copy_(dim, i, y), f" {dim}", exact=True, orders=0)
    return Case(operands, lambda x, i, y: tern.index_add(x, dim, i, y), lambda x, i, y: x.index_add(dim, i, y), f" {dim}", multilinear=True)


@row("nonzero", dtypes=EVERY)
def nonzero(d, name):
    return Case([d.tensor(kind="small")], tern.nonzero, torch.nonzero, exact=True)


@row("masked_select", dtypes=EVERY)
def masked_select(d, name):
    one, other = d.broadcast(2)
    return Case([d.tensor(one), d.tensor(other, torch.bool)], tern.masked_select, torch.masked_select, multilinear=True)


@row("embedding")
def embedding(d, name):
    rows = d.whole(1, 9)
    table = d.tensor((rows, d.whole(0, 9)))
    ids = d.given(d.below(d.shape(0, 3, 40), rows + d.slip()).to(d.choose(torch.int64, torch.int32)))
    return Case([table, ids], tern.embedding, lambda t, i: torch.nn.functional.embedding(i, t), multilinear=True)


@row("one_hot", dtypes=[torch.int64])
def one_hot(d, name):
    classes = d.whole(1, 9)
    ids = d.given(d.below(d.shape(0, 3, 40), classes))
    return Case([ids], lambda i: tern.one_hot(i, classes, tern.i64), lambda i: torch.nn.functional.one_hot(i, classes), f" {classes}", exact=True)


@row("t", dtypes=EVERY)
def turned(d, name):
    return Case([d.tensor(d.shape(2, 2))], tern.t, torch.t, exact=True)


@row("clone", "contiguous", dtypes=EVERY)
def copied(d, name):
    return Case([d.tensor()], getattr(tern, name), lambda x: getattr(x, name)(), exact=True)


@row("cast", dtypes=EVERY)
def cast(d, name):
    short = d.random.choice([*LONG])
    to = getattr(tern, short)
    return Case([d.tensor()], lambda x: tern.cast(x, to), lambda x: x.to(theirs_dtype(short)), f" {short}", exact=True)


@row("copy_", dtypes=EVERY)
def copy_(d, name):
    shape = d.shape()
    source = d.tensor(shape[d.whole(0, len(shape)) :], d.random.choice(EVERY) if d.chance(0.2) else None, kind="tame")
    return Case([d.tensor(shape), source], lambda x, y: tern.copy_(tern.clone(x), y), lambda x, y: x.clone().copy_(y), exact=True, orders=0)


@row("zero_", dtypes=EVERY)
def zeroed(d, name):
    return Case([d.tensor()], lambda x: tern.zero_(tern.clone(x)), lambda x: x.clone().zero_(), exact=True, orders=0)


@row("fill_", "full_like", dtypes=NUMBERS)
def filled(d, name):
    n = d.choose(0, 1, -1, 2, 0.5, 1e30, math.inf, math.nan)
    if name == "full_like":
        return Case([d.tensor()], lambda x: tern.full_like(x, n), lambda x: torch.full_like(x, n), f" {n}", exact=True, orders=0)
    return Case([d.tensor()], lambda x: tern.fill_(tern.clone(x), n), lambda x: x.clone().fill_(n), f" {n}", exact=True, orders=0)


@row("zeros_like", "ones_like", "empty_like", dtypes=EVERY)
def like(d, name):
    f, g = getattr(tern, name), getattr(torch, name)
    shape_of = (lambda f: lambda x: tern.zeros(f(x).shape)) if name == "empty_like" else lambda f: f
    theirs = (lambda x: torch.zeros(g(x).shape)) if name == "empty_like" else g
    return Case([d.tensor()], shape_of(f), theirs, exact=True, orders=0)


@row("zeros", "ones", "full", "empty", dtypes=EVERY)
def new(d, name):
    short = NAMES[str(d.dtype).removeprefix("torch.")]
    ours, theirs, shape = getattr(tern, short), d.dtype, d.shape()
    n = d.choose(0, 1, 2, 7)
    if name == "full":
        return Case([], lambda: tern.full(shape, n, ours), lambda: torch.full(shape, n, dtype=theirs), f" {shape} {n} {short}", exact=True)
    if name == "empty":
        return Case([], lambda: tern.zeros_like(tern.empty(shape, ours)), lambda: torch.zeros_like(torch.empty(shape, dtype=theirs)), f" {shape} {short}", exact=True)
    f, g = getattr(tern, name), getattr(torch, name)
    return Case([], lambda: f(shape, ours), lambda: g(shape, dtype=theirs), f" {shape} {short}", exact=True)


@row("arange", "linspace", "eye")
def regular(d, name):
    short = NAMES[str(d.dtype).removeprefix("torch.")]
    ours, theirs = getattr(tern, short), d.dtype
    a, b = d.choose(d.whole(-9, 9), 0.5, -2.25, 1e3), d.choose(d.whole(-9, 40), 3.75)
    if name == "eye":
        n, m = d.whole(0, 9), d.whole(0, 9)
        return Case([], lambda: tern.eye(n, m, 0, ours), lambda: torch.eye(n, m, dtype=theirs), f" {n} {m}", exact=True)
    if name == "linspace":
        n = d.whole(-d.slip(), 40)
        return Case([], lambda: tern.linspace(a, b, n, ours), lambda: torch.linspace(a, b, n, dtype=torch.float64).to(theirs), f" {a} {b} {n} {short}", normwise=True)
    step = d.choose(1, 2, -1, 0.5, 0.1) if not d.slip() else 0
    a, b = (min(a, b), max(a, b)) if step > 0 else (max(a, b), min(a, b))
    return Case([], lambda: tern.arange(a, b, step, ours), lambda: torch.arange(a, b, step, dtype=torch.float64).to(theirs), f" {a} {b} {step} {short}")


@row("promote", "is_floating", dtypes=EVERY)
def of_dtypes(d, name):
    a, b = (str(x).removeprefix("torch.") for x in (d.dtype, d.random.choice(EVERY)))
    ours, theirs = (getattr(tern, NAMES[x]) for x in (a, b)), [getattr(torch, x) for x in (a, b)]
    if name == "is_floating":
        return Case([], lambda: tern.is_floating(next(ours)), lambda: theirs[0].is_floating_point, f" {a}", exact=True)
    return Case([], lambda: tern.zeros((), tern.promote(*ours)), lambda: torch.zeros((), dtype=torch.promote_types(*theirs)), f" {a} {b}", exact=True)


@row("tensor", "from_numpy", dtypes=[torch.float32, torch.float64, *WHOLE, torch.bool], firm=True)
def from_python(d, name):
    x = d.tensor()
    if name == "from_numpy":
        return Case([x], lambda y: tern.from_numpy(x.tensor.numpy()), lambda y: y.detach().clone(), exact=True, orders=0)
    values, short = x.tensor.tolist(), NAMES[str(x.tensor.dtype).removeprefix("torch.")]
    return Case([], lambda: tern.cast(tern.tensor(np.array(values, dtype=LONG[short].removeprefix("torch.")).reshape(x.tensor.shape)), getattr(tern, short)), lambda: x.tensor.clone(), exact=True)


NO_ROW.update(
    {
        name: reason
        for names, reason in {
            "rand randn rand_like randn_like randint bernoulli randperm dropout uniform_ normal_": "random numbers: their distributions are tested in C++",
            "from_dlpack": "each operand of every case comes through it",
            "std amax amin clip unbind concatenate": "second names of stddev, max, min, clamp, unstack and cat",
            "grad backward vjp jvp gradcheck gradgradcheck no_grad grad_mode is_grad_enabled anomaly_mode autocast compile": "no function of tensors; every case calls grad",
            "linear_recurrence selective_scan associative_scan long_conv": "PyTorch has none; ops_test.py has their loops",
            "has_linalg to device_scope default_device cuda cuda_device_count synchronize matmul_precision": "the device's state",
            "fused_kernels plain_kernels manual_seed num_threads set_num_threads cpu_variant version": "the thread's state and the library's",
        }.items()
        for name in names.split()
    }
)
