"""The C headers of the runtime in; the layouts of structs and constants that generated code uses out.

The headers are the one definition: a field that is added there is in the layout, and a descriptor that does
not name it leaves it 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from smelt.targets.toolchain import runtime_dir

HEADERS = ("smelt.h", "smelt_abi.h")

_SCALARS = {
    f"{sign}int{bits}_t": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}  # fmt: skip
_STRUCT = re.compile(r"typedef\s+struct\s*\w*\s*\{([^{}]*)\}\s*(\w+)\s*;")
_FUNCTION = re.compile(r"typedef\s+[\w\s*]+\(\*(\w+)\)\(")
_POINTER = re.compile(r"\(\*(\w+)\)\s*\(")
_FIELD = re.compile(r"(?:const\s+|struct\s+)*(\w+)\s+(.+)", re.S)
_DECLARATOR = re.compile(r"(\**)\s*(?:const\s+)?(\w+)\s*(?:\[(\d+)\])?")


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct of C. fields: name -> LLVM type, in order; C and LLVM put them at the same places."""

    name: str
    fields: Mapping[str, str]

    @property
    def type(self) -> str:
        """The LLVM type."""
        return f"{{ {', '.join(self.fields.values())} }}"

    def value(self, **given: object) -> str:
        """A constant of the type: '{ i32 1, ptr null }'. given: values by field; the others are 0.

        Raises KeyError for a field that the struct has not.
        """
        for name in given:
            if name not in self.fields:
                raise KeyError(f"{self.name} has no field '{name}', it has {', '.join(self.fields)}")
        rows = (f"{t} {given.get(name, 'zeroinitializer')}" for name, t in self.fields.items())
        return f"{{ {', '.join(rows)} }}"


def structs() -> Mapping[str, Struct]:
    """The structs of the headers, by name."""
    return _read()[0]


def constants() -> Mapping[str, int]:
    """Name -> number of the headers' enumerators and numeric macros."""
    return _read()[1]


@cache
def _read() -> tuple[Mapping[str, Struct], Mapping[str, int]]:
    text = "\n".join((runtime_dir() / name).read_text("utf-8") for name in HEADERS)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    types = {**_SCALARS, **dict.fromkeys(_FUNCTION.findall(text), "ptr")}
    found = {}
    for body, name in _STRUCT.findall(text):
        fields = dict(f for d in body.split(";") if d.strip() for f in _fields(d.strip(), types))
        found[name] = Struct(name, MappingProxyType(fields))
        types[name] = found[name].type
    numbers = re.findall(r"\b(SMELT_\w+)\s*=\s*(\d+)", text) + re.findall(r"#define (SMELT_\w+) (\d+)", text)
    return MappingProxyType(found), MappingProxyType({name: int(n) for name, n in numbers})


def _fields(declaration: str, types: Mapping[str, str]) -> list[tuple[str, str]]:
    """The fields of one declaration: 'const char *a, *b'."""
    if (function := _POINTER.search(declaration)) is not None:
        return [(function[1], "ptr")]
    field = _FIELD.fullmatch(declaration)
    assert field is not None, declaration
    found = []
    for part in field[2].split(","):
        one = _DECLARATOR.fullmatch(part.strip())
        assert one is not None, declaration
        stars, name, count = one.groups()
        own = "ptr" if stars else types[field[1]]
        found.append((name, f"[{count} x {own}]" if count else own))
    return found
