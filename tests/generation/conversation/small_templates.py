"""Small chat templates that treat messages and tools in the ways that large ones do."""

from __future__ import annotations

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m['content'] | trim }}<|im_end|>"
    "{% endfor %}"
)
JSON = "{% for m in messages %}<|im_start|>{{ m | tojson }}<|im_end|>{% endfor %}"
ASCII = "{% for m in messages %}<|im_start|>{{ m.content | tojson(ensure_ascii=true) }}{% endfor %}"
CASES = (
    "{% for m in messages %}<|im_start|>{{ m.content.upper() }}<|im_end|>"
    "{{ m.content | lower }}<|im_end|>{% endfor %}"
)
ADJACENT = "<|im_start|>{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>"
WITHOUT_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
)
PARTS = (
    "{% for m in messages %}{% if m.content is string %}{% else %}{% for p in m.content %}"
    "{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)
_CALLS = "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
_END = "{% endfor %}{% endfor %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
OBJECT_CALLS = (
    TOOLS + _CALLS + "<call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}"
    " {{ k }}={{ v }}{% endfor %}" + _END
)
TEXT_CALLS = TOOLS + _CALLS + "<call>{{ c.function.name + ' ' + c.function.arguments }}" + _END
NULL_CALLS = (
    TOOLS + "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
    "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
FUNCTIONS = "{{ 'Tools: ' + functions + ' ' + datetime }}" + PLAIN
OWN_NAME = "{% if xml_tools %}{{ xml_tools | tojson }}{% endif %}" + PLAIN
WITHOUT_RESULTS = (
    "{% for m in messages %}{% if m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}"
)
