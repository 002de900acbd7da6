"""Differences on purpose: each with the words of docs/from-pytorch.md that say so."""

import re

import torch

from .table import ROWS

PAGE = "docs/from-pytorch.md"
LIST: list = []  # imported after the rows


def documented(words):
    """Adds a difference that the decorated function recognises."""

    def add(recognises):
        LIST.append((words, recognises))
        return recognises

    return add


def reasons(difference):
    """The words that cover the difference, of a value each of its elements; none if some are not."""
    found, left = [], difference.wrong
    for words, recognises in LIST:
        covers = recognises(difference)
        if covers is None or covers is False:
            continue
        if left is None or covers is True:
            return [*found, words]
        if bool((left & covers).any()):
            found.append(words)
            left = left & ~covers
            if not bool(left.any()):
                return found
    return []


def check_pages(root):
    text = re.sub(r"\s+", " ", (root / PAGE).read_text())
    missing = [words for words, _ in LIST if words not in text]
    if missing:
        raise SystemExit(f"error: {PAGE} does not say: {missing}")


def refused(words, pattern, rows=None):
    """tern refuses with an error that matches."""
    documented(words)(lambda d: d.kind == "ours refuses" and re.search(pattern, d.message) and (rows is None or d.row in rows))


def dtypes(d):
    return [x.tensor.dtype for x in d.case.operands]


def is_derivative(d):
    return d.kind == "value" and d.name.startswith("d")


ARITHMETIC = ("atan2", "add", "sub", "mul", "div", "pow", "remainder", "floor_divide", "minimum", "maximum", "x op y", "x op= y", "clamp")

refused("integers and bool in functions that are only for floats", r"expected (a )?floating dtypes?")
refused("bool in `abs`, `max`, `sort` and similar", r"expected (a )?numeric dtypes?")
refused("dtypes other than bool in `logical_not`", r"expected (a )?bool (tensor|dtype)")
refused("a dimension argument for a 0-dimensional tensor", r"expected (a |each )?dimension.* in \[0, 0\)")
refused("A number that the dtype cannot hold", r"expected a number that \w+ holds")
refused("broadcasting in losses", r"expected operands of one shape", [name for name in ROWS if name.endswith("_loss") or name.startswith(("binary", "kl"))])
refused("`roll` of no elements along a dimension that is not there", r"expected a dimension", ["roll"])
refused("a dimension twice", r"expected each dimension once")
refused("an empty (0,) in `cat`", r"\[cat\] expected a dimension")
refused("a letter has one size, only an ellipsis is broadcast", r"expected one size for")
refused("a transposed convolution without a result", r"expected a padding that leaves at least one")
refused("a mask that is larger than x in `masked_fill`", r"expected a mask that broadcasts to")
refused("indices into no elements", r"expected indices from 0 to")
refused("negative `pad`", r"\[pad\] expected sizes")
refused("`clamp` between bounds in the wrong order", r"\[clamp\] expected low <= high")
refused("fewer weights beyond 0 than draws", r"weights beyond 0 in each row")
refused("operands of different dtypes in `cat`, `stack`, `x += y`, `scatter`", r"expected .*dtype.* but got|expected tensors like the first, (\w+) .* (is|but got) (?!\1)")


@documented("PyTorch throws; `/` is floating-point in both")
def zero_divisor(d):
    return d.kind == "theirs refuses" and "ZeroDivisionError" in d.message


@documented("`any` and `all` of u8 are bool")
def any_of_u8(d):
    return d.row in ("any", "all") and d.kind == "dtype"


@documented("takes the tensor's dtype if it is whole (also `2.0`)")
def whole_numbers(d):
    return d.row in (*ARITHMETIC, "masked_fill", "where") and d.kind != "ours refuses" and not dtypes(d)[-1].is_floating_point and bool(re.search(r"\d\.|inf|nan", d.case.text))


refused("takes the tensor's dtype if it is whole (also `2.0`)", r"expected a number other than 0")


@documented("Integers to the power of a negative number give f32")
def negative_powers(d):
    return d.kind == "theirs refuses" and "negative integer powers" in d.message


@documented("PyTorch wraps it")
def wrapped(d):
    return d.row in ("eq", "ne", "lt", "le", "gt", "ge") and d.kind == "value" and dtypes(d) == [torch.uint8] and "-" in d.case.text


@documented("**Promotion** depends only on dtypes")
def promotion(d):
    return d.row in (*ARITHMETIC, "eq", "ne", "lt", "le", "gt", "ge") and d.kind in ("dtype", "value") and len(set(dtypes(d))) > 1 and any(x.tensor.dim() == 0 for x in d.case.operands)


