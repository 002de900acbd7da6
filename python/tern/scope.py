"""Scopes as decorators: @tern.no_grad()."""

import functools
import typing

from ._core import Scope

_Function = typing.TypeVar("_Function", bound=typing.Callable[..., typing.Any])


def decorated(scope: Scope, function: _Function) -> _Function:
    """The function, each call of which opens a scope of its own, in whatever thread."""

    @functools.wraps(function)
    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        with scope._again():
            return function(*args, **kwargs)

    return typing.cast(_Function, call)
