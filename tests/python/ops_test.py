"""Each op's binding beside NumPy: the order and the names of arguments, in float64. tests/ops has the ops themselves, and their gradients."""

import math

import numpy as np
import pytest

import tern
from tern import nn


def values(*shape, low=-2.0, high=2.0, seed=0):
    return np.random.default_rng(seed + sum(shape)).uniform(low, high, shape)


def np_softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def np_layer_norm(x, gamma, beta):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta


def np_conv1d(x, w):
    columns = np.lib.stride_tricks.sliding_window_view(x, w.shape[2], axis=2)
    return np.einsum("bclk,ock->bol", columns, w)


def np_attention(q, k, v):
    scores = np.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
    t, s = scores.shape[-2:]
    scores = np.where(np.tril(np.ones((t, s), bool)), scores, -np.inf)
    return np.einsum("bhts,bshd->bthd", np_softmax(scores), v)


erf = np.vectorize(math.erf)
A, B, ROW = values(3, 4), values(3, 4, seed=1), values(4, seed=2)
POSITIVE = values(3, 4, low=0.5, high=2)
SQUARE = values(3, 3) + 3 * np.eye(3)
INDEX = np.array([[0, 2, 1, 1], [1, 1, 0, 2]])

# Name: tern's function, NumPy's, the inputs, each of which gets a gradient.
CASES = {
    "add": (lambda a, b: a + b, np.add, [A, ROW]),
    "radd": (lambda a: 2 + a, lambda a: 2 + a, [A]),
    "sub": (tern.sub, np.subtract, [A, ROW]),
    "rsub": (lambda a: 2 - a, lambda a: 2 - a, [A]),
    "mul": (lambda a, b: a * b, np.multiply, [A, ROW]),
    "div": (lambda a, b: a / b, np.divide, [A, POSITIVE]),
    "rdiv": (lambda a: 2 / a, lambda a: 2 / a, [POSITIVE]),
    "pow": (lambda a: a**3, lambda a: a**3, [A]),
    "rpow": (lambda a: 2**a, lambda a: 2**a, [A]),
    "pow_tensors": (tern.pow, np.power, [POSITIVE, A]),
    "mod": (lambda a: a % 0.7, lambda a: a % 0.7, [A]),
    "neg": (lambda a: -a, np.negative, [A]),
    "abs": (abs, np.abs, [A]),
    "minimum": (tern.minimum, np.minimum, [A, B]),
    "maximum": (lambda a: tern.maximum(a, 0.1), lambda a: np.maximum(a, 0.1), [A]),
    "atan2": (lambda a, b: tern.atan2(a, b), np.arctan2, [A, B]),
    "clamp": (lambda a: tern.clamp(a, -1, high=1), lambda a: np.clip(a, -1, 1), [A]),
    "where": (lambda a, b: tern.where(a > b, a, b * 2), lambda a, b: np.where(a > b, a, b * 2), [A, B]),
    "masked_fill": (lambda a: tern.masked_fill(a, a > 0, value=3), lambda a: np.where(a > 0, 3, a), [A]),
    "exp": (tern.exp, np.exp, [A]),
    "log": (tern.log, np.log, [POSITIVE]),
    "sqrt": (tern.sqrt, np.sqrt, [POSITIVE]),
    "rsqrt": (tern.rsqrt, lambda a: 1 / np.sqrt(a), [POSITIVE]),
    "reciprocal": (tern.reciprocal, np.reciprocal, [POSITIVE]),
    "square": (tern.square, np.square, [A]),
    "sin": (tern.sin, np.sin, [A]),
    "cos": (tern.cos, np.cos, [A]),
    "tan": (tern.tan, np.tan, [A / 2]),
    "tanh": (tern.tanh, np.tanh, [A]),
    "erf": (tern.erf, erf, [A]),
    "sigmoid": (tern.sigmoid, lambda a: 1 / (1 + np.exp(-a)), [A]),
    "relu": (tern.relu, lambda a: np.maximum(a, 0), [A]),
    "gelu": (tern.gelu, lambda a: a * (1 + erf(a / math.sqrt(2))) / 2, [A]),
    "silu": (tern.silu, lambda a: a / (1 + np.exp(-a)), [A]),
    "softplus": (lambda a: tern.softplus(a, beta=2), lambda a: np.log1p(np.exp(2 * a)) / 2, [A]),
    "leaky_relu": (lambda a: tern.leaky_relu(a, slope=0.2), lambda a: np.where(a > 0, a, 0.2 * a), [A]),
    "elu": (tern.elu, lambda a: np.where(a > 0, a, np.expm1(a)), [A]),
    "log1p": (tern.log1p, np.log1p, [POSITIVE]),
    "expm1": (tern.expm1, np.expm1, [A]),
    "sum": (lambda a: tern.sum(a), np.sum, [A]),
    "sum_dims": (lambda a: a.sum((0, -1), keepdim=True), lambda a: a.sum((0, 1), keepdims=True), [A]),
    "mean": (lambda a: a.mean(1), lambda a: a.mean(1), [A]),
    "var": (lambda a: tern.var(a, 1, correction=0), lambda a: a.var(1), [A]),
    "stddev": (lambda a: tern.stddev(a, dims=1), lambda a: a.std(1, ddof=1), [A]),
    "norm": (lambda a: tern.norm(a, 1, p=3), lambda a: (np.abs(a) ** 3).sum(1) ** (1 / 3), [A]),
    "prod": (lambda a: tern.prod(a, 1), lambda a: a.prod(1), [A]),
    "max": (lambda a: tern.max(a, 1), lambda a: a.max(1), [A]),
    "min": (lambda a: tern.min(a), np.min, [A]),
    "logsumexp": (lambda a: tern.logsumexp(a, 1), lambda a: np.log(np.exp(a).sum(1)), [A]),
    "cumsum": (lambda a: tern.cumsum(a, 1), lambda a: a.cumsum(1), [A]),
    "cummax": (lambda a: tern.cummax(a, 1), lambda a: np.maximum.accumulate(a, 1), [A]),
    "cumprod": (lambda a: tern.cumprod(a, 1), lambda a: a.cumprod(1), [A]),
    "median": (lambda a: tern.median(a, 0), lambda a: np.median(a, 0), [A]),
    "reshape": (lambda a: a.reshape(2, -1), lambda a: a.reshape(2, -1), [A]),
    "flatten": (tern.flatten, np.ravel, [A]),
    "transpose": (lambda a: a.T * a.transpose(0, 1), lambda a: a.T * a.T, [A]),
    "permute": (lambda a: a.permute(1, 0), lambda a: a.transpose(1, 0), [A]),
    "broadcast_to": (lambda a: tern.broadcast_to(a, (2, 4)), lambda a: np.broadcast_to(a, (2, 4)), [ROW]),
    "cat": (lambda a, b: tern.cat([a, b], dim=1), lambda a, b: np.concatenate([a, b], 1), [A, B]),
    "stack": (lambda a, b: tern.stack([a, b]), lambda a, b: np.stack([a, b]), [A, B]),
    "split": (lambda a: tern.split(a, [1, 3], dim=1)[1], lambda a: a[:, 1:], [A]),
    "chunk": (lambda a: tern.chunk(a, 2, 1)[0], lambda a: a[:, :2], [A]),
    "pad": (lambda a: tern.pad(a, 1, 1, 2, value=5), lambda a: np.pad(a, ((0, 0), (1, 2)), constant_values=5), [A]),
    "flip": (lambda a: tern.flip(a, 1), lambda a: a[:, ::-1], [A]),
    "roll": (lambda a: tern.roll(a, 1, dim=1), lambda a: np.roll(a, 1, 1), [A]),
    "repeat": (lambda a: tern.repeat(a, 2, dim=1), lambda a: np.repeat(a, 2, 1), [A]),
    "tile": (lambda a: tern.tile(a, (2, 1)), lambda a: np.tile(a, (2, 1)), [A]),
    "diagonal": (tern.diagonal, np.diagonal, [A]),
    "diag": (tern.diag, np.diag, [ROW]),
    "tril": (lambda a: tern.tril(a, diagonal=1), lambda a: np.tril(a, 1), [A]),
    "triu": (tern.triu, np.triu, [A]),
    "sort": (lambda a: tern.sort(a, 1)[0], lambda a: np.sort(a, 1), [A]),
    "topk": (lambda a: tern.topk(a, k=2)[0], lambda a: -np.sort(-a, 1)[:, :2], [A]),
    "gather": (
        lambda a: tern.gather(a, 0, tern.from_numpy(INDEX)),
        lambda a: np.take_along_axis(a, INDEX, 0),
        [A],
    ),
    "index_select": (lambda a: tern.index_select(a, 1, tern.tensor([3, 0])), lambda a: a[:, [3, 0]], [A]),
    "embedding": (lambda a: tern.embedding(a, tern.from_numpy(INDEX)), lambda a: a[INDEX], [A]),
    "unsqueeze": (lambda a: tern.squeeze(tern.unsqueeze(a, 1)), lambda a: a, [A]),
    "matmul": (lambda a, b: a @ b, np.matmul, [A, B.T.copy()]),
    "linear": (lambda x, w, b: tern.linear(x, w, bias=b), lambda x, w, b: x @ w.T + b, [A, B, ROW[:3]]),
    "einsum": (
        lambda a, b: tern.einsum("ij,kj->ik", [a, b]),
        lambda a, b: np.einsum("ij,kj->ik", a, b),
        [A, B],
    ),
    "outer": (tern.outer, np.outer, [ROW, ROW[:2]]),
    "trace": (tern.trace, np.trace, [A]),
    "softmax": (tern.softmax, np_softmax, [A]),
    "log_softmax": (lambda a: tern.log_softmax(a, 0), lambda a: np.log(np_softmax(a, 0)), [A]),
    "layer_norm": (tern.layer_norm, np_layer_norm, [A, ROW, ROW]),
    "plain layer_norm": (tern.plain_kernels()(tern.layer_norm), np_layer_norm, [A, ROW, ROW]),
    "rms_norm": (tern.rms_norm, lambda a, g: a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5) * g, [A, ROW]),
    "conv1d": (tern.conv1d, np_conv1d, [values(2, 3, 7), values(4, 3, 2)]),
    "avg_pool2d": (
        lambda a: tern.avg_pool2d(a, (1, 2)),
        lambda a: a.reshape(1, 2, 3, 2, 2).mean(-1),
        [values(1, 2, 3, 4)],
    ),
    "attention": (
        lambda q, k, v: tern.scaled_dot_product_attention(q, k, v, mask=tern.AttentionMask(causal=True)),
        np_attention,
        [values(2, 5, 2, 4), values(2, 5, 2, 4, seed=1), values(2, 5, 2, 4, seed=2)],
    ),
    "mse_loss": (lambda a, b: tern.mse_loss(a, b, reduction="sum"), lambda a, b: ((a - b) ** 2).sum(), [A, B]),
    "l1_loss": (tern.l1_loss, lambda a, b: np.abs(a - b).mean(), [A, B]),
    "huber_loss": (
        lambda a, b: tern.huber_loss(a, b, delta=0.5),
        lambda a, b: np.where(abs(a - b) <= 0.5, (a - b) ** 2 / 2, 0.5 * (abs(a - b) - 0.25)).mean(),
        [A, B],
    ),
    "cross_entropy": (
        lambda a: tern.cross_entropy(a, tern.tensor([1, -100, 3]), reduction="mean"),
        lambda a: -np.log(np_softmax(a))[[0, 2], [1, 3]].mean(),
        [A],
    ),
    "cross_entropy_options": (
        lambda a: tern.cross_entropy(
            a, tern.tensor([1, 0, 3]), token_weights=tern.tensor([1.0, 2.0, 0.5], dtype=tern.f64), label_smoothing=0.2, reduction="sum"
        ),
        lambda a: -(
            np.array([1, 2, 0.5]) * (0.8 * np.log(np_softmax(a))[range(3), [1, 0, 3]] + 0.2 * np.log(np_softmax(a)).mean(-1))
        ).sum(),
        [A],
    ),
    "solve": (tern.solve, np.linalg.solve, [SQUARE, values(3, 2)]),
    "inverse": (tern.inverse, np.linalg.inv, [SQUARE]),
    "det": (tern.det, np.linalg.det, [SQUARE]),
    "index": (lambda a: a[1:, None, ..., 2], lambda a: a[1:, None, ..., 2], [A]),
    "index_mask": (lambda a: a[a > 0], lambda a: a[a > 0], [A]),
    "index_tensor": (lambda a: a[tern.tensor([2, 0, 2])], lambda a: a[[2, 0, 2]], [A]),
    "to": (lambda a: a.to(tern.f64).clone().contiguous(), lambda a: a, [A]),
}
NEEDS_LINALG = {"solve", "inverse", "det"}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    f, reference, inputs = CASES[name]
    leaves = [tern.tensor(x, dtype=tern.f64).requires_grad_() for x in inputs]
    try:
        y = f(*leaves)
    except tern.Error as error:
        if name in NEEDS_LINALG and "Eigen" in str(error):
            pytest.skip("a build without Eigen")
        raise
    expected = np.asarray(reference(*inputs))
    assert y.shape == expected.shape
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-9, atol=1e-12)

    y.backward(tern.from_numpy(np.ones(expected.shape)))
    assert [leaf.grad.shape for leaf in leaves] == [x.shape for x in inputs]


