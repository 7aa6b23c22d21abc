"""Options that the scripts of this folder share."""

from __future__ import annotations

import argparse

import vksched as vs


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with --devices and --json. doc: the docstring of the script."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else "")
    parser.add_argument("--devices", help="names, with commas; all Vulkan devices when not given")
    parser.add_argument("--json", action="store_true")
    return parser


def vulkan_names(args: argparse.Namespace) -> list[str]:
    """Return the devices that --devices names, but for the CPU."""
    found = args.devices.split(",") if args.devices else [d.name for d in vs.devices()]
    return [name for name in found if name != "cpu"]
