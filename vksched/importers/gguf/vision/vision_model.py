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
from .pixels import pixels_of
from .siglip import Siglip
from .vision_hparams import CHANNELS, PROJECTORS, VisionHParams, read_vision

MARKERS = {"gemma3": ("\n\n<start_of_image>", "<end_of_image>\n\n")}
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
        self.weights.require("v.position_embd.weight", (hyper.grid**2, hyper.width))

    def __repr__(self) -> str:
        return f"<VisionModel {self.hyper.projector}: {self.tokens} tokens per picture>"

    @property
    def tokens(self) -> int:
        """The number of tokens of a picture."""
        return self.hyper.tokens

    @property
    def width(self) -> int:
        """The number of elements of a token: the width of the language model."""
        return self.hyper.text_width

    @cached_property
    def pixels_shape(self) -> tuple[int, int, int]:
        """The shape of the pixels of a picture."""
        return CHANNELS, self.hyper.image_size, self.hyper.image_size

    def check_model(self, architecture: str, width: int) -> None:
        """Raise ModelFormatError unless a language model reads the tokens of this encoder."""
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
        return True

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
        return self.tokens, None

    def pixels(self, picture: object, max_pixels: int | None = None) -> NDArray:
        """Return the pixels of a picture for `encode`, (3, size, size) float32.

        Parameters
        ----------
        picture
            A path, the bytes of a file, (height, width, 3) uint8, or a picture of Pillow.
        max_pixels
            The maximum number of pixels of the picture; 2**26 if None.

        Raises
        ------
        DTypeError
            The value is no picture.
        ModelFormatError
            The file is no picture that Pillow reads, or it has too many pixels.
        VkschedError
            The package Pillow is missing.
        """
        return pixels_of(picture, self.hyper, max_pixels)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return the tokens of pictures, as a tensor to compile.

        pixels: (b, 3, size, size) float32 -> (b, tokens, width).

        Raises
        ------
        ShapeError
            `pixels` is not a batch of pictures of the encoder's size.
        ModelFormatError
            The file's tensors do not match the network.
        """
        if pixels.rank != 4 or pixels.shape[1:] != self.pixels_shape or pixels.dtype != FLOAT32:
            size = self.hyper.image_size
            raise ShapeError(
                f"[vision] expected pixels (b, {CHANNELS}, {size}, {size}) of float32, got "
                f"{pixels.type}; try VisionModel.pixels"
            )
        return Siglip(self.hyper, self.weights).tokens(pixels)
