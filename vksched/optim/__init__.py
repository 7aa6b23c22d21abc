"""Training: losses, initializers, optimizers, learning rate schedules and checkpoint files.

    params (vs.state) ── model ── loss ── vs.grad ── optimizer ── updates for sched.compile

All of it is built from graph ops. An optimizer is a function from parameters and gradients to the
next values of states; its own data (moments, a step count) are states, too, so placement, device
failures and checkpoint files treat them like parameters.
"""

from __future__ import annotations

from .adam import adam, adamw
from .clip import clip_by_global_norm, global_norm
from .lion import lion
from .lr_schedules import constant, cosine, linear
from .save_load import load, save
from .sgd import sgd

__all__ = [
    "adam",
    "adamw",
    "clip_by_global_norm",
    "constant",
    "cosine",
    "global_norm",
    "linear",
    "lion",
    "load",
    "save",
    "sgd",
]
