"""Tensors, reverse-mode autodiff, modules and training by tern's C++ library. docs/python.md is the page to begin with."""

from ._core import *  # noqa: F403
from ._core import __version__ as __version__
from . import io as io, models as models, nn as nn, train as train
