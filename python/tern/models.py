"""Models of others, in the files that they come in: GPT-2 and Llama from Hugging Face."""

from ._core._models import *  # noqa: F403
