"""Optimizers, the training step, schedules."""

from ._core.train import *  # noqa: F403
from ._core.train import schedule
