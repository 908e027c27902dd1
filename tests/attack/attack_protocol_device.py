"""Hostile bytes to a runner (smelt_run --serve) -> it answers or leaves, in bounded time and memory,
uncrashed.

The runner is built with AddressSanitizer and UndefinedBehaviorSanitizer. A seed draws a session (hello,
load, inputs,
runs, outputs, in any order and number),
mutates its frames (fields, lengths, counts, order, checksums, raw bytes), and
plays it by one of three hosts: one that waits for answers, one that sends everything at once, one that never
reads. Models misbehave, too: they crash, hang,
write to each descriptor. The runner must end by itself once its input
ends, with exit code 0 or 3, and without a report on stderr.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "support"), str(TESTS / "devicefarm")]
import rig  # noqa: E402  # of tests/devicefarm
from campaign import Outcome, main  # noqa: E402
from frames_raw import Raw  # noqa: E402

from smelt.devicefarm.frames import CRC, HEADER, VERSION, FrameType, decode_header  # noqa: E402
from smelt.devicefarm.requests import CONTROL_HEAD, LOAD_HEAD, PAIR, RUN_BODY, SETIN_HEAD  # noqa: E402

PIPE = 1 << 20
"""Bytes that a runner can write while its host reads nothing, as for the client."""
DEADLINE_MS = 150
"""Of each request, told to the runner; it also idles no longer than ten of them."""
TALK, HANG = 10.0, 30.0
"""Seconds after which a host has said enough, and after which a runner must have left."""
MEMORY = 700 << 20
"""Resident bytes that a runner may reach: sanitizers hold on to what was freed (256 MB at most),
a frame has up
to 16 MB, and a queue four frames."""
MODES = (0, 0, 0, 1, 2, 3, 4, 6, 7, 9, 10, 11, 12, 13)
"""Of the fake model: all but the flood of prints and the one that eats all memory."""
EXTREMES = (0, 1, 2, 7, 63, 64, 65, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
WIDE = (*EXTREMES, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def runner() -> Path:
    """A folder with a sanitized smelt_run and the fake model."""
    return built(rig.RUNTIME)


CULPRIT = re.compile(
    rb"#0 [^\n]*runner_"  # in its own code, or in a function of libc's that this has called
    rb"|#0 [^\n]*(?:sanitizer|interceptor)[^\n]*\n[^\n]*#1 [^\n]*runner_"
    rb"|runner[a-z_]*\.[ch]:[0-9:]+ runtime error"
)


@functools.cache
def built(runtime: Path) -> Path:
    """The same of other sources; once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="attack-runner-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["gcc", "-std=c11", "-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
             "-Wno-builtin-declaration-mismatch", f"-I{runtime}"]  # fmt: skip
    sources = map(str, sorted(runtime.glob("runner*.c")))
    rig.run([*flags, *sources, "-o", str(folder / "smelt_run")])
    model = [str(rig.HERE / "fake_model.c"), "-o", str(folder / "libmodel.so")]
    rig.run([*flags, "-w", "-shared", "-fPIC", *model])
    os.mkfifo(folder / "fifo")
    for name, text in (("text", "no library"), ("empty", "")):
        (folder / name).mkdir()
        (folder / name / "libmodel.so").write_text(text)
    policy = folder / "sysfs/devices/system/cpu/cpufreq/policy0"
    policy.mkdir(parents=True)
    for name in ("scaling_governor", "scaling_min_freq", "scaling_max_freq"):
        (policy / name).write_text("1000\n")
    return folder


def program(folder: Path | None = None) -> list[str]:
    """The command of a runner. Its sysfs is of files, so that no governor of this machine is changed."""
    folder = folder or runner()
    return [str(folder / "smelt_run"), "--serve", "--sysfs", str(folder / "sysfs")]


# ---------------------------------------------------------------- frames


