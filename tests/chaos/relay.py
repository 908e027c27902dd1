"""A runner's pipe with faults: relay.py FOLDER COMMAND... passes stdin and stdout on, and obeys one order.

An order is a file 'order' in the folder, JSON with what (cut, stall, garble, oversized) and after (bytes of
the runner's answers); the relay that takes it renames it. It imports little: it starts for every session.
"""

import json
import os
import select
import struct
import subprocess
import sys
import zlib

folder, *argv = sys.argv[1:]
child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert child.stdin and child.stdout
to_child, from_child = child.stdin.fileno(), child.stdout.fileno()
order = None
passed = 0


def taken() -> dict | None:  # type: ignore[type-arg]
    mine = os.path.join(folder, f"taken.{os.getpid()}")
    try:
        os.rename(os.path.join(folder, "order"), mine)
        with open(mine) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def oversized() -> bytes:
    head = struct.pack("<IBBHQQI", 0x544C4D53, 3, 13, 0, 1, 0, 0xFFFFFFF0)
    return head + struct.pack("<I", zlib.crc32(head))


open_ends = {0, from_child}
while from_child in open_ends:
    ready, _, _ = select.select(list(open_ends), [], [], 0.1)
    order = order or taken()
    for fd in ready:
        data = os.read(fd, 1 << 16)
        if not data:
            open_ends.discard(fd)
            if fd == 0:
                child.stdin.close()
            continue
        try:
            if fd == 0:
                write(to_child, data)
                continue
            passed += len(data)
            if order and passed > order["after"]:
                what, order = order["what"], None
                if what == "cut":
                    child.kill()
                    sys.exit(1)
                if what == "stall":
                    while os.read(0, 1 << 16):  # until the host gives it up, or is gone
                        pass
                    child.kill()
                    sys.exit(1)
                if what == "garble":
                    data = data[: len(data) // 2] + b"\xff" + data[len(data) // 2 + 1 :]
                if what == "oversized":
                    data = oversized()
            write(1, data)
        except OSError:
            child.kill()
            sys.exit(1)
sys.exit(child.wait())
