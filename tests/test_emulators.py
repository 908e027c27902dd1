"""What tests look for on the machine is named in .ci/emulators, so that no test is skipped for want of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
INSTALLER = (TESTS.parent / ".ci" / "emulators").read_text("utf-8")
PACKAGES = {
    "gcc": "gcc",
    "qemu-aarch64": "qemu-user-static",
    "qemu-aarch64-static": "qemu-user-static",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-server",
}
"""Program -> the package that brings it, or one that depends on that."""
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


def test_programs_that_tests_look_for() -> None:
    found = [(where, p) for where, line in lines() for p in re.findall(r'which\("([^"]+)"\)', line)]
    assert len(found) > 5
    missing = [f"{where}: {p}" for where, p in found if p not in ALWAYS and not named(PACKAGES.get(p, p))]
    assert not missing, f"name their packages in .ci/emulators, and here: {missing}"


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


def test_folders_that_tests_look_into() -> None:
    found = {(where, p) for where, line in lines() for p in re.findall(r'Path\("(/usr/[^"]+)"\)', line)}
    assert found and all(p in INSTALLER for _, p in found), found
