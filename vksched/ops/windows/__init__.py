"""Ops over windows of an image: convolutions, pools, resize, samples."""

from __future__ import annotations

from . import conv_gradient as conv_gradient
from . import pool_gradient as pool_gradient
from . import sample_gradient as sample_gradient
from . import sharding as sharding
