"""Domains of attributes that hold a program: instructions and constants of fused elementwise ops
and epilogues. The type rule of the fused op checks registers and types.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...common.dtypes import BOOL, FLOAT32, INT32, UINT32
from ...ir.attr_domains import AttrCall, Domain, Domains
from ...ir.attrs import AttrValue

MAX_INSTRS = 1 << 10
"""Maximum number of instructions of a program; passes create far fewer."""
MAX_OPERANDS = 3
"""Maximum number of operands of an instruction."""
_WORDS = (FLOAT32, INT32, UINT32, BOOL)


def _is_name(value: AttrValue) -> bool:
    return type(value) is str


def _is_attrs(value: AttrValue) -> bool:
    """Return True if a value is ((name, value), ...) with distinct names."""
    if not isinstance(value, tuple):
        return False
    names = [each[0] for each in value if isinstance(each, tuple) and len(each) == 2]
    return len(names) == len(value) == len(set(names)) and all(map(_is_name, names))


def _is_instr(value: AttrValue) -> bool:
    """Return True if a value is (op, registers, attributes)."""
    if not isinstance(value, tuple) or len(value) != 3:
        return False
    op, read, attrs = value
    reads = isinstance(read, tuple) and 1 <= len(read) <= MAX_OPERANDS
    return _is_name(op) and reads and all(type(r) is int for r in read) and _is_attrs(attrs)  # type: ignore[union-attr]


def _is_constant(value: AttrValue) -> bool:
    """Return True if a value is (element type, 32-bit word)."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    dtype, word = value
    maximum = 1 if dtype == BOOL else 2**32 - 1
    return dtype in _WORDS and type(word) is int and 0 <= word <= maximum


@dataclass(frozen=True)
class Instrs(Domain):
    """(op, registers, attributes) of each instruction of a program, at least one."""

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        known = isinstance(value, tuple) and 1 <= len(value) <= MAX_INSTRS
        if known and all(map(_is_instr, value)):  # type: ignore[arg-type]
            return ""
        return f"at least one step and at most {MAX_INSTRS}, each (op, registers, attributes),"


@dataclass(frozen=True)
class Constants(Domain):
    """(element type, 32-bit word) of each constant of a program."""

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        known = isinstance(value, tuple) and len(value) <= MAX_INSTRS
        if known and all(map(_is_constant, value)):  # type: ignore[arg-type]
            return ""
        return f"at most {MAX_INSTRS} constants, each (element type of 32 bits, word),"


@dataclass(frozen=True)
class Epilogue(Domain):
    """(operands, steps, constants) of an epilogue with one or two operands."""

    is_optional = True

    def expected(self, value: AttrValue, call: AttrCall) -> str:
        if not isinstance(value, tuple) or len(value) != 3 or value[0] not in (1, 2):
            return "(1 or 2 operands, steps, constants)"
        _, steps, constants = value
        if type(value[0]) is not int:
            return "a number of operands, steps and constants"
        return Instrs().expected(steps, call) or Constants().expected(constants, call)


PROGRAM: Domains = {"steps": Instrs(), "constants": Constants()}
"""Attributes of a fused elementwise op."""