def good(rng: random.Random) -> list[Raw]:
    """A session as a host may have it: loads, then inputs, runs and outputs in turn."""
    n, m = rng.choice([(2, 3), (0, 3), (1, 1), (300, 70)])
    frames: list[Raw] = [Raw(FrameType.HELLO, PAIR.pack(0, 10 * DEADLINE_MS), 1)]
    job = 1
    if rng.random() < 0.3:
        cpus = rng.choice([b"", b"\1", b"\xff" * 128])
        head = CONTROL_HEAD.pack(DEADLINE_MS, 0, rng.choice([0, 900, 2000]), cpus)
        frames.append(Raw(FrameType.CONTROL, head + rng.choice([b"", b"performance"]), job := job + 1))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        head = LOAD_HEAD.pack(5000, rng.choice([0, 1, 3]), rng.choice([0, 1]), 0, 0)
        frames.append(Raw(FrameType.LOAD, head + str(runner()).encode(), job := job + 1))
        for _ in range(rng.choice([1, 1, 2])):
            mode, size = rng.choice(MODES), 4 * n * m
            x = SETIN_HEAD.pack(DEADLINE_MS, 0, 2, 32, 1, 2, size) + struct.pack("<2q", n, m)
            frames.append(Raw(FrameType.SETIN, x, job := job + 1))
            piece = max(1, size // rng.choice([1, 1, 3]))
            frames += [
                Raw(FrameType.DATA, struct.pack("<Q", at) + bytes(min(piece, size - at)), job)
                for at in range(0, size, piece)
            ]
            frames.append(
                Raw(FrameType.SETIN, SETIN_HEAD.pack(DEADLINE_MS, 1, 0, 32, 1, 0, 4), job := job + 1)
            )
            frames.append(Raw(FrameType.DATA, bytes(8) + struct.pack("<i", mode), job))
            plan = RUN_BODY.pack(
                DEADLINE_MS, rng.choice([0, 1]), 1, rng.choice([0, 5]), 0, 10**6, 0, 10**7, 10**5
            )
            frames.append(Raw(FrameType.RUN, plan, job := job + 1))
            for k in rng.choice([(0,), (0, 1), ()]):
                frames.append(Raw(FrameType.GETOUT, PAIR.pack(DEADLINE_MS, k), job := job + 1))
    return [*frames, Raw(FrameType.QUIT, PAIR.pack(0, 0), job + 1)]


def request_words(rng: random.Random) -> bytes:
    """A payload of numbers that could be a request's, all of them extreme."""
    return b"".join(
        struct.pack(*rng.choice((("<I", rng.choice(EXTREMES)), ("<Q", rng.choice(WIDE)))))
        for _ in range(rng.randrange(12))
    )


HOWS = (
    *["word"] * 3, *["byte"] * 2, "cut", "more", "type", "job", "fence", "header", "crc", "copy", "flood",
    "drop",
    "swap", "alien", "path", "setin", "big",
)  # fmt: skip


def mutate(frames: list[Raw], rng: random.Random) -> None:
    """One change, in place."""
    at = rng.randrange(len(frames))
    f = frames[at]
    how = rng.choice(HOWS)
    if how == "word" and len(f.payload) >= 4:  # a field of the request, with a right checksum
        width, wide = rng.choice([("<I", EXTREMES), ("<Q", WIDE)])
        size = struct.calcsize(width)
        place = rng.randrange(0, max(1, len(f.payload) - size + 1), 4)
        f.payload = f.payload[:place] + struct.pack(width, rng.choice(wide)) + f.payload[place + size :]
    elif how == "byte" and f.payload:
        place = rng.randrange(len(f.payload))
        f.payload = (
            f.payload[:place]
            + bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])])
            + f.payload[place + 1 :]
        )
    elif how == "cut":
        f.payload = f.payload[: rng.randrange(len(f.payload) + 1)]
    elif how == "more":
        f.payload += rng.randbytes(rng.choice([1, 4, 8, 99, 5000]))
    elif how == "type":
        f.type = rng.choice([0, *FrameType, 99, 255])
    elif how == "job":
        f.job = rng.choice([0, f.job - 1 if f.job else 0, f.job + 1, 2**64 - 1])
    elif how == "fence":
        f.fence = rng.choice([0, 1, 2**63, 2**64 - 1])
    elif how == "header":
        field = rng.choice(["magic", "version", "flags", "length"])
        setattr(
            f,
            field,
            rng.choice([0, 1, 255])
            if field == "version"
            else rng.choice(EXTREMES) & (0xFFFF if field == "flags" else 0xFFFFFFFF),
        )
    elif how == "crc":
        setattr(f, rng.choice(["head_crc", "crc"]), rng.randrange(2**32))
    elif how == "copy":
        frames.insert(rng.randrange(len(frames) + 1), Raw(**vars(frames[at])))
    elif how == "flood":
        frames[at:at] = [
            Raw(rng.choice([f.type, FrameType.HELLO, FrameType.RESET, FrameType.CANCEL]), f.payload, f.job)
        ] * rng.choice([30, 500, 5000])
    elif how == "drop":
        del frames[at]
        if not frames:
            frames.append(f)
    elif how == "swap":
        other = rng.randrange(len(frames))
        frames[at], frames[other] = frames[other], frames[at]
    elif how == "alien":
        frames.insert(at, Raw(rng.choice(list(FrameType)), request_words(rng), f.job))
    elif how == "path":
        path = rng.choice([
            b"", b"/", b"\0", b"..", b"../../../../etc", b"/dev/null", b"/proc/self", b"a" * 5000,
            b"%s%n" * 50, b"\xff" * 9,
            str(runner()).encode() + b"\0junk", str(runner() / "text").encode(),
            str(runner() / "empty").encode(),
            str(runner() / "smelt_run").encode(), b"refused",
        ])  # fmt: skip
        frames.insert(
            at,
            Raw(
                FrameType.LOAD,
                LOAD_HEAD.pack(DEADLINE_MS, 1, 1, 0, rng.choice([0, 0, 1, 2**30])) + path,
                f.job,
            ),
        )
    elif how == "setin":
        rank = rng.choice([0, 1, 2, 63, 64, 65, 10**6, 2**32 - 1])
        count = max(0, min(rank, 70) + rng.choice([0, 0, 0, -1, 1, -60]))
        dims = [rng.choice([0, 1, 3, -1, -(2**63), 2**62, 2**63 - 1]) for _ in range(count)]
        head = SETIN_HEAD.pack(
            DEADLINE_MS, rng.choice([0, 1, 2, 2**32 - 1]), rng.choice([0, 2, 99]),
            rng.choice([0, 1, 32, 255]),
            rng.choice([0, 1, 65535]), rank, rng.choice(WIDE),
        )  # fmt: skip
        frames.insert(at, Raw(FrameType.SETIN, head + struct.pack(f"<{len(dims)}q", *dims), f.job))
    elif how == "big":
        frames.insert(
            at, Raw(f.type, f.payload + bytes(rng.choice([1 << 20, 16 << 20, (16 << 20) + 1])), f.job)
        )


