"""Answers of model families, as they would write them, cut at every position."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest

from vksched.generation.conversation.messages import normalize_tools
from vksched.generation.tool_calls.answer_parser import Parser, answer_parser
from vksched.generation.tool_calls.answer_parts import (
    AnswerPart,
    ContentDelta,
    ReasoningDelta,
    ToolCall,
    new_call_id,
)
from vksched.generation.tool_calls.call_formats import FORMATS, call_format_of
from vksched.generation.tool_calls.nested_bodies import MINIMAX

PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "hours": {"type": "array"}}
TOOLS = normalize_tools(
    [
        {"function": {"name": "weather", "parameters": {"properties": PROPERTIES}}},
        {"function": {"name": "time"}},
    ]
)
HERMES = "{% if tools %}<tool_call>{% endif %}<think>"
TEMPLATES = {each.name: " ".join(each.needles) for each in FORMATS}
C, R = ContentDelta, ReasoningDelta


def weather(**arguments: object) -> ToolCall:
    return ToolCall("weather", json.dumps(arguments, ensure_ascii=False))


N = MINIMAX
PARIS, OSLO = weather(city="Paris"), weather(city="Oslo <&> \n", days=2)
TIME = ToolCall("time", "{}")
CALL_1 = '{"name": "weather", "arguments": {"city": "Paris"}}'
CALL_2 = '{"name": "weather", "arguments": {"city": "Oslo <&> \\n", "days": 2}}'
ANSWERS: list[tuple[str, str, list[AnswerPart]]] = [
    ("hermes", f"<tool_call>\n{CALL_1}\n</tool_call>", [PARIS]),
    (
        "hermes",
        f"I look.\n<tool_call>\n{CALL_1}\n</tool_call>\n<tool_call>{CALL_2}</tool_call>\n",
        [C("I look."), PARIS, OSLO],
    ),
    ("hermes", '<tool_call>{"name": "time"}</tool_call> Done. ', [TIME, C("Done. ")]),
    ("hermes", f"<tool_call>\n{CALL_1}", [PARIS]),
    ("hermes", f"<tool_call>[{CALL_1}, {CALL_2}]</tool_call>", [PARIS, OSLO]),
    ("hermes", "<tool_call>no call</tool_call> a", [C("<tool_call>no call</tool_call> a")]),
    ("hermes", '<tool_call>{"name": "x"', [C('<tool_call>{"name": "x"')]),
    ("hermes", "a < b, <tool is\n", [C("a < b, <tool is\n")]),
    ("hermes", CALL_1, [C(CALL_1)]),
    (
        "hermes",
        '<tool_call>{"name": "time", "arguments": {"a": "</tool_call>"}}</tool_call>',
        [ToolCall("time", '{"a": "</tool_call>"}')],
    ),
    (
        "qwen 3 coder",
        "Well.\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo <&> \n\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        [C("Well."), OSLO],
    ),
    (
        "qwen 3 coder",
        "<tool_call><function=weather><parameter=city>7</parameter><parameter=hours>[1, 2]"
        "</parameter></function></tool_call><tool_call><function=time></function></tool_call>",
        [weather(city="7", hours=[1, 2]), TIME],
    ),
    (
        "qwen 3 coder",
        "<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
        [PARIS],
    ),
    (
        "glm 4",
        "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo <&> \n</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call><tool_call>time\n"
        "</tool_call>",
        [OSLO, TIME],
    ),
    (
        "minimax m3",
        f'Well.{N}<tool_call>\n{N}<invoke name="weather">{N}<city>Oslo <&> \n{N}</city>'
        f'{N}<days>2{N}</days>{N}</invoke>\n{N}<invoke name="time">{N}</invoke>\n{N}</tool_call>',
        [C("Well."), OSLO, TIME],
    ),
    (
        "minimax m3",
        f'{N}<tool_call>{N}<invoke name="weather">{N}<city>7{N}</city>{N}<hours>{N}<item>1{N}'
        f"</item>{N}<item>{N}<a>x{N}</a>{N}<a2>{N}<item>true{N}</item>{N}</a2>{N}</item>{N}</hours>"
        f"{N}</invoke>{N}</tool_call> Done.",
        [weather(city="7", hours=[1, {"a": "x", "a2": [True]}]), C("Done.")],
    ),
    (
        "minimax m3",
        f'{N}<tool_call>{N}<invoke name="time">{N}<a>{N}</invoke>{N}</tool_call>',
        [C(f'{N}<tool_call>{N}<invoke name="time">{N}<a>{N}</invoke>{N}</tool_call>')],
    ),
    (
        "gemma 4",
        'Hm. <|tool_call>call:weather{city:<|"|>Oslo <&> \n<|"|>,days:2}<tool_call|>'
        "<|tool_call>call:time{}<tool_call|>",
        [C("Hm."), OSLO, TIME],
    ),
    (
        "gemma 4",
        '<|tool_call>call:weather{hours:[1,-2.5,{a b:<|"|>}<tool_call|>, "<|"|>,<|"|>c:d<|"|>:'
        "[true,null]}],x:None}<tool_call|>",
        [weather(hours=[1, -2.5, {"a b": '}<tool_call|>, "', "c:d": [True, None]}], x=None)],
    ),
    (
        "gemma 4",
        "<|tool_call>call:time{a:1<tool_call|>",
        [C("<|tool_call>call:time{a:1<tool_call|>")],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[weather(city='Oslo <&> \\n', days=2), time()]<|tool_call_end|>Done.",
        [OSLO, TIME, C("Done.")],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[weather(city='<|tool_call_end|>', hours=[True, {'a': null}])]"
        "<|tool_call_end|>",
        [weather(city="<|tool_call_end|>", hours=[True, {"a": None}])],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[weather(city=open('x'))]<|tool_call_end|>",
        [C("<|tool_call_start|>[weather(city=open('x'))]<|tool_call_end|>")],
    ),
    (
        "command r+",
        'I will look.\nAction:\n```json\n[\n    {\n        "tool_name": "weather",\n'
        '        "parameters": {"city": "Paris"}\n    }\n]```',
        [C("I will look."), PARIS],
    ),
    (
        "command r+",
        'Action:```json\n[{"tool_name": "directly-answer", "parameters": {}}]\n```',
        [],
    ),
    (
        "command r+",
        'Action:```json\n[{"tool_name": "directly-answer", "parameters": {}},'
        ' {"tool_name": "time", "parameters": {}}]\n```',
        [TIME],
    ),
    ("lfm2.5", "<|tool_call_start|>[time()]<|tool_call_end|>Done.", [TIME, C("Done.")]),
    ("command r+", "Action: go.", [C("Action: go.")]),
    ("mistral", f"[TOOL_CALLS][{CALL_1}, {CALL_2}]", [PARIS, OSLO]),
    ("mistral", 'So. [TOOL_CALLS]weather[ARGS]{"city": "Paris"}', [C("So."), PARIS]),
    (
        "mistral",
        '[TOOL_CALLS]weather[CALL_ID]a1[ARGS]{"city": "Paris"}[TOOL_CALLS]time[ARGS]{}',
        [PARIS, TIME],
    ),
    ("mistral", "[TOOL_CALLS]", [C("[TOOL_CALLS]")]),
    ("llama 3", '{"name": "weather", "parameters": {"city": "Paris"}}', [PARIS]),
    ("llama 3", f"\n {CALL_1}; {CALL_2}", [PARIS, OSLO]),
    (
        "llama 3",
        '{"name": "unknown", "parameters": {}}',
        [C('{"name": "unknown", "parameters": {}}')],
    ),
    ("llama 3", '{"a": [1, 2', [C('{"a": [1, 2')]),
    ("llama 3", f"<|python_tag|>{CALL_1}", [PARIS]),
    ("llama 3", '<|python_tag|>weather.call(city="Paris")', [PARIS]),
    ("llama 3", "<|python_tag|>print(1)", [C("<|python_tag|>print(1)")]),
    ("llama 3", f"Use {CALL_1}", [C(f"Use {CALL_1}")]),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>'
        "time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [PARIS, TIME],
    ),
    (
        "deepseek",
        'Hm. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [C("Hm."), PARIS],
    ),
    (
        "kimi k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>'
        "functions.time:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        [PARIS, TIME],
    ),
    (
        "functionary 3.1",
        'I look.<function=weather>{"city": "Paris"}</function><function=time>{}</function>',
        [C("I look."), PARIS, TIME],
    ),
    (
        "command r7b",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": '
        '{"city": "Paris"}}]<|END_ACTION|>',
        [PARIS],
    ),
    ("granite 3", f"<|tool_call|>[{CALL_1}]", [PARIS]),
    ("firefunction", f"functools[{CALL_1}, {CALL_2}]", [PARIS, OSLO]),
    (
        "gpt-oss",
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}',
        [R("Look it up."), PARIS],
    ),
    (
        "gpt-oss",
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>',
        [PARIS],
    ),
    (
        "gpt-oss",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b < c",
        [R("a"), C("b < c")],
    ),
    ("gpt-oss", "plain", [C("plain")]),
]
SECTIONS: list[tuple[str, list[AnswerPart]]] = [
    ('weather\n{"city": "Paris"}', [PARIS]),
    ('all\nI look.\n>>>weather\n{"city": "Paris"}>>>time\n{}', [C("I look."), PARIS, TIME]),
    ("all\na >> b\n", [C("a >> b\n")]),
    ("no section", [C(">>>no section")]),
]


def parts_of(parser: Parser, pieces: Sequence[str]) -> list[AnswerPart]:
    """Return the parts of an answer, with texts of one kind in a row as one."""
    found: list[AnswerPart] = []
    for part in [part for piece in pieces for part in parser.add(piece)] + parser.end():
        last = found[-1] if found else None
        if isinstance(part, ContentDelta) and isinstance(last, ContentDelta):
            found[-1] = ContentDelta(last.text + part.text)
        elif isinstance(part, ReasoningDelta) and isinstance(last, ReasoningDelta):
            found[-1] = ReasoningDelta(last.text + part.text)
        else:
            found.append(part)
    return found


def check_all_cuts(
    template: str, answer: str, expected: list[AnswerPart], prompt_end: str = "", tools: bool = True
) -> None:
    def parser() -> Parser:
        return answer_parser(template, TOOLS if tools else None, prompt_end=prompt_end)

    assert parts_of(parser(), [answer]) == expected
    assert parts_of(parser(), list(answer)) == expected
    for cut in range(1, len(answer)):
        assert parts_of(parser(), [answer[:cut], answer[cut:]]) == expected


@pytest.mark.parametrize(("family", "answer", "expected"), ANSWERS)
def test_calls_are_found_however_the_answer_is_cut(
    family: str, answer: str, expected: list[AnswerPart]
) -> None:
    check_all_cuts(TEMPLATES[family], answer, expected)


@pytest.mark.parametrize(("answer", "expected"), SECTIONS)
def test_sections_are_calls_and_content(answer: str, expected: list[AnswerPart]) -> None:
    check_all_cuts(TEMPLATES["functionary 3.2"], answer, expected, "assistant\n\n>>>")


def test_every_family_has_an_answer() -> None:
    families = {family for family, _, _ in ANSWERS} | {"functionary 3.2", "llama 3.2"}
    assert families == set(TEMPLATES)


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize(
    ("answer", "prompt_end", "expected"),
    [
        ("<think>\nSo it is.\n</think>\n\nYes. ", "", [R("So it is."), C("Yes. ")]),
        ("So it is.\n</think>\n\nYes.", "<think>\n", [R("So it is."), C("Yes.")]),
        ("So it", "<think>\n", [R("So it")]),
        ("<think>\n\n</think>\n\nYes.", "", [C("Yes.")]),
        (" Yes < no", "", [C(" Yes < no")]),
        ("\n ", "", [C("\n ")]),
        ("</think>\n\nYes.", "", [C("Yes.")]),
        ("So </think> so.", "", [C("So </think> so.")]),
        ("</think></think>", "", [C("</think>")]),
    ],
)
def test_reasoning_is_apart_from_content(
    answer: str, prompt_end: str, expected: list[AnswerPart], tools: bool
) -> None:
    check_all_cuts(HERMES, answer, expected, prompt_end, tools)
    check_all_cuts("<think>" + TEMPLATES["llama 3"], answer, expected, prompt_end, tools)


def test_calls_follow_reasoning() -> None:
    answer = f"<think>a</think>\n<tool_call>{CALL_1}</tool_call>"
    check_all_cuts(HERMES, answer, [R("a"), PARIS])


def test_without_tools_calls_are_content() -> None:
    answer = f"<tool_call>{CALL_1}</tool_call>"
    check_all_cuts(HERMES, answer, [C(answer)], tools=False)
    check_all_cuts("no format", answer, [C(answer)])


def test_text_is_emitted_as_it_arrives() -> None:
    parser = answer_parser(HERMES, TOOLS)
    assert parser.add("Hello you <to") == [C("Hello you")]
    assert parser.add("y>") == [C(" <toy>")]
    assert parser.add(f" x <tool_call>{CALL_1}</tool") == [C(" x")]
    assert parser.add("_call>") == [PARIS]
    assert parser.end() == []


def test_ids_of_calls_are_those_that_mistrals_templates_take() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100 and all(len(each) == 9 and each.isalnum() for each in ids)


@pytest.mark.parametrize(
    ("family", "answer", "expected"),
    [
        ("hermes", '<tool_call>{"name": "time", "arguments": {"a": "\\ud83d"}}</tool_call>',
         [ToolCall("time", '{"a": "\\ud83d"}')]),
        ("hermes", '<tool_call>{"name": "\\ud83d"}</tool_call>',
         [C('<tool_call>{"name": "\\ud83d"}</tool_call>')]),
        ("hermes", '<tool_call>{"name": "time", "arguments": {"a": NaN}}</tool_call>',
         [C('<tool_call>{"name": "time", "arguments": {"a": NaN}}</tool_call>')]),
        ("hermes", '<tool_call>{"name": "time", "arguments": {"a": 1e999}}</tool_call>',
         [C('<tool_call>{"name": "time", "arguments": {"a": 1e999}}</tool_call>')]),
        ("glm 4", "<tool_call>weather<arg_key>days</arg_key><arg_value>1e999</arg_value>"
         "<arg_key>hours</arg_key><arg_value>NaN</arg_value></tool_call>",
         [weather(days="1e999", hours="NaN")]),
        ("llama 3", "<|python_tag|>weather.call(city={1})",
         [C("<|python_tag|>weather.call(city={1})")]),
        ("llama 3", "<|python_tag|>weather.call(city=1e999)",
         [C("<|python_tag|>weather.call(city=1e999)")]),
        ("llama 3", "<|python_tag|>weather.call(**{})", [C("<|python_tag|>weather.call(**{})")]),
    ],
)  # fmt: skip
def test_arguments_are_json_that_can_be_encoded(
    family: str, answer: str, expected: list[AnswerPart]
) -> None:
    parts = parts_of(answer_parser(TEMPLATES[family], TOOLS), [answer])
    assert parts == expected
    for part in parts:
        if isinstance(part, ToolCall):
            part.arguments.encode()
            json.loads(part.arguments, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("family", "answer", "expected"),
    [
        ("hermes", f"<tool_call>no call</tool_call> <tool_call>{CALL_1}</tool_call>",
         [C("<tool_call>no call</tool_call>"), PARIS]),
        ("hermes", '<tool_call>{"name": "time", "arguments": {"a": "\\\\\\"</tool_call>"}}'
         "</tool_call>", [ToolCall("time", '{"a": "\\\\\\"</tool_call>"}')]),
        ("qwen 3 coder", "<function=weather><parameter=city></function></parameter></function>",
         [weather(city="</function>")]),
        ("qwen 3 coder", "<tool_call><function=weather><parameter=city></tool_call></parameter>"
         "</function></tool_call>", [weather(city="</tool_call>")]),
        ("glm 4", "<tool_call>weather<arg_key>city</arg_key><arg_value></tool_call></arg_value>"
         "</tool_call>", [weather(city="</tool_call>")]),
        ("functionary 3.1", '<function=weather>{"city": "</function>"}</function>',
         [weather(city="</function>")]),
        *(("lfm2", f"<|tool_call_start|>[weather(city={city!r})]<|tool_call_end|>ok",
           [weather(city=city), C("ok")])
          for city in ("it's fine", "a <|tool_call_end|> b", "it's <|tool_call_end|>", 'a "<|tool_'
                       'call_end|>', "'\"<|tool_call_end|>\\", "")),
        ("lfm2", "<|tool_call_start|>[weather(city=\"it's <|tool_call_end|>\\\" '\")]"
         "<|tool_call_end|>ok", [weather(city="it's <|tool_call_end|>\" '"), C("ok")]),
        ("lfm2", '<|tool_call_start|>[weather(city="a <|tool_call_end|> b", days=2)]'
         "<|tool_call_end|>", [weather(city="a <|tool_call_end|> b", days=2)]),
        ("lfm2", '<|tool_call_start|>[weather(city="""a "<|tool_call_end|>" it\'s""")]'
         "<|tool_call_end|>", [weather(city='a "<|tool_call_end|>" it\'s')]),
    ],
)  # fmt: skip
def test_markers_in_values_are_text(family: str, answer: str, expected: list[AnswerPart]) -> None:
    check_all_cuts(TEMPLATES[family], answer, expected)


