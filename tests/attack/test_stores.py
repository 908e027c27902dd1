"""Stores of devices under faults of disks and links: fixed seeds, and an attack that sees what is wrong."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import attack_stores as stores
import pytest
from attack_stores import Plan
from campaign import Outcome
from installed import program_path

from smelt.devicefarm.local_files import LocalFiles
from smelt.devicefarm.room import StoreRoom

pytestmark = pytest.mark.skipif(program_path("gcc") is None, reason="no gcc: apt install gcc libc6-dev")


def drawn(kind: str, how: str, number: int) -> list[Plan]:
    """The first plans of this kind."""
    return list(islice((p for p in map(stores.draw, count()) if (p.kind, p.how) == (kind, how)), number))


def failures(plans: list[Plan]) -> list[Outcome]:
    return [o for o in map(stores.happen, plans) if o.failed]


@pytest.mark.parametrize("how", ["before", "during"])
@pytest.mark.parametrize("kind", ["local", "sshd", "dropbear"])
def test_damage(kind: str, how: str) -> None:
    assert failures(drawn(kind, how, 6)) == []


@pytest.mark.parametrize("how", ["cut", "cut and changed"])
@pytest.mark.parametrize("kind", ["sshd", "adb"])
def test_cut_uploads(kind: str, how: str) -> None:
    assert failures(drawn(kind, how, 1)) == []


def test_a_store_that_trusts_what_is_there_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    differing = LocalFiles.differing

    def trusting(self: LocalFiles, expected: dict, budget: object) -> frozenset[str]:  # type: ignore[type-arg]
        wrong = differing(self, expected, budget)  # type: ignore[arg-type]
        return frozenset(p for p in wrong if not Path(self.full_path(p)).exists())

    monkeypatch.setattr(LocalFiles, "differing", trusting)
    assert failures(drawn("local", "before", 10))


def test_an_upload_that_begins_anew_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreRoom, "parts", lambda self, budget: ())
    late = Plan("cut", "sshd", 40 * stores.MIB, 4)
    found = stores.happen(late)
    assert found.failed and found.what == "sent too much", found
