"""Optimizers, the training step, schedules."""

from ._core._train import *  # noqa: F403
from ._core._train import schedule as schedule
