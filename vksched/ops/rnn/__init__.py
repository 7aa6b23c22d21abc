"""Recurrent networks: RNN, GRU and LSTM."""

from __future__ import annotations

from . import sharding as sharding