@documented("**Bool** counts as i64 in arithmetic")
def bools(d):
    return torch.bool in dtypes(d) and d.kind in ("dtype", "value", "theirs refuses") and d.row not in ("where", "masked_fill")


def where_operand(d, test):
    """Where an operand passes the test, broadcast; all elements, if the op sees more than one of an operand for a result."""
    found = torch.zeros(d.wrong.shape, dtype=torch.bool)
    for x in d.case.operands:
        passes = test(x.tensor)
        found = found | (passes if d.row in POINTWISE and fits(x.tensor.shape, d.wrong.shape) else passes.any())
    return found


def fits(shape, whole):
    return len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(whole)))


def is_extreme(x):
    """Numbers whose powers, as derivatives have them, leave the range."""
    if not x.is_floating_point():
        return torch.zeros(x.shape, dtype=torch.bool)
    info = torch.finfo(x.dtype)
    size = x.double().abs()
    return x.isfinite() & ((size > info.max ** (1 / 4) / 4) | ((size != 0) & (size < info.smallest_normal ** (1 / 4) * 4)))


def is_underflow(d):
    return d.got.is_floating_point() and (d.got == 0) & (d.want != 0) & (d.want.abs() < torch.finfo(d.got.dtype).smallest_normal)


POINTWISE = {name for name, row in ROWS.items() if row.make.__module__.endswith("pointwise")}
SQUARES = r"var|stddev|norm|.*_norm|nn.BatchNorm.*|.*_loss|kl_div|binary.*|matmul|x @ y|linear.*|einsum|dot|sum|mean|cumsum|prod|cumprod|conv.*|.*attention.*|.*avg_pool2d|depthwise.*|.*fold|upsample_bilinear|feed_forward.*|batch_norm|cross_entropy|.*softmax|sum_to"


@documented("`clamp` has gradient 1 at its bounds")
def at_bounds(d):
    low, high = (float(x) for x in d.case.text.split(",")) if d.row == "clamp" else (0, 0)
    return is_derivative(d) and d.row == "clamp" and where_operand(d, lambda x: (x == low) | (x == high))


@documented("`remainder` is exact for large quotients")
def large_quotients(d):
    if d.kind != "value" or not (d.row == "remainder" or "%" in d.case.text):
        return False
    number = [float(x) for x in re.findall(r"-?\d+\.?\d*(?:e\+?\d+)?", d.case.text)]
    a, b = [*[x.tensor.double() for x in d.case.operands], *number][:2]
    a, b = (b, a) if "first" in d.case.text or re.match(r" -?\d.* %", d.case.text) else (a, b)
    return torch.as_tensor(a / b).abs() * torch.finfo(d.got.dtype).eps > 0.25


@documented("the sign of a gradient that is 0")
def sign_of_zero(d):
    return is_derivative(d) and (d.got == 0) & (d.want == 0)


@documented("a 0 that comes of sums may have another sign")
def sum_of_zeros(d):
    return d.kind == "value" and d.row not in POINTWISE and not d.case.exact and d.row not in ("sum", "mean", "cumsum", "prod") and (d.got == 0) & (d.want == 0)


@documented("`maximum`, `minimum`, `max` and `min` of 0 and -0 are either")
def either_zero(d):
    return d.kind == "value" and d.row in ("maximum", "minimum", "max", "min", "max_pool2d", "adaptive_max_pool2d") and (d.got == 0) & (d.want == 0)


@documented("**Numbers keep float64 precision**")
def large_numbers(d):
    return d.row in ("eq", "ne", "lt", "le", "gt", "ge") and d.kind == "value" and "100000.0" in d.case.text and dtypes(d) == [torch.float16]


@documented("`logsumexp` of only -inf has the gradient 0")
def sum_of_nothing(d):
    return is_derivative(d) and d.row == "logsumexp" and (d.got == 0) & d.want.isnan()


@documented("so that equal elements have variance 0")
def equal_elements(d):
    return d.kind == "value" and d.row.endswith("norm") and where_operand(d, lambda x: x.abs().double() * min(torch.finfo(d.got.dtype).eps, torch.finfo(torch.float32).eps) > 1)


@documented("PyTorch squares the integers, which wrap")
def wrapped_squares(d):
    return is_derivative(d) and d.row == "atan2" and any(not x.is_floating_point for x in dtypes(d))


@documented("0 times an infinite weight is NaN")
def infinite_weight(d):
    return d.kind == "value" and re.match("conv|depthwise|upsample", d.row) is not None and (d.name[0] == "d" or where_operand(d, lambda x: ~x.isfinite())) & (d.got.isnan() | d.want.isnan())


