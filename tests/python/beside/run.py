"""Runs drawn cases and counts what comes of them."""

import argparse
import collections
import dataclasses
import pathlib
import sys
import time
import warnings

import torch

import tern

from . import rows_layers, rows_moves, rows_networks, rows_pointwise, rows_reduce  # noqa: F401, I001  fill the table, before the list of differences
from . import documented
from .compare import Case, LONG, NAMES, Tern, Torch, agree, results, rounding_slacks
from .draw import Draw
from .table import NO_ROW, ROWS

LACKS = ("not implemented for", "not supported", "unsupported", "not implemented", "is only supported", "only support", "expected scalar type")


@dataclasses.dataclass
class Difference:
    """What documented.py looks at."""

    row: str
    kind: str  # ours refuses, theirs refuses, dtype, shape, value
    name: str  # of the result, for a value
    message: str
    case: Case
    got: object = None
    want: object = None
    wrong: object = None  # the mask of differing elements


class Weights:
    """The factors of results, drawn when they are first asked for: the same for both libraries."""

    def __init__(self, draw):
        self.draw, self.drawn = draw, {}

    def __call__(self, name, like):
        key = (name, tuple(like.shape))
        if key not in self.drawn:
            dtype = like.dtype if like.dtype != torch.float64 or self.draw.dtype == torch.float64 else self.draw.dtype
            self.drawn[key] = self.draw.weights(tuple(like.shape), dtype if dtype.is_floating_point else torch.float32)
        return self.drawn[key].to(like.dtype)


def attempt(*args):
    try:
        return results(*args), None
    except Exception as error:  # noqa: BLE001  whatever a library refuses with
        return None, f"{type(error).__name__}: {error}".split("\n")[0]


def agreeing(case, got, sure, mine, slack=None):
    """Where it agrees with float64 or with PyTorch in the dtype."""
    near = torch.zeros(got.shape, dtype=torch.bool)
    for want in (sure, mine):
        if want is not None and not bool(near.all()):
            near = near | agree(got, want, got.dtype, case.ulps, slack)
    return near


def roundable(got, sure, mine, near):
    """Is an element left that differs in more than the sign of 0 or by infinity and NaN?"""
    want = sure if sure is not None else mine
    left = ~near & got.isfinite() & want.isfinite() & ((got != 0) | (want != 0))
    return bool(left.any())


