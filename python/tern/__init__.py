"""Tensors, reverse-mode autodiff, modules and training by tern's C++ library. docs/python.md is the page to begin with."""

from . import _core
from ._core import *  # noqa: F403
from ._core import __version__
from . import io, models, nn, train

DType = _core.DType
f32, f64, f16, bf16 = DType.f32, DType.f64, DType.f16, DType.bf16
i32, i64, u8, boolean = DType.i32, DType.i64, DType.u8, DType.boolean

__all__ = [name for name in dir(_core) if not name.startswith("_")]
