"""The worker of one baseline: `python -m baselines NAME DEVICE [FOLDER]`.

DEVICE is JSON with the device's name. FOLDER contains the file NAME.py of a user's baseline; it and
its helpers become modules of this package.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from .protocol import serve


def _module(name: str, *folders: str) -> Any:
    package = importlib.import_module(str(__package__))
    if not folders:
        stem = name.replace(".", "_").replace("-", "_")
        return importlib.import_module(f"{package.__name__}.{stem}_baseline")
    package.__path__ += folders  # the shared modules take precedence
    return importlib.import_module(f"{package.__name__}.{name}")


def main() -> None:
    name, device, *folders = sys.argv[1:]
    serve(lambda: _module(name, *folders).open_baseline(json.loads(device)))


if __name__ == "__main__":
    main()
