"""What forks compute is what this process would, in its order; a fork that fails costs time, nothing else."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from smelt.core.diag import SmeltError
from smelt.core.spread import MOST_TICKETS, by_forks, serially


@pytest.fixture(autouse=True)
def three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})


def slowly(folder: Path, n: int) -> int:
    """Returns once three processes are at work."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 3:
        pass
    return n * n


def test_results_come_in_order_from_all_processes(tmp_path: Path) -> None:
    assert by_forks(lambda n: slowly(tmp_path, n), range(40)) == [n * n for n in range(40)]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, MOST_TICKETS + 5, 3 * MOST_TICKETS])
def test_any_number_of_items(count: int) -> None:
    assert by_forks(str, range(count)) == serially(str, range(count))


def test_results_larger_than_a_pipe_holds() -> None:
    assert by_forks(lambda n: bytes([n]) * (1 << 20), range(9)) == [bytes([n]) * (1 << 20) for n in range(9)]


def test_few_items_need_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a fork"))
    assert by_forks(str, range(7), each=4) == serially(str, range(7))


def test_what_forks_leave_is_computed_here() -> None:
    """They are killed, or return what cannot be copied."""
    here = os.getpid()

    def killed(n: int) -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return n + 1

    assert by_forks(killed, range(30)) == list(range(1, 31))
    made = by_forks(lambda n: (lambda: n), range(30))
    assert [f() for f in made] == list(range(30))


def test_without_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refused)
    before = len(os.listdir("/proc/self/fd"))
    assert by_forks(str, range(30)) == serially(str, range(30))
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_error_is_raised_here_and_leaves_nothing() -> None:
    def fails(n: int) -> int:
        if n == 29:
            raise SmeltError("item 29", kind="unsupported")
        return n

    before, children = len(os.listdir("/proc/self/fd")), own_children()
    with pytest.raises(SmeltError, match="item 29") as caught:
        by_forks(fails, range(30))
    assert caught.value.kind == "unsupported"
    assert len(os.listdir("/proc/self/fd")) == before
    assert own_children() <= children  # those of other tests


def own_children() -> set[str]:
    """Of this process, the ended ones that nobody has waited for too."""
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


def test_forks_share_the_memory_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    real = resource.getrlimit
    limit = 8 << 30

    def limited(kind: int) -> tuple[int, int]:
        return (limit, real(kind)[1]) if kind == resource.RLIMIT_DATA else real(kind)

    here = os.getpid()
    monkeypatch.setattr(resource, "getrlimit", limited)
    set_to: list[int] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: set_to.append(pair[0]))

    def share(n: int) -> int:
        time.sleep(0.01)
        return 0 if os.getpid() == here else set_to[0]

    found = set(by_forks(share, range(40))) - {0}
    assert found and all(limit / 4 < n < limit / 2 for n in found)
