"""Products, linear algebra, convolutions, norms, attention, losses and recurrent modules."""

import math

import torch
import torch.nn.functional as F

import tern
from tern import nn

from .compare import Case, to_tern
from .draw import FLOATS, WHOLE
from .rows_pointwise import STEPS
from .table import both_ways, op_of, row

WIDE = [torch.float32, torch.float64]


def sized(d, *options):
    return d.choose(*options) + d.slip(0.01)


# Products.


@row("matmul", "x @ y", dtypes=FLOATS + WHOLE, covers=("matmul",))
def matmul(d, name):
    m, k, n = (d.choose(0, 1, 2, 3, 5, 8, 17) for _ in range(3))
    one, other = d.broadcast(2, 0, 2)
    a = (k,) if d.chance(0.1) else (*one, m, k)
    b = (k + d.slip(),) if d.chance(0.1) else (*other, k + d.slip(), n)
    scale = 1 if name == "x @ y" or d.chance(0.7) or not d.dtype.is_floating_point else d.choose(0.5, -2.0)
    ours = (lambda a, b: a @ b) if name == "x @ y" else (lambda a, b: tern.matmul(a, b, scale))
    return Case([d.tensor(a), d.tensor(b)], ours, lambda a, b: torch.matmul(a, b) * scale if scale != 1 else a @ b, f" scale {scale}", multilinear=True)


@row("linear", *both_ways("linear_gelu"))
def linear(d, name):
    into, out = d.choose(0, 1, 3, 8, 17), d.choose(1, 2, 5, 16)
    operands = [d.tensor((*d.shape(0, 2, 60), into)), d.tensor((out, into + d.slip()))]
    if d.flag():
        operands.append(d.tensor((out + d.slip(),)))
    if name == "linear":
        return Case(operands, tern.linear, F.linear, multilinear=True, composed=len(operands) == 3)
    theirs = lambda *xs: F.gelu(F.linear(*xs), approximate="tanh")  # noqa: E731
    steps = lambda *xs: STEPS["gelu_tanh"](F.linear(*xs))  # noqa: E731
    return Case(operands, op_of(name), theirs, formula=steps, plain=op_of("plain linear_gelu"), composed=True)


EINSUM = [("ij,jk->ik", "ij", "jk"), ("bij,bjk->bik", "bij", "bjk"), ("ij->ji", "ij"), ("ii->i", "ii"), ("ii->", "ii"), ("i,j->ij", "i", "j"), ("bhtd,bhsd->bhts", "bhtd", "bhsd")]
EINSUM += [("ijk->k", "ijk"), ("i,i->", "i", "i"), ("...ij,jk->...ik", "..ij", "jk"), ("...ij->ij", "..ij"), ("ab,bc,cd->ad", "ab", "bc", "cd"), ("bi,ij,bj->b", "bi", "ij", "bj")]
EINSUM += [("ij,j", "ij", "j"), ("...ii->...i", "..ii"), ("b...,...b", "b.", ".b"), ("ij,ik->jk", "ij", "ik"), ("ij,ij->i", "ij", "ij")]


@row("einsum", dtypes=FLOATS + WHOLE)
def einsum(d, name):
    text, *operands = d.random.choice(EINSUM)
    sizes = {letter: d.choose(0, 1, 2, 3, 4, 5) for letter in "abcdhijkst"} | {".": 2}
    shapes = [[sizes[letter] for letter in operand] for operand in operands]
    if d.slip():
        shapes[-1][-1] += 1
    xs = [d.tensor(shape) for shape in shapes]
    return Case(xs, lambda *xs: tern.einsum(text, list(xs)), lambda *xs: torch.einsum(text, *xs), f" {text}", multilinear=True)


@row("dot", "outer", "trace", dtypes=FLOATS + WHOLE)
def vectors(d, name):
    n = d.choose(0, 1, 2, 7, 33)
    if name == "trace":
        return Case([d.tensor((n, d.choose(1, n)))], tern.trace, torch.trace, multilinear=True)
    return Case([d.tensor((n,)), d.tensor((n + d.slip() if name == "dot" else d.choose(1, 3),))], getattr(tern, name), getattr(torch, name), multilinear=True)


