"""Sums, extremes, statistics, counts, orders, and random numbers as far as they are one function."""

import math

import torch

import tern

from .compare import Case
from .draw import EVERY, FLOATS, WHOLE
from .table import row

NUMBERS = FLOATS + WHOLE


def every(x, dims):
    return dims or tuple(range(x.dim()))


def over(f):
    """f over the dimensions one after the other, for functions that take one."""

    def run(x, dims, keep):
        if not dims and not x.dim():
            return f(x.reshape(1), 0, False)
        if not dims and not keep:
            return f(x.reshape(-1), 0, False)
        if any(not -x.dim() <= i < x.dim() for i in dims):
            raise IndexError("dim")
        for at in sorted((i % x.dim() for i in every(x, dims)), reverse=True):
            x = f(x, at, keep)
        return x

    return run


def product(x, at, keep):
    """By halves, whose second derivatives are exact about zeros; PyTorch's own are only nearly so."""
    if not x.is_floating_point() or not x.dim() or not x.size(at):
        return x.prod(at, keep)
    y = x.float() if torch.finfo(x.dtype).bits == 16 else x
    while y.size(at) > 1:
        half = y.size(at) // 2
        halved = y.narrow(at, 0, half) * y.narrow(at, half, half)
        y = torch.cat([halved, y.narrow(at, 2 * half, 1)], at) if y.size(at) % 2 else halved
    return (y if keep else y.squeeze(at)).to(x.dtype)


REDUCE = {
    "sum": lambda x, dims, keep: x.sum(dims, keep) if dims else x.sum(every(x, dims), keep),
    "mean": lambda x, dims, keep: x.mean(every(x, dims), keep),
    "prod": over(product),
    "max": lambda x, dims, keep: x.amax(every(x, dims), keep),
    "min": lambda x, dims, keep: x.amin(every(x, dims), keep),
    "logsumexp": lambda x, dims, keep: x.logsumexp(every(x, dims), keep) if x.dim() else x.reshape(1).logsumexp(0),
    "any": over(lambda x, at, keep: x.any(at, keep)),
    "all": over(lambda x, at, keep: x.all(at, keep)),
}


@row(*REDUCE, dtypes=NUMBERS, share=2)
def reduced(d, name):
    x = d.tensor(dtype=d.random.choice(EVERY) if name in ("any", "all") else None)
    dims, keep = d.dims(x.tensor.dim()), d.flag()
    f, g = getattr(tern, name), REDUCE[name]
    how = {"exact": name in ("max", "min", "any", "all"), "multilinear": name in ("sum", "mean")}
    return Case([x], lambda x: f(x, dims, keep), lambda x: g(x, dims, keep), f" {dims} {keep}", **how)


@row("var", "stddev")
def spread(d, name):
    x = d.tensor(kind="normal" if d.flag() else None)
    dims, keep, correction = d.dims(x.tensor.dim()), d.flag(), d.choose(0, 1, 1, 2)
    f, g = getattr(tern, name), {"var": torch.var, "stddev": torch.std}[name]
    return Case([x], lambda x: f(x, dims, correction, keep), lambda x: g(x, every(x, dims), correction=correction, keepdim=keep), f" {dims} {correction} {keep}", normwise=True)


@row("norm")
def norm(d, name):
    x = d.tensor(kind="normal" if d.flag() else None)
    dims, keep, p = d.dims(x.tensor.dim()), d.flag(), d.choose(0, 0.5, 1, 1.5, 2, 2, 3, math.inf, -math.inf)
    theirs = lambda x: torch.linalg.vector_norm(x, p, every(x, dims), keep)  # noqa: E731
    steps = (lambda x: torch.where(x == 0, 0.0, torch.where(x == 0, 1.0, x).abs().pow(p)).sum(every(x, dims), keep).pow(1 / p)) if 0 < p < math.inf else None
    return Case([x], lambda x: tern.norm(x, dims, p, keep), theirs, f" {dims} p {p} {keep}", steps)


@row("argmax", "argmin", dtypes=NUMBERS)
def extreme_at(d, name):
    x = d.tensor()
    dim, keep = d.dim(x.tensor.dim()), d.flag()
    f, g = getattr(tern, name), getattr(torch, name)
    return Case([x], lambda x: f(x, dim, keep), lambda x: g(x, dim, keep), f" {dim} {keep}", exact=True)


@row("median", dtypes=NUMBERS)
def median(d, name):
    x = d.tensor()
    dim, keep = d.dim(x.tensor.dim()), d.flag()
    theirs = lambda x: lower_median(x, dim, keep)  # noqa: E731
    return Case([x], lambda x: tern.median(x, dim, keep), theirs, f" {dim} {keep}", exact=True)