@pytest.mark.parametrize(
    "f, expected",
    [
        (lambda: tern.floor(tern.tensor([1.5, -1.5])), [1, -2]),
        (lambda: tern.ceil(tern.tensor([1.5, -1.5])), [2, -1]),
        (lambda: tern.round(tern.tensor([0.5, 1.5])), [0, 2]),
        (lambda: tern.sign(tern.tensor([-3, 0, 2])), [-1, 0, 1]),
        (lambda: tern.isnan(tern.tensor([math.nan, math.inf])), [True, False]),
        (lambda: tern.isinf(tern.tensor([math.nan, math.inf])), [False, True]),
        (lambda: tern.isfinite(tern.tensor([1.0, math.inf])), [True, False]),
        (lambda: tern.argmax(tern.tensor([[1, 3, 2], [9, 0, 0]])), [1, 0]),
        (lambda: tern.argmin(tern.tensor([[1, 3, 2], [9, 0, 5]]), dim=0), [0, 1, 0]),
        (lambda: tern.any(tern.tensor([[True, False], [False, False]]), 1), [True, False]),
        (lambda: tern.all(tern.tensor([[True, True], [False, True]]), 1), [True, False]),
        (lambda: tern.nonzero(tern.tensor([0, 5, 0, 6])), [[1], [3]]),
        (lambda: tern.one_hot(tern.tensor([1, 0]), 3), [[0, 1, 0], [1, 0, 0]]),
        (lambda: tern.bincount(tern.tensor([0, 2, 2]), least=4), [1, 0, 2, 0]),
        (lambda: tern.unique(tern.tensor([3, 1, 3]))[2], [1, 2]),
        (lambda: tern.masked_select(tern.tensor([1, 2, 3]), tern.tensor([True, False, True])), [1, 3]),
        (lambda: tern.scatter(tern.zeros(3), 0, tern.tensor([2]), tern.tensor([7.0])), [0, 0, 7]),
        (lambda: tern.scatter(tern.zeros(3), 0, tern.tensor([2]), 7), [0, 0, 7]),
        (lambda: tern.scatter_add(tern.ones(2), 0, tern.tensor([1, 1]), tern.ones(2)), [1, 3]),
        (lambda: tern.arange(3), [0, 1, 2]),
        (lambda: tern.arange(1, 7, 2), [1, 3, 5]),
        (lambda: tern.linspace(0, 1, 3), [0, 0.5, 1]),
        (lambda: tern.eye(2), [[1, 0], [0, 1]]),
        (lambda: tern.full((2,), 7, dtype=tern.i32), [7, 7]),
        (lambda: tern.sort(tern.randperm(4))[0], [0, 1, 2, 3]),
        (lambda: tern.randint(2**63 - 2, 2**63 - 1, (2,)), [2**63 - 2, 2**63 - 2]),
        (lambda: tern.tensor([5, 6]) % 4, [1, 2]),
        (lambda: ~tern.tensor([True, False]), [False, True]),
        (lambda: tern.tensor([True, False]) & tern.tensor([True, True]), [True, False]),
        (lambda: tern.tensor([True, False]) | tern.tensor([True, True]), [True, True]),
        (lambda: tern.tensor([True, False]) ^ tern.tensor([True, True]), [False, True]),
        (lambda: tern.tensor([1, 2, 3]) == 2, [False, True, False]),
        (lambda: tern.tensor([1, 2, 3]) != tern.tensor([1, 0, 3]), [False, True, False]),
        (lambda: tern.tensor([1, 2, 3]) >= 2, [False, True, True]),
        (lambda: 2 > tern.tensor([1, 2, 3]), [True, False, False]),
    ],
)
def test_values_without_a_gradient(f, expected):
    assert f().tolist() == expected


