"""Files of tensors: safetensors."""

from ._core._io import *  # noqa: F403
