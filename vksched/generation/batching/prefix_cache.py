"""PrefixCache: assigns requests to slots, and reuses the keys and values of their prefixes.

    request --assign--> slot: the one that already holds its prefix, an empty one, or the least
                        recently used one, whose prefix then moves to host memory
            --restore-> rows that another slot or the host holds, and the slot lacks, are copied

A request is assigned when a slot is free. Its prefix is searched for once its first chunk is due:
by then, an earlier request with the same prompt has computed it.

Exact reuse takes the rows that the same chunks computed, so an answer has the same bits with and
without it. The rows of decode steps, and prefixes that end within a chunk, are reused only if
`reuse_decoded` is set.

Recurrent states cannot be cut back to fewer tokens. A prefix is reused up to its last token, or up
to a checkpoint: a copy of the states in host memory. Checkpoints are taken at the ends of chunks:
after the last chunk that longer prompts share, and after about 1/2, 1/4 and 1/8 of its tokens.
`SlotCheckpoints` limits their size.

Examples: tests/generation/batching/test_prefix_reuse.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..completion import CompletionRequest
from ..step_runner import StepRunner
from .cached_prefix import MAX_CHECKPOINTS, CachedPrefix
from .chunk_grid import GRID, Chunk, chunk_grid
from .host_cache import HostCache
from .request_state import RequestState
from .slot import Slot
from .slot_checkpoints import SlotCheckpoints


class PrefixCache:
    """The prefixes in the slots and in host memory.

    Parameters
    ----------
    host_bytes
        The maximum size of prefixes and checkpoints in host memory; 0 stores no prefixes.
    reuse_decoded
        Also reuse rows that other steps computed than those of the request alone; the logits then
        differ by rounding.
    """

    def __init__(
        self, runner: StepRunner, slots: Sequence[Slot], host_bytes: int, reuse_decoded: bool
    ) -> None:
        self.host = HostCache(host_bytes)
        self._checkpoints = SlotCheckpoints(slots, self.host)
        self._runner = runner
        self._slots = slots
        self._reuse_decoded = reuse_decoded
        self._is_alone = reuse_decoded and len(slots) == 1

    @property
    def host_bytes(self) -> int:
        """The size of prefixes and checkpoints in host memory. Any thread may ask."""
        return self.host.used_bytes + self._checkpoints.nbytes

    def choose(self, state: RequestState) -> Slot:
        """Return an idle slot for a request; at least one is idle.

        The slot with the longest prefix is chosen if it loses fewer tokens than are reused.
        """
        idle = [slot for slot in self._slots if slot.state is None]
        chunks = self._chunks(state)
        best, reused = None, 0
        for slot in idle:
            match = self._match(slot.prefix, state, chunks)
            if match > reused and match >= self._reusable(slot.prefix) - match:
                best, reused = slot, match
        return best or min(idle, key=lambda s: (self._reusable(s.prefix) > 0, s.last_use))

    def assign(self, slot: Slot, state: RequestState) -> None:
        """Prepare a slot for its request: move to host memory what it does not reuse."""
        chunks, prefix = self._chunks(state), slot.prefix
        match, reusable = self._match(prefix, state, chunks), self._reusable(prefix)
        for entry in [e for e in self.host.entries if self._match(e.prefix, state, chunks) > match]:
            self.host.use(entry)  # not to be dropped for what this slot held
        if match < reusable:
            self._move_to_host(slot, prefix.first(reusable))
        self.truncate(slot, match)
        self._checkpoints.limit()
        prefix.cache_key = state.request.cache_key
        state.chunks = chunks[::-1]

    def _move_to_host(self, slot: Slot, idle: CachedPrefix) -> None:
        """Store a prefix of a slot, unless another slot has it, which then gets its checkpoints."""
        for other in self._slots:
            if other is not slot and idle.is_part_of(other.prefix):
                other.prefix.merge_checkpoints(idle)
                return
        if not self.host.limit_bytes:
            return
        if self._runner.is_recurrent and len(idle.tokens) not in idle.checkpoints:
            idle.add_checkpoint(self._runner.read_states(slot.index))
        self.host.add(idle, lambda tokens: self._runner.read_rows(slot.index, tokens))

    def truncate(self, slot: Slot, tokens: int) -> None:
        """Forget the tokens of a slot after the first ones, or after a checkpoint before them. An
        error leaves the slot empty.
        """
        prefix = slot.prefix
        if self._runner.is_recurrent and tokens < len(prefix.tokens):
            tokens = prefix.states_before(tokens)
            if tokens:
                try:
                    states = prefix.checkpoints[tokens].states
                    self._runner.write_states(slot.index, states, tokens)
                except BaseException:
                    prefix.clear()
                    raise
        prefix.truncate(tokens)

    def add_checkpoint(self, slot: Slot, state: RequestState, chunk: Chunk) -> None:
        """Store the recurrent states after a chunk if longer prompts may need them."""
        is_possible = self._runner.is_recurrent and self._checkpoints.allows_any
        if is_possible and chunk.end in self._checkpoint_ends(state):
            self._checkpoints.add(slot, self._runner.read_states(slot.index))

    def _checkpoint_ends(self, state: RequestState) -> set[int]:
        """Return the ends of the chunks of a prompt after which states are stored."""
        if not state.reuses_prefixes:
            return set()
        prompt, size = len(state.request.prompt), min(GRID, self._runner.chunk_sizes[-1])
        chunks = self._grid(state, 0, prompt)
        ends = [chunk.end for chunk in chunks if self._reuse_decoded or chunk.count >= size]
        if not ends:
            return set()
        wanted = (ends[-1] >> half for half in range(MAX_CHECKPOINTS))
        return {max((end for end in ends if end <= each), default=0) for each in wanted}

    def restore(self, slot: Slot, state: RequestState) -> None:
        """Copy the longest known prefix of a request to its slot; set the chunks that remain."""
        chunks = self._chunks(state)
        self._copy_longest(slot, state, chunks)
        reused = len(slot.prefix.tokens)
        state.cached_tokens = max(state.cached_tokens, min(reused, len(state.request.prompt)))
        if self._reuse_decoded and reused:
            chunks = self._grid(state, reused, len(state.text))
        state.chunks = [chunk for chunk in reversed(chunks) if chunk.start >= reused]

    def _copy_longest(self, slot: Slot, state: RequestState, chunks: list[Chunk]) -> None:
        present = reused = len(slot.prefix.tokens)
        source = entry = None
        for other in self._slots:
            if other is not slot and (match := self._match(other.prefix, state, chunks)) > reused:
                reused, source = match, other
        for each in self.host.entries:
            if (match := self._match(each.prefix, state, chunks)) > reused:
                reused, entry = match, each
        if entry is not None:
            slot.prefix.clear()  # an error leaves the slot without valid rows
            self._runner.write_rows(slot.index, entry.rows, present)
            if self._runner.is_recurrent:
                states = entry.prefix.checkpoints[reused].states
                self._runner.write_states(slot.index, states, reused)
            self.host.use(entry)
            slot.prefix = entry.prefix.first(reused)
        elif source is not None:
            slot.prefix.clear()
            self._runner.copy_rows(source.index, slot.index, reused, present)
            if self._runner.is_recurrent:
                stored = source.prefix.checkpoints.get(reused)
                states = stored.states if stored else self._runner.read_states(source.index)
                self._runner.write_states(slot.index, states, reused)
            slot.prefix = source.prefix.first(reused)

    def reusable_tokens(self, request: CompletionRequest) -> int:
        """Return the number of prompt tokens that a request may find. Any thread may call it, so it
        is an estimate.
        """
        if request.prompt_logprobs is not None:
            return 0
        prefixes = [slot.prefix for slot in self._slots]
        prefixes += [entry.prefix for entry in tuple(self.host.entries)]
        prompt, key = list(request.prompt), request.cache_key
        matches = (min(p.token_match(prompt, key), self._reusable_part(p)) for p in prefixes)
        if self._runner.is_recurrent:
            matches = (p.states_before(n) for p, n in zip(prefixes, matches, strict=True))
        return max(matches, default=0)

    def _reusable_part(self, prefix: CachedPrefix) -> int:
        if self._reuse_decoded:
            return len(prefix.tokens)
        chunks = list(prefix.chunks)  # the engine's thread may change them meanwhile
        return chunks[-1].end if chunks else 0

    def clear(self) -> None:
        """Forget all prefixes."""
        for slot in self._slots:
            slot.prefix.clear()
        self.host.clear()

    def _match(self, prefix: CachedPrefix, state: RequestState, chunks: list[Chunk]) -> int:
        """Return the number of tokens of a prefix that a request can reuse."""
        if not state.reuses_prefixes:
            return 0
        key = state.request.cache_key
        if self._reuse_decoded:
            match = prefix.token_match(state.text, key)
            if state.pictures is not None:
                match = state.pictures.readable_before(match)
        else:
            match = prefix.exact_match(state.text, chunks, key)
        return prefix.states_before(match) if self._runner.is_recurrent else match

    def _reusable(self, prefix: CachedPrefix) -> int:
        """Return the number of tokens of a prefix that a longer prompt could reuse."""
        if self._reuse_decoded:
            return len(prefix.tokens)
        shared = prefix.tokens_in_full_chunks(min(GRID, self._runner.chunk_sizes[-1]))
        return prefix.states_before(shared) if self._runner.is_recurrent else shared

    def _chunks(self, state: RequestState) -> list[Chunk]:
        """Return the chunks of a request's prompt, and of its answer if it must be read again."""
        prompt = len(state.request.prompt)
        chunks = self._grid(state, 0, prompt, not state.reuses_prefixes)
        return chunks + self._grid(state, prompt, len(state.text))

    def _grid(
        self, state: RequestState, start: int, end: int, all_logits: bool = False
    ) -> list[Chunk]:
        """Return the chunks of a part of a text. None has both text and a picture."""
        length, sizes = self._runner.length, self._runner.chunk_sizes
        how = length, sizes, all_logits, self._is_alone
        if state.pictures is None:
            return chunk_grid(start, end, *how)
        chunks: list[Chunk] = []
        for part in state.pictures.parts(start, end):
            if part.is_whole:
                chunks.append(Chunk(part.start, part.end - part.start))
            else:
                chunks += chunk_grid(part.start, part.end, *how)
        return chunks