class Fuzzer:
    def __init__(self, seed, device="cpu", against="pytorch", only=None, mistakes=True):
        self.seed, self.device, self.against, self.mistakes = seed, device, against, mistakes
        names = [name for name in ROWS if not only or name in only]
        self.rows = [name for name in names for _ in range(ROWS[name].share)]

    def case(self, number):
        """The row and the case of a number, and what draws its factors."""
        name = self.rows[number % len(self.rows)]
        draw = Draw(f"{self.seed}/{number}", ROWS[name].dtypes, self.mistakes, ROWS[name].firm)
        return name, ROWS[name].make(draw, name), draw

    def reference(self, case):
        """(the function, what runs it in the dtype, what runs it in float64): PyTorch's, or tern's where --against says so."""
        if self.against == "pytorch":
            return case.theirs, Torch(), Torch(torch.float64)
        device = self.device if self.against == "plain" else "cpu"
        return case.plain if self.against == "plain" else case.ours, Tern(device), Tern(device, torch.float64)

    def run(self, number):
        """(outcome, what to print of a difference)"""
        name, case, draw = self.case(number)
        if self.against == "plain" and case.plain is None:
            return "not drawn", None
        draw.wild = (case.exact or case.multilinear or (case.kink and name in documented.POINTWISE)) and draw.chance(0.2)
        if draw.wild:
            case.orders = min(case.orders, 1)  # factors of infinity and NaN are for first derivatives
        weights = Weights(draw)
        f, in_dtype, in_float64 = self.reference(case)
        forward, error = attempt(in_dtype, f, case.operands, 0, weights)
        lacks = error is not None and any(word in error for word in LACKS)
        level, exact, why = 0, None, error
        for level in range(case.orders if forward or lacks else -1, -1, -1):  # a derivative that only tern has is not compared
            exact, why = attempt(in_float64, f, case.operands, level, weights)
            if exact is not None:
                break
        ours, our_error = attempt(Tern(self.device), case.ours, case.operands, level, weights)
        if ours is None:
            if forward is None:
                return "both refuse", None
            return self.judge([Difference(name, "ours refuses", "", our_error, case)])
        if forward is None and exact is None and lacks:
            return "not compared: in a dtype that PyTorch lacks", None
        if forward is None and exact is None:
            return self.judge([Difference(name, "theirs refuses", "", error or why, case)])

        def own():  # derivatives in the dtype, where float64's do not agree
            return attempt(in_dtype, f, case.operands, level, weights)[0] or {}

        found, alone = self.differences(name, case, level, weights, ours, forward, exact, own)
        if found:
            return self.judge(found)
        if forward is None:
            return "equal to float64, in a dtype that PyTorch lacks", None
        return ("equal to PyTorch in the dtype, where float64 reaches further" if alone else "equal"), None

    def differences(self, name, case, level, weights, ours, forward, exact, own):
        found, open_, near, alone, mine = [], {}, {}, False, forward or {}
        for key in sorted(set(ours) | set(mine) | set(exact or {}), key=lambda key: (len(key.rstrip("0123456789")), key)):
            like = next(x[key] for x in (ours, mine, exact or {}) if key in x)
            got = ours.get(key, torch.zeros_like(like))  # no derivative is one of 0
            if key in mine and got.dtype != mine[key].dtype:
                found.append(Difference(name, "dtype", key, f"{got.dtype} but PyTorch has {mine[key].dtype}", case, got, mine[key]))
            other = mine[key] if key in mine else (exact or {}).get(key, torch.zeros_like(like, dtype=torch.float64))
            if got.shape != other.shape:
                found.append(Difference(name, "shape", key, f"{tuple(got.shape)} but PyTorch has {tuple(other.shape)}", case, got, other))
            elif not got.is_floating_point():
                wrong = got != other.to(got.dtype)
                if got.dtype == torch.bool and key in (exact or {}):
                    wrong = wrong & (got != exact[key])  # a comparison that PyTorch's rounding decides
                if bool(wrong.any()):
                    found.append(Difference(name, "value", key, "", case, got, other, wrong))
            else:
                sure = (exact or {}).get(key, torch.zeros_like(got) if exact else None)
                sure = sure.double() if sure is not None and sure.shape == got.shape else None
                near[key] = agree(got, sure, got.dtype, case.ulps) if sure is not None else torch.zeros(got.shape, dtype=torch.bool)
                if not bool(near[key].all()):
                    open_[key] = (got, sure, None)
        if open_:
            mine = own() if level and forward and any(key.startswith("d") for key in open_) else mine
            for key, (got, sure, _) in list(open_.items()):
                own_one = mine.get(key, torch.zeros_like(got) if forward else None)
                if own_one is not None and own_one.shape == got.shape:
                    open_[key] = (got, sure, own_one.double())
                near[key], alone = agreeing(case, *open_[key]), True
                if bool(near[key].all()):
                    del open_[key]
        if open_:
            self.explain(case, level, weights, open_, near)
        for key, (got, sure, own_one) in open_.items():
            if not bool(near[key].all()):
                found.append(Difference(name, "value", key, "", case, got, sure if sure is not None else own_one, ~near[key]))
        return found, alone and not open_

    def explain(self, case, level, weights, open_, near):
        """Sets `near` where rounding explains a difference."""
        kinds = [x.tensor.dtype for x in case.operands if x.tensor.is_floating_point()] + [x[0].dtype for x in open_.values()]
        wide = max(kinds, key=lambda kind: torch.finfo(kind).eps)  # the coarsest, which derivatives of that operand have
        is_short = torch.finfo(wide).bits == 16
        for forward in (False,) if case.exact else (True, False):
            keys = [key for key in open_ if key.startswith("y") == forward]
            keys = [key for key in keys if roundable(*open_[key], near[key])]
            if not keys:
                continue
            epsilon = torch.finfo(torch.float32 if is_short and forward and not case.composed else wide).eps
            order = 0 if forward else 1 if not any(key.startswith("dd") for key in keys) else level
            try:
                for slack in rounding_slacks(case, order, weights, epsilon, torch.finfo(wide).smallest_normal * torch.finfo(wide).eps):
                    for key in keys:
                        bound = slack.get(key, torch.full(near[key].shape, slack.get("", 0.0), dtype=torch.float64))
                        if bound.shape == near[key].shape:
                            near[key] = agreeing(case, *open_[key], bound)
                    keys = [key for key in keys if roundable(*open_[key], near[key])]
                    if not keys:
                        break
            except NotImplementedError:
                pass  # a formula that float64 lacks explains nothing

    def judge(self, found):
        words = []
        for difference in found:
            reasons = documented.reasons(difference)
            if not reasons:
                return "different", difference
            words += reasons
        return f"documented: {min(words)}", None