def draw(seed: int) -> tuple[list[bytes], str]:
    """What is sent, in pieces, and by which host."""
    rng = random.Random(seed)
    frames = good(rng)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
        mutate(frames, rng)
    pieces = [f.encode() for f in frames]
    if rng.random() < 0.15:  # raw bytes, whatever the checksums say
        at = rng.randrange(len(pieces))
        raw = bytearray(pieces[at])
        for _ in range(rng.choice([1, 1, 8])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        pieces[at] = bytes(raw)
    if rng.random() < 0.05:
        pieces.insert(rng.randrange(len(pieces)), rng.choice([b"Welcome\r\n", b"SML", bytes(1 << 16)]))
    if rng.random() < 0.1:
        pieces[-1] = pieces[-1][: rng.randrange(len(pieces[-1]) + 1)]
    return pieces, rng.choice(["waits"] * 5 + ["rushes", "is deaf"])


# ---------------------------------------------------------------- a conversation


@dataclass(frozen=True)
class Heard:
    """How a runner ended: its exit code (None: it had to be killed), what it wrote, its resident bytes.
    out: the host had heard it out before it closed its end, which ends what the runner still says."""

    code: int | None
    stdout: bytes
    stderr: bytes
    memory: int
    out: bool


def asks(pieces: Sequence[bytes], at: int) -> bool:
    """Whether a host would wait for an answer after the piece at this place."""
    kinds = [p[5] if len(p) > 5 else 0 for p in pieces[at : at + 2]]
    return kinds[0] != FrameType.CANCEL and kinds[1:] != [FrameType.DATA]


def converse(program: Sequence[str], pieces: Sequence[bytes], host: str, patience: float = 0.4) -> Heard:
    """Play the pieces; what came of it. patience: seconds for which a host that waits waits for an answer."""
    with tempfile.TemporaryFile() as errors:
        code, heard, memory, out = _play(program, pieces, host, errors, patience)
        errors.seek(0)
        return Heard(code, bytes(heard), errors.read(), memory, out)


def _play(
    program: Sequence[str], pieces: Sequence[bytes], host: str, errors: IO[bytes], patience: float
) -> tuple[int | None, bytearray, int, bool]:
    """Exit code, stdout, resident bytes, and whether the host has heard the runner out."""
    process = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=64:exitcode=99",
        "UBSAN_OPTIONS": "exitcode=98"},
    )  # fmt: skip
    assert process.stdin and process.stdout
    to, of = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(to, False)
    os.set_blocking(of, False)
    fcntl.fcntl(of, fcntl.F_SETPIPE_SZ, PIPE)
    heard, end, gone = bytearray(), time.monotonic() + TALK, False
    for k, piece in enumerate(pieces):
        view, ends, limit = memoryview(piece), heard.count(b'"status"'), time.monotonic() + patience
        while not gone and time.monotonic() < end:
            if not view:
                answered = heard.count(b'"status"') > ends or time.monotonic() > limit
                if host != "waits" or answered or not asks(pieces, k):
                    break
            writing = [to] if view else []
            ready, room, _ = select.select([] if host == "is deaf" else [of], writing, [], 0.05)
            if ready:
                data = os.read(of, 1 << 20)
                gone = not data
                _keep(heard, data)
            if room:
                try:
                    view = view[os.write(to, view) :]
                except OSError:
                    gone = True
            elif host == "is deaf" and time.monotonic() > limit:
                break  # it waits for us to read, which we never do
    out = host != "is deaf" and _heard_out(process, heard, end)
    memory = peak(process.pid)
    process.stdin.close()
    os.set_blocking(of, True)  # its reads are after a select
    return _last_words(process, heard, time.monotonic() + HANG), heard, memory, out


