"""The options of pictures: a projector file, and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...common.errors import ModelFormatError

if TYPE_CHECKING:
    from ...importers.gguf.vision.vision_model import VisionModel

Command = Callable[..., None]

mmproj_option = click.option(
    "--mmproj", metavar="FILE", help="Projector file (mmproj), with which the model sees pictures."
)


def picture_options(text: str) -> Callable[[Command], Command]:
    """Return a decorator that adds --mmproj and --image to a command. text: the help of --image."""

    def add(command: Command) -> Command:
        return mmproj_option(
            click.option("--image", "images", multiple=True, metavar="FILE", help=text)(command)
        )

    return add


def open_projector(mmproj: str | None, images: Sequence[str] = ()) -> VisionModel | None:
    """Return a projector file, or None without one.

    Raises
    ------
    click.UsageError
        There are pictures without a projector file.
    ModelFormatError
        A picture cannot be read.
    """
    if mmproj is None:
        if images:
            raise click.UsageError("--image needs --mmproj.")
        return None
    from ...importers import load_projector

    projector = load_projector(mmproj)
    for image in images:
        check_picture(projector, image)
    return projector


def check_picture(projector: VisionModel, name: str) -> None:
    """Raise ModelFormatError unless a file is a picture."""
    try:
        projector.pixels(name)
    except OSError as error:
        raise ModelFormatError(
            f"[image] expected a file that can be read, got {name}: {error.strerror}"
        ) from error
    except ModelFormatError as error:
        raise ModelFormatError(f"[image] {name}: {error}") from error


def picture_parts(images: Sequence[str]) -> list[dict[str, object]]:
    """Return pictures as parts of a message, with the bytes of their files.

    Raises
    ------
    ModelFormatError
        A file cannot be read.
    """
    try:
        return [{"type": "image", "image": Path(image).read_bytes()} for image in images]
    except OSError as error:
        raise ModelFormatError(
            f"[image] expected a file that can be read, got {error.filename}: {error.strerror}"
        ) from error
