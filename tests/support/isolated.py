"""Work in, its result out of a forked child: a crash or a hang becomes a result, and does not end the
caller."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

HANG = 90.0
"""Seconds after which work counts as hung."""


def isolated(work: Callable[[], Any], seconds: float = HANG) -> tuple[str, Any]:
    """('ok', result), ('crash', signal's name) or ('hang', '') of work done in a forked child."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        _child(work, sender)
    os.close(sender)
    data, deadline, hung = bytearray(), time.monotonic() + seconds, False
    with os.fdopen(receiver, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                hung = True
                os.kill(child, signal.SIGKILL)
                break
            part = pipe.read(1 << 16)
            if not part:
                break
            data += part
    _, status = os.waitpid(child, 0)
    if hung:
        return "hang", f"still busy after {seconds:.0f} s"
    if os.WIFSIGNALED(status):
        return "crash", signal.Signals(os.WTERMSIG(status)).name
    if not data:
        return "crash", f"ended with status {os.WEXITSTATUS(status)}"
    return "ok", pickle.loads(data)


def _child(work: Callable[[], Any], sender: int) -> None:
    status = 1
    try:
        with os.fdopen(sender, "wb") as pipe:
            pipe.write(pickle.dumps(work()))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
