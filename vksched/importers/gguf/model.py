"""LanguageModel: a GGUF file as tensors, whose weights are read at first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from ...common.dtypes import INT32, as_int
from ...common.errors import DTypeError, ShapeError
from ...ir.tensor import Tensor
from ..base import ImportedModel
from .architectures import architecture
from .architectures.family import Family
from .architectures.mixer import recurrent_bytes
from .architectures.network import Network
from .architectures.padded_encoder import PaddedEncoder
from .architectures.pictures import checked_pictures, pictured_sequence
from .architectures.token_layout import FullSequence, SequenceLayout
from .architectures.weights import MetaWeights, Weights, device_bytes_of
from .cached_sequence import Step
from .hparams.hparams import HParams, architecture_of, read_hyper
from .kv_cache import KINDS, KeyValueCache
from .pooling import check_ranks, chosen_pooling
from .read.loader import GgufFile
from .step_graph import StepOptions, build_step
from .tokenizer.chat_template import ChatTemplate, read_chat_template
from .tokenizer.tokenizer import Tokenizer


class LanguageModel(ImportedModel):
    """A language model of a GGUF file. name: the model's name in the metadata, else the file's
    name.
    """

    format = "gguf"

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.name = file.name
        self.weights = Weights(file)

    def meta(self) -> LanguageModel:
        """Return the model with meta weights, which have no data, for planning."""
        model = LanguageModel(self.file)
        model.weights = MetaWeights(self.file)
        return model

    def __repr__(self) -> str:
        return f"<LanguageModel {self.name}: {self.parameters:,} parameters>"

    @property
    def architecture(self) -> str:
        """The name of the architecture, for example "llama" or "qwen2"."""
        return architecture_of(self.file)

    @cached_property
    def hyper(self) -> HParams:
        """The hyperparameters; only available for known architectures."""
        architecture(self.architecture)
        return read_hyper(self.file)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the file describes."""
        return Tokenizer(self.file.metadata)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The chat template of the model."""
        return read_chat_template(self.file.metadata, self.tokenizer.vocabulary)

    @property
    def parameters(self) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.size for tensor in self.file.tensors.values())

    @property
    def parameter_bytes(self) -> int:
        """The size of all tensors in the file in bytes."""
        return sum(tensor.nbytes for tensor in self.file.tensors.values())

    @cached_property
    def device_bytes(self) -> int:
        """The maximum size of all tensors on a device in bytes."""
        return sum(map(device_bytes_of, self.file.tensors.values()))

    @property
    def is_recurrent(self) -> bool:
        """True if layers have a recurrent state, which cannot be cut back to a shorter text."""
        return any(self._family().with_state(self.hyper))

    @property
    def has_mrope(self) -> bool:
        """True if tokens of pictures have positions in time, rows and columns."""
        return bool(self._family().mrope and self.hyper.rope.sections)

    @property
    def recurrent_bytes(self) -> int:
        """The size of the recurrent states of one sequence in bytes."""
        family, hyper = self._family(), self.hyper
        return recurrent_bytes(family.mixers, hyper, sum(family.with_state(hyper)))

    def logits(
        self, ids: Tensor, pictures: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Return the next-token logits of each token, (b, n, vocabulary), as a tensor to compile.

        Parameters
        ----------
        ids
            The tokens, (b, n) int32. With pictures, `vocabulary + row` is a row of their tokens.
        pictures
            The tokens of pictures, (pictures, tokens, width), as `VisionModel.encode` returns them.
        positions
            With pictures and M-RoPE, the positions of all tokens in time, rows and columns,
            (b, 3, n) int32.

        Raises
        ------
        ModelFormatError
            The architecture is unknown, or the file is invalid.
        ShapeError
            `ids` is not a batch of tokens, or longer than the model's context; or the tokens of
            pictures have another width.
        UnsupportedOp
            The architecture takes no pictures.
        """
        length = self._tokens_of(ids)
        if pictures is None:
            return self._network(FullSequence(length)).logits(ids)
        shown = checked_pictures(self._family(), self.hyper, pictures)
        layout = pictured_sequence(self._family(), shown, ids, positions)
        return replace(self._network(layout), pictures=shown).logits(ids)

    def embeddings(self, ids: Tensor, counts: Tensor, pooling: str | None = None) -> Tensor:
        """Return the embedding of each text, normalized to length 1, as a tensor to compile.

        Parameters
        ----------
        ids
            The padded tokens, (b, n) int32.
        counts
            The number of tokens of each text, (b,) int32.
        pooling
            "mean", or the "cls" or "last" token; the file's default if None.

        Returns
        -------
        Tensor
            The embeddings, (b, width).

        Raises
        ------
        ModelFormatError
            The architecture is unknown, or the file is invalid.
        ShapeError
            `ids` is not a batch of tokens, or longer than the model's context; or the pooling is
            unknown.
        """
        return self._encoder(ids).embeddings(ids, counts, self.pooling(pooling))

    def scores(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Return the scores of each text by a reranker, as a tensor to compile.

        ids, counts: as in `embeddings` -> (b, labels), one label if the file names none. Scores are
        logits; those of a decoder are probabilities.

        Raises
        ------
        ModelFormatError
            The file has no pooling "rank" or no classification head, or is invalid.
        ShapeError
            `ids` is not a batch of tokens, or longer than the model's context.
        """
        check_ranks(self.hyper.pooling)
        return self._encoder(ids).scores(ids, counts)

    def _encoder(self, ids: Tensor) -> PaddedEncoder:
        self._tokens_of(ids)
        return PaddedEncoder(self._family(), self.hyper, self.weights)

    def pooling(self, asked: str | None = None) -> str:
        """Return the pooling: the requested one, or the file's default; ShapeError if invalid."""
        return chosen_pooling(asked, self.hyper.pooling)

    def _network(self, text: SequenceLayout) -> Network:
        return Network(self._family(), self.hyper, self.weights, text)

    def _family(self) -> Family:
        return architecture(self.architecture).with_activation(self.hyper.activation)

    def _tokens_of(self, ids: Tensor) -> int:
        """Return the number of tokens in each row."""
        hyper = self.hyper
        if ids.rank != 2 or ids.dtype != INT32 or ids.shape[1] > hyper.context:
            raise ShapeError(
                f"[model] expected ids (b, n) of int32, n at most {hyper.context}, got {ids.type}"
            )
        return ids.shape[1]

    def cache(
        self,
        length: int,
        cache_type: str = "f32",
        by_layer: Mapping[int, str] | None = None,
        *,
        slots: int = 1,
    ) -> KeyValueCache:
        """Return a KV cache for `step`.

        Parameters
        ----------
        length
            The number of tokens of a slot.
        cache_type
            The element type: "f32", "f16" for half the memory, or "q8_0" for about a quarter.
        by_layer
            The element types of layers with another one.
        slots
            The number of sequences that the cache holds.

        Raises
        ------
        DTypeError
            The element type is unknown.
        ShapeError
            The model does not read as many tokens, or there is no slot.
        """
        for each in (cache_type, *(by_layer or {}).values()):
            if each not in KINDS:
                raise DTypeError(f"[model] expected a cache of {', '.join(KINDS)}, got {each!r}")
        if not 0 < length <= self.hyper.context:
            raise ShapeError(
                f"[model] expected a cache of 1 to {self.hyper.context} tokens, "
                f"as many as the model reads, got {length}; try fewer"
            )
        slots = as_int("model", "slots", slots)
        if slots < 1:
            raise ShapeError(f"[model] expected a cache of 1 or more slots, got {slots}")
        return KeyValueCache(length, cache_type, by_layer, slots)

    def step(
        self,
        cache: KeyValueCache,
        tokens: int,
        parts: int = 1,
        *,
        rows: int | None = None,
        all_logits: bool = False,
        scale_rows: bool = False,
        round_rows: bool = False,
        one_text: bool = False,
        picture: bool = False,
        shifted: bool = False,
        ids: Tensor | None = None,
    ) -> Step:
        """Return a call that appends `tokens` tokens to a text, or to each of `rows` texts, as
        tensors to compile with their updates. All steps of a cache share its states.

        The inputs of a run are `ids`, (1, tokens) int32; `start`, the number of cached tokens; and
        `count`, the number of valid tokens in `ids`; the rest is padding. With `rows` they are
        `ids`, (rows, tokens), and `slot`, `start` and `count`, each (rows,) int32; the slots
        differ. A row of slot -1 is idle: it reads and writes nothing of the cache. The logits of a
        row do not depend on the other rows, to the bit.

        Parameters
        ----------
        cache
            A cache of this model.
        tokens
            The number of tokens that are appended to each text.
        parts
            The number of equal microbatches, which flow through several devices as a pipeline. The
            last of the `count` tokens must be in the last part.
        rows
            The number of texts, each in a slot of the cache; None for a cache of one slot.
        all_logits
            Return the logits of all tokens, (rows, tokens, vocabulary); there is one part then, and
            no input `count` unless layers have a recurrent state.
        scale_rows
            Scale rows beyond float16's range by powers of two; see `scaled_rows.py`.
        round_rows
            Attend to the keys and values of the step, too, in the cache's element type.
        one_text
            The rows are consecutive tokens of one text: they may have the same slot, and each
            attends to the earlier ones. The logits of each row are those of a step of one row, to
            the bit, for as many rows as `max_equal_rows` returns.
        picture
            The tokens are those of one picture, and see each other. The input is `picture`,
            (rows, tokens, width), as `VisionModel.encode` returns them, instead of `ids`.
        shifted
            Positions differ from indices, as after pictures of a model with M-RoPE. The input is
            `shift`, () or (rows,) int32, the difference; with a picture it is `positions`,
            (rows, 3, tokens) int32, those in time, rows and columns.
        ids
            The tokens as a tensor, (rows, tokens) int32, instead of the input `ids`.

        Raises
        ------
        ShapeError
            The cache has too few tokens or slots, the parts are not equal, or rows of `one_text`
            have several tokens.
        UnsupportedOp
            Layers have a recurrent state with `one_text`, or the architecture takes no pictures.
        """
        moved = shifted and self.has_mrope
        how = rows, all_logits, scale_rows, round_rows, one_text, picture, moved, ids
        return build_step(self._network, cache, tokens, parts, StepOptions(*how))
