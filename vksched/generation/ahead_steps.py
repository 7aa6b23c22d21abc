"""AheadSteps: decode steps of one sequence that are submitted before the host knows their token.

    token --ids, first step--> step --logits--> argmax --token--> host
                                ^                  |
                                '--state on device-'    the next step reads it there

The device draws the most likely token itself, as `Sampling` does with temperature 0, so that it has
the next step when one ends. A step that turns out to be one too many wrote a row behind those of
the text, which is overwritten.

There are none with recurrent states, which cannot be cut back, nor with positions that differ from
indices, nor for CPU drivers, which need the cores of the host.

Examples: tests/generation/test_ahead_steps.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..common.dtypes import FLOAT32, INT32, NDArray
from ..common.errors import OutOfMemory
from ..engine.executable import CompiledGraph
from ..importers.gguf.model import LanguageModel
from ..ir.tensor import Tensor, input
from ..ops.creation.state import state
from ..ops.elementwise.binary import equal
from ..ops.elementwise.select import cast, where
from ..ops.layout.reshape import concat, reshape
from ..ops.reduction.arg_reduce import argmax
from ..ops.reduction.reduce import reduce_max, reduce_min
from .compiled_steps import CompiledSteps

Take = Callable[[int], bool]
"""Gets each token; returns False if no further one is needed."""


class AheadSteps:
    """The greedy decode steps over the KV cache of compiled steps.

    is_wanted: None for GPUs that are no CPU drivers.
    """

    def __init__(self, steps: CompiledSteps, is_wanted: bool | None = None) -> None:
        self._steps = steps
        self._is_wanted = is_wanted
        self._token: Tensor | None = None
        self._run: CompiledGraph | None = None
        self.is_due = False
        """True if the steps were compiled and freed, so that they should be compiled again."""

    @property
    def is_ready(self) -> bool:
        """True if the steps are compiled, and can be submitted ahead."""
        return self._run is not None

    def prepare(self, decode: CompiledGraph) -> None:
        """Compile the steps, if steps as `decode` can be submitted ahead, and there is memory."""
        self.is_due = False
        try:
            self._prepare(decode)
        except OutOfMemory:
            self._free()

    def _prepare(self, decode: CompiledGraph) -> None:
        steps, plan = self._steps, decode.plan
        spec = plan.topology.devices[plan.splits[0].device]
        is_wanted = not spec.limits.software if self._is_wanted is None else self._is_wanted
        is_able = plan.commits_early and not steps.model.is_recurrent and not steps.scales_rows
        is_able = is_able and not steps.is_shifted
        if not is_wanted or not is_able or self._run is not None:
            return
        rows = None if steps.slots == 1 else 1
        first, bounds = np.zeros((1, 1), np.int32), _bounds(steps.model)
        self._token = state(first, "next_token", bounds=bounds, backup=False)
        found, updates = _greedy_step(steps, self._token, rows)
        self._run = steps.scheduler.compile(
            found, steps.placement, updates=updates, precision=steps.precision, ahead=True
        )
        self._run.disable_overflow_check()
        if not self._run.may_run_ahead:
            self._free()

    def decode(self, slot: int, token: int, start: int, count: int, take: Take) -> NDArray | None:
        """Append a token to a slot that holds `start` tokens, and then up to `count` - 1 of those
        that follow, until `take` returns False or the logits are not finite. Return the largest
        and the least logit after the last token; None if no step ended.
        """
        assert self._run is not None
        last: NDArray | None = None
        slots = {} if self._steps.slots == 1 else {"slot": np.array([slot], np.int32)}

        def feeds() -> Iterator[dict[str, Any]]:
            for number in range(count):
                yield {
                    "ids": np.array([[token if number == 0 else 0]], np.int32),
                    "known": np.array([[number == 0]], np.int32),
                    "start": _row(start + number, slots),
                    "count": _row(1, slots),
                    **slots,
                }

        def take_finite(result: Any) -> bool:
            nonlocal last
            last = np.asarray(result)[1:]
            return bool(np.isfinite(last).all()) and take(int(result[0]))

        self._run.run_ahead(feeds(), take_finite)
        return last

    def forget(self) -> None:
        """Free the steps; they are due if they were compiled."""
        self.is_due = self.is_due or self.is_ready
        self._free()

    def _free(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()
        if self._token is not None:
            self._steps.scheduler.delete_state(self._token)
            self._token = None


def _row(value: int, slots: dict[str, NDArray]) -> NDArray:
    return np.array([value] if slots else value, np.int32)


def _bounds(model: LanguageModel) -> tuple[int, int]:
    return 0, model.hyper.vocabulary - 1


def _greedy_step(
    steps: CompiledSteps, previous: Tensor, rows: int | None
) -> tuple[Tensor, dict[Tensor, Tensor]]:
    """Return the token after a step, with the largest and the least logit, as float32, which has
    all tokens exactly; and the updates. previous: the state with the token of the step before.
    """
    ids = input("ids", (1, 1), INT32, bounds=_bounds(steps.model))
    known = input("known", (1, 1), INT32, bounds=(0, 1))
    ids = where(equal(known, 1), ids, previous)
    step = steps.model.step(steps.cache, 1, rows=rows, ids=ids)
    logits = reshape(step.logits, (steps.model.hyper.vocabulary,))
    token = cast(argmax(logits, 0, keepdims=True), INT32)
    found = concat([cast(token, FLOAT32), *(f(logits, 0, True) for f in (reduce_max, reduce_min))])
    return found, {**step.updates, previous: reshape(token, (1, 1))}