def test_max_pool_and_conv2d_are_those_of_the_modules():
    x = tern.randn((2, 3, 6, 5))
    conv = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=1)
    y = tern.conv2d(x, conv.weight, conv.bias, stride=(2, 1), padding=1)
    assert tern.allclose(conv(x), y) and y.shape == (2, 4, 3, 6)
    assert tern.allclose(nn.MaxPool2d(2)(x), tern.max_pool2d(x, 2))
    np.testing.assert_allclose(tern.max_pool2d(x, 2).numpy()[0, 0, 0, 0], x.numpy()[0, 0, :2, :2].max())


@pytest.mark.parametrize("option", ["stride", "padding", "dilation"])
def test_windows_beyond_64_bits_are_errors(option):
    with pytest.raises(tern.Error, match=r"^\[conv2d\] expected [^\n]*$"):
        tern.conv2d(tern.ones((1, 1, 4, 4)), tern.ones((1, 1, 5, 5)), **{option: 2**62})


def test_dropout_keeps_the_mean_and_multinomial_follows_the_weights():
    tern.manual_seed(3)
    y = tern.dropout(tern.ones(10000), p=0.25)
    assert set(np.unique(y.numpy()).tolist()) == {0.0, np.float32(1 / 0.75)} and abs(y.mean().item() - 1) < 0.03
    assert tern.dropout(tern.ones(3), 0.5, training=False).tolist() == [1, 1, 1]
    drawn = tern.multinomial(tern.tensor([0.0, 1.0, 3.0]), 4000, replacement=True)
    counts = tern.bincount(drawn, least=3).tolist()
    assert counts[0] == 0 and 2800 < counts[2] < 3200


