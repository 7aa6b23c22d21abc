"""What `make wheel` adds to a wheel: the native modules of this Python, and the wheel's tag.

    pip wheel .    Python and, where they are compiled, shaders     py3-none-any
    make wheel     shaders and vksched_native/ as well              cp311-cp311-linux_x86_64

hatchling calls this for each wheel; only with VKSCHED_WHEEL=native it does anything. See
docs/get-started/wheels.md.
"""

from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "vksched_native"
MODULES = ("kp", "companion", "cpu_kernels")


class WheelError(Exception):
    """What is not built yet and what to do about it."""


def require_shaders(folder: Path) -> None:
    """Raise WheelError where a compiled shader is missing."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    except OSError as error:
        raise WheelError(f"[wheel] expected compiled shaders: {error}; try `make wheel`") from None
    variants, left_out = manifest["variants"], manifest.get("left_out", ())
    if left_out:
        raise WheelError(
            f"[wheel] expected all shaders, {len(left_out)} were left out, {left_out[0]} for one; "
            "see what `python build_shaders.py` says to try"
        )
    missing = [v["file"] for v in variants.values() if not (folder / v["file"]).exists()]
    if missing:
        raise WheelError(
            f"[wheel] expected all shaders of the manifest, {len(missing)} are missing, "
            f"{missing[0]} for one; try `python build_shaders.py`"
        )


def native_files(folder: Path) -> dict[str, str]:
    """Return the files of the native package, by path, with their places in the wheel.

    Raises:
        WheelError: a module is not built for this Python.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    modules = [folder / f"{module}{suffix}" for module in MODULES]
    missing = [path.name for path in modules if not path.exists()]
    if missing:
        raise WheelError(
            f"[wheel] expected {', '.join(missing)} in {folder}, got none; try native/build.py"
        )
    others = [folder / "__init__.py", *sorted(folder.glob("LICENSE*"))]
    return {str(path): f"{PACKAGE}/{path.name}" for path in (*modules, *others)}


class WheelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it writes a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or os.environ.get("VKSCHED_WHEEL") != "native":
            return
        require_shaders(Path(self.root, "vksched", "spirv"))
        build_data["force_include"].update(
            native_files(Path(sysconfig.get_path("platlib"), PACKAGE))
        )
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
