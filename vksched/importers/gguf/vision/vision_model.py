"""VisionModel: the encoder of pictures in a projector file, whose weights are read at first use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ....common.dtypes import FLOAT32, NDArray
from ....common.errors import ModelFormatError, ShapeError
from ....ir.tensor import Tensor
from ...base import ImportedModel
from ..architectures.weights import MetaWeights, Weights
from ..read.loader import GgufFile
from .pixels import fitting_size, pixels_of
from .qwen_vision import QwenVision
from .siglip import Siglip
from .vision_hparams import CHANNELS, PROJECTORS, VisionHParams, read_vision

MARKERS = {
    "gemma3": ("\n\n<start_of_image>", "<end_of_image>\n\n"),
    **dict.fromkeys(
        ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger"),
        ("<|vision_start|>", "<|vision_end|>"),
    ),
}
"""The texts before and after a picture, by the kind of projector."""


class VisionModel(ImportedModel):
    """The encoder of pictures of a projector file (mmproj), for a language model of its family.

    Raises
    ------
    ModelFormatError
        The file is not a projector file of a supported kind, or a key is invalid.
    """

    format = "gguf"

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.hyper: VisionHParams = read_vision(file)
        self.weights = Weights(file)
        self._check_sides()

    def meta(self) -> VisionModel:
        """Return the model with meta weights, which have no data, for planning."""
        model = VisionModel(self.file)
        model.weights = MetaWeights(self.file)
        return model

    def _check_sides(self) -> None:
        """Raise ModelFormatError if the sizes of pictures and patches are not those of the tensors:
        the memory for pixels depends on them.
        """
        hyper, side = self.hyper, self.hyper.patch_size
        self.weights.require("v.patch_embd.weight", (hyper.width, CHANNELS, side, side))
        if hyper.projector in ("gemma3", "qwen3vl_merger"):
            self.weights.require("v.position_embd.weight", (hyper.grid**2, hyper.width))

    def __repr__(self) -> str:
        most = "up to " * self.hyper.is_qwen
        return f"<VisionModel {self.hyper.projector}: {most}{self.tokens} tokens per picture>"

    @property
    def tokens(self) -> int:
        """The number of tokens of a picture; the maximum if it depends on the picture's size."""
        hyper = self.hyper
        if hyper.is_qwen:
            return hyper.pixels[1] // (hyper.patch_size * hyper.pool) ** 2
        return hyper.tokens

    @property
    def width(self) -> int:
        """The number of elements of a token: the width of the language model, several times if its
        first layers add rows, too.
        """
        return self.hyper.text_width * (1 + len(self.hyper.deepstack))

    @cached_property
    def pixels_shape(self) -> tuple[int, int, int]:
        """The shape of the pixels of a picture, of Qwen that of a square one of a usual size."""
        size = self.hyper.image_size
        if self.hyper.is_qwen:
            size, _ = fitting_size(size, size, self.hyper)
        return CHANNELS, size, size

    def check_model(self, architecture: str, width: int) -> None:
        """Raise ModelFormatError unless a language model reads the tokens of this encoder. width:
        that of its inputs for tokens of pictures.
        """
        known = PROJECTORS[self.hyper.projector]
        if architecture not in known or width != self.width:
            raise ModelFormatError(
                f"[vision] expected a language model of {' or '.join(known)} with width "
                f"{self.width} for this projector file, got {architecture} with width "
                f"{width}; try the projector file of the model"
            )

    @property
    def is_whole(self) -> bool:
        """True if the tokens of a picture see each other."""
        return not self.hyper.is_qwen

    @property
    def markers(self) -> tuple[str, str]:
        """The texts before and after the tokens of a picture in a prompt, as the model was trained
        with them; they have names of control tokens.
        """
        return MARKERS[self.hyper.projector]

    def tokens_of(self, shape: Sequence[int]) -> tuple[int, tuple[int, int] | None]:
        """Return the number of tokens of a picture whose pixels have a shape, and their rows and
        columns with M-RoPE; None if they have positions like those of text.
        """
        if not self.hyper.is_qwen:
            return self.tokens, None
        rows, columns = self._squares(shape)
        return rows * columns, (rows, columns)

    def _squares(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the numbers of rows and columns of merged squares of pixels of Qwen."""
        unit = self.hyper.patch_size * self.hyper.pool
        return shape[-2] // unit, shape[-1] // unit

    def pixels(
        self, picture: object, max_pixels: int | None = None, max_seconds: float | None = None
    ) -> NDArray:
        """Return the pixels of a picture for `encode`, (3, height, width) float32.

        Parameters
        ----------
        picture
            A path, the bytes of a file, (height, width, 3) uint8, or a picture of Pillow.
        max_pixels
            The maximum number of pixels of the picture; 2**26 if None.
        max_seconds
            The maximum time to decode the bytes of a file; None for any.

        Raises
        ------
        DTypeError
            The value is no picture.
        ModelFormatError
            The file is no picture that Pillow reads, or it has too many pixels, or takes too long.
        VkschedError
            The package Pillow is missing.
        """
        return pixels_of(picture, self.hyper, max_pixels, max_seconds)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return the tokens of pictures, as a tensor to compile.

        pixels: (b, 3, height, width) float32 -> (b, tokens, width).

        Raises
        ------
        ShapeError
            `pixels` is not a batch of pictures of the encoder's size.
        ModelFormatError
            The file's tensors do not match the network.
        """
        if self.hyper.is_qwen:
            return self._encode_qwen(pixels)
        if pixels.rank != 4 or pixels.shape[1:] != self.pixels_shape or pixels.dtype != FLOAT32:
            size = self.hyper.image_size
            raise ShapeError(
                f"[vision] expected pixels (b, {CHANNELS}, {size}, {size}) of float32, got "
                f"{pixels.type}; try VisionModel.pixels"
            )
        return Siglip(self.hyper, self.weights).tokens(pixels)

    def _encode_qwen(self, pixels: Tensor) -> Tensor:
        unit = self.hyper.patch_size * self.hyper.pool
        is_batch = pixels.rank == 4 and pixels.shape[1] == CHANNELS and pixels.dtype == FLOAT32
        if not is_batch or any(side % unit or not side for side in pixels.shape[2:]):
            raise ShapeError(
                f"[vision] expected pixels (b, {CHANNELS}, height, width) of float32, with sides "
                f"of a multiple of {unit}, got {pixels.type}; try VisionModel.pixels"
            )
        squares = self._squares(pixels.shape)
        return QwenVision(self.hyper, self.weights, *squares).tokens(pixels)
