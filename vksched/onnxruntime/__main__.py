"""`python -m vksched.onnxruntime program.py [args]`: run a program with vksched as onnxruntime."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from ..common.errors import VkschedError
from .imports import install


def main() -> None:
    """Parse the arguments and run the program."""
    parser = argparse.ArgumentParser(
        "python -m vksched.onnxruntime",
        description="Runs a program with vksched as its onnxruntime.",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument(
        "--vulkan",
        metavar="PROVIDERS",
        help="providers that stand for the Vulkan devices, as cuda,cpu (VKSCHED_PROVIDERS)",
    )
    parser.add_argument("program", help="a file, or the name of a module after -m")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="what the program gets")
    options = parser.parse_args()
    try:
        install(None if options.vulkan is None else options.vulkan.split(","))
    except VkschedError as error:
        parser.error(str(error))
    sys.argv = [options.program, *options.args]
    if options.module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    elif os.path.exists(options.program):
        if not getattr(sys.flags, "safe_path", False):  # as Python does for a script
            sys.path[0] = os.path.dirname(os.path.realpath(options.program))
        runpy.run_path(options.program, run_name="__main__")
    else:
        parser.error(f"[session] expected a program, got no file at {options.program!r}")


if __name__ == "__main__":
    main()
