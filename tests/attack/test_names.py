"""Fixed seeds of the attack on names; no given name is one of the platforms' own."""

from __future__ import annotations

import re

from attack_names import attack
from campaign import campaign

from smelt.core.naming import FUNCTIONS, RESERVED, is_name
from smelt.targets.platform import zig_directory

LIB = zig_directory() / "lib"
INCLUDES = LIB / "libc" / "include"
HEADERS = tuple(INCLUDES / of for of in ("generic-glibc", "generic-musl", "any-linux-any"))


def test_seeds() -> None:
    tally = campaign(attack, range(150))
    assert not tally.failures, tally.report()
    assert min(tally.counts["made"], tally.counts["kept"]) > 10


def test_no_name_makes_a_header_of_c_or_its_library() -> None:
    found = {p.stem for folder in HEADERS for p in folder.glob("*.h")}
    assert "math" in found and len(found) > 100
    assert sorted(h for h in found if is_name(h)) == []


def test_no_name_makes_a_library_of_libc() -> None:
    """The files of glibc, and those that Android gives to apps."""
    libc = "c m pthread dl rt util resolv crypt nsl anl thread_db mvec log android z"
    assert [n for n in libc.split() if is_name(n)] == []


def test_no_model_has_a_function_of_another() -> None:
    """Not with any two prefixes: no function's name ends with that of another."""
    assert not any(a.endswith(f"_{b}") for a in FUNCTIONS for b in FUNCTIONS)


def test_no_name_takes_a_function_of_libc() -> None:
    """Every symbol that any version of glibc has had, by the list that zig links with."""
    listed = (LIB / "libc/glibc/abilists").read_bytes()
    names = {n.decode() for n in re.findall(rb"[A-Za-z_][A-Za-z0-9_]+", listed)}
    assert {"sem_open", "printf", "malloc_trim"} <= names
    prefixes = {n.removesuffix(f"_{f}") for n in names for f in FUNCTIONS if n.endswith(f"_{f}")}
    assert sorted(p for p in prefixes if is_name(p)) == [] and prefixes & RESERVED
