"""PictureEncoder: computes the tokens of pictures with the encoder of a projector file.

    picture --VisionModel.pixels--> OpenedPicture: pixels, ids for the prompt from their hash
                                        '--compiled graph--> EncodedPicture: rows for the KV cache

The rows of recent pictures stay in memory, because each message of a conversation has all pictures
of the messages before it. Examples: tests/generation/pictures/test_picture_encoder.py.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ...common.dtypes import Progress
from ...common.fork_guard import ProcessBound
from ...ir.tensor import input
from ..compiled_steps import CompilingScheduler
from .prompt_pictures import KEY_BITS, EncodedPicture, OpenedPicture, PictureTokens

if TYPE_CHECKING:
    from ...engine.executable import CompiledGraph
    from ...importers.gguf.model import LanguageModel
    from ...importers.gguf.vision.vision_model import VisionModel

CACHE_BYTES = 256 << 20
"""The maximum size of the rows of recent pictures."""
MAX_GRAPHS = 4
"""The maximum number of compiled graphs; there is one for each size of pixels."""


class PictureEncoder(ProcessBound):
    """The encoder of pictures of a language model, on a scheduler. Its methods are thread-safe.

    Parameters
    ----------
    scheduler
        The scheduler whose devices are used.
    projector
        A projector file, loaded by `vs.load_projector`.
    model
        The language model that reads the pictures.
    progress
        See `Scheduler.compile`.
    cache_bytes
        The maximum size of the rows of recent pictures.

    Raises
    ------
    ModelFormatError
        The projector file is that of another model.
    """

    _INSTEAD = "to send the paths of the files, and to create it in each process"

    def __init__(
        self,
        scheduler: CompilingScheduler,
        projector: VisionModel,
        model: LanguageModel,
        *,
        progress: Progress | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        hyper = model.hyper
        projector.check_model(model.architecture, hyper.width * (1 + hyper.deepstack))
        self.projector = projector
        self._scheduler = scheduler
        self._progress = progress
        self._cache_bytes = cache_bytes
        self._known: OrderedDict[int, EncodedPicture] = OrderedDict()
        self._runs: OrderedDict[tuple[int, ...], CompiledGraph] = OrderedDict()
        self._lock = threading.Lock()

    def open(
        self, picture: object, max_pixels: int | None = None, max_seconds: float | None = None
    ) -> OpenedPicture:
        """Return a picture with the ids of its tokens, without their rows.

        Parameters
        ----------
        picture
            A path, the bytes of a file, (height, width, 3) uint8, or a picture of Pillow.
        max_pixels, max_seconds
            See `VisionModel.pixels`.

        Raises
        ------
        DTypeError
            The value is no picture.
        ModelFormatError
            The file is no picture that Pillow reads, or it has too many pixels, or takes too long.
        VkschedError
            The package Pillow is missing.
        """
        projector = self.projector
        pixels = projector.pixels(picture, max_pixels, max_seconds)
        count, grid = projector.tokens_of(pixels.shape)
        data = hashlib.sha256(repr((pixels.shape, grid)).encode())
        data.update(pixels.tobytes())
        key = int.from_bytes(data.digest()[: KEY_BITS // 8], "little")
        return OpenedPicture(PictureTokens(key, count, projector.is_whole, grid), pixels)

    def encode(self, picture: OpenedPicture) -> EncodedPicture:
        """Return a picture with the rows of its tokens."""
        key = picture.tokens.key
        with self._lock:
            found = self._known.get(key)
            if found is None:
                run = self._run(picture.pixels.shape)
                rows = np.asarray(run(pixels=picture.pixels[None]))[0]
                found = self._known[key] = EncodedPicture(picture.tokens, rows)
            self._known.move_to_end(key)
            while len(self._known) > 1 and self._used_bytes() > self._cache_bytes:
                self._known.popitem(last=False)
            return found

    def prepare(self, pictures: Iterable[OpenedPicture] = ()) -> None:
        """Compile the graphs for some pictures, and that for the usual size."""
        sizes = {each.pixels.shape for each in pictures} or {self.projector.pixels_shape}
        with self._lock:
            for size in sizes:
                self._run(size)

    def close(self) -> None:
        """Free the compiled graphs and the rows; the next use computes them again."""
        with self._lock:
            self._known.clear()
            while self._runs:
                self._runs.popitem()[1].close()

    def _run(self, size: tuple[int, ...]) -> CompiledGraph:
        """Return the graph for a size of pixels."""
        if size not in self._runs:
            while len(self._runs) >= MAX_GRAPHS:
                self._runs.popitem(last=False)[1].close()
            graph = self.projector.encode(input("pixels", (1, *size)))
            self._runs[size] = self._scheduler.compile(graph, None, self._progress)
        self._runs.move_to_end(size)
        return self._runs[size]

    def _used_bytes(self) -> int:
        return sum(each.rows.nbytes for each in self._known.values())