def lower_median(x, dim, keep):
    """torch.median, whose choice among equal elements, for the gradient, is the first of a stable sort."""
    values = torch.sort(x, dim=dim, stable=True).values if x.dim() else x
    if not x.dim():
        return values
    nan = values.isnan().any(dim, keep) if x.is_floating_point() else torch.zeros(())
    at = values.select(dim, (x.size(dim) - 1) // 2)
    at = at.unsqueeze(dim) if keep else at
    last = values.select(dim, x.size(dim) - 1)
    return torch.where(nan.bool(), last.unsqueeze(dim) if keep else last, at)


@row("cumsum", "cumprod", dtypes=NUMBERS)
def running(d, name):
    x = d.tensor(kind=None if d.flag() else "normal")
    dim = d.dim(x.tensor.dim())
    f, g = getattr(tern, name), getattr(torch, name)
    return Case([x], lambda x: f(x, dim), lambda x: g(x, dim), f" {dim}", multilinear=name == "cumsum")


@row("cummax", dtypes=NUMBERS)
def running_max(d, name):
    x = d.tensor()
    dim = d.dim(x.tensor.dim())
    return Case([x], lambda x: tern.cummax(x, dim), lambda x: torch.cummax(x, dim).values, f" {dim}", exact=True)


@row("sort", dtypes=EVERY)
def sort(d, name):
    x = d.tensor()
    dim, down = d.dim(x.tensor.dim()), d.flag()
    return Case([x], lambda x: tern.sort(x, dim, down), lambda x: torch.sort(x, dim=dim, descending=down, stable=True), f" {dim} {down}", exact=True)


@row("topk", dtypes=NUMBERS)
def topk(d, name):
    x = d.tensor(d.shape(1))
    dim = d.dim(x.tensor.dim())
    size = x.tensor.size(dim) if -x.tensor.dim() <= dim < x.tensor.dim() else 1
    k = d.whole(0, size) + (1 if d.slip() else 0)

    def theirs(x):
        values, indices = torch.sort(x, dim=dim, descending=True, stable=True)
        if k > x.size(dim):
            raise RuntimeError("selected index k out of range")
        return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)

    return Case([x], lambda x: tern.topk(x, k, dim), theirs, f" {k} {dim}", exact=True)


@row("searchsorted", dtypes=NUMBERS)
def searchsorted(d, name):
    right = d.flag()
    rows, x = d.tensor(d.shape(1)), d.tensor()

    def theirs(rows, x):
        rows = torch.sort(rows.flatten()).values
        a, b = (x[..., None], rows) if right else (rows, x[..., None])
        is_less = torch.where(b.isnan(), ~a.isnan(), a < b)  # torch.searchsorted does not order NaN
        return (~is_less if right else is_less).sum(-1)

    return Case([rows, x], lambda rows, x: tern.searchsorted(tern.sort(rows.flatten())[0], x, right), theirs, f" {right}", exact=True)


@row("unique", dtypes=EVERY)
def unique(d, name):
    x = d.tensor(kind=d.choose("small", None))
    theirs = lambda x: torch.unique(x, return_inverse=True, return_counts=True)  # noqa: E731
    return Case([x], tern.unique, theirs, exact=True, orders=0)


@row("bincount", firm=True)
def bincount(d, name):
    n, least = d.whole(0, 40), d.choose(0, 0, 5)
    x = d.given(d.below((n,), 9, -1 if d.slip() else 0))
    if d.flag():
        return Case([x], lambda x: tern.bincount(x, None, least), lambda x: torch.bincount(x, minlength=least), f" {least}", exact=True)

    def theirs(x, w):
        size = max(int(x.max()) + 1 if x.numel() else 0, least)
        if x.shape != w.shape:
            raise RuntimeError("x and weights differ")
        return torch.zeros(size, dtype=w.dtype).index_add(0, x, w)

    w = d.tensor((n + (1 if d.slip() else 0),))
    return Case([x, w], lambda x, w: tern.bincount(x, w, least), theirs, f" {least}", multilinear=True)


@row("multinomial")
def multinomial(d, name):
    """Of what is certain: as many draws as there are positive weights, sorted; and what both refuse."""
    rows, classes = d.choose((), (3,)), d.whole(1, 9)
    weights = d.values((*rows, classes), d.dtype, "positive")
    if d.chance(0.2):
        weights[..., 0] = d.choose(-1.0, math.nan, math.inf, 0.0)
    count = classes + (1 if d.chance(0.1) else 0)
    ours = lambda w: tern.sort(tern.multinomial(w, count))[0]  # noqa: E731
    return Case([d.given(weights)], ours, lambda w: torch.sort(torch.multinomial(w, count)).values, f" {count}", exact=True, orders=0)
