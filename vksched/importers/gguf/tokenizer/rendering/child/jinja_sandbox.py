"""Jinja sandbox: runs an untrusted chat template within limits.

This is the inner sandbox; the limits of the process are the outer one. jinja2's sandbox prevents
access to Python, but does not limit time or memory. The parsed template is therefore rewritten
before it is compiled:

    for x in y        -> for x in y|count              each iteration is a step
    a ~ b, [a, b]     -> [a, b]|concat, ...|measured   values that a template creates are measured
    text              -> {{ "text" }}                  output is counted before it is joined

The allowed filters and string methods are those that templates use. Recursive loops are rejected.
"""

from __future__ import annotations

import datetime
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SOURCE_CHARS = 1 << 20
"""The maximum characters of a template."""
MAX_OUTPUT_CHARS = 1 << 24
"""The maximum characters of the output of one rendering, including captured blocks."""
MAX_SIZE = 1 << 22
"""The maximum characters of one value."""
MAX_ELEMENTS = 1 << 17
"""The maximum elements of one value, including nested ones."""
MAX_STEPS = 300_000
"""The maximum number of loop iterations and calls of one rendering."""
MAX_BITS = 4096
"""The maximum bits of an integer."""

_NAME = "<chat template>"
_FILTERS = (
    "abs attr capitalize count d default dictsort e escape first float forceescape format groupby "
    "indent int items join last length list lower map max min reject rejectattr replace reverse "
    "round safe select selectattr sort string sum title trim unique upper wordcount"
).split()
_METHODS = frozenset(
    "capitalize count endswith find format index isalnum isalpha isascii isdecimal isdigit islower "
    "isnumeric isspace isupper join lower lstrip partition removeprefix removesuffix replace rfind "
    "rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper".split()
)
"""The allowed methods of strings."""
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*([0-9]{4}|\*)")
_WIDE_BRACES = re.compile(r"\{[^}]*([0-9]{4}|\{)")
"""Formats with a width of thousands of characters, or with a width from an argument."""


class _ConstantList(list[Any]):
    """A list among the variables of a template, which the template may not change."""


class WrongTemplate(Exception):
    """A template is invalid or exceeds the limits; the message has the line."""


class _Budget(threading.local):
    """The remaining budget of this thread's rendering."""

    steps = 0
    output = 0
    seconds = 0.0
    until = 0.0

    def start(self, seconds: float) -> None:
        self.steps, self.output, self.seconds = MAX_STEPS, MAX_OUTPUT_CHARS, seconds
        self.until = time.monotonic() + seconds

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise SecurityError(f"expected at most {MAX_STEPS} loop iterations and calls, got more")
        if time.monotonic() > self.until:
            raise SecurityError(f"expected at most {self.seconds:g} seconds, it takes longer")

    def write(self, count: int) -> None:
        self.output -= count
        if self.output < 0:
            raise SecurityError(
                f"expected at most {MAX_OUTPUT_CHARS} characters of output, got more"
            )


_budget = _Budget()


def _size(value: object) -> int:
    """Return the number of characters and elements of a value, including nested ones; raise if it
    exceeds the limits.
    """
    total, elements, rest = 0, 0, [value]
    while rest:
        each = rest.pop()
        elements += 1
        if isinstance(each, (str, bytes)):
            total += len(each)
        elif isinstance(each, Mapping):
            rest.extend(each.keys())
            rest.extend(each.values())
        elif isinstance(each, (list, tuple, set, frozenset)):
            rest.extend(each)
        elif isinstance(each, int) and each.bit_length() > MAX_BITS:
            raise SecurityError(f"expected whole numbers of at most {MAX_BITS} bits, got more")
        if total > MAX_SIZE:
            raise SecurityError(f"expected values of at most {MAX_SIZE} characters, got more")
        if elements + len(rest) > MAX_ELEMENTS:
            raise SecurityError(f"expected values of at most {MAX_ELEMENTS} elements, got more")
    return total + elements


def _checked(value: Any) -> Any:
    _size(value)
    return value


@pass_context
def _checked_filter(_: Context, value: Any) -> Any:
    return _checked(value)


@pass_context
def _count_filter(_: Context, values: Iterable[Any]) -> Iterator[Any]:
    if isinstance(values, Undefined):
        values = iter(values)
    return _counted(values)


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    for each in values:
        _budget.step()
        yield each


@pass_context
def _concat_filter(_: Context, values: list[Any]) -> str:
    _size(values)
    return "".join(map(str, values))


@pass_context
def _finalize(_: Context, value: Any) -> Any:
    _budget.write(_size(value))
    return value


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not 0 <= int(indent) <= 16:
        raise SecurityError(f"expected an indent from 0 to 16, got {indent}")
    if isinstance(value, Iterator):  # map and select return generators
        value = list(_counted(value))
    _size(value)
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return str(_checked(text))


def _from_json(text: str) -> Any:
    try:
        return _protected(_checked(json.loads(str(_checked(text)))))
    except RecursionError:
        raise SecurityError("expected JSON of a smaller depth") from None


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = (str(_checked(each)) for each in (value, old, new))
    max_count = text.count(old) if count is None or count < 0 else min(text.count(old), count)
    if len(text) + max_count * len(new) > MAX_SIZE:
        raise SecurityError(f"expected texts of at most {MAX_SIZE} characters, got more")
    return text.replace(old, new, -1 if count is None else count)


