"""What training needs beside gradients: losses, first values, optimizers, rates over time, files.

    params (vs.state) ── model ── loss ── vs.grad ── optimizer ── updates for sched.compile

All of it is made of the ops of the table. An optimizer is a function from parameters and gradients
to the next values of states; it keeps what it needs (moments, a count of steps) in states of its
own, so placement, faults and files treat that like the parameters themselves.
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
