"""The command line: `vksched` or `python -m vksched`. Commands import what they need themselves."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import click

from ..errors import VkschedError
from ..units import printable
from .bench import bench
from .calibrate import calibrate
from .cluster import cluster
from .devices import devices
from .embed import embed
from .generate import chat, generate
from .info import info
from .node import node
from .ops import ops
from .plan import plan
from .replay import replay
from .run import run
from .top import top
from .trace import trace
from .tune import tune

INTERRUPTED = 130
"""128 and the number of SIGINT."""


def _take_every_character() -> None:
    """Pipes on Windows take the characters of one code page: others are written as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Shows a warning of ours as one line on stderr, without the place in the code."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            from ..trace import VkschedWarning

            if issubclass(category, VkschedWarning):
                click.echo(f"note: {' '.join(str(message).split())}", err=True)
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


class _Group(click.Group):
    """Shows an error of ours as one line on stderr, with exit code 1 and no traceback, and a
    warning as one line, too; Ctrl-C gives the code that shells give it.
    """

    def invoke(self, ctx: click.Context) -> Any:
        _take_every_character()
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except VkschedError as error:
            raise click.ClickException(printable(" ".join(str(error).split()))) from error
        except (KeyboardInterrupt, click.Abort) as error:
            click.echo("\nAborted!", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from error


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from ..version import __version__

        click.echo(f"vksched {__version__}")
        ctx.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Run ONNX models, talk with language models, see which devices there are and what they do,
    measure and tune them, plan graphs, prove and time kernels.
    """


main.add_command(bench)
main.add_command(calibrate)
main.add_command(chat)
main.add_command(cluster)
main.add_command(devices)
main.add_command(embed)
main.add_command(generate)
main.add_command(info)
main.add_command(node)
main.add_command(ops)
main.add_command(plan)
main.add_command(replay)
main.add_command(run)
main.add_command(top)
main.add_command(trace)
main.add_command(tune)
