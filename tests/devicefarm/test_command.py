"""Commands of this machine under limits."""

from __future__ import annotations

import sys

import pytest

from smelt.devicefarm.command import Ran, TooLong, run_within

MIB = 1 << 20


def python(text: str, limit: float = 100.0, *, most: int = MIB, source: bytes = b"") -> Ran:
    return run_within([sys.executable, "-c", text], limit, most=most, source=source)


def test_both_streams_the_input_and_the_code() -> None:
    copied = "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d[::-1]); "
    source = bytes(range(256)) * 4000
    done = python(copied + "sys.stderr.write('e' * 99999); sys.exit(7)", source=source, most=2 * MIB)
    assert (done.code, done.out, done.err) == (7, source[::-1], b"e" * 99999)
    assert python("") == Ran(0, b"", b"")


def test_more_than_is_kept_is_dropped_and_input_may_stay_unread() -> None:
    assert python("print('x' * 5_000_000)", most=10).out == b"x" * 10
    assert python("import os; os.close(0); print('a')", source=bytes(9 * MIB)).out == b"a\n"


@pytest.mark.parametrize("text", ["import time; time.sleep(999)", "while True: print('x' * 9999)",
                                  "import os, time; os.close(1); os.close(2); time.sleep(999)"])  # fmt: skip
def test_one_that_does_not_end_is_ended(text: str) -> None:
    with pytest.raises(TooLong):
        python(text, 0.7)


@pytest.mark.parametrize("more", ["time.sleep(300)", "print('x', flush=True); time.sleep(0.001)"])
def test_nobody_waits_for_what_a_command_leaves_behind(more: str) -> None:
    """It has the streams, so that they do not end with the command."""
    text = f"""
import os, sys, time
print('a', flush=True)
child = os.fork()
if not child:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        {more}
print(child, file=sys.stderr)
"""
    done = python(text)
    assert done.code == 0 and done.out.startswith(b"a\n")
    assert run_within(["kill", "-9", done.err.split()[-1].decode()], 100, most=0).code == 0