def symmetric(d, definite):
    n = d.whole(1, 5)
    x = d.normal((*d.choose((), (2,)), n, n))
    x = x @ x.mT + 0.5 * torch.eye(n, dtype=x.dtype) if definite else x + x.mT
    return d.given((x / 1).to(d.dtype), True)


@row("cholesky", "inverse", "det", "solve", "qr", "eigh", "svd", dtypes=WIDE)
def linalg(d, name):
    if name in ("cholesky", "eigh"):
        a = symmetric(d, name == "cholesky" and not d.slip(0.1))
        if name == "cholesky":  # PyTorch reads the lower triangle as well, but its gradient is not symmetric in all versions
            return Case([a], tern.cholesky, torch.linalg.cholesky, normwise=True)
        return Case([a], lambda a: tern.eigh(a)[0], lambda a: torch.linalg.eigh(a)[0], normwise=True)
    n = d.whole(2 if name == "det" else 1, 5)
    batch = d.choose((), (2,))
    if name in ("qr", "svd"):
        a = d.given(d.normal((*batch, n + d.whole(0, 2), n)).to(d.dtype), True)
        if name == "svd":
            return Case([a], lambda a: tern.svd(a)[1], lambda a: torch.linalg.svd(a, full_matrices=False)[1], normwise=True)

        def positive(a):
            q, r = torch.linalg.qr(a)
            sign = torch.where(r.detach().diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(a.dtype)
            return q * sign.unsqueeze(-2), (r * sign.unsqueeze(-1)).triu()

        return Case([a], tern.qr, positive, normwise=True)
    a = d.given(d.normal((*batch, n, n + d.slip())).to(d.dtype), True)
    if name == "solve":
        b = d.given(d.normal((*batch, n, d.whole(1, 3))).to(d.dtype), True)
        return Case([a, b], tern.solve, torch.linalg.solve, normwise=True)
    return Case([a], getattr(tern, name), {"inverse": torch.linalg.inv, "det": torch.linalg.det}[name], normwise=True)


# Convolutions and pooling.


@row("conv2d", "conv1d")
def convolution(d, name):
    plane = 2 if name == "conv2d" else 1
    groups = d.choose(1, 1, 2, 3)
    into, out = groups * d.choose(1, 2), groups * d.choose(1, 2, 3)
    kernel, dilation = d.choose(1, 2, 3), d.choose(1, 1, 2)
    sides = [d.whole(max(1, (kernel - 1) * dilation + 1 - d.slip(0.3)), 8) for _ in range(plane)]
    options = {"stride": d.choose(1, 1, 2, 3), "padding": d.choose(0, 1, 2), "dilation": dilation, "groups": groups}
    operands = [d.tensor((d.choose(0, 1, 2), into, *sides)), d.tensor((out, into // groups + d.slip(), *[kernel] * plane))]
    if d.flag():
        operands.append(d.tensor((out,)))
    f, g = getattr(tern, name), getattr(F, name)
    return Case(operands, lambda *xs: f(*xs, **options), lambda *xs: g(*xs, **options), f" {options}", multilinear=True)


def shared_max(x, kernel, stride, padding):
    """max_pool2d whose equal elements share the gradient, as the page has it."""
    (kh, kw), (sh, sw), (ph, pw) = kernel, stride, padding
    x = F.pad(x, (pw, pw, ph, ph), value=-math.inf)
    return x.unfold(2, kh, sh).unfold(3, kw, sw).amax((-2, -1))


@row("max_pool2d", "avg_pool2d")
def pooled(d, name):
    kernel = (d.whole(1, 3), d.whole(1, 3))
    stride = d.choose((0, 0), (1, 2), (2, 1), (3, 3))
    padding = tuple(d.whole(0, k // 2 + d.slip()) for k in kernel)
    x = d.tensor((d.choose(0, 1, 2), d.choose(1, 2), d.whole(kernel[0], 7), d.whole(kernel[1], 9)))
    step = tuple(s or k for s, k in zip(stride, kernel))

    def theirs(x):
        if name == "avg_pool2d":
            return F.avg_pool2d(x, kernel, step, padding)
        F.max_pool2d(x, kernel, step, padding)
        return shared_max(x, kernel, step, padding)

    how = {"exact": True} if name == "max_pool2d" else {"multilinear": True}
    return Case([x], lambda x: getattr(tern, name)(x, kernel, stride, padding), theirs, f" {kernel} {stride} {padding}", **how)


@row("upsample_nearest")
def upsample(d, name):
    n = d.whole(1, 3)
    x = d.tensor((1, *[d.choose(1, 2, 3, 5) for _ in range(3)]))
    return Case([x], lambda x: tern.upsample_nearest(x, n), lambda x: F.interpolate(x, scale_factor=n), f" {n}", multilinear=True)


# Norms.


@row("softmax", "log_softmax")
def softmax(d, name):
    x = d.tensor()
    dim = d.dim(x.tensor.dim())
    f, g = getattr(tern, name), getattr(torch, name)
    steps = log_softmax_steps if name == "log_softmax" else lambda x, dim: log_softmax_steps(x, dim).exp()
    return Case([x], lambda x: f(x, dim), lambda x: g(x, dim), f" {dim}", lambda x: steps(x, dim) if x.dim() else x - x)


def log_softmax_steps(x, dim):
    """By the logarithm of the sum, which kernels keep for the backward pass: its rounding is one of the largest element's."""
    return x - x.logsumexp(dim, True)


def layer_steps(x, gamma, beta, eps):
    x = x - x.mean(-1, True)
    x = x / torch.sqrt((x * x).mean(-1, True) + eps)
    x = x if gamma is None else x * gamma
    return x if beta is None else x + beta


def rms_steps(x, gamma, eps):
    x = x / torch.sqrt((x * x).mean(-1, True) + eps)
    return x if gamma is None else x * gamma


def by_channel(v, x):
    return None if v is None else v.view(-1, *[1] * (x.dim() - 2))


def group_steps(x, groups, gamma, beta, eps):
    y = layer_steps(x.reshape(x.shape[0], groups, -1), None, None, eps).reshape(x.shape)
    return y if gamma is None else y * by_channel(gamma, x) + by_channel(beta, x)


def norm_operands(d, count):
    n = d.choose(1, 2, 3, 8, 17, 33)
    x = d.tensor((*d.shape(0, 2, 40), n), kind=None if d.flag() else "tame")
    return [x] + [d.tensor((n + d.slip(),), kind="tame") for _ in range(count)]


@row(*both_ways("layer_norm", "rms_norm"))
def normalized(d, name):
    eps = d.choose(1e-5, 1e-3, 1.0)
    is_layer = name.endswith("layer_norm")
    operands = norm_operands(d, d.choose(0, 1, 2) if is_layer else d.choose(0, 1))
    rest = (lambda xs: [*xs[1:], *[None] * (3 - len(xs))]) if is_layer else (lambda xs: [*xs[1:], *[None] * (2 - len(xs))])
    f, plain = op_of(name), op_of(f"plain {name.removeprefix('plain ')}")
    g = F.layer_norm if is_layer else F.rms_norm
    return Case(
        operands,
        lambda *xs: f(xs[0], *rest(xs), eps),
        lambda *xs: g(xs[0], xs[0].shape[-1:], *rest(xs), eps),
        f" eps {eps}",
        formula=lambda *xs: (layer_steps if is_layer else rms_steps)(xs[0], *rest(xs), eps),
        plain=lambda *xs: plain(xs[0], *rest(xs), eps),
    )


@row("instance_norm")
def instance_norm(d, name):
    channels = d.choose(1, 2, 3)
    x = d.tensor((d.choose(1, 2), channels, *d.choose((3,), (2, 3))), kind=None if d.flag() else "tame")
    operands = [x] + [d.tensor((channels,), kind="tame") for _ in range(d.choose(0, 2))]
    rest = lambda xs: list(xs[1:]) or [None, None]  # noqa: E731
    return Case(operands, lambda *xs: tern.instance_norm(xs[0], *rest(xs)), lambda *xs: F.instance_norm(xs[0], None, None, *rest(xs)), "", lambda *xs: group_steps(xs[0], channels, *rest(xs), 1e-5))


@row("group_norm")
def group_norm(d, name):
    groups = d.choose(1, 2, 3)
    channels = groups * d.choose(1, 2) + d.slip()
    x = d.tensor((d.choose(1, 2), channels, *d.choose((), (3,), (2, 3))), kind=None if d.flag() else "tame")
    operands = [x] + [d.tensor((channels,), kind="tame") for _ in range(d.choose(0, 2))]
    rest = lambda xs: list(xs[1:]) or [None, None]  # noqa: E731
    return Case(operands, lambda *xs: tern.group_norm(xs[0], groups, *rest(xs)), lambda *xs: torch.group_norm(xs[0], groups, *rest(xs)), f" {groups}", lambda *xs: group_steps(xs[0], groups, *rest(xs), 1e-5))


@row("nn.BatchNorm1d", "nn.BatchNorm2d", covers=(), dtypes=WIDE, firm=True)
def batch_norm(d, name):
    channels = d.choose(1, 2, 5)
    x = d.tensor((d.choose(2, 3, 8), channels, *((3, 2) if name.endswith("2d") else d.choose((), (4,)))), kind=None if d.flag() else "tame")
    training = d.flag()
    mean, variance = d.normal((channels,)).to(d.dtype), d.uniform((channels,), 0.1, 2).to(d.dtype)

    def ours(x, gamma, beta):
        module = getattr(nn, name.removeprefix("nn."))(channels)
        module.weight, module.bias = gamma, beta
        module.running_mean, module.running_var = to_tern(mean.clone()).to(x.device), to_tern(variance.clone()).to(x.device)
        module.train() if training else module.eval()
        return module(x)

    def theirs(x, gamma, beta):
        return F.batch_norm(x, mean.to(x.dtype, copy=True), variance.to(x.dtype, copy=True), gamma, beta, training)

    def steps(x, gamma, beta):
        if training:
            return group_steps(x.transpose(0, 1).reshape(1, channels, -1), channels, gamma, beta, 1e-5).reshape(channels, x.shape[0], *x.shape[2:]).transpose(0, 1)
        return (x - by_channel(mean.double(), x)) / torch.sqrt(by_channel(variance.double(), x) + 1e-5) * by_channel(gamma, x) + by_channel(beta, x)

    # PyTorch 2.15 reads what is not there of parameters with strides of 0.
    operands = [x, *[d.tensor((channels,), kind="tame", layouts=False) for _ in range(2)]]
    return Case(operands, ours, theirs, f" training {training}", steps)


# Attention.


def composed_attention(q, k, v, bias, hidden, scale, softmax=lambda x: x.softmax(-1)):
    """softmax(scale q k^T + bias) v over the keys that are not hidden; rows that see nothing are 0."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2).repeat_interleave(group, 1), v.transpose(1, 2).repeat_interleave(group, 1)
    scores = q @ k.mT * scale
    scores = scores if bias is None else scores + bias
    scores = scores if hidden is None else scores.masked_fill(hidden, -math.inf)
    blind = (scores == -math.inf).all(-1, True)
    scores = scores.masked_fill(blind, 0.0)
    seen = blind if hidden is None else blind | hidden
    return (softmax(scores).masked_fill(seen, 0.0) @ v).transpose(1, 2)


def draw_bias(d, shape):
    x = d.normal(shape)
    low = d.choose(-math.inf, torch.finfo(d.dtype).min, -3e4, -1e30)
    x = torch.where(d.uniform(shape) < d.choose(0.0, 0.3, 0.8), torch.full((), low, dtype=x.dtype), x)
    if x.numel() and d.chance(0.2):
        x[..., 0, :] = d.choose(-math.inf, torch.finfo(d.dtype).min, 0.0)
    return d.given(x.to(d.dtype), True)


@row(*both_ways("scaled_dot_product_attention"), share=4, firm=True)
def attention(d, name):
    batch, heads, queries, keys, width = d.choose(1, 2), d.choose(1, 2, 4), d.choose(1, 2, 5, 17), d.choose(1, 3, 5, 33), d.choose(1, 4, 8, 16)
    fewer = d.choose(1, heads)
    kind = d.choose("normal", "tame")
    operands = [d.tensor((batch, queries, heads, width), kind=kind)] + [d.tensor((batch, keys, fewer, width), kind=kind) for _ in range(2)]
    options, hidden = {}, torch.zeros((batch, 1, queries, keys), dtype=torch.bool)
    row_of, column = torch.arange(queries)[:, None], torch.arange(keys)[None]
    if d.chance(0.4):
        options["causal"] = True
        later = column > row_of + keys - queries
        if d.chance(0.4):
            options["window"] = d.whole(1, 4)
            later = later | (column <= row_of + keys - queries - options["window"])
        elif d.chance(0.3):
            options["prefix"] = d.below((batch,), keys + 1)
            later = later & (column >= options["prefix"].view(-1, 1, 1, 1))
        hidden = hidden | later
    if d.chance(0.3):
        options["key_lengths"] = d.below((batch,), keys + 1)
        hidden = hidden | (column >= options["key_lengths"].view(-1, 1, 1, 1))
    if d.chance(0.4):
        options["padding"] = d.uniform((batch, keys)) < 0.4
        hidden = hidden | options["padding"].view(batch, 1, 1, keys)
        if d.chance(0.3):
            options["padding"] = torch.zeros((batch, keys), dtype=d.dtype).masked_fill(options["padding"], d.choose(-math.inf, torch.finfo(d.dtype).min, -3e4))
    if d.flag():
        operands.append(draw_bias(d, (d.choose(1, batch), d.choose(1, heads), queries, keys)))
    scale = d.choose(None, None, 1.0, 0.3)
    factor = 1 / math.sqrt(width) if scale is None else scale
    text = f" {options} scale {scale}"

    def called(f):
        def ours(q, k, v, bias=None):
            mask = {key: to_tern(x).to(q.device) if isinstance(x, torch.Tensor) else x for key, x in options.items()}
            return f(q, k, v, mask=tern.AttentionMask(**mask), bias=bias, scale=scale)

        return ours

    theirs = lambda q, k, v, bias=None: composed_attention(q, k, v, bias, hidden, factor)  # noqa: E731
    steps = lambda q, k, v, bias=None: composed_attention(q, k, v, bias, hidden, factor, lambda x: log_softmax_steps(x, -1).exp())  # noqa: E731
    plain = called(op_of("plain scaled_dot_product_attention"))
    return Case(operands, called(op_of(name)), theirs, text, steps, plain, composed=True)


@row("rope", "rope_table", firm=True)
def rope(d, name):
    length, width = d.whole(1, 9), 2 * d.whole(1, 5)
    base = d.choose(10000.0, 100.0)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    cos, sin = angles.cos(), angles.sin()
    if name == "rope_table":
        return Case([], lambda: tern.rope_table(length, width, base), lambda: torch.stack([cos, sin], -1).float(), f" {length} {width} {base}", ulps=4)
    pairs, heads = d.choose("adjacent", "halves"), d.whole(1, 3)
    first = d.choose(None, d.whole(0, heads))
    x = d.tensor((d.choose(1, 2), heads, d.whole(1, length), width))

    def theirs(x):
        table = torch.stack([cos, sin], -1).float().to(x.dtype)
        c, s = table[: x.shape[2], :, 0], table[: x.shape[2], :, 1]
        a, b = (x[..., ::2], x[..., 1::2]) if pairs == "adjacent" else x.chunk(2, -1)
        y, z = a * c - b * s, a * s + b * c
        y = torch.stack([y, z], -1).flatten(-2) if pairs == "adjacent" else torch.cat([y, z], -1)
        return y if first is None else torch.cat([y[:, :first], x[:, first:]], 1)

    def ours(x):
        return tern.rope(x, tern.rope_table(length, width, base, x.device), first, pairs)

    return Case([x], ours, theirs, f" {length} {base} {first} {pairs}")


# Losses.

TWO = {
    "mse_loss": (F.mse_loss, None),
    "l1_loss": (F.l1_loss, None),
    "huber_loss": (F.huber_loss, None),
    "binary_cross_entropy": (None, "unit"),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, "unit"),
    "kl_div": (F.kl_div, "unit"),
}


@row(*TWO)
def loss_of_two(d, name):
    theirs, kind = TWO[name]
    shape = d.shape()
    a = d.tensor(shape, kind="unit" if name == "binary_cross_entropy" else None)
    b = d.tensor(shape if not d.slip() else (*shape, 2), kind=kind)
    reduction = d.choose("none", "mean", "sum")
    options = {"delta": d.choose(1.0, 0.5)} if name == "huber_loss" else {}
    reduce = {"none": lambda x: x, "mean": torch.mean, "sum": torch.sum}[reduction]
    steps = {
        "binary_cross_entropy": lambda p, t: -(t * p.clamp(min=1e-38).log() + (1 - t) * (1 - p).clamp(min=1e-38).log()),
        "binary_cross_entropy_with_logits": lambda x, t: t * F.softplus(-x) + (1 - t) * F.softplus(x),
        "huber_loss": lambda a, b: F.huber_loss(a - b, torch.zeros_like(a), reduction="none", **options),
        "mse_loss": lambda a, b: (a - b) * (a - b),
        "kl_div": lambda x, t: t * torch.log(t) - t * x,
    }.get(name)
    formula = (lambda a, b: reduce(steps(a, b))) if steps else None
    if theirs is None:  # where logarithms are limited elsewhere, and whose second derivatives are off by 1e-12 / (p - p^2) in PyTorch
        theirs = lambda a, b, reduction: reduce(steps(a, b)) if a.shape == b.shape else F.binary_cross_entropy(a, b)  # noqa: E731
    return Case([a, b], lambda a, b: getattr(tern, name)(a, b, reduction=reduction, **options), lambda a, b: theirs(a, b, reduction=reduction, **options), f" {reduction} {options}", formula, kink=True)


def cross_entropy(logits, targets, weights, ignore, smoothing, reduction, log_softmax=F.log_softmax):
    """F.cross_entropy's formula with a weight for each token."""
    log = log_softmax(logits, -1)
    kept = targets != ignore
    safe = torch.where(kept, targets, 0)
    loss = -(1 - smoothing) * log.gather(-1, safe.unsqueeze(-1)).squeeze(-1)
    loss = loss - smoothing * log.mean(-1) if smoothing else loss
    weights = torch.ones_like(loss) if weights is None else weights
    loss = torch.where(kept, loss * weights, torch.zeros((), dtype=loss.dtype))
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / torch.where(kept, weights, torch.zeros((), dtype=loss.dtype)).sum()


@row("cross_entropy", "linear_cross_entropy", "nll_loss", share=2, firm=True)
def cross_entropies(d, name):
    shape, classes = d.shape(0, 2, 40), d.choose(1, 2, 5, 17)
    ignore = d.choose(-100, 0)
    targets = d.below(shape, classes + d.slip())
    if d.chance(0.4):
        targets = torch.where(d.uniform(shape) < d.choose(0.3, 1.0), ignore, targets)
    reduction, smoothing = d.choose("none", "mean", "sum"), d.choose(0, 0, 0.1)
    kind = "tame" if d.chance(0.7) else None
    text = f" ignore {ignore} smoothing {smoothing} {reduction}"
    if name == "nll_loss":
        theirs = lambda x, t: F.nll_loss(x.flatten(0, -2) if x.dim() > 1 else x, t.flatten() if x.dim() > 1 else t, reduction=reduction, ignore_index=ignore)  # noqa: E731
        shaped = lambda x, t: theirs(x, t).view(t.shape) if reduction == "none" else theirs(x, t)  # noqa: E731
        return Case([d.tensor((*shape, classes), kind=kind), d.given(targets)], lambda x, t: tern.nll_loss(x, t, reduction, ignore), shaped, text, multilinear=True)
    weighted = d.chance(0.3)
    options = {"ignore_index": ignore, "label_smoothing": smoothing, "reduction": reduction}
    weights = [d.given(d.values(shape, torch.float32 if torch.finfo(d.dtype).bits == 16 else d.dtype, "unit"))] if weighted and d.dtype in FLOATS else []
    wide = lambda x: x.float() if torch.finfo(x.dtype).bits == 16 else x  # noqa: E731
    if name == "cross_entropy":
        return Case(
            [d.tensor((*shape, classes), kind=kind), d.given(targets), *weights],
            lambda x, t, w=None: tern.cross_entropy(x, t, token_weights=w, **options),
            lambda x, t, w=None: cross_entropy(wide(x), t, w, ignore, smoothing, reduction),
            text,
            lambda x, t, w=None: cross_entropy(x, t, w, ignore, smoothing, reduction, log_softmax_steps),
        )
    width, chunk = d.choose(1, 4, 9), d.choose(0, 1, 3)
    operands = [d.tensor((*shape, width), kind=kind), d.tensor((classes, width), kind="tame"), d.given(targets), *weights]
    with_bias = d.flag()
    if with_bias:
        operands.insert(2, d.tensor((classes,), kind="tame"))

    def split(xs):
        return (xs[0], xs[1], xs[2] if with_bias else None, xs[2 + with_bias], xs[3 + with_bias] if weighted and weights else None)

    def ours(*xs):
        x, w, b, t, weight = split(xs)
        return tern.linear_cross_entropy(x, w, b, t, token_weights=weight, chunk_rows=chunk, **options)

    def theirs(*xs, log_softmax=F.log_softmax):
        x, w, b, t, weight = split(xs)
        return cross_entropy(wide(F.linear(x, w, b)), t, weight, ignore, smoothing, reduction, log_softmax)

    return Case(operands, ours, theirs, f"{text} chunk {chunk}", lambda *xs: theirs(*xs, log_softmax=log_softmax_steps), plain=tern.plain_kernels()(ours), composed=True)


# Recurrent modules.


@row("nn.LSTM", "nn.GRU", covers=(), dtypes=WIDE, firm=True)
def recurrent(d, name):
    into, hidden, batch, length = d.choose(1, 3), d.choose(1, 2, 4), d.choose(1, 2), d.choose(1, 3)
    layers, both_ways = d.choose(1, 2), d.flag()
    kind = getattr(torch.nn, name.removeprefix("nn."))
    names = [key for key, _ in kind(into, hidden, layers, bidirectional=both_ways).named_parameters()]
    shapes = [tuple(x.shape) for _, x in kind(into, hidden, layers, bidirectional=both_ways).named_parameters()]
    operands = [d.tensor((batch, length, into), kind="normal")] + [d.tensor(shape, kind="normal") for shape in shapes]
    flat = lambda y, state: [y, *state] if isinstance(state, tuple) else [y, state]  # noqa: E731

    def ours(x, *parameters):
        module = getattr(nn, name.removeprefix("nn."))(into, hidden, layers=layers, bidirectional=both_ways)
        module.to(x.dtype)
        named = dict(module.named_parameters())
        for key, value in zip(names, parameters):
            tern.copy_(named[key].detach(), value.detach())
        return flat(*module(x))

    def theirs(x, *parameters):
        module = kind(into, hidden, layers, bidirectional=both_ways, batch_first=True, dtype=x.dtype)
        return flat(*torch.func.functional_call(module, dict(zip(names, [p.detach() for p in parameters])), (x,)))

    return Case(operands, ours, theirs, f" {into} {hidden} layers {layers} {both_ways}", orders=2, ulps=4)
