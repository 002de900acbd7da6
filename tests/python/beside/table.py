"""The table of ops: a row draws a case of one function of the package, or of several of one kind."""

import dataclasses
import typing

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
            ROWS[name] = Row(make, dtypes, (name,) if covers is None else covers, share, firm)
        return make

    return add
