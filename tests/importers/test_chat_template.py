"""Chat templates: known conversations, and programs that mean harm."""

from __future__ import annotations

import datetime

import pytest

pytest.importorskip("jinja2")

from vksched.common.errors import ModelFormatError
from vksched.importers.gguf.tokenizer.chat_template import ChatTemplate

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML = """{% for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content | trim ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim "
    "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not "
    "supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{% set role "
    "= 'model' if message['role'] == 'assistant' else message['role'] %}{{ '<start_of_turn>' + "
    "role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ message['content'] + eos_token}}{% endif %}{% endfor %}"
)
USER = [{"role": "user", "content": " Hi <b> "}]
TALK = [*USER, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            SMOLLM2,
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\n Hi <b> <|im_end|>\n<|im_start|>assistant\nHello"
            "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            CHATML,
            "<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            LLAMA3,
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi <b><|eot_id|><|start_header_id|>"
            "assistant<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>user<|end_header_id|>"
            "\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            GEMMA,
            "<s><start_of_turn>user\nHi <b><end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>"
            "\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
        (MISTRAL, "<s>[INST]  Hi <b>  [/INST]Hello</s>[INST] Bye [/INST]"),
    ],
    ids=["smollm2", "chatml", "llama3", "gemma", "mistral"],
)
def test_conversations_are_rendered_as_the_models_know_them(source: str, expected: str) -> None:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert template.render(TALK) == expected


def render(source: str, **values: object) -> str:
    return ChatTemplate(source).render(USER, **values)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ tools | tojson }}", '[{"a": "<é>"}]'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% set n = namespace() %}{% for i in [2] %}{% set n.x = i %}{% endfor %}{{ n.x }}", "2"),
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{% for k, v in tools[0].items() %}{{ k }}={{ v }};{% endfor %}", "a=<é>;"),
        ("{% for i in [1] %}{{ 'a-b'.replace('-', '+').split('+')[-1] }}{% endfor %}", "b"),
        ("{{ messages | map(attribute='role') | join(',') }}{{ 1 if x is defined }}", "user"),
        ("{{ '%s: %d' | format('a', 5) }}", "a: 5"),
        ("{{ 'Since 2024 %s' | format('a') }}{{ '12345 {}'.format('b') }}", "Since 2024 a12345 b"),
        (
            "{% set l = [] %}{{ l.append(1) or '' }}{{ l.append(2) or '' }}{{ l.pop(0) }}{{ l }}",
            "1[2]",
        ),
        ("{% set n = namespace(l=[]) %}{% set _ = n.l.append('a') %}{{ n.l | join }}", "a"),
        ("{{ 'in 2024 {'.strip() }}", "in 2024 {"),
        ("{{ messages[:0].append(1) }}", "None"),
        ("{{ tools | map(attribute='a') | tojson }}", '["<é>"]'),
        ("""{{ ('{"x": [1, null]}' | from_json).x | tojson }}""", "[1, null]"),
        (
            "{{ documents is defined }}{{ functions is defined }}{{ tools is defined }}",
            "FalseFalseTrue",
        ),
    ],
)
def test_templates_have_what_hugging_face_gives_them(source: str, expected: str) -> None:
    assert render(source, tools=[{"a": "<é>"}]) == expected


def test_templates_know_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)


TWICE = "{% set n = namespace(s='a', l=[1]) %}{% for i in range(99) %}"
HARM = {
    "a long loop": "{% for i in range(10**9) %}x{% endfor %}",
    "loops in loops": "{% for i in range(9**4) %}{% for j in range(999) %}{% endfor %}{% endfor %}",
    "twice the text": TWICE + "{% set n.s = n.s ~ n.s %}{% endfor %}",
    "twice the text by a block": TWICE
    + "{% set x %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = x %}{% endfor %}",
    "twice the list": TWICE + "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
    "a large text": "{{ 'a' * 10**9 }}",
    "a large list": "{{ [1] * 10**9 }}",
    "a large number": "{{ 9**9**9 }}",
    "a wide field": "{{ '%999999999d' % 5 }}",
    "a wide field of a filter": "{{ '%*d' | format(999999999, 5) }}",
    "a wide field of a method": "{{ '{:999999999}'.format(5) }}",
    "a large replacement": "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "a wide text": "{{ 'a'.ljust(10**9) }}",
    "macros of macros": "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "a file": "{% include '/etc/passwd' %}",
    "a class": "{{ ''.__class__.__mro__ }}",
    "a change of what is given": "{{ messages.append(1) }}",
    "a removal from what is given": "{{ messages.pop() }}",
    "a change of parsed JSON": "{{ ('[1]' | from_json).append(1) }}",
    "a list that holds itself": "{% set l = [] %}{{ l.append(l) }}{{ l }}",
    "a list that doubles": "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set m = [] %}"
    "{% set _ = m.append(n.l) %}{% set _ = m.append(n.l) %}{% set n.l = m %}{% endfor %}",
    "deep JSON": "{{ ('[' * 100000) | from_json }}",
    "JSON that is none": "{{ '{' | from_json }}",
    "a large number in JSON": "{{ ('9' * 5000) | from_json }}",
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "filler text": "{{ lipsum(10**9) }}",
    "a loop that calls itself": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
}


@pytest.mark.parametrize("name", sorted(HARM))
def test_programs_that_mean_harm_are_errors(name: str) -> None:
    with pytest.raises(ModelFormatError, match=r"\[chat template"):
        render(HARM[name])


def test_errors_have_the_line() -> None:
    with pytest.raises(ModelFormatError, match=r"line 3\] no system"):
        render("a\nb\n{{ raise_exception('no system') }}")
    with pytest.raises(ModelFormatError, match=r"line 2\] "):
        render("a\n{% if %}")


def test_limits_start_again_with_each_rendering() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}ok")
    assert [template.render(USER) for _ in range(3)] == ["ok"] * 3