@documented("`-0 ** 0.5` is 0, as in C")
def square_root(d):
    return d.kind == "value" and d.row in ("pow", "x op y", "x op= y") and "0.5" in d.case.text and where_operand(d, lambda x: (x == 0) | x.isinf())


@documented("`unique` may return 0 for -0, and numbers NaNs in another order")
def unique_ones(d):
    if d.kind != "value" or d.row != "unique":
        return False
    return (d.got == 0) & (d.want == 0) if d.name == "y0" else d.name == "y1" and d.case.operands[0].tensor.isnan()


@documented("`2 / x` is a division; PyTorch multiplies by `1 / x`")
def quotients(d):
    return d.kind == "value" and d.row in ("div", "x op y") and len(d.case.operands) == 1 and re.search(r"first| /$", d.case.text) is not None and ~d.want.isfinite()


@documented("equal maxima share the gradient")
def shared(d):
    return is_derivative(d) and d.row == "adaptive_max_pool2d" and d.got.isfinite() & d.want.isfinite()


@documented("the mean of losses without a target")
def no_target(d):
    return is_derivative(d) and d.row in ("cross_entropy", "linear_cross_entropy", "nll_loss") and (d.got == 0) & d.want.isnan()


@documented("`cumprod` and `prod` of an infinite element or NaN")
def infinite_factor(d):
    return d.kind == "value" and d.row in ("cumprod", "prod") and is_derivative(d) and where_operand(d, lambda x: ~x.isfinite()) & d.want.isnan()


@documented("`huber_loss`")
def at_delta(d):
    if d.row != "huber_loss" or not d.name.startswith("dd"):
        return False
    a, b = (x.tensor.double() for x in d.case.operands)
    kink = (a - b).abs() == float(re.search(r"delta': ([\d.]+)", d.case.text)[1])
    return kink if kink.shape == d.wrong.shape else bool(kink.any())


@documented("`sign` of NaN is NaN")
def sign_of_nan(d):
    return d.row == "sign" and d.kind == "value" and d.got.isnan()


@documented("Casts of floats to integers saturate")
def casts(d):
    return d.row in ("cast", "copy_") and d.kind == "value" and dtypes(d)[-1].is_floating_point and not d.got.is_floating_point()


@documented("of an infinite logit is infinite or 0")
def infinite_logit(d):
    return d.row == "binary_cross_entropy_with_logits" and where_operand(d, torch.isinf)


@documented("**Partial results** that leave the dtype's range")
def overflow(d):
    return d.kind == "value" and (is_derivative(d) or bool(re.fullmatch(SQUARES, d.row))) and where_operand(d, is_extreme) | is_underflow(d) | ("100000.0" in d.case.text and d.got.dtype == torch.float16)


@documented("second derivatives at a pole or a kink")
def at_zero_twice(d):
    return d.kind == "value" and d.name.startswith("dd") and d.row in ("pow", "div", "remainder", "x op y", "elu", "atan2", "reciprocal") and (re.search(r" 0(\.0)? (first|\*\*)", d.case.text) is not None or where_operand(d, lambda x: x == 0))


@documented("of `remainder` by 0 or infinity")
def by_zero(d):
    return is_derivative(d) and d.row in ("remainder", "x op y") and where_operand(d, lambda x: (x == 0) | x.isinf())


@documented("at NaN and infinity, whose gradient may be NaN")
def at_nan(d):
    return is_derivative(d) and d.row in ("elu", "leaky_relu", "l1_loss", "binary_cross_entropy_with_logits", "minimum", "maximum", "huber_loss", "mse_loss", "abs", "norm") and where_operand(d, lambda x: ~x.isfinite())


@documented("`max` and `min` do not multiply")
def chosen(d):
    return d.kind == "value" and d.row in ("max", "min", "max_pool2d", "adaptive_max_pool2d", "norm") and is_derivative(d) and d.want.isnan()


@documented("`norm` and `stddev` have gradient 0 at 0")
def at_zero(d):
    return is_derivative(d) and d.row in ("norm", "stddev") and (d.got == 0) & d.want.isnan()


@documented("`var` is NaN if the correction")
def few(d):
    return d.kind == "value" and d.row in ("var", "stddev") and d.got.isnan()


@documented("the mean of no elements is NaN")
def empty_mean(d):
    return is_derivative(d) and (" mean" in d.case.text or d.row == "mean") and d.case.operands[0].tensor.numel() == 0


@documented("`isclose` and `allclose` promote their operands")
def close_dtypes(d):
    return d.row in ("isclose", "allclose") and d.kind == "theirs refuses" and "did not match" in d.message


@documented("`fill_(x, 1e30)` of an f16 tensor")
def filled(d):
    return d.kind == "theirs refuses" and "without overflow" in d.message