def test_scans_are_their_loops():
    rng = np.random.default_rng(7)
    x, dt, a, b, c, h = rng.standard_normal((2, 9, 3)), rng.random((2, 9, 3)), -rng.random((3, 4)), *rng.standard_normal((2, 2, 9, 4)), rng.standard_normal((2, 3, 4))
    state, want = h, []
    for t in range(9):
        state = np.exp(dt[:, t, :, None] * a) * state + (dt * x)[:, t, :, None] * b[:, t, None]
        want.append((state * c[:, t, None]).sum(-1))
    y, last = tern.selective_scan(*map(tern.tensor, (x, dt, a, b, c)), initial_state=tern.tensor(h))
    np.testing.assert_allclose(y.numpy(), np.stack(want, 1), atol=1e-12)
    np.testing.assert_allclose(last.numpy(), state, atol=1e-12)
    (products,) = tern.associative_scan(lambda before, after: [before[0] * after[0]], [tern.tensor(x)], dim=1)
    np.testing.assert_allclose(products.numpy(), np.cumprod(x, 1), atol=1e-12)
    with pytest.raises(KeyError):
        tern.associative_scan(lambda before, after: {}["none"], [tern.tensor(x)], dim=1)


def test_a_long_convolution_is_a_causal_one():
    rng = np.random.default_rng(6)
    u, h = rng.standard_normal((3, 90, 2)), rng.standard_normal((2, 40))
    want = [[np.convolve(u[b, :, c], h[c])[:90] for c in range(2)] for b in range(3)]
    np.testing.assert_allclose(tern.long_conv(tern.tensor(u), tern.tensor(h)).numpy(), np.moveaxis(want, 1, 2), atol=1e-12)


def test_a_linear_recurrence_is_its_token_loop():
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((2, 70, 3, 4)) / 2 for _ in range(3))
    decay, beta, first = -rng.random((2, 70, 3)), rng.random((2, 70, 3)), rng.standard_normal((2, 3, 4, 4))
    state, want = first.copy(), []
    for t in range(70):
        state = np.exp(decay[:, t])[..., None, None] * state
        value = beta[:, t, :, None] * (v[:, t] - np.einsum("bhd,bhdv->bhv", k[:, t], state))
        state = state + np.einsum("bhd,bhv->bhdv", k[:, t], value)
        want.append(np.einsum("bhd,bhdv->bhv", q[:, t], state))
    operands = {"log_decay": decay, "beta": beta, "initial_state": first}
    y, last = tern.linear_recurrence(*map(tern.tensor, (q, k, v)), **{name: tern.tensor(x) for name, x in operands.items()})
    np.testing.assert_allclose(y.numpy(), np.stack(want, 1), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(last.numpy(), state, rtol=1e-10, atol=1e-12)