def describe(difference):
    lines = [f"  {difference.row}{difference.case.text}: {difference.kind} {difference.name} {difference.message}"]
    for operand in difference.case.operands:
        x = operand.tensor
        kind = NAMES[str(x.dtype).removeprefix("torch.")]
        lines.append(f"    {kind} {tuple(x.shape)} strides {x.stride()}{f' mirrored {operand.mirrored}' if operand.mirrored else ''}: {x.flatten()[:12].tolist()}")
    if difference.wrong is not None:
        at = difference.wrong.nonzero()[:3]
        for place in at:
            i = tuple(place.tolist())
            given = [x.tensor[i].item() for x in difference.case.operands if x.tensor.shape == difference.wrong.shape]
            lines.append(f"    at {i}: got {difference.got[i].item()!r}, PyTorch {difference.want[i].item()!r} of {given}")
    return "\n".join(lines)


def unlisted():
    """Functions of the package without a row and without a written reason, and rows of none."""
    public = {n for n in dir(tern) if not n.startswith("_") and callable(getattr(tern, n)) and not isinstance(getattr(tern, n), type)}
    named = {name for row in ROWS.values() for name in row.covers}
    return sorted(public - named - set(NO_ROW)), sorted(name for name in named - public if not name.startswith(("x", "nn.")))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="differential.py ops", description="Sets tern's ops beside PyTorch's in drawn cases.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run this one alone")
    parser.add_argument("--only", nargs="*", help="rows; the numbers of cases are then others")
    parser.add_argument("--device", default="cpu", help="where tern computes, cpu or cuda")
    parser.add_argument("--against", choices=["pytorch", "cpu", "plain"], default="pytorch", help="the same on the CPU, or a fused op's composition")
    parser.add_argument("--show", type=int, default=30, help="differences to print")
    parser.add_argument("--no-mistakes", action="store_true", help="draw only what both should take")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tern.set_num_threads(1)
    missing, unknown = unlisted()
    if missing or unknown:
        sys.exit(f"error: functions without a row or a reason: {missing}; rows of no function: {unknown}")
    documented.check_pages(pathlib.Path(__file__).resolve().parents[3])
    fuzzer = Fuzzer(options.seed, options.device, options.against, options.only, not options.no_mistakes)
    counts, rows, began = collections.Counter(), collections.Counter(), time.monotonic()
    numbers = [options.case] if options.case is not None else range(options.first, options.first + options.cases)
    for number in numbers:
        outcome, difference = fuzzer.run(number)
        counts[outcome] += 1
        if outcome == "different":
            rows[f"{difference.row} {difference.kind} {difference.name}"] += 1
            if counts[outcome] <= options.show:
                print(f"case {number} of seed {options.seed}:\n{describe(difference)}", flush=True)
        if options.case is not None:
            print(outcome)
    versus = f"PyTorch {torch.__version__}" if options.against == "pytorch" else f"tern, {options.against}"
    print(f"{len(numbers)} cases from {options.first} of seed {options.seed} on {options.device} beside {versus}, {len(fuzzer.rows)} rows, {time.monotonic() - began:.0f} s")
    for outcome, count in counts.most_common():
        print(f"  {count:7d}  {outcome}")
    for row, count in rows.most_common(40):
        print(f"  {count:7d}  different: {row}")
    sys.exit(1 if counts["different"] else 0)
