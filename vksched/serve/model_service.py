"""ModelService: a loaded model with all that requests need of it.

text, messages --encode--> tokens --engine--> tokens --assembler--> text
schema, grammar --compile--> constraint --------^
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ..generation.conversation.picture_parts import PictureRules
from ..generation.conversation.prompt_encoder import PromptEncoder
from ..generation.embedder import Embedder
from ..generation.pictures.picture_encoder import PictureEncoder
from ..generation.pictures.prompt_pictures import EncodedPicture, OpenedPicture
from ..generation.reranker import Reranker
from .api_error import ApiError, server_closed
from .constraints import GrammarCompiler
from .engine_interface import ServingEngine

if TYPE_CHECKING:
    from ..importers.gguf.model import LanguageModel


class ModelService:
    """A model, its engine and its embedder.

    Parameters
    ----------
    model
        A model loaded from a GGUF file by `vs.load`.
    engine
        The engine that generates text; None for a model that only computes embeddings.
    embedder
        The embedder; None for a model without pooling.
    names
        The names of the model in requests; the first one is that of answers.
    reranker
        The reranker; None for a model without a classification head.
    pictures
        The encoder of pictures; None refuses pictures.
    """

    def __init__(
        self,
        model: LanguageModel,
        engine: ServingEngine | None,
        embedder: Embedder | None = None,
        names: Sequence[str] = (),
        reranker: Reranker | None = None,
        pictures: PictureEncoder | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.names = tuple(names) or (model.name,)
        self.embedder = embedder
        self.reranker = reranker
        self.pictures = pictures
        self.encoder = PromptEncoder(model, pictures, PictureRules(allows_files=False))
        self.grammars = GrammarCompiler(self.tokenizer, model.hyper.vocabulary)
        self._engine = engine
        self._is_closed = False
        self._picture_lock = threading.Lock()

    @property
    def name(self) -> str:
        """The name of the model in answers."""
        return self.names[0]

    @property
    def can_generate(self) -> bool:
        """Return True if the model generates text."""
        return self._engine is not None

    @property
    def engine(self) -> ServingEngine:
        """The engine; raises ApiError if the model only computes embeddings or scores."""
        if self._engine is None:
            other = "embeddings; try /v1/embeddings"
            if self.reranker is not None:
                other = "scores of texts; try /v1/rerank"
            raise ApiError(
                f"[serve] expected a model that generates text, got {self.name}, which computes "
                f"{other}",
                code="unsupported_model",
            )
        return self._engine

    @property
    def context(self) -> int:
        """The maximum number of tokens of a text."""
        lengths = [0 if self._engine is None else self._engine.length]
        lengths += [each.ctx for each in (self.embedder, self.reranker) if each is not None]
        return max(lengths)

    @cached_property
    def vocabulary(self) -> int:
        """The number of tokens that the model has logits for."""
        return self.model.hyper.vocabulary

    def limit_pictures(self, count: int, pixels: int, seconds: float) -> None:
        """Set the maximum number of pictures of a request, of pixels of a picture, and the time
        limit of decoding one.
        """
        self.encoder.rules = PictureRules(False, count, pixels, seconds)

    def encode_picture(self, picture: OpenedPicture) -> EncodedPicture:
        """Return a picture with the rows of its tokens; raise ApiError if the service is closed."""
        assert self.pictures is not None
        with self._picture_lock:
            if self._is_closed:
                raise server_closed()
            return self.pictures.encode(picture)

    def close(self) -> None:
        """Cancel all requests, free the KV cache, and end child processes."""
        self._is_closed = True
        self.grammars.close()
        if self._engine is not None:
            self._engine.close()
        for each in (self.embedder, self.reranker):
            if each is not None:
                each.close()
        if self.pictures is not None:
            with self._picture_lock:
                self.pictures.close()

    def check_name(self, name: str | None) -> None:
        """Raise ApiError unless a request's model is this one. No name selects it."""
        if name and name not in self.names:
            raise ApiError(
                f"[model] expected {' or '.join(self.names)}, got {name[:200]!r}",
                "model",
                status=404,
                code="model_not_found",
            )

    def prompt_of(self, prompt: str | Sequence[int], param: str) -> list[int]:
        """Return the tokens of a text prompt; check tokens.

        Names of control tokens in the text are parsed, as in the output of a chat template. The
        special token that texts begin with is added unless the text begins with its name.
        """
        if isinstance(prompt, str):
            self.check_size(prompt, param)
            bos = self.tokenizer.role("bos")
            names = self.tokenizer.vocabulary.tokens
            begun = bos is not None and prompt.startswith(names[bos])
            tokens = self.tokenizer.encode(prompt, special=True, bos=not begun)
        else:
            tokens = list(prompt)
            if tokens and max(tokens) >= self.vocabulary:
                raise ApiError(
                    f"[{param}] expected tokens from 0 to {self.vocabulary - 1}, got {max(tokens)}",
                    param,
                )
        return self.fitting(tokens, param)

    def fitting(self, tokens: list[int], param: str) -> list[int]:
        """Return the tokens of a prompt; raise ApiError unless they fit into the context."""
        length = self.engine.length
        if not tokens:
            raise ApiError(f"[{param}] expected a prompt of at least one token, got none", param)
        if len(tokens) > length:
            raise ApiError(
                f"[{param}] expected a prompt of at most {length} tokens, got {len(tokens)}; try a "
                "shorter prompt, or start the server with a larger --ctx-size",
                param,
                code="context_length_exceeded",
            )
        return tokens

    def check_size(self, text: str, param: str) -> None:
        """Raise ApiError if a text has too many bytes to fit into the context, whatever its tokens
        are.
        """
        length = self.context
        most = length * self._longest_token
        if len(text) > most:
            raise ApiError(
                f"[{param}] expected a text of at most {most} characters, which fit into "
                f"{length} tokens, got {len(text)}",
                param,
                code="context_length_exceeded",
            )

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self.tokenizer.vocabulary.tokens))

    def token_text(self, token: int) -> tuple[str, bytes]:
        """Return a token as text and bytes; the text of an incomplete character has a replacement
        character.
        """
        data = self.tokenizer.bytes_of(token, special=True)
        return data.decode("utf-8", "replace"), data
