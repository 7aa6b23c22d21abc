"""The command line: `vksched` or `python -m vksched`. Commands import their dependencies lazily."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TextIO

import click

from ..common.errors import VkschedError
from ..common.terminal import printable_streams

INTERRUPTED = 130
"""128 plus the number of SIGINT."""
MODULES = {
    "bench": "bench",
    "calibrate": "calibrate",
    "chat": "generate",
    "cluster": "cluster",
    "devices": "devices",
    "doctor": "doctor",
    "embed": "embed",
    "generate": "generate",
    "info": "info",
    "worker": "worker",
    "ops": "ops",
    "perplexity": "perplexity",
    "plan": "plan",
    "replay": "replay",
    "rerank": "rerank",
    "run": "run",
    "serve": "serve",
    "top": "top",
    "trace": "trace",
    "tune": "tune",
}
"""Modules of the commands, imported lazily to start faster."""


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show vksched's warnings as single lines on stderr, without the source location."""
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
            from ..common.user_warning import VkschedWarning

            if issubclass(category, VkschedWarning):
                click.echo(f"note: {' '.join(str(message).split())}", err=True)
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


class _Group(click.Group):
    """Show errors and warnings of vksched as single lines on stderr, without a traceback.

    An error has exit code 1, and Ctrl-C the exit code of shells.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except VkschedError as error:
            raise click.ClickException(" ".join(str(error).split())) from error
        except (KeyboardInterrupt, click.Abort) as error:
            click.echo("\nAborted!", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from error


class _Main(_Group):
    """The commands of all modules, imported on use. All output is printable, including click's
    errors.
    """

    def main(self, *args: Any, **named: Any) -> Any:
        with printable_streams():
            return super().main(*args, **named)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(MODULES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _command(name) if name in MODULES else None


def _command(name: str) -> click.Command:
    found: click.Command = getattr(import_module(f".commands.{MODULES[name]}", __name__), name)
    return found


def import_named(words: Iterable[str]) -> None:
    """Import the first command among the arguments of a command line."""
    for name in words:
        if name in MODULES:
            _command(name)
            return


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from ..common.version import __version__

        click.echo(f"vksched {__version__}")
        ctx.exit()


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Run ONNX models, generate text with language models, serve them over HTTP, list and monitor
    devices, measure and tune them, plan graphs, test and time kernels.
    """
