"""Ops beside PyTorch's: results, and gradients where both have them, over dtypes, strides and special values; skipped without PyTorch. What
differs on purpose is in docs/from-pytorch.md."""

import math

import pytest

import tern

torch = pytest.importorskip("torch")
F = torch.nn.functional

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int32", "int64", "uint8"]
TOLERANCE = {"float32": 1e-4, "float64": 1e-10, "float16": 1e-2, "bfloat16": 6e-2}
SPECIAL = [0.0, -0.0, 0.5, -1.5, 2.0, 7.25, -30.0, 1e4, math.inf, -math.inf, math.nan]


def given(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype in INTEGERS:
        return torch.randint(0 if dtype == "uint8" else -9, 10, shape, generator=generator).to(getattr(torch, dtype))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))


def to_tern(x):
    return tern.from_dlpack(x.detach())


def to_torch(x):
    return torch.from_dlpack(x.detach().contiguous())


def check(got, want, tolerance):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert torch.allclose(got.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def beside(ours, theirs, inputs, gradients=True):
    tolerance = TOLERANCE.get(str(inputs[0].dtype).removeprefix("torch."), 0)
    leaves = [x.detach().clone().requires_grad_(gradients and x.is_floating_point()) for x in inputs]
    own = [to_tern(x.clone()) for x in inputs]
    own = [t.requires_grad_() if x.requires_grad else t for t, x in zip(own, leaves)]
    y, t = theirs(*leaves), ours(*own)
    check(to_torch(t), y.detach(), tolerance)
    if not y.requires_grad:
        return
    g = given(y.shape, str(y.dtype).removeprefix("torch."), 3)
    wanted = [x for x in leaves if x.requires_grad]
    for a, b in zip(tern.grad([t], [t for t, x in zip(own, leaves) if x.requires_grad], [to_tern(g)]), torch.autograd.grad(y, wanted, g)):
        check(to_torch(a), b, 4 * tolerance)


OF_ONE = {
    "abs": torch.abs,
    "neg": torch.neg,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "floor": torch.floor,
    "round": torch.round,
    "silu": F.silu,
    "softplus": F.softplus,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_special_values(name, dtype):
    x = torch.tensor(SPECIAL, dtype=getattr(torch, dtype))
    ours, theirs = getattr(tern, name), OF_ONE[name]
    beside(ours, theirs, [x], gradients=False)
    beside(lambda x: 1 / ours(x), lambda x: 1 / theirs(x), [x], gradients=False)
    beside(ours, theirs, [given((4, 5), dtype).T.abs()])
    beside(lambda x: ours(tern.flip(x)), lambda x: theirs(x.flip(0, 1)), [given((4, 5), dtype).abs()])


@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions_of_special_values(dtype):
    x = torch.tensor([[1.0, math.nan, 2, 0], [3, 1, 2, 0], [0, 0, 0, 0], [math.inf, 1, 0, 2]], dtype=getattr(torch, dtype))
    for ours, theirs in [
        (lambda x: tern.median(x, 1), lambda x: x.median(1).values),
        (lambda x: tern.max(x, 1), lambda x: x.amax(1)),
        (lambda x: tern.sum(x, 1), lambda x: x.sum(1)),
        (lambda x: tern.softmax(x, 1), lambda x: x.softmax(1)),
        (lambda x: tern.cumprod(x, 1), lambda x: x.cumprod(1)),
        (lambda x: tern.sort(x, 1)[0], lambda x: x.sort(1).values),
        (lambda x: tern.argmax(x, 1), lambda x: x.argmax(1)),
    ]:
        beside(ours, theirs, [x], gradients=False)
    for p in (0.5, 1.5, 2, 3, math.inf):
        beside(lambda x: tern.norm(x, 1, p=p), lambda x: torch.linalg.vector_norm(x, p, dim=1), [x[1:2]])
        beside(lambda x: tern.norm(x, 1, p=p), lambda x: torch.linalg.vector_norm(x, p, dim=1), [x[2:3]], gradients=p < math.inf)


ROWS = [[math.inf, 1.0, 2.0], [math.inf, math.inf, 0.0], [0.0, -math.inf, math.inf], [-math.inf] * 3, [math.nan, 1.0, 2.0], [-math.inf, 1.0, 2.0]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_of_special_values(dtype):
    x = torch.tensor(ROWS, dtype=getattr(torch, dtype))
    beside(lambda x: tern.softmax(x, 1), lambda x: x.softmax(1), [x])
    beside(lambda x: tern.log_softmax(x, 1), lambda x: x.log_softmax(1), [x])
    beside(lambda x: tern.log_softmax(x, 0), lambda x: x.log_softmax(0), [x.T])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_cross_entropy_of_special_values(dtype, label_smoothing):
    x = torch.tensor(ROWS, dtype=getattr(torch, dtype))
    for target in range(3):
        targets = torch.full((len(ROWS),), target)
        beside(
            lambda x: tern.cross_entropy(x, to_tern(targets), label_smoothing=label_smoothing, reduction="none"),
            lambda x: F.cross_entropy(x, targets, label_smoothing=label_smoothing, reduction="none"),
            [x],
        )


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize(
    "subscripts, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("...ij,jk->...ik", [(2, 2, 3), (3, 2)]),
        ("...ij,...jk->...ik", [(3, 1, 2, 3), (2, 3, 2)]),
        ("b...,...b", [(3, 2, 1), (4, 3)]),
        ("...,...->", [(2, 3), (1,)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("ii->", [(3, 3)]),
        ("...ij->ij", [(2, 3, 4)]),
        ("ij->...j", [(2, 3)]),
    ],
)
def test_einsum(subscripts, shapes, dtype):
    if dtype in INTEGERS and len(shapes) > 1 and subscripts.endswith("->"):
        pytest.skip("PyTorch sums some operands before their product, which makes them int64")
    inputs = [given(shape, dtype, i) for i, shape in enumerate(shapes)]
    beside(lambda *xs: tern.einsum(subscripts, list(xs)), lambda *xs: torch.einsum(subscripts, *xs), inputs)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(dtype):
    a, b = (given((3, 3), dtype, i) * 4001 for i in range(2))
    beside(tern.matmul, torch.matmul, [a, b.T])
    beside(lambda x: tern.cumprod(x, 0), lambda x: x.cumprod(0), [a])
    beside(tern.prod, torch.prod, [a])
    for ours, theirs in [(tern.add, torch.add), (tern.mul, torch.mul), (tern.sub, torch.sub)]:
        beside(ours, theirs, [a, b])
    beside(lambda x: tern.clamp(x, 0.5, 2.5), lambda x: x.clamp(0.5, 2.5), [given((9,), dtype)])
    beside(lambda x: tern.clamp(x, 1, 4), lambda x: x.clamp(1, 4), [given((9,), dtype)])


def test_clamp_of_integers_beyond_float64():
    edge, last = 2**53, 2**63 - 1
    x = torch.tensor([0, edge + 1, edge + 3, -edge - 1, last - 1, -last])
    for low, high in [(-edge, edge), (edge + 1, edge + 3), (-last + 2, last - 2), (-last - 1, last), (last, last)]:
        beside(lambda x: tern.clamp(x, low, high), lambda x: x.clamp(low, high), [x])


QUOTIENTS = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
}


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("name", QUOTIENTS)
def test_operators_with_tensors_and_numbers(name, dtype):
    f = QUOTIENTS[name]
    a, b = given((40,), dtype), given((40,), dtype, 1)
    if dtype in INTEGERS:
        b = b.abs() + 1
    if name == "**":
        a = a.abs()
    gradients = name != "//"  # where PyTorch has none, and ours is 0; nor has it one of number % x
    beside(f, f, [a, b], gradients)
    for number in (3, 0.75) if dtype in FLOATS else (3,):
        beside(lambda x: f(x, number), lambda x: f(x, number), [a], gradients)
        beside(lambda x: f(number, x), lambda x: f(number, x), [b], name == "**")


@pytest.mark.parametrize("dtype", FLOATS)
def test_floor_division_of_special_values(dtype):
    values = SPECIAL + [1.0, 0.1, 0.2, 6.0, 3.0, -0.3, 1e-3]
    a, b = (x.flatten() for x in torch.meshgrid(*[torch.tensor(values, dtype=getattr(torch, dtype))] * 2, indexing="ij"))
    beside(lambda a, b: a // b, lambda a, b: a // b, [a, b], gradients=False)
    beside(lambda a, b: 1 / (a // b), lambda a, b: 1 / (a // b), [a, b], gradients=False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_at_the_origin(dtype):
    x, y = (torch.tensor(values, dtype=getattr(torch, dtype)) for values in ([0.0, 1.0, 0.0], [0.0, 0.0, -2.0]))
    beside(tern.atan2, torch.atan2, [x, y])
    beside(tern.pow, torch.pow, [given((5,), dtype).abs(), given((5,), dtype, 1)])
    base, exponent = (torch.tensor(v, dtype=getattr(torch, dtype)) for v in ([0.0, 0.0, -0.0, 0.0, -0.0, 2.0], [0.0, 2.0, 0.5, -1.0, -2.0, 0.0]))
    beside(tern.pow, torch.pow, [base, exponent])
    beside(lambda x: tern.pow(0.0, x), lambda x: torch.pow(0.0, x), [exponent])


@pytest.mark.parametrize("weights", [[-1.0, 2.0], [math.nan, 1.0], [math.inf, 1.0], [0.0, 0.0]])
@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_refuses_what_is_no_distribution(weights, replacement):
    with pytest.raises(RuntimeError):
        torch.multinomial(torch.tensor(weights), 1, replacement)
    with pytest.raises(tern.Error, match=r"\[multinomial\] expected"):
        tern.multinomial(tern.tensor(weights), 1, replacement)


CONV = [
    ((2, 4, 5, 6), (4, 3, 3, 2), {}),
    ((2, 4, 5, 6), (4, 2, 4, 4), {"stride": 2, "padding": 1}),
    ((1, 4, 3, 5), (4, 2, 3, 3), {"stride": (2, 3), "padding": (1, 2), "output_padding": (1, 2), "groups": 2}),
    ((1, 2, 4, 4), (2, 3, 2, 3), {"dilation": (2, 3), "stride": 2}),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("x,w,options", CONV)
def test_transposed_convolutions(x, w, options, dtype):
    inputs = [given(x, dtype), given(w, dtype, 1), given((w[1] * options.get("groups", 1),), dtype, 2)]
    beside(lambda *t: tern.conv_transpose2d(*t, **options), lambda *t: F.conv_transpose2d(*t, **options), inputs)
    beside(lambda *t: tern.conv_transpose2d(*t, **options), lambda *t: F.conv_transpose2d(*t, **options), inputs[:2])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (6, 8), (12, 16), (5, 7), (13, 3)])
def test_images_at_other_sizes(size, dtype):
    x = given((2, 3, 6, 8), dtype)
    beside(lambda x: tern.adaptive_avg_pool2d(x, size), lambda x: F.adaptive_avg_pool2d(x, size), [x])
    distinct = torch.randperm(x.numel()).reshape(x.shape).to(x.dtype) / 8
    beside(lambda x: tern.adaptive_max_pool2d(x, size), lambda x: F.adaptive_max_pool2d(x, size), [distinct], gradients=dtype != "bfloat16")
    for align in (False, True):
        beside(
            lambda x: tern.upsample_bilinear(x, size, align_corners=align),
            lambda x: F.interpolate(x, size, mode="bilinear", align_corners=align),
            [x],
        )


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_padded_sequences(dtype):
    xs = [given((n, 2), dtype, n) for n in (3, 5, 1)]
    beside(lambda *t: tern.pad_sequence(list(t), 2), lambda *t: torch.nn.utils.rnn.pad_sequence(list(t), batch_first=True, padding_value=2), xs)


@pytest.mark.parametrize("dtype", INTEGERS + ["bool"])
def test_bits_of_integers(dtype):
    if dtype == "bool":
        a, b = given((4, 1), "float32") > 0, given((5,), "float32", 1) > 0
    else:
        a, b = given((4, 1), dtype), given((5,), dtype, 1)
    for f in (lambda a, b: a & b, lambda a, b: a | b, lambda a, b: a ^ b, lambda a, b: ~a, lambda a, b: a & True, lambda a, b: False | b):
        beside(f, f, [a, b])
    if dtype == "bool":
        return
    counts = b.abs()
    for f in (lambda a, n: a << n, lambda a, n: a >> n, lambda a, n: a << 2, lambda a, n: a >> 1, lambda a, n: 1 << n, lambda a, n: 3 & a):
        beside(f, f, [a, counts])
    bits = torch.iinfo(a.dtype).bits
    beside(lambda a: a << bits, lambda a: a << bits, [a])
    beside(lambda a: a >> bits, lambda a: a >> bits, [a])
    t = to_tern(a.clone())
    t <<= 1
    t |= 1
    assert t.numpy().tolist() == ((a << 1) | 1).tolist()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_indices_of_both_integers(dtype):
    x, rows = given((5, 3), "float32"), torch.tensor([4, 0, 4], dtype=getattr(torch, dtype))
    index = torch.tensor([[1, 0, 4], [2, 2, 0]], dtype=getattr(torch, dtype))
    beside(lambda x: tern.index_select(x, 0, to_tern(rows)), lambda x: x.index_select(0, rows), [x])
    beside(lambda x: tern.gather(x, 0, to_tern(index)), lambda x: x.gather(0, index.long()), [x])
    beside(lambda x: tern.scatter_add(x, 0, to_tern(index), x[:2]), lambda x: x.scatter_add(0, index.long(), x[:2]), [x])
    beside(lambda x: tern.cross_entropy(x, to_tern(rows.clamp(max=2))), lambda x: F.cross_entropy(x, rows.long().clamp(max=2)), [x[:3]])


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_rmsprop(centered, momentum, weight_decay):
    options = {"lr": 0.125, "alpha": 0.9, "eps": 1e-6, "weight_decay": weight_decay, "momentum": momentum, "centered": centered}
    p = given((33,), "float64").requires_grad_()
    own = to_tern(p.clone()).requires_grad_()
    theirs, ours = torch.optim.RMSprop([p], **options), tern.train.RMSprop([own], **options)
    for step in range(6):
        gradient = given((33,), "float64", step)
        p.grad, own.grad = gradient, to_tern(gradient.clone())
        theirs.step()
        ours.step()
        check(to_torch(own), p.detach(), 1e-10)


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
    x = given((2, 4, 5, 5), "float32")
    check(to_torch(ours(to_tern(x))), theirs(x).detach(), 1e-4)
    check(to_torch(tern.nn.AdaptiveAvgPool2d(1)(to_tern(x))), torch.nn.AdaptiveAvgPool2d(1)(x), 1e-4)
    check(to_torch(tern.nn.AdaptiveMaxPool2d((2, 3))(to_tern(x))), torch.nn.AdaptiveMaxPool2d((2, 3))(x), 0)
