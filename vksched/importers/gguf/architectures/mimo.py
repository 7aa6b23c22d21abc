"""MiMo V2: most layers have sliding windows, attention sinks and more heads of keys than others.
Heads of values are smaller than those of keys. Experts are chosen by sigmoids and a bias.

Source: https://arxiv.org/abs/2601.02780
"""

from __future__ import annotations

from .family import Family

MIMO2 = Family(sinks="some")
