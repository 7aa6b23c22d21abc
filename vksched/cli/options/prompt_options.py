"""The options of a prompt: its text, a file, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

Command = Callable[..., None]

STDIN = "-"


def prompt_options(command: Command) -> Command:
    """Add --prompt and --prompt-file to a command."""
    command = click.option(
        "--prompt-file",
        type=click.Path(dir_okay=False),
        help="File with the prompt, in UTF-8; - reads standard input.",
    )(command)
    return click.option(
        "--prompt", help="Prompt to continue, or to answer with --chat; - reads standard input."
    )(command)


def read_prompt(prompt: str | None, file: str | None) -> str:
    """Return the prompt, without a newline at the end of a file.

    Raises
    ------
    click.UsageError
        None or both of the options are present.
    click.ClickException
        The file cannot be read, or is not UTF-8.
    """
    if prompt is None and file is None:
        raise click.UsageError("Missing option '--prompt' or '--prompt-file'.")
    if prompt is not None and file is not None:
        raise click.UsageError("--prompt and --prompt-file exclude each other.")
    if prompt is not None and prompt != STDIN:
        return prompt
    name = file or STDIN
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise click.ClickException(
            f"[prompt] expected a file that can be read, got {name}: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        source = "standard input" if name == STDIN else name
        raise click.ClickException(
            f"[prompt] expected UTF-8 in {source}, got the byte 0x{data[error.start]:02x} at "
            f"{error.start}; try iconv"
        ) from error
    return text.replace("\r\n", "\n").removesuffix("\n")
