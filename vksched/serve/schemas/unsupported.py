"""Fields of other servers that change the answer and are not supported: an error names them,
because an answer that ignores them would look right. Their neutral values are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..api_error import ApiError

NEUTRAL: dict[str, tuple[object, ...]] = {
    # OpenAI
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
    # llama-server
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "lora": ([],),
    "mirostat": (0,),
    "n_discard": (0,),
    "samplers": (),
    "top_n_sigma": (-1, 0),
    "typical_p": (1,),
    "xtc_probability": (0,),
    # vLLM
    "allowed_token_ids": (),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "logits_processors": (),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""The values of each field that leave the answer as it is; null is one of all of them."""


def refuse_unsupported(value: Mapping[str, Any]) -> None:
    """Raise ApiError for the first unsupported field whose value changes the answer."""
    for name in NEUTRAL.keys() & value.keys():
        if value[name] is not None and value[name] not in NEUTRAL[name]:
            raise ApiError(
                f"[{name}] expected a request without this field, which this server does not "
                "support; try without it",
                name,
                code="unsupported_parameter",
            )
