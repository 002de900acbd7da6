"""Tensors, reverse-mode autodiff, modules and training by tern's C++ library. docs/python.md is the page to begin with."""

from ._core import *  # noqa: F403
from ._core import version as version
from .compiled import Compiled as Compiled, compile as compile
from .function import Context as Context, Function as Function
from . import io as io, models as models, nn as nn, train as train

__version__ = version()
