"""Call formats: the markers of tool calls and of reasoning, by model family.

A family is recognized by texts in its chat template, because names of models say little. The first
row whose texts are all in the template applies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from . import call_bodies, nested_bodies
from .call_bodies import Calls, Schemas
from .text_scanner import JSON_QUOTES, PYTHON_QUOTES, Quotes


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A format of tool calls.

    Parameters
    ----------
    name
        The name of the family.
    needles
        Texts of the chat template.
    markers
        Pairs of the text before and after calls; "" after calls that end with the answer.
    parse
        Parses the text between the markers.
    keeps_markers
        The parsed text includes the markers.
    is_bare
        An answer that is JSON has calls without markers.
    quotes
        The texts around a value, in which a marker is text; () if values have none.
    """

    name: str
    needles: tuple[str, ...]
    markers: tuple[tuple[str, str], ...]
    parse: Callable[[str, Schemas], Calls]
    keeps_markers: bool = False
    is_bare: bool = False
    quotes: Quotes = JSON_QUOTES


HARMONY = "gpt-oss"
SECTIONS = "functionary 3.2"

_TOOL_CALL = (("<tool_call>", "</tool_call>"),)
_FUNCTION = (("<function=", "</function>"),)
_LFM2 = CallFormat(
    "lfm2",
    ("<|tool_list_start|>",),
    (("<|tool_call_start|>", "<|tool_call_end|>"),),
    nested_bodies.parse_python_calls,
    quotes=PYTHON_QUOTES,
)

FORMATS = (
    CallFormat(HARMONY, ("<|channel|>analysis", "functions."), (), call_bodies.parse_json),
    CallFormat(
        "kimi k2",
        ("<|tool_calls_section_begin|>",),
        (("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),),
        call_bodies.parse_kimi,
    ),
    CallFormat(
        "deepseek",
        ("<｜tool▁calls▁begin｜>",),
        (("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),),
        call_bodies.parse_deepseek,
    ),
    CallFormat(
        "minimax m3",
        (nested_bodies.MINIMAX,),
        ((f"{nested_bodies.MINIMAX}<tool_call>", f"{nested_bodies.MINIMAX}</tool_call>"),),
        nested_bodies.parse_minimax,
        quotes=(),
    ),
    CallFormat(
        "gemma 4",
        ("<|tool_call>call:",),
        (("<|tool_call>", "<tool_call|>"),),
        nested_bodies.parse_gemma,
        quotes=((nested_bodies.GEMMA_QUOTE, nested_bodies.GEMMA_QUOTE),),
    ),
    _LFM2,
    CallFormat(
        "glm 4",
        ("<tool_call>", "<arg_key>"),
        _TOOL_CALL,
        call_bodies.parse_glm,
        quotes=(("<arg_value>", "</arg_value>"),),
    ),
    CallFormat(
        "qwen 3 coder",
        ("<function=", "<parameter="),
        (*_TOOL_CALL, *_FUNCTION),
        call_bodies.parse_xml,
        keeps_markers=True,
        quotes=(("<parameter=", "</parameter>"),),
    ),
    CallFormat("hermes", ("<tool_call>",), _TOOL_CALL, call_bodies.parse_json),
    CallFormat(
        "functionary 3.1",
        ("<function=",),
        _FUNCTION,
        call_bodies.parse_named_json,
        keeps_markers=True,
    ),
    CallFormat(SECTIONS, (">>>all", ">>>"), ((">>>", ">>>"),), call_bodies.parse_named_sections),
    CallFormat("mistral", ("[TOOL_CALLS]",), (("[TOOL_CALLS]", ""),), call_bodies.parse_mistral),
    CallFormat(
        "command r7b",
        ("<|START_ACTION|>",),
        (("<|START_ACTION|>", "<|END_ACTION|>"),),
        call_bodies.parse_json,
    ),
    CallFormat(
        "command r+",
        ("Action:", '"tool_name"', "```json"),
        (("Action:", ""),),
        call_bodies.parse_actions,
    ),
    CallFormat(
        "granite 3",
        ("<|tool_call|>",),
        (("<|tool_call|>", "<|/tool_call|>"),),
        call_bodies.parse_json,
    ),
    CallFormat("firefunction", (" functools[",), (("functools", ""),), call_bodies.parse_json),
    CallFormat(
        "llama 3",
        ("<|python_tag|>",),
        (("<|python_tag|>", ""),),
        call_bodies.parse_python_tag,
        is_bare=True,
    ),
    CallFormat(
        "llama 3.2",
        ('{"name": function name, "parameters"',),
        (("<|python_tag|>", ""),),
        call_bodies.parse_python_tag,
        is_bare=True,
    ),
    # plain text and a token of many families, so that the tokens of calls of others come first
    replace(_LFM2, name="lfm2.5", needles=("List of tools: [", "<|im_start|>")),
)

REASONING = (
    ("<think>", "</think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|channel>thought", "<channel|>"),
)
"""Pairs of markers around reasoning."""


def call_format_of(template: str) -> CallFormat | None:
    """Return the format of tool calls of a chat template; None if it is unknown."""
    return next((f for f in FORMATS if all(each in template for each in f.needles)), None)


def reasoning_of(template: str) -> tuple[str, str] | None:
    """Return the markers of reasoning of a chat template; None if it has none."""
    return next((pair for pair in REASONING if pair[0] in template or pair[1] in template), None)
