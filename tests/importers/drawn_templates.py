"""Chat templates drawn from a grammar: what templates use, in any order, with sizes that hurt."""

from __future__ import annotations

from random import Random

FILTERS = (
    "abs attr('role') capitalize count d('x') dictsort e escape first float forceescape "
    "format(1) groupby('role') indent('ab',true) int items join(',') last length list lower "
    "map('replace','a','bb') map('indent','a'*9999,true) max min reject reverse round safe "
    "select selectattr('role') sort string sum title tojson tojson(indent=2) trim unique upper "
    "wordcount"
).split()
METHODS = (
    "capitalize() count('a') find('b') index('a') isdigit() join(['a','b']) lower() lstrip('ab') "
    "partition('a') replace('a','aa') rfind('b') rsplit('a') split('a') splitlines() "
    "strip('ab'*9999) swapcase() title() upper() format(1) startswith('a') items() keys() pop() "
    "append(1) __class__ encode() ljust(99999)"
).split()
NUMBERS = "0 1 2 7 -1 99 4096 65537 2000000 10**9 1.5 -0.0 1e308".split()
TEXTS = ("''", "'a'", "'ab' * 99", "'é\\n%d {} {:>999}'", "'a' * 2000000", "'\\U0001F600' * 9")
NAMES = "messages messages[0] messages[0].content loop n n.x bos_token tools x i dict range".split()
OPERATORS = "+ - * / // % ** ~ < == in and or".split()


def template(random: Random) -> str:
    """Return a template; most of these have an error somewhere."""
    head = "{% set n = namespace(x='a', l=[1]) %}"
    return head + "".join(_statement(random, 3) for _ in range(random.randint(1, 5)))


def _statement(random: Random, depth: int) -> str:
    kind = random.choice("text out out out set set for if macro block".split())
    if kind == "text" or depth == 0:
        return random.choice(["a", "\n", "{# c #}", "<|im_start|>", "é"])
    if kind == "out":
        return "{{ " + _value(random, 3) + " }}"
    if kind == "set":
        return f"{{% set {random.choice(['x', 'n.x', 'n.l'])} = {_value(random, 3)} %}}"
    body = "".join(_statement(random, depth - 1) for _ in range(random.randint(0, 3)))
    if kind == "for":
        return f"{{% for i in {_value(random, 2)} %}}{body}{{% endfor %}}"
    if kind == "if":
        return f"{{% if {_value(random, 2)} %}}{body}{{% else %}}b{{% endif %}}"
    if kind == "macro":
        return f"{{% macro m(x) %}}{body}{{% endmacro %}}{{{{ m({_value(random, 1)}) }}}}"
    return f"{{% set x %}}{body}{{% endset %}}"


def _value(random: Random, depth: int) -> str:
    kind = random.choice("number text name range list dict filter filter method operator".split())
    if kind == "number" or depth == 0:
        return random.choice(NUMBERS)
    if kind == "text":
        return f"({random.choice(TEXTS)})"
    if kind == "name":
        return random.choice(NAMES)
    if kind == "range":
        return f"range({random.choice(NUMBERS)})"
    inner = _value(random, depth - 1)
    if kind == "list":
        return f"[{inner}, {_value(random, depth - 1)}]"
    if kind == "dict":
        return f"{{{inner}: {_value(random, depth - 1)}}}"
    if kind == "filter":
        return f"({inner} | {random.choice(FILTERS)})"
    if kind == "method":
        return f"({inner}).{random.choice(METHODS)}"
    return f"({inner} {random.choice(OPERATORS)} {_value(random, depth - 1)})"
