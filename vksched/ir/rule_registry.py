"""RuleRegistry: one rule for each op, or the reason why it has none.

    @gradient("exp")                    no_gradient("gives positions", "argmax", "argmin")
    def exp_rule(call): ...

Examples: tests/ir/test_sharding_rules.py, tests/autograd/test_wrong_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ..common.errors import VkschedError

R = TypeVar("R")


class RuleRegistry(Generic[R]):
    """The rules of one kind, by op.

    Parameters
    ----------
    kind
        The kind of rule, for errors.

    Attributes
    ----------
    rules
        The rule of each op that has one.
    reasons
        The reasons of ops without a rule.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.rules: dict[str, R] = {}
        self.reasons: dict[str, str] = {}

    def declare(self, *ops: str) -> Callable[[R], R]:
        """Return a decorator that declares a function as the rule of ops."""

        def declare(rule: R) -> R:
            for op in ops:
                self._check_new(op)
                self.rules[op] = rule
            return rule

        return declare

    def exclude(self, reason: str, *ops: str) -> None:
        """Declare that ops have no rule.

        Parameters
        ----------
        reason
            A clause that follows the op's name, e.g. "gives positions".
        """
        for op in ops:
            self._check_new(op)
            self.reasons[op] = reason

    def _check_new(self, op: str) -> None:
        if op in self.rules or op in self.reasons:
            raise VkschedError(f"[{self._kind}] {op!r} has two rules")

    def get(self, op: str) -> R | None:
        """Return the rule of an op, or None."""
        return self.rules.get(op)

    def reason(self, op: str) -> str:
        """Return the reason why an op has no rule; "" if it has one or no reason is declared."""
        return self.reasons.get(op, "")
