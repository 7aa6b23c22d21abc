"""Ops over windows of an image: convolution, pooling, resizing and grid sampling."""

from __future__ import annotations

from . import conv_backward as conv_backward
from . import grid_sample_backward as grid_sample_backward
from . import pool_backward as pool_backward
from . import sharding as sharding
