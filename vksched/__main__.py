"""`python -m vksched` is the same as `vksched`."""

from .cli import main

main(prog_name="vksched")
