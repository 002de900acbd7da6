"""What layers are made of beside products and norms: images at other sizes, windows, branches, cells, masked softmaxes."""

import math

import torch
import torch.nn.functional as F

import tern

from .compare import Case, to_tern
from .draw import FLOATS, WHOLE
from .rows_networks import WIDE, layer_steps, log_softmax_steps, rms_steps, shared_max
from .rows_pointwise import STEPS
from .table import both_ways, op_of, row


@row("conv_transpose2d")
def transposed(d, name):
    groups = d.choose(1, 1, 2)
    into, out = groups * d.choose(1, 2), groups * d.choose(1, 2)
    kernel, stride, dilation = (d.whole(1, 3), d.whole(1, 3)), d.choose(1, 2, 3), d.choose(1, 1, 2)
    options = {"stride": stride, "padding": d.choose(0, 0, 1), "output_padding": d.whole(0, stride - 1), "dilation": dilation, "groups": groups}
    operands = [d.tensor((d.choose(0, 1, 2), into, d.whole(1, 4), d.whole(1, 4))), d.tensor((into + d.slip(), out // groups, *kernel))]
    if d.flag():
        operands.append(d.tensor((out,)))
    return Case(operands, lambda *xs: tern.conv_transpose2d(*xs, **options), lambda *xs: F.conv_transpose2d(*xs, **options), f" {options}", multilinear=True)


def adaptive_max(x, size):
    """adaptive_max_pool2d whose equal elements share the gradient."""
    F.adaptive_max_pool2d(x.detach(), size)
    edges = [[(math.floor(i * n / m), math.ceil((i + 1) * n / m)) for i in range(m)] for n, m in zip(x.shape[2:], size)]
    rows = [torch.stack([x[:, :, a:b, c:e].amax((-2, -1)) for c, e in edges[1]], -1) for a, b in edges[0]]
    return torch.stack(rows, -2)


@row("adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_bilinear")
def resized(d, name):
    size = (d.whole(1, 5), d.whole(1, 5))
    x = d.tensor((d.choose(1, 2), d.choose(1, 2), d.whole(1, 6), d.whole(1, 6)))
    if name == "adaptive_max_pool2d":
        return Case([x], lambda x: tern.adaptive_max_pool2d(x, size), lambda x: adaptive_max(x, size), f" {size}", exact=True)
    if name == "adaptive_avg_pool2d":
        return Case([x], lambda x: tern.adaptive_avg_pool2d(x, size), lambda x: F.adaptive_avg_pool2d(x, size), f" {size}", multilinear=True)
    align = d.flag()
    theirs = lambda x: F.interpolate(x, size, mode="bilinear", align_corners=align)  # noqa: E731
    most = 2 * max(x.tensor.shape[2:])  # a position's rounding error is that of the largest, and is the weights'
    return Case([x], lambda x: tern.upsample_bilinear(x, size, align), theirs, f" {size} {align}", lambda x: most * theirs(x), multilinear=True)


@row("unfold", "fold")
def windows(d, name):
    options = {"stride": d.choose(1, 2), "padding": d.choose(0, 1), "dilation": d.choose(1, 1, 2)}
    kernel, height, width = (d.whole(1, 3), d.whole(1, 3)), d.whole(3, 6), d.whole(3, 6)
    text = f" {kernel} {options}"
    if name == "unfold":
        x = d.tensor((d.choose(1, 2), d.choose(1, 2), height, width))
        return Case([x], lambda x: tern.unfold(x, kernel, **options), lambda x: F.unfold(x, kernel, **options), text, multilinear=True)
    count = [(n + 2 * options["padding"] - options["dilation"] * (k - 1) - 1) // options["stride"] + 1 for n, k in zip((height, width), kernel)]
    x = d.tensor((d.choose(1, 2), 2 * math.prod(kernel), max(0, math.prod(count)) + d.slip()))
    theirs = lambda x: F.fold(x, (height, width), kernel, **options)  # noqa: E731
    return Case([x], lambda x: tern.fold(x, height, width, kernel, **options), theirs, f" {height} {width}{text}", multilinear=True)


@row("depthwise_conv1d", "depthwise_conv1d_step")
def depthwise(d, name):
    batch, length, channels, taps, silu = d.choose(1, 2), d.whole(1, 9), d.choose(1, 2, 5), d.whole(1, 4), d.chance(0.3)
    bias = [d.tensor((channels,))] if d.flag() else []
    w = d.tensor((channels, taps))
    end = STEPS["silu"] if silu else lambda x: x
    how = {"multilinear": not silu, "composed": True}

    def correlated(u, w, bias, left, right):
        y = F.conv1d(F.pad(u.mT, (left, right)), w.unsqueeze(1), *bias, groups=channels).mT
        return end(y) if not silu else F.silu(y)

    if name == "depthwise_conv1d_step":
        operands = [d.tensor((batch, taps - 1, channels)), d.tensor((batch, channels)), w, *bias]

        def step(state, u, w, *bias):
            whole = torch.cat([state, u.unsqueeze(1)], 1)
            return correlated(whole, w, bias, 0, 0).squeeze(1), whole[:, 1:]

        return Case(operands, lambda s, u, w, b=None: tern.depthwise_conv1d_step(s, u, w, b, silu), step, f" silu {silu}", **how)
    padding, first = d.choose("causal", "same", "given"), d.flag()
    left, right = {"causal": (taps - 1, 0), "same": (taps // 2, taps - 1 - taps // 2), "given": (d.whole(0, 3), d.whole(0, 3) + taps)}[padding]
    u = d.tensor((batch, channels, length) if first else (batch, length, channels))
    options = {"padding": padding, "channels_first": first, "silu": silu} | ({"left": left, "right": right} if padding == "given" else {})
    turned = (lambda x: x.mT) if first else lambda x: x
    theirs = lambda u, w, *b: turned(correlated(turned(u), w, b, left, right))  # noqa: E731
    return Case([u, w, *bias], lambda u, w, b=None: tern.depthwise_conv1d(u, w, b, **options), theirs, f" {options}", **how)


@row(*both_ways("residual_layer_norm", "residual_rms_norm"))
def branch(d, name):
    n, is_layer = d.choose(1, 2, 5, 17, 33), "layer" in name
    shape = (*d.shape(0, 2, 40), n)
    operands = [d.tensor(shape, kind=d.choose("normal", "small")) for _ in range(2)] + [d.tensor((n,), kind="tame") for _ in range(2 if is_layer else 1)]
    with_bias = d.flag()
    operands += [d.tensor((n,), kind="tame")] if with_bias else []
    count = 4 if is_layer else 3

    def called(f):
        return lambda *xs: f(*xs[:count], bias=xs[count] if with_bias else None)

    def composed(norm):
        def theirs(x, residual, *rest):
            added = residual + (x + rest[count - 2] if with_bias else x)
            return added, norm(added, *rest[: count - 2])

        return theirs

    theirs = composed((lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b)) if is_layer else lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-5))
    steps = composed((lambda x, g, b: layer_steps(x, g, b, 1e-5)) if is_layer else lambda x, g: rms_steps(x, g, 1e-5))
    plain = called(op_of(f"plain {name.removeprefix('plain ')}"))
    return Case(operands, called(op_of(name)), theirs, f" bias {with_bias}", steps, plain, composed=True)


@row("batch_norm", dtypes=WIDE, firm=True)
def batch_norm(d, name):
    channels = d.choose(1, 2, 5)
    operands = [d.tensor((d.choose(2, 3, 8), channels, *d.choose((), (3,), (2, 3))), kind="tame"), *[d.tensor((channels,), kind="tame") for _ in range(2)]]

    def theirs(x, gamma, beta):
        other = [i for i in range(x.dim()) if i != 1]
        mean, variance = x.mean(other, True), x.var(other, correction=0, keepdim=True)
        y = (x - mean) / torch.sqrt(variance + 1e-5) * gamma.view(mean.shape) + beta.view(mean.shape)
        return y, mean.flatten(), variance.flatten()

    return Case(operands, lambda x, g, b: tern.batch_norm(x, g, b), theirs)


@row("lstm_cell", "gru_cell")
def cell(d, name):
    batch, hidden = d.choose(0, 1, 3), d.choose(1, 2, 9)
    gates = 4 if name == "lstm_cell" else 3
    operands = [d.tensor((batch, gates * hidden), kind=d.choose("normal", "small")) for _ in range(2)] + [d.tensor((batch, hidden), kind="normal")]

    def lstm(x, h, c):
        i, f, g, o = (x + h).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def gru(x, y, h):
        (a, b, c), (u, v, w) = x.chunk(3, -1), y.chunk(3, -1)
        r, z = (a + u).sigmoid(), (b + v).sigmoid()
        return (1 - z) * (c + r * w).tanh() + z * h

    return Case(operands, getattr(tern, name), lstm if name == "lstm_cell" else gru, composed=True)


@row(*both_ways("attention_softmax"), firm=True)
def masked_softmax(d, name):
    batch, queries, keys = d.choose(1, 2), d.choose(1, 3, 17), d.choose(1, 4, 33)
    x = d.tensor((batch, *d.choose((), (2,)), queries, keys), kind=d.choose("normal", "small"))
    options, hidden = {}, torch.zeros((batch, *[1] * (x.tensor.dim() - 3), queries, keys), dtype=torch.bool)
    if d.flag():
        options["causal"] = True
        hidden = hidden | (torch.arange(keys)[None] > torch.arange(queries)[:, None] + keys - queries)
    if d.flag():
        options["key_lengths"] = d.below((batch,), keys + 1)
        hidden = hidden | (torch.arange(keys) >= options["key_lengths"].view(-1, *[1] * (hidden.dim() - 1)))
    if d.flag():
        options["padding"] = d.uniform((batch, keys)) < 0.4
        hidden = hidden | options["padding"].view(batch, *[1] * (hidden.dim() - 2), keys)

    def called(f):
        return lambda x: f(x, tern.AttentionMask(**{k: to_tern(v).to(x.device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}))

    def composed(softmax):
        def theirs(x):
            blind = hidden.all(-1, True)
            return softmax(x.masked_fill(hidden & ~blind, -math.inf)).masked_fill(hidden, 0.0)

        return theirs

    plain = called(op_of("plain attention_softmax"))
    return Case([x], called(op_of(name)), composed(lambda x: x.softmax(-1)), f" {options}", composed(lambda x: log_softmax_steps(x, -1).exp()), plain, composed=True)


@row(*both_ways("feed_forward_gelu"))
def feed_forward(d, name):
    into, hidden, out = d.choose(1, 3, 8), d.choose(1, 4, 16), d.choose(1, 5)
    operands = [d.tensor((*d.shape(0, 2, 40), into), kind="normal"), *[d.tensor(s, kind="normal") for s in ((hidden, into), (hidden,), (out, hidden), (out,))]]
    theirs = lambda x, a, b, c, e: F.linear(F.gelu(F.linear(x, a, b), approximate="tanh"), c, e)  # noqa: E731
    steps = lambda x, a, b, c, e: F.linear(STEPS["gelu_tanh"](F.linear(x, a, b)), c, e)  # noqa: E731
    return Case(operands, op_of(name), theirs, formula=steps, plain=op_of("plain feed_forward_gelu"), composed=True)


@row("embedding with positions", "plain embedding with positions", covers=("embedding",))
def embedding_with_positions(d, name):
    rows, width, length = d.whole(1, 9), d.whole(1, 9), d.whole(1, 6)
    ids = d.given(d.below((d.choose(1, 3), length), rows))
    operands = [d.tensor((rows, width)), d.tensor((length + d.whole(0, 2), width)), ids]
    theirs = lambda t, p, i: F.embedding(i, t) + p[: i.shape[1]]  # noqa: E731
    ours = op_of(name.removesuffix(" with positions"))
    return Case(operands, ours, theirs, plain=op_of("plain embedding"), multilinear=True)


@row("pad_sequence", dtypes=FLOATS + WHOLE)
def pad_sequence(d, name):
    rest, value = d.choose((), (2,)), d.choose(0, 1, 2)
    operands = [d.tensor((d.whole(0, 5), *rest)) for _ in range(d.whole(1, 4))]
    theirs = lambda *xs: torch.nn.utils.rnn.pad_sequence(xs, batch_first=True, padding_value=value)  # noqa: E731
    return Case(operands, lambda *xs: tern.pad_sequence(list(xs), value), theirs, f" {value}", exact=True)


@row("sum_to", firm=True)
def sum_to(d, name):
    whole = d.shape()
    part = tuple(1 if d.chance(0.4) else size for size in whole)[d.whole(0, len(whole)) :]
    return Case([d.tensor(whole)], lambda x: tern.sum_to(x, part), lambda x: x.sum_to_size(part), f" {part}", multilinear=True)