def _heard_out(process: subprocess.Popen[bytes], heard: bytearray, end: float) -> bool:
    """Read until the runner has taken all that it was sent, has said all, and sleeps, or has ended. What it
    says later (a run may go on) has room in the pipe, so nothing of it is cut off. False: no time is left."""
    assert process.stdin and process.stdout
    to, of = process.stdin.fileno(), process.stdout.fileno()

    def unread() -> bool:
        return any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)) != bytes(4) for fd in (to, of))

    while time.monotonic() < end and process.poll() is None:
        if select.select([of], [], [], 0.02)[0]:
            data = os.read(of, 1 << 20)
            _keep(heard, data)
            if not data:
                break
        elif not unread() and _sleeps(process.pid) and not unread():
            return True
    return process.poll() is not None or time.monotonic() < end


def _sleeps(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    return True


def _keep(heard: bytearray, data: bytes) -> None:
    heard += data
    del heard[: max(0, len(heard) - (8 << 20))]


def peak(pid: int) -> int:
    """The most bytes that a process has had resident; 0 when it has ended. (The ru_maxrss of a child would be
    that of its parent, where the parent is larger.)"""
    try:
        found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _last_words(process: subprocess.Popen[bytes], heard: bytearray, end: float) -> int | None:
    """Read to the end of stdout and wait for the process: its exit code, None when it had to be killed."""
    assert process.stdout
    code: int | None = None
    while time.monotonic() < end and (code := process.poll()) is None:
        if select.select([process.stdout], [], [], 0.02)[0]:
            data = os.read(process.stdout.fileno(), 1 << 20)
            _keep(heard, data)
            if not data:
                time.sleep(0.002)
    if code is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    while data := os.read(process.stdout.fileno(), 1 << 20):
        _keep(heard, data)
    process.stdout.close()
    return code


def whole_frames(data: bytes) -> bool:
    """Whether the runner's bytes are frames to the last; a prefix may have been forgotten."""
    at = max(0, data.find(b"SMLT" + bytes([VERSION])))
    while at < len(data):
        if len(data) - at < HEADER.size + CRC.size:
            return False
        length = decode_header(data[at : at + HEADER.size + CRC.size])[3]
        at += HEADER.size + 2 * CRC.size + length
    return at == len(data)


def attack(seed: int) -> Outcome:
    """One session."""
    pieces, host = draw(seed)
    return judge(converse(program(), pieces, host), f"{host}, {len(pieces)} pieces")


def judge(heard: Heard, which: str) -> Outcome:
    """What came of a session."""
    said = heard.stderr.decode(errors="replace")
    what = {0: "left", 3: "told a broken stream", None: "hangs"}.get(heard.code, f"exit code {heard.code}")
    failed = heard.code not in (0, 3)
    if "Sanitizer" in said or "runtime error" in said:
        what, failed = "sanitizer", True
    elif found := CULPRIT.search(heard.stdout):
        what, failed = "sanitizer in the worker", True  # the model's own crashes are of its own file
        said = heard.stdout[max(0, found.start() - 1000) : found.end() + 2000].decode(errors="replace")
    elif heard.memory > MEMORY:
        what, failed = "too much memory", True
    elif not failed and heard.out and not whole_frames(heard.stdout):
        what, failed = "half a frame", True
    detail = f"{which}, {heard.memory >> 20} MB: {said[:3000]}" if failed else ""
    return Outcome(what, failed, detail)


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", count=10**6))
