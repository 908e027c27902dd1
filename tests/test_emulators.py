"""What tests look for on the machine is named in .ci/emulators, so that no test is skipped for want of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from installed import PACKAGES

from smelt.devicefarm.debian import ADBD, BOARD

TESTS = Path(__file__).parent
INSTALLER = (TESTS.parent / ".ci" / "emulators").read_text("utf-8")
ALWAYS = frozenset({"util-linux", "prlimit"})
"""Packages without which there is no Debian, and programs of theirs."""


def lines() -> Iterator[tuple[str, str]]:
    """Each line of the tests, with where it stands."""
    for p in sorted(TESTS.rglob("*.py")):
        if p != Path(__file__):
            for number, line in enumerate(p.read_text("utf-8").splitlines(), 1):
                yield f"{p.relative_to(TESTS)}:{number}", line


def named(package: str) -> bool:
    """Whether the installer speaks of the package."""
    return re.search(rf"(?<![\w.+-]){re.escape(package)}(?![\w.+-])", INSTALLER) is not None


def test_what_tests_look_for_is_installed() -> None:
    missing = {p for p in PACKAGES.values() if p and not named(p)}
    assert not missing, f"name them in .ci/emulators: {missing}"


def test_packages_of_other_releases_are_named() -> None:
    missing = {p for s in (ADBD, BOARD) for p in s.packages if not named(p)}
    assert not missing, f"name them in .ci/emulators: {missing}"


def test_tests_look_for_things_by_the_table_alone() -> None:
    own = re.compile(r"shutil\.which|find_library|Path\(\"/(usr|etc|lib|opt)/|\[\"(nm|objdump|readelf|ld)\"")
    found = [f"{where}: {line.strip()}" for where, line in lines() if own.search(line)]
    assert [f for f in found if not f.startswith("support/installed.py")] == []
    assert len(found) > 2  # those of the table itself


def test_packages_that_skips_ask_for() -> None:
    asked = [
        (where, p)
        for where, line in lines()
        for words in re.findall(r"apt(?:-get)? install ([a-z0-9 .+-]+)", line)
        for p in words.split()
    ]
    assert len(asked) > 5
    missing = [f"{where}: {p}" for where, p in asked if p not in ALWAYS and not named(p)]
    assert not missing, f"name them in .ci/emulators: {missing}"
