"""Expert routing: how a model chooses the experts of a token."""

from __future__ import annotations

from dataclasses import dataclass

from ....common.errors import ModelFormatError
from .metadata_keys import MetadataKeys

GATINGS = {1: "softmax", 2: "sigmoid", 3: "softmax"}
"""Functions of scores by the numbers in files; 3 is the softmax over the chosen experts' scores,
which equals the softmax over all with weights of sum 1.
"""
CHOSEN_ONLY = 3


@dataclass(frozen=True)
class ExpertRouting:
    """How a model chooses the experts of a token. gating: the function of scores, "softmax" or
    "sigmoid". norm: the weights of the chosen experts are normalized to sum 1. groups,
    groups_used: experts are chosen from the best `groups_used` of `groups` groups of equal size.
    """

    gating: str = "softmax"
    norm: bool = True
    groups: int = 1
    groups_used: int = 1


def read_expert_routing(keys: MetadataKeys, experts: int, used: int) -> ExpertRouting:
    """Return the routing of a file with `experts` experts, of which `used` are active.

    Raises
    ------
    ModelFormatError
        A key is invalid, or the best groups have fewer experts than are active.
    """
    if not experts:
        return ExpertRouting()
    gating = keys.whole("expert_gating_func", 1, minimum=1, maximum=max(GATINGS))
    groups = keys.whole("expert_group_count", 1, minimum=0, maximum=experts) or 1
    groups_used = keys.whole("expert_group_used_count", groups, minimum=0, maximum=groups) or groups
    if experts % groups or experts // groups * groups_used < used:
        raise ModelFormatError(
            f"[gguf] keys '{keys.architecture}.expert_group_count' and '.expert_group_used_count': "
            f"expected equal groups of the {experts} experts with at least the {used} active ones "
            f"in the best groups, got {groups_used} of {groups} groups"
        )
    norm = keys.flag("expert_weights_norm", True) or gating == CHOSEN_ONLY
    return ExpertRouting(GATINGS[gating], norm, groups, groups_used)
