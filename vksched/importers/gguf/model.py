"""LanguageModel: a GGUF file as tensors, whose weights are read when they are used."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property

from ...common.dtypes import INT32
from ...common.errors import DTypeError, ModelFormatError, ShapeError
from ...ir.name_scope import name_scope, turn
from ...ir.tensor import Tensor, input
from ..base import ImportedModel
from .architectures import architecture
from .architectures.network import Network
from .architectures.positions import Tables
from .architectures.token_layout import FullSequence, PaddedTexts, Text
from .architectures.weights import MetaWeights, Weights, device_bytes_of
from .hparams.hparams import Hyper, architecture_of, read_hyper
from .kv_cache import KINDS, CachedSequence, KeyValueCache, Step
from .pooling import WAYS, pooled
from .read.loader import GgufFile
from .tokenizer.chat_template import ChatTemplate
from .tokenizer.tokenizer import Tokenizer


class LanguageModel(ImportedModel):
    """A model of a GGUF file. name: what the file says, else the name of the file."""

    format = "gguf"

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        named = file.metadata.get("general.name")
        self.name = named if isinstance(named, str) else ""
        self.name = self.name or (file.path.stem if file.path else "model")
        self.weights = Weights(file)

    def meta(self) -> LanguageModel:
        """Return the model with weights that have nothing in them, for plans: none is read."""
        model = LanguageModel(self.file)
        model.weights = MetaWeights(self.file)
        return model

    def __repr__(self) -> str:
        return f"<LanguageModel {self.name}: {self.parameters:,} parameters>"

    @property
    def architecture(self) -> str:
        """What kind of network it is: "llama", "qwen2"."""
        return architecture_of(self.file)

    @cached_property
    def hyper(self) -> Hyper:
        """Its sizes and numbers, of an architecture that is known: others lack keys of these."""
        architecture(self.architecture)
        return read_hyper(self.file)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What turns texts into tokens, as the file describes it."""
        return Tokenizer(self.file.metadata)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """What writes a conversation as a text for the model."""
        source = self.file.metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise ModelFormatError(
                "[gguf] expected a chat template in the file, got none; try a text as the prompt"
            )
        vocabulary = self.tokenizer.vocabulary
        roles = {
            f"{role}_token": vocabulary.tokens[vocabulary.roles[role]]
            for role in ("bos", "eos")
            if role in vocabulary.roles
        }
        return ChatTemplate(source, **roles)

    @property
    def parameters(self) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.size for tensor in self.file.tensors.values())

    @property
    def parameter_bytes(self) -> int:
        """The bytes of these in the file."""
        return sum(tensor.nbytes for tensor in self.file.tensors.values())

    @property
    def device_bytes(self) -> int:
        """The bytes that they take on a device at most."""
        return sum(map(device_bytes_of, self.file.tensors.values()))

    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits of what follows each token of texts, as a tensor to compile.

        ids: (b, n) int32 -> (b, n, vocabulary).

        Raises:
            ModelFormatError: the architecture is not known, or the file is not as it should be.
            ShapeError: ids are no batch of tokens, or more than the model's context.
        """
        network = self._network(FullSequence(self._tokens_of(ids)))
        return network.logits(ids)

    def embeddings(self, ids: Tensor, counts: Tensor, pooling: str | None = None) -> Tensor:
        """Return a vector of length 1 of each text, as a tensor to compile.

        ids: (b, n) int32, counts: (b,) int32, how many of its tokens are those of a text ->
        (b, width). pooling: "mean", "cls" or "last" token; by default as the file says.

        Raises:
            ModelFormatError: the architecture is not known, or the file is not as it should be.
            ShapeError: ids are no batch of tokens, or more than the model's context; or there is
                no such pooling.
        """
        way = self.pooling(pooling)
        length = self._tokens_of(ids)
        if counts.shape != ids.shape[:1] or counts.dtype != INT32:
            raise ShapeError(f"[model] expected counts (b,) of int32, got {counts.type}")
        family, hyper = architecture(self.architecture), self.hyper
        causal = hyper.causal and not family.encoder
        if hyper.window and not causal:
            raise ModelFormatError(
                f"[gguf] key '{hyper.architecture}.attention.sliding_window': expected 0 in an "
                f"encoder, got {hyper.window}"
            )
        if family.sinks and not causal:
            raise ModelFormatError(
                f"[gguf] key '{hyper.architecture}.attention.causal': expected true in a network "
                "with attention sinks, got false"
            )
        hidden = self._network(PaddedTexts(length, counts, causal)).hidden(ids)
        with name_scope("pooling"):
            return pooled(hidden, counts, way)

    def pooling(self, asked: str | None = None) -> str:
        """Return how one vector of a text is made: as asked, or as the file says.

        Raises:
            ShapeError: neither says so.
        """
        way = asked or self.hyper.pooling
        if way not in WAYS:
            raise ShapeError(
                f"[model] expected a pooling of {', '.join(WAYS)}, "
                f"got {way or 'none in the file'}; try 'mean', or 'last' for a decoder"
            )
        return way

    def _network(self, text: Text) -> Network:
        return Network(architecture(self.architecture), self.hyper, self.weights, text)

    def _tokens_of(self, ids: Tensor) -> int:
        """Return how many tokens there are in each row."""
        hyper = self.hyper
        if ids.rank != 2 or ids.dtype != INT32 or ids.shape[1] > hyper.context:
            raise ShapeError(
                f"[model] expected ids (b, n) of int32, n at most {hyper.context}, got {ids.type}"
            )
        return ids.shape[1]

    def cache(self, length: int, cache_type: str = "f32") -> KeyValueCache:
        """Return room for the keys and values of a text of so many tokens, for `step`.

        cache_type: how they are kept, "f32", or "f16" in half the memory, or "q8_0" in little over
        a
            quarter.
        """
        if cache_type not in KINDS:
            raise DTypeError(f"[model] expected a cache of {', '.join(KINDS)}, got {cache_type!r}")
        if not 0 < length <= self.hyper.context:
            raise ShapeError(
                f"[model] expected a cache of 1 to {self.hyper.context} tokens, "
                f"as many as the model reads, got {length}; try fewer"
            )
        return KeyValueCache(length, cache_type)

    def step(self, cache: KeyValueCache, tokens: int, parts: int = 1) -> Step:
        """Return a call that reads so many more tokens of a text, as tensors to compile with its
        updates. All steps of a cache share its states.

        Inputs of a run: ids, (1, tokens) of int32; start, how many tokens came before; count, how
        many of `ids` are tokens of the text, as those behind may be anything.
        parts: equal ones, which are computed in turns, so that they flow through several devices as
        a pipeline. The last of the `count` tokens must be in the last part.
        """
        if not 0 < tokens <= cache.length or parts < 1 or tokens % parts:
            raise ShapeError(
                f"[model] expected 1 to {cache.length} tokens as the cache has, got {tokens}, to "
                f"be cut in equal parts, got {parts}"
            )
        each = tokens // parts
        ids = input("ids", (1, tokens), INT32)
        start = input("start", (), INT32, bounds=(0, cache.length - tokens))
        last = input("count", (), INT32, bounds=(tokens - each + 1, tokens)) - (tokens - each + 1)
        text: CachedSequence | None = None
        tables: Tables = {}
        for part in range(parts):
            with turn(part) if parts > 1 else nullcontext():
                text = CachedSequence(cache, each, start, last, text)
                mine = ids[:, part * each : (part + 1) * each] if parts > 1 else ids
                logits = replace(self._network(text), tables=tables).logits(mine)
        assert text is not None
        return Step(logits, text.updates)
