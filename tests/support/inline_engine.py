"""InlineEngine: an engine without a thread, whose steps a test counts."""

from __future__ import annotations

from typing import Any

from simulated_steps import SimulatedSteps

from vksched.generation.batching.engine_core import EngineCore
from vksched.generation.batching.token_stream import TokenStream
from vksched.generation.completion import CompletionRequest


class InlineEngine:
    """An engine over simulated steps; reading a stream runs them."""

    def __init__(self, steps: SimulatedSteps | None = None, **options: Any) -> None:
        self.steps = steps or SimulatedSteps()
        self.core = EngineCore(self.steps, clock=self.steps.clock, **options)

    def submit(self, prompt: Any, max_tokens: int = 6, **fields: Any) -> TokenStream:
        return self.stream(CompletionRequest(tuple(prompt), max_tokens, **fields))

    def stream(self, request: CompletionRequest) -> TokenStream:
        return TokenStream(self.core.submit(request), self, self.step)

    def step(self) -> bool:
        """Run a step."""
        self.core.wake.clear()
        return self.core.step()

    def run(self) -> int:
        """Run all steps; return their number."""
        count = 0
        while self.step():
            count += 1
        return count
