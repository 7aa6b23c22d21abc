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
    "min_keep": (0,),
    "mirostat": (0,),
    "n_discard": (0,),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    "reasoning_budget": (-1,),
    "reasoning_format": ("auto", "deepseek"),
    "samplers": (),
    "t_max_predict_ms": (-1, 0),
    "thinking_budget_tokens": (-1,),
    "thinking_forced_open": (False,),
    "top_n_sigma": (-1, 0),
    "typ_p": (1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
    # vLLM
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template": (),
    "documents": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": (),
    "min_tokens": (0,),
    "prompt_logprobs": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    # SGLang and others
    "ebnf": (),
    "enable_thinking": (),
    "no_stop_trim": (False,),
    "regex": (),
    "separate_reasoning": (True,),
    "stop_regex": ([],),
    "thinking": (),
    "thinking_budget": (),
    "tfs_z": (1,),
    "top_a": (0,),
}
"""The values of each field that leave the answer as it is; null is one of all of them."""
NEUTRAL_OF_RERANK: dict[str, tuple[object, ...]] = {
    "max_chunks_per_doc": (),
    "max_tokens_per_doc": (),
    "rank_fields": ([],),
    "truncate": (False,),
    "truncate_prompt_tokens": (),
    "truncation": (False,),
}
"""These values of the fields of Cohere, Jina, Voyage and vLLM for /v1/rerank."""
INSTEAD = {
    "ebnf": "grammar",
    "enable_thinking": "chat_template_kwargs",
    "guided_grammar": "grammar",
    "guided_json": "response_format",
    "max_chunks_per_doc": "parts of the documents",
    "max_tokens_per_doc": "parts of the documents",
    "rank_fields": "documents that are texts",
    "regex": "grammar",
    "guided_regex": "grammar",
    "structured_outputs": "response_format or grammar",
    "thinking": "chat_template_kwargs",
    "truncate": "parts of the documents",
    "truncate_prompt_tokens": "parts of the documents",
    "truncation": "parts of the documents",
}
"""The fields that do what unsupported ones would do."""


def refuse_unsupported(
    value: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]] = NEUTRAL
) -> None:
    """Raise ApiError for the first unsupported field whose value changes the answer."""
    for name in neutral.keys() & value.keys():
        if value[name] is not None and value[name] not in neutral[name]:
            raise ApiError(
                f"[{name}] expected a request without this field, which this server does not "
                f"support; try {INSTEAD.get(name, 'without it')}",
                name,
                code="unsupported_parameter",
            )
