"""Files of tensors: safetensors."""

from ._core.io import *  # noqa: F403
