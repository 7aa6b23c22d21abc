"""Random interleavings of requests, cancellations, losses and errors.

Each answer equals that of its request alone, and log-probabilities are equal to the bit, whatever
runs at the same time and whatever the cache holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from conftest import THOROUGH
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    precondition,
    rule,
)
from inline_engine import InlineEngine
from lone_answers import Answer, lone_answer, rounded, streamed_answer
from simulated_steps import SimulatedSteps

from vksched.generation.batching.token_stream import TokenStream
from vksched.generation.completion import CompletionRequest
from vksched.generation.sampling import Sampling

LENGTH, SIZES = 40, (1, 2, 4, 8)
STEM = tuple(i * 7 % 50 for i in range(33))
TAILS = ((), (1,), (2, 3, 4), (5,) * 7)
ENDS = frozenset(range(4))


@st.composite
def requests(draw: Callable[..., object]) -> CompletionRequest:
    """Prompts share prefixes of different lengths."""
    stem = STEM[: draw(st.sampled_from((1, 7, 8, 9, 16, 17, 31, 33)))]
    return CompletionRequest(
        stem + draw(st.sampled_from(TAILS)),
        draw(st.sampled_from((0, 1, 3, 9, 40))),
        draw(st.sampled_from((Sampling(temperature=0), Sampling(seed=3), Sampling(seed=4)))),
        logprobs=draw(st.sampled_from((None, 0, 2))),
        prompt_logprobs=draw(st.sampled_from((None, None, 1))),
        cache_key=draw(st.sampled_from(("", "", "a"))),
    )


def steps(slots: int = 1, decodes_ahead: bool = False) -> SimulatedSteps:
    sizes = {"chunk_sizes": SIZES, "row_counts": (1, 2)}
    return SimulatedSteps(slots, LENGTH, **sizes, decodes_ahead=decodes_ahead)  # type: ignore[arg-type]


@cache
def alone(request: CompletionRequest, losses: frozenset[int]) -> Answer:
    return rounded(lone_answer(steps(), request, ENDS, losses))


@cache
def bits_alone(request: CompletionRequest) -> Answer:
    """Return the answer of an engine with this request only."""
    return streamed_answer(InlineEngine(steps(), ends=ENDS).stream(request))


@dataclass(eq=False)
class Running:
    """A request. losses: the numbers of its tokens when the cache was lost. may_fail: it had a slot
    during a step that failed.
    """

    stream: TokenStream
    losses: set[int] = field(default_factory=set)
    may_fail: bool = False


class Interleavings(RuleBasedStateMachine):
    """An engine without a thread."""

    streams = Bundle("streams")

    @initialize(
        slots=st.sampled_from((1, 2, 3, 5)),
        cache_ram=st.sampled_from((0, 300, 10**6)),
        max_pause_s=st.sampled_from((0.0, 0.1, 10.0)),
    )
    def begin(self, slots: int, cache_ram: int, max_pause_s: float) -> None:
        options = {"cache_ram": cache_ram, "max_pause_s": max_pause_s, "max_queue": 99}
        self.engine = InlineEngine(steps(slots, decodes_ahead=True), ends=ENDS, **options)
        self.core = self.engine.core
        self.running: list[Running] = []
        self.fails = False

        def fail(number: int) -> None:
            if self.fails:
                self.fails = False
                raise RuntimeError("broken")

        self.engine.steps.before_call = fail

    def has_slot(self, running: Running) -> bool:
        return any(slot.state is running.stream._state for slot in self.core._scheduler.slots)

    def has_ended(self, running: Running) -> bool:
        state = running.stream._state
        return state not in self.core._scheduler.queue._waiting and not self.has_slot(running)

    def step(self) -> None:
        losses = self.core.counters().cache_losses
        self.core.step()
        if self.core.counters().cache_losses > losses:
            for running in filter(self.has_slot, self.running):
                running.losses.add(running.stream._state.generated)

    @rule(target=streams, request=requests())
    def submit(self, request: CompletionRequest) -> Running:
        self.running.append(Running(self.engine.stream(request)))
        return self.running[-1]

    @rule(count=st.integers(1, 12))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    @precondition(lambda self: self.core._steps.losses_in_row < 3)
    @rule(after=st.integers(0, 6))
    def lose(self, after: int) -> None:
        """Lose the cache at a later call."""
        self.engine.steps.lost_at = {self.engine.steps._calls + after}

    @rule()
    def fail(self) -> None:
        """Let the next call fail."""
        before = self.core.counters().finished.get("error", 0)
        self.fails = True
        self.step()
        self.fails = False
        for running in self.running:
            running.may_fail |= running.stream._state not in self.core._scheduler.queue._waiting
        failed = self.core.counters().finished.get("error", 0) - before
        assert failed <= (
            2 if "decode" in [entry[0] for entry in self.engine.steps.log[-2:]] else 1
        )

    @rule(running=consumes(streams))
    def close(self, running: Running) -> None:
        running.stream.close()
        assert list(running.stream) == []
        self.running.remove(running)

    @rule(running=consumes(streams))
    def drop(self, running: Running) -> None:
        self.running.remove(running)

    @rule(running=consumes(streams))
    def read(self, running: Running) -> None:
        """Run steps until a request has ended; check its answer."""
        while not self.has_ended(running):
            self.step()
        self.running.remove(running)
        try:
            answer = streamed_answer(running.stream)
        except Exception as error:
            assert running.may_fail
            assert "broken" in str(error)
            return
        request = running.stream.request
        assert rounded(answer) == alone(request, frozenset(running.losses))
        if not running.losses:
            assert answer == bits_alone(request)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for running in list(self.running):
            self.read(running)
        self.engine.run()
        counters = self.core.counters()
        assert (counters.running, counters.waiting) == (0, 0)
        assert not self.core._scheduler._prefilling
        host = self.core._scheduler.prefixes.host
        used = sum(entry.nbytes for entry in host.entries)
        assert used == counters.host_cache_bytes <= host.limit_bytes


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=200 if THOROUGH else 40, stateful_step_count=40, deadline=None
)