def _join(values: Any, d: str = "", attribute: str | None = None) -> str:
    found = list(_counted(values))
    if attribute is not None:
        found = [each[attribute] if isinstance(each, Mapping) else each for each in found]
    if _size(found) + len(found) * len(d) > MAX_SIZE:
        raise SecurityError(f"expected texts of at most {MAX_SIZE} characters, got more")
    return str(d).join(map(str, found))


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    lead = width if isinstance(width, str) else " " * min(max(int(width), 0), 1000)
    lines = str(_checked(text)).split("\n")
    if len(lines) * len(lead) > MAX_SIZE:
        raise SecurityError(f"expected texts of at most {MAX_SIZE} characters, got more")
    indented = [lead + line if line or blank else line for line in lines[1:]]
    return "\n".join([(lead if first else "") + lines[0], *indented])


def _protected(value: Any) -> Any:
    """Return a variable whose lists are `_ConstantList`."""
    if isinstance(value, dict):
        return {key: _protected(each) for key, each in value.items()}
    if isinstance(value, list):
        return _ConstantList(map(_protected, value))
    return value


def _range(*limits: int) -> range:
    out = range(*limits)
    _budget.step(len(out))
    return out


def _raise(message: object) -> str:
    raise TemplateError(str(message)[:500])


def _now(form: str) -> str:
    if len(form) > 100 or _WIDE_PERCENT.search(form):
        raise SecurityError(f"expected a short format of a date, got {form[:100]!r}")
    return datetime.datetime.now().strftime(form)


class _Generation(Extension):
    """The tag {% generation %}, which marks the training text; it has no effect here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Limits(NodeTransformer):
    """Inserts the checks into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise SecurityError("expected loops that do not call themselves")
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "count_steps")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "concat_texts")

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "measured")

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "measured") if node.ctx == "load" else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalize,
            extensions=[_Generation, loopcontrols],
            cache_size=0,
        )
        self.filters = {each: self.filters[each] for each in _FILTERS}
        self.filters |= {
            "tojson": _to_json,
            "from_json": _from_json,
            "replace": _replace,
            "join": _join,
            "indent": _indent,
            "format": _format,
            "measured": _checked_filter,
            "count_steps": _count_filter,
            "concat_texts": _concat_filter,
        }
        self.globals = {
            "range": _range,
            "dict": dict,
            "namespace": self.globals["namespace"],
            "joiner": self.globals["joiner"],
            "raise_exception": _raise,
            "strftime_now": _now,
        }

    def call(self, context: Context, obj: Any, /, *args: Any, **values: Any) -> Any:
        _budget.step()
        owner = getattr(obj, "__self__", None)
        if type(owner) is list:
            _size(args)  # the list is measured when it is used
        if isinstance(owner, str):
            for each in ("_loop_vars", "_block_vars"):
                values.pop(each, None)
            name = obj.__name__
            if name == "replace":
                return _replace(owner, *args, **values)
            if name == "join":
                return _join(args[0], owner)
        return _checked(super().call(context, obj, *args, **values))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= MAX_BITS and abs(right) <= 64):
            raise SecurityError("expected small numbers of a power")
        if operator == "%" and isinstance(left, str):
            return _format(left, *(right if isinstance(right, tuple) else (right,)))
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, int) and isinstance(other, (str, list, tuple)):
                    if one > 0 and _size(other) * one > MAX_SIZE:
                        raise SecurityError(f"expected values of at most {MAX_SIZE} characters")
        return _checked(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _METHODS:
            return False
        if isinstance(obj, (bytes, bytearray, int, float)):
            return False
        if type(obj) is list and attr in ("append", "pop"):
            return True  # the template's own list
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        owner = getattr(value, "__self__", None)
        formats = getattr(value, "__name__", "") in ("format", "format_map")
        if formats and isinstance(owner, str) and _WIDE_BRACES.search(owner):
            raise SecurityError(f"expected a format without wide fields, got {owner[:60]!r}")
        return super().wrap_str_format(value)


def _format(form: Any, *args: Any, **values: Any) -> str:
    if _WIDE_PERCENT.search(str(form)):
        raise SecurityError(f"expected a format without wide fields, got {str(form)[:60]!r}")
    _size([form, args, values])
    return str(_checked(str(form) % (values or args)))


def compile_template(source: str, seconds: float) -> Callable[[Mapping[str, Any], float], str]:
    """Compile a template.

    Parameters
    ----------
    source
        The template.
    seconds
        The time limit of the compilation.

    Returns
    -------
    Callable
        A function that renders the template with variables, within a number of seconds.

    Raises
    ------
    WrongTemplate
        The template cannot be compiled, or, when the function is called, cannot be rendered.
    MemoryError
        The process is out of memory.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise WrongTemplate(
            f"[chat template] expected at most {MAX_SOURCE_CHARS} characters, got {len(source)}"
        )
    environment = _Environment()
    _budget.start(seconds)
    with _errors():
        tree = _Limits().visit(environment.parse(source))
        code = environment.compile(tree, _NAME, _NAME)
        template = environment.template_class.from_code(
            environment, code, environment.make_globals(None)
        )

    def render(values: Mapping[str, Any], seconds: float) -> str:
        _budget.start(seconds)
        with _errors():
            return template.render(_protected(dict(values)))

    return render


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise WrongTemplate(_described(error)) from error


def _described(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f", line {line}"
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return f"[chat template{where}] {kind}{str(error)[:500]}"
