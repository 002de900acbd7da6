"""The table of ops: a row draws a case of one function of the package, or of several of one kind."""

import dataclasses
import typing

import tern

from .draw import FLOATS

ROWS: dict = {}
NO_ROW: dict = {}  # functions without a row, and why


@dataclasses.dataclass
class Row:
    make: typing.Callable
    dtypes: list
    covers: tuple
    share: int
    firm: bool  # draws no dtype but these


def row(*names, dtypes=FLOATS, covers=None, share=1, firm=False):
    """Rows of these names, which the decorated function draws from (draw, name). `covers` names the functions, where the row does not."""

    def add(make):
        for name in names:
            ROWS[name] = Row(make, dtypes, (name.removeprefix("plain "),) if covers is None else covers, share, firm)
        return make

    return add


def both_ways(*names):
    """The names of ops with fused kernels, and of the same ops as compositions."""
    return [*names, *[f"plain {name}" for name in names]]


def op_of(name):
    """The op of a row of both_ways."""
    f = getattr(tern, name.removeprefix("plain "))
    return tern.plain_kernels()(f) if name.startswith("plain ") else f
