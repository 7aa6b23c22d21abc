"""`python -m baselines NAME DEVICE`: the worker of one baseline; DEVICE is JSON with its name."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from .protocol import serve


def _module(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name.replace('.', '_')}_baseline")


def main() -> None:
    name, device = sys.argv[1], json.loads(sys.argv[2])
    serve(lambda: _module(name).open_baseline(device))


if __name__ == "__main__":
    main()
