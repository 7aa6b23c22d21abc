"""Pixels: reads pictures, and resizes and normalizes them as an encoder expects."""

from __future__ import annotations

import io
import math
import os
import time
from reprlib import repr as shortened
from typing import TYPE_CHECKING

import numpy as np

from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ModelFormatError, VkschedError
from .vision_hparams import CHANNELS, MAX_PIXELS, VisionHParams

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_RATIO = 200
"""The maximum ratio of the sides of a picture of Qwen."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""The formats of files. Decoders of others may start programs, as that of EPS does."""
BLOCK_BYTES = 512
"""The bytes of a file between two checks of the time limit. A JPEG file has scans of a few bytes,
each of which takes milliseconds.
"""
WEBP_PIXELS = 1 << 22
"""The maximum number of pixels of a WEBP file for each second of the time limit. Its decoder reads
the file at once, and ends after all pixels only.
"""


def pixels_of(
    picture: object,
    hyper: VisionHParams,
    max_pixels: int | None = None,
    max_seconds: float | None = None,
) -> NDArray:
    """Return the normalized pixels of a picture, (3, height, width) float32.

    Parameters
    ----------
    max_pixels
        The maximum number of pixels of the picture; `MAX_PIXELS` if None.
    max_seconds
        The maximum time to decode the bytes of a file; None for any. A WEBP file has at most
        `WEBP_PIXELS` for each second.

    Raises
    ------
    DTypeError
        The value is no picture.
    ModelFormatError
        The file is no picture that Pillow reads, or it has too many pixels, or takes too long.
    VkschedError
        The package Pillow is missing.
    """
    opened = _opened(picture, max_pixels or MAX_PIXELS, max_seconds)
    if hyper.is_qwen:
        resized = opened.resize(fitting_size(*opened.size, hyper), resample=_resampling("BICUBIC"))
    else:
        size = hyper.image_size
        resized = opened.resize((size, size), resample=_resampling("BILINEAR"))
    scaled = np.asarray(resized, np.float32).transpose(2, 0, 1) / np.float32(255)
    mean, std = (
        np.array(each, np.float32).reshape(CHANNELS, 1, 1) for each in (hyper.mean, hyper.std)
    )
    return np.asarray((scaled - mean) / std)


def fitting_size(width: int, height: int, hyper: VisionHParams) -> tuple[int, int]:
    """Return the width and the height of a picture for an encoder of Qwen: multiples of the side of
    a merged square, with nearly the same ratio, and within the encoder's numbers of pixels.

    Raises
    ------
    ModelFormatError
        One side is more than 200 times longer than the other.
    """
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ModelFormatError(
            f"[vision] expected a picture whose sides have a ratio of at most {MAX_RATIO}, got "
            f"{width} x {height}"
        )
    unit, (least, most) = hyper.patch_size * hyper.pool, hyper.pixels
    area = width * height
    found = [max(unit, round(side / unit) * unit) for side in (width, height)]
    if found[0] * found[1] > most:
        scale = math.sqrt(most / area)
        found = [max(unit, math.floor(side * scale / unit) * unit) for side in (width, height)]
        longer = int(height > width)  # the other side may have been raised to one square
        found[longer] = min(found[longer], max(unit, most // found[1 - longer] // unit * unit))
    elif found[0] * found[1] < least:
        scale = math.sqrt(least / area)
        found = [math.ceil(side * scale / unit) * unit for side in (width, height)]
    return found[0], found[1]


def _resampling(name: str) -> int:
    from PIL.Image import Resampling

    return Resampling[name]


class _TooSlow(Exception):
    """A file takes too long to decode."""


class _TimedFile(io.BytesIO):
    """The bytes of a file, which are read within a time limit. Decoders of Pillow read block by
    block.
    """

    def __init__(self, data: bytes, max_seconds: float) -> None:
        super().__init__(data)
        self._end_s = time.monotonic() + max_seconds

    def read(self, size: int | None = -1, /) -> bytes:
        self.check()
        return super().read(size)

    def check(self) -> None:
        """Raise _TooSlow after the time limit."""
        if time.monotonic() > self._end_s:
            raise _TooSlow


def _opened(picture: object, most: int, max_seconds: float | None) -> Image:
    """Return a picture of Pillow with three channels."""
    try:
        from PIL import Image
    except ImportError as error:
        raise VkschedError(
            '[vision] expected the package Pillow, got none; try pip install "vksched[vision]"'
        ) from error
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != CHANNELS:
            raise DTypeError(
                "[vision] expected pixels (height, width, 3) of uint8, got "
                f"{picture.shape} of {picture.dtype}"
            )
        _check_pixels((picture.shape[1], picture.shape[0]), most)
        return Image.fromarray(np.ascontiguousarray(picture))
    source: Image.Image | io.BytesIO | str | bytes
    if isinstance(picture, Image.Image):
        source = picture
    elif isinstance(picture, (bytes, bytearray, memoryview)):
        data = bytes(picture)
        source = io.BytesIO(data) if max_seconds is None else _TimedFile(data, max_seconds)
    elif isinstance(picture, (str, os.PathLike)):
        source = os.fspath(picture)
    else:
        raise DTypeError(
            "[vision] expected a path, the bytes of a file, pixels or a picture of Pillow, got "
            f"{shortened(picture)}"
        )
    try:
        if isinstance(source, Image.Image):
            _check_pixels(source.size, most)
            return _upright(source)
        with Image.open(source, formats=FORMATS) as found:
            if max_seconds is not None and found.format != "BMP":  # whose rows need few blocks
                found.decodermaxblock = BLOCK_BYTES
            _check_pixels(found.size, most)
            if found.format == "WEBP" and max_seconds is not None:
                _check_pixels(found.size, int(WEBP_PIXELS * max_seconds), "; try it as PNG")
            upright = _upright(found)
            if isinstance(source, _TimedFile):
                source.check()
            return upright
    except (ModelFormatError, FileNotFoundError):
        raise
    except _TooSlow:
        raise ModelFormatError(
            f"[vision] expected a picture that is decoded within {max_seconds:g} s, got one that "
            "takes longer; try it as PNG"
        ) from None
    except Exception as error:  # decoders of pictures raise errors of many kinds
        raise ModelFormatError(
            f"[vision] expected a picture as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got "
            f"{type(error).__name__}: {error}"
        ) from error


def _upright(found: Image) -> Image:
    """Return a picture with three channels of 8 bits, rotated as its Exif orientation says."""
    from PIL.Image import fromarray
    from PIL.ImageOps import exif_transpose

    transposed: Image = exif_transpose(found)
    if transposed.mode.startswith("I;16"):  # Pillow would clip values over 255
        grey = np.asarray(transposed).astype(np.uint32)
        transposed = fromarray(((grey + 128) // 257).astype(np.uint8))
    return transposed.convert("RGB")


def _check_pixels(size: tuple[int, int], most: int, hint: str = "") -> None:
    width, height = size
    if not 0 < width * height <= most:
        raise ModelFormatError(
            f"[vision] expected a picture of 1 to {most} pixels, got {width} x {height}{hint}"
        )