@pytest.mark.parametrize("family", ["hermes", "granite 3", "llama 3", "mistral"])
def test_a_sentence_about_tools_does_not_select_a_family(family: str) -> None:
    template = f"<|im_start|>List of tools: [{TEMPLATES[family]}"
    found = call_format_of(template)
    assert found is not None and found.name == family
    assert call_format_of("List of tools: [") is None


ITEMS = f"{N}<item>1{N}</item>{N}<item>2{N}</item>"
ITEM = {"type": "object", "properties": {"n": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": ["array", "null"]}, ITEMS, [1, 2]),
        ({"type": ["null", "array"], "items": {"type": "string"}}, ITEMS, ["1", "2"]),
        ({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
         ITEMS, ["1", "2"]),
        ({}, ITEMS, [1, 2]),
        ({"type": "object"}, f"{N}<item>1{N}</item>", {"item": 1}),
        ({"type": ["object", "null"]}, f"{N}<item>1{N}</item>", {"item": 1}),
        ({"oneOf": [{"type": "null"}, ITEM]}, f"{N}<n>7{N}</n>", {"n": "7"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "7", "7"),
        ({"type": "array"}, "", []),
        ({"type": ["array", "null"]}, "\n", []),
        ({"type": "object"}, "", {}),
        ({"anyOf": [{"type": "null"}, ITEM]}, "", {}),
        ({"type": "string"}, "", ""),
        ({"type": ["array", "string"]}, "", ""),
        ({}, "", ""),
    ],
)  # fmt: skip
def test_types_of_a_schema_decide_between_lists_and_objects(
    schema: dict[str, object], text: str, expected: object
) -> None:
    parameters = {"properties": {"a": schema}}
    tools = normalize_tools([{"function": {"name": "f", "parameters": parameters}}])
    answer = f'{N}<tool_call>{N}<invoke name="f">{N}<a>{text}{N}</a>{N}</invoke>{N}</tool_call>'
    parts = parts_of(answer_parser(TEMPLATES["minimax m3"], tools), [answer])
    assert parts == [ToolCall("f", json.dumps({"a": expected}))]


REPEATED = {
    "glm 4": ("<tool_call>f", "<arg_key></arg_key><arg_value>", ""),
    "qwen 3 coder": ("<function=a>", "<parameter=a>", "</function>"),
    "qwen 3 coder, functions": ("<tool_call>", "<function=a>", "</tool_call>"),
    "functionary 3.1": ("<function=a>", "[1]</function>", ""),
    "hermes": ('<tool_call>{"name": "f", "arguments": {"a": "', "</tool_call>", '"}}</tool_call>'),
    "hermes, escapes": ('<tool_call>"', "\\" * 99 + "</tool_call>", ""),
    "hermes, lists": ("<tool_call>", "[]", "</tool_call>"),
    "deepseek": ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name", " ", "x<｜tool▁calls▁end｜>"),
    "deepseek, name": ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "a", "<｜tool▁calls▁end｜>"),
    "kimi k2": ("<|tool_calls_section_begin|><|tool_call_begin|>a", ":1", "!"),
    "mistral": ("[TOOL_CALLS]", "a ", "!"),
    "minimax m3": (f'{MINIMAX}<tool_call>{MINIMAX}<invoke name="f">', f"{MINIMAX}<a>", ""),
    "minimax m3, texts": (
        f'{MINIMAX}<tool_call>{MINIMAX}<invoke name="f">',
        f"{MINIMAX}<a>b{MINIMAX}</a>",
        f"{MINIMAX}</tool_call>",
    ),
    "gemma 4": ("<|tool_call>call:f{a:", "[", ""),
    "gemma 4, texts": ("<|tool_call>call:f{a:[", '<|"|>,<|"|>', "<tool_call|>"),
    "lfm2": ("<|tool_call_start|>[", "f(a='b'), ", "<|tool_call_end|>"),
    "lfm2, texts": ('<|tool_call_start|>[f(a="', "'<|tool_call_end|>", '")]<|tool_call_end|>'),
    "command r+": ("Action:```json", "[]", ""),
}


@pytest.mark.parametrize("case", REPEATED)
def test_parsing_takes_linear_time(case: str) -> None:
    begin, repeated, end = REPEATED[case]

    def seconds(count: int) -> float:
        answer = begin + repeated * count + end
        start = time.process_time()
        parts = parts_of(answer_parser(TEMPLATES[case.partition(",")[0]], TOOLS), [answer])
        assert parts
        return time.process_time() - start

    short, long = 40_000 // len(repeated), 320_000 // len(repeated)
    fastest = min(seconds(short) for _ in range(3))
    # 8 times the text: 8 times the time, not 64 times
    assert any(seconds(long) < 0.02 + 24 * fastest for _ in range(3))
