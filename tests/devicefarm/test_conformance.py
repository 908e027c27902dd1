"""One suite for every transport: what must hold whatever lies between the host and the runner."""

from __future__ import annotations

import shutil
import signal
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rig
from boards import need_qemu
from places import HANGS, LIMITS, PLACES, Place

from smelt.core.diag import SmeltError
from smelt.core.session_memory import MEMORY_FIELDS
from smelt.devicefarm.budget import Budget, InfraError, infra
from smelt.devicefarm.channel import PipeChannel
from smelt.devicefarm.client import RunnerClient, open_session
from smelt.devicefarm.doctor import examine, healthy
from smelt.devicefarm.frames import VERSION, Decoder, Frame, FrameType, encode
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.measure import ONCE, QUICK, RunPlan, TimingVerdict
from smelt.devicefarm.qemu_user import android_emulated
from smelt.devicefarm.report import RunnerError
from smelt.devicefarm.verdict import Verdict, verdict_of_error

(
    FINE, SEGFAULT, ABORT, SPIN, PRINT, EAT, LEAVE, REFUSE, FLOOD, NAP, OVERFLOW, GRANDCHILD, SCRIBBLE, BAD,
    SLOW_RESET, DAEMON, SLEEP,
) = range(17)  # fmt: skip
RESET_NS = 20_000_000
"""What a reset takes after a SLOW_RESET."""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(params=list(PLACES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = PLACES[request.param](request, tmp_path)
    yield made
    if made.elsewhere:
        made.transport.execute(["rm", "-rf", f"/root/{tmp_path.name}"], Budget(LIMITS))  # its disk is memory
    made.transport.close()


@pytest.fixture
def client(place: Place) -> Iterator[RunnerClient]:
    with open_session(place.transport, place.bundle, budget=Budget(LIMITS)) as opened:
        yield opened


def mode(number: int) -> np.ndarray:
    return np.int32(number)


def reload(client: RunnerClient, place: Place) -> None:
    client.load(place.transport.deploy(place.bundle, client.budget))
    assert np.array_equal(client.run([X, mode(FINE)]).outputs["y"], 2 * X)


def test_hello_and_doctor(place: Place) -> None:
    findings = examine(place.transport, bundle=place.bundle, budget=Budget(LIMITS))
    named = {f.check: f for f in findings}
    assert named["echo"].ok
    assert named["runner"].ok
    assert place.arch in named["runner"].detail
    assert "emulated" not in named
    assert healthy(findings) == all(f.ok is not False for f in findings)


def test_facts_and_signature(client: RunnerClient, place: Place) -> None:
    assert client.facts is not None and client.model is not None
    assert client.facts.arch == place.arch
    assert client.facts.page_size in (4096, 16384, 65536)
    assert client.facts.pid > 1
    assert [t.name for t in client.model.inputs] == ['x"\n', "mode"]  # quotes and newlines survive
    assert [(str(t.dtype), t.rank) for t in client.model.outputs] == [("f32", 2), ("i64", 0)]


@pytest.mark.table(2, 1)
def test_changing_shapes_in_one_session(client: RunnerClient) -> None:
    for ran, shape in enumerate(((1, 1), (3, 5), (0, 7), (64, 33), (2, 0), (1, 1))):
        x = np.random.default_rng(1).random(shape, np.float32)
        report = client.run({'x"\n': x, "mode": mode(FINE)})
        assert report.outputs["y"].shape == shape
        assert np.array_equal(report.outputs["y"], 2 * x)
        assert report.outputs["count"].shape == ()
        assert report.outputs["count"] == x.size + (ran << 32)  # its state counts the runs
    assert report.memory.runs == 6
    assert report.samples_ns == () and report.timing is None


@pytest.mark.table(2)
def test_state_lasts_until_it_is_reset(client: RunnerClient) -> None:
    """A run that fails leaves it; what is timed or profiled starts anew each time, and so does a new load."""
    assert client.model is not None
    assert [(t.name, str(t.dtype), t.rank) for t in client.model.state] == [("turns", "i64", 0)]

    def runs(plan: RunPlan = ONCE) -> int:
        return int(client.run([X, mode(FINE)], plan).outputs["count"]) >> 32

    assert [runs(), runs(), runs()] == [0, 1, 2]
    with pytest.raises(RunnerError, match="expected 4, got 5"):
        client.run([X, mode(REFUSE)])
    assert runs() == 3
    client.reset_state()
    assert [runs(), runs()] == [0, 1]
    assert [runs(QUICK), runs(replace(ONCE, profile=True)), runs()] == [0, 0, 1]
    client.reset()
    with pytest.raises(RunnerError, match="no model is loaded"):
        client.reset_state()


@pytest.mark.table(2)
def test_the_sessions_memory_is_told_field_by_field(client: RunnerClient) -> None:
    """The model's numbers are all different, so that no name has another one's."""
    assert client.model is not None
    opened = dict.fromkeys(MEMORY_FIELDS, 0) | {
        "arena_capacity": 11, "weights_bytes": 13, "crossings": 17, "crossed_bytes": 19,
        "shared": 67, "shared_bytes": 71, "state_capacity": 23,
        "launches": 29, "submits": 31, "uploads": 37, "uploaded_bytes": 41, "reads": 43, "read_bytes": 47,
        "waits": 53, "cache_hits": 59, "cache_misses": 61, "kernel_forms": 73, "lesser_forms": 79,
    }  # fmt: skip
    assert {name: getattr(client.model.memory, name) for name in MEMORY_FIELDS} == opened
    report = client.run([X, mode(FINE)])
    ran = opened | {"arena_bytes": X.nbytes, "output_capacity": X.nbytes, "allocations": 1, "runs": 1}
    assert {name: getattr(report.memory, name) for name in MEMORY_FIELDS} == ran
    assert report.memory.resident_peak > 0


@pytest.mark.table(2)
def test_strided_inputs(client: RunnerClient) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6).T[::-1, ::2]
    assert np.array_equal(client.run([x, mode(FINE)]).outputs["y"], 2 * x)


def test_large_tensors(client: RunnerClient, place: Place) -> None:
    """20 MB each way; 2 MB where an emulated processor does the encryption of the link, too."""
    x = np.random.default_rng(2).random((1000, 500 if place.elsewhere else 5_000), np.float32)
    start = time.monotonic()
    assert np.array_equal(client.run([x, mode(FINE)]).outputs["y"], 2 * x)
    assert time.monotonic() - start < HANGS


def test_timed_run(client: RunnerClient, place: Place) -> None:
    plan = RunPlan(
        warmup_runs=3,
        warmup_min=0.01,
        warmup_max=0.5,
        samples=20,
        min_time=0.01,
        max_time=5,
        sample_time=0.01,  # twenty naps of a quiet machine, two of a busy one
        profile=True,
    )
    report = client.run([X, mode(NAP)], plan)
    assert len(report.samples_ns) >= 20
    assert len(report.warmup.ns) >= 3
    assert min(report.samples_ns) > 400_000  # the model sleeps half a millisecond
    assert report.samples.inner >= 2
    assert report.first_ns > 400_000
    assert [k.name for k in report.profile] == ["double_it"]
    assert (report.profile[0].form, report.profile[0].lesser) == ("bytes", 'for "more" the device lacks it')
    assert report.profile[0].launches == report.samples.inner * len(report.samples_ns)
    timing = report.timing
    assert timing is not None
    assert place.transport.emulated == (timing.verdict is TimingVerdict.EMULATED)


def test_the_way_back_to_the_start_is_not_timed(client: RunnerClient) -> None:
    """The model takes RESET_NS for it, which no time of runs has, be the clock read for each or for many."""
    plan = RunPlan(
        warmup_runs=2, warmup_min=0, warmup_max=0.1, samples=3, min_time=0, max_time=5, sample_time=1e-5
    )
    client.run([X, mode(SLOW_RESET)])
    for sample_time in (0.0, 1e-5):
        report = client.run([X, mode(SLOW_RESET)], replace(plan, sample_time=sample_time))
        assert min(report.samples_ns) < RESET_NS
        assert min(report.warmup.ns) < RESET_NS
        assert report.outputs["count"] >> 32 == 0


@pytest.mark.table(5)
@pytest.mark.parametrize(
    ("kind", "signal_number", "exit_code"),
    [(SEGFAULT, 11, 0), (ABORT, 6, 0), (LEAVE, 0, 7), (OVERFLOW, 11, 0), (GRANDCHILD, 0, 3)],
)
def test_crash_is_told_and_survived(
    client: RunnerClient, place: Place, kind: int, signal_number: int, exit_code: int
) -> None:
    start = time.monotonic()
    with pytest.raises(RunnerError) as caught:
        client.run([X, mode(kind)])
    assert time.monotonic() - start < HANGS
    crash = caught.value.crash
    assert crash is not None
    assert (crash.signal, crash.exit_code, crash.stage) == (signal_number, exit_code, "run: first")
    assert verdict_of_error(caught.value) is Verdict.CRASH
    if kind == SEGFAULT:
        assert crash.address == 0x40
        assert crash.object in ("libmodel.so", "smelt_run")
        assert crash.offset > 0
    with pytest.raises(RunnerError, match="no model is loaded"):
        client.run()
    reload(client, place)


def test_scribbling_over_the_protocol_is_contained(client: RunnerClient, place: Place) -> None:
    with pytest.raises(RunnerError) as caught:
        client.run([X, mode(SCRIBBLE)])
    assert caught.value.status == "crash"
    reload(client, place)


def test_hang_meets_the_deadline_on_the_device(place: Place) -> None:
    budget = Budget(replace(LIMITS, run=0.5))
    with open_session(place.transport, place.bundle, budget=budget) as client:
        start = time.monotonic()
        with pytest.raises(RunnerError) as caught:
            client.run([X, mode(SPIN)])
        assert 0.4 < time.monotonic() - start < HANGS
        assert caught.value.status == "timeout"
        assert verdict_of_error(caught.value) is Verdict.TIMEOUT
        reload(client, place)


def test_prints_become_log(client: RunnerClient) -> None:
    report = client.run([X, mode(PRINT)])
    assert "hello from the model" in report.log
    assert "and from stderr" in report.log
    assert np.array_equal(report.outputs["y"], 2 * X)


def test_flood_of_prints_is_bounded(client: RunnerClient) -> None:
    report = client.run([X, mode(FLOOD)])  # 8 MB
    assert 0 < len(report.log) <= 1 << 20
    assert np.array_equal(report.outputs["y"], 2 * X)


def test_memory_limit(place: Place) -> None:
    by_emulator = place.transport.emulated and not place.elsewhere  # whose own memory counts, too
    limit = 512 << 20 if by_emulator else 256 << 20
    with open_session(
        place.transport, place.bundle, budget=Budget(LIMITS), memory_limit=limit
    ) as client:
        assert np.array_equal(client.run([X, mode(FINE)]).outputs["y"], 2 * X)
        with pytest.raises(RunnerError) as caught:
            client.run([X, mode(EAT)])
        assert "memory" in str(caught.value)
        assert verdict_of_error(caught.value) is Verdict.CRASH
        reload(client, place)


@pytest.mark.table(2)
def test_refusal_leaves_the_session_usable(client: RunnerClient) -> None:
    with pytest.raises(RunnerError, match="axis 1: expected 4, got 5") as caught:
        client.run([X, mode(REFUSE)])
    assert (caught.value.status, caught.value.kind) == ("shape", "shape")
    assert np.array_equal(client.run([X, mode(FINE)]).outputs["y"], 2 * X)


@pytest.mark.table(2)
def test_wrong_inputs_are_named(client: RunnerClient) -> None:
    with pytest.raises(SmeltError, match="the model has 2 inputs, got 1"):
        client.run([X])
    with pytest.raises(SmeltError, match="inputs are"):
        client.run({"y": X})
    with pytest.raises(SmeltError, match="NumPy type"):
        client.set_input(0, np.array(["text"]))
    with pytest.raises(RunnerError, match="input 7 does not exist"):
        client.set_input(
            7, np.zeros(3_000_000, np.float32)
        )  # several DATA frames are in the link already
    with pytest.raises(RunnerError, match="was not set"):
        client.run()
    with pytest.raises(RunnerError, match="no run has succeeded"):
        client.get_output(0)
    assert np.array_equal(client.run([X, mode(FINE)]).outputs["y"], 2 * X)


@pytest.mark.table(2)
def test_output_that_contradicts_itself(client: RunnerClient) -> None:
    with pytest.raises(RunnerError, match="not a compact tensor"):
        client.run([X, mode(BAD)])


def test_broken_bundle(client: RunnerClient) -> None:
    with pytest.raises(RunnerError) as caught:
        client.load("/nowhere/refused")
    assert caught.value.status in ("invalid", "infra")
    assert "cannot be read" in str(caught.value) or "model.weights is missing" in str(caught.value)
    with pytest.raises(RunnerError, match="no model is loaded"):
        client.run()


def test_killed_runner_is_an_infra_error_and_leaves_nothing(client: RunnerClient, place: Place) -> None:
    assert client.facts is not None
    pid = client.facts.pid
    (worker,) = place.children(pid)
    timer = threading.Timer(0.3, place.kill, (pid, signal.SIGKILL))
    timer.start()
    start = time.monotonic()
    with pytest.raises(SmeltError) as caught:
        client.run([X, mode(SPIN)])
    assert time.monotonic() - start < HANGS
    assert caught.value.kind == "infra"
    assert verdict_of_error(caught.value) is Verdict.KILLED
    assert place.gone(worker)
    with pytest.raises(SmeltError, match="cannot be used any more"):
        client.run()


@pytest.mark.table(4)
@pytest.mark.parametrize("then", ["close", "reset", "crash", "deadline"])
def test_what_a_model_forks_away_is_ended(place: Place, then: str) -> None:
    """It has left its group, its session and its parents."""
    budget = Budget(replace(LIMITS, run=2 if then == "deadline" else LIMITS.run))
    with open_session(place.transport, place.bundle, budget=budget) as client:
        log = client.run([X, mode(DAEMON)]).log
        daemons = [int(line.split()[1]) for line in log.splitlines() if line.startswith("daemon ")]
        assert len(daemons) == 2
        assert not any(place.gone(pid, 0.1) for pid in daemons)
        if then == "reset":
            client.reset()
        elif then != "close":
            with pytest.raises(RunnerError):
                client.run([X, mode(ABORT if then == "crash" else SLEEP)])
        if then != "close":
            assert all(place.gone(pid, 0.1) for pid in daemons)  # by now, not some time later
    assert all(place.gone(pid) for pid in daemons)


def test_killed_worker_is_told_from_a_crash(client: RunnerClient, place: Place) -> None:
    """As the out-of-memory killer does it: while a run goes on, and between runs."""
    assert client.facts is not None
    for idle in (False, True):
        (worker,) = place.children(client.facts.pid)
        if idle:
            place.kill(worker, signal.SIGKILL)
            assert place.gone(worker)
        else:
            threading.Timer(0.3, place.kill, (worker, signal.SIGKILL)).start()
        with pytest.raises(RunnerError, match="killed from outside") as caught:
            client.run([X, mode(SPIN)])
        assert caught.value.kind == "infra"
        assert verdict_of_error(caught.value) is Verdict.KILLED
        with pytest.raises(RunnerError) as again:
            client.run([X, mode(FINE)])
        assert verdict_of_error(again.value) is Verdict.KILLED
        reload(client, place)


def test_slow_host_keeps_its_runner(place: Place) -> None:
    """It neither sends nor receives for many times the silence; nor does a long run count as silence."""
    budget = Budget(replace(LIMITS, beat=0.1, silence=3))
    with open_session(place.transport, place.bundle, budget=budget) as client:
        time.sleep(4)
        assert np.array_equal(client.run([X, mode(FINE)]).outputs["y"], 2 * X)
        threading.Timer(4, _cancel, (client, client._job + 3)).start()
        with pytest.raises(RunnerError, match="cancelled"):
            client.run([X, mode(SLEEP)])


def test_stopped_host_loses_its_runner(place: Place) -> None:
    """Its connection stays open, but nothing comes: as of a process that is stopped, or a dead link."""
    budget = Budget(replace(LIMITS, beat=0.2, silence=2))
    with open_session(place.transport, place.bundle, budget=budget) as client:
        assert client.facts is not None and client._heartbeat is not None
        workers = place.children(client.facts.pid)
        client._heartbeat.stop()
        assert all(place.gone(pid) for pid in (client.facts.pid, *workers))
        with pytest.raises(SmeltError) as caught:
            client.run([X, mode(FINE)])
        assert verdict_of_error(caught.value).exit_code == 6


def test_closing_in_the_middle_of_a_run_leaves_nothing(place: Place) -> None:
    with open_session(place.transport, place.bundle, budget=Budget(LIMITS)) as client:
        assert client.facts is not None
        pid = client.facts.pid
        (worker,) = place.children(pid)
        failures: list[SmeltError] = []

        def hang() -> None:
            try:
                client.run([X, mode(SPIN)])
            except SmeltError as error:
                failures.append(error)

        thread = threading.Thread(target=hang)
        thread.start()
        time.sleep(0.3)
        client._channel.close()
        thread.join(HANGS)
        assert [f.kind for f in failures] == ["infra"]
    assert place.gone(pid)
    assert place.gone(worker)


def test_stopped_runner_meets_the_hosts_deadline(place: Place) -> None:
    budget = Budget(replace(LIMITS, run=0.3, grace=0.5, close=0.5))
    with open_session(place.transport, place.bundle, budget=budget) as client:
        assert client.facts is not None
        place.kill(client.facts.pid, signal.SIGSTOP)
        start = time.monotonic()
        try:
            with pytest.raises(SmeltError, match="longer than its limit") as caught:
                client.run()
            assert caught.value.kind == "infra"
            client.close()
            assert time.monotonic() - start < HANGS
        finally:
            if not place.gone(client.facts.pid, 0.1):
                place.kill(client.facts.pid, signal.SIGCONT)


@pytest.mark.table(2)
def test_old_lease_is_refused(client: RunnerClient) -> None:
    client.fence = 7
    client.run([X, mode(FINE)])
    client.fence = 6
    with pytest.raises(RunnerError, match="newer lease") as caught:
        client.run([X, mode(FINE)])
    assert caught.value.status == "stale"


def _cancel(client: RunnerClient, job: int) -> None:
    client._send(Frame(FrameType.CANCEL, b"\0" * 8, job), time.monotonic() + HANGS)


def test_cancel_ends_a_run(client: RunnerClient, place: Place) -> None:
    threading.Timer(0.3, _cancel, (client, client._job + 3)).start()  # two inputs come first
    with pytest.raises(RunnerError) as caught:
        client.run([X, mode(SPIN)])
    assert caught.value.status == "cancelled"
    assert verdict_of_error(caught.value).exit_code == 130
    reload(client, place)


def test_reset_frees_the_worker(client: RunnerClient, place: Place) -> None:
    assert client.facts is not None
    client.reset()
    assert place.children(client.facts.pid) == []
    reload(client, place)


# ---- broken streams, straight at the runner ----

HELLO = encode(Frame(FrameType.HELLO, b"\0" * 8, 1))


def corrupt(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def oversized() -> bytes:
    head = struct.pack("<IBBHQQI", 0x544C4D53, VERSION, 1, 0, 1, 0, 1 << 30)
    return head + struct.pack("<I", zlib.crc32(head))


@pytest.mark.table(7)
@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: board\r\n\r\n\r\n", "no frame magic"),
        (corrupt(HELLO, 9), "header checksum"),
        (corrupt(HELLO, 34), "payload checksum"),
        (corrupt(HELLO, len(HELLO) - 1), "payload checksum"),
        (oversized(), "longer than 16 MiB"),
        (encode(Frame(FrameType.END, b"", 1)), "not a request"),
        (encode(Frame(FrameType.RUN, b"\0" * 56, 1)), "no model is loaded"),
    ],
)
def test_broken_stream_is_answered(place: Place, stream: bytes, text: str) -> None:
    budget = Budget(LIMITS)
    channel = place.transport.open_runner(place.transport.deploy(place.bundle, budget), budget)
    try:
        end = time.monotonic() + HANGS
        channel.send(stream, end)
        decoder = Decoder()
        frames: list[Frame] = []
        while not frames:
            data = channel.receive(end)
            assert data, "the runner ended without an answer"
            frames += decoder.feed(data)
        assert frames[0].type is FrameType.END
        assert text in frames[0].payload.decode()
    finally:
        channel.close()


def test_truncated_stream_ends_the_runner(native_bundle: Path) -> None:
    channel = PipeChannel([str(native_bundle / "smelt_run"), "--serve"])
    channel.send(HELLO[:20], time.monotonic() + HANGS)
    assert channel.process.stdin is not None
    channel.process.stdin.close()
    assert channel.process.wait(HANGS) == 0
    channel.close()


def test_idle_runner_ends_itself(native_bundle: Path) -> None:
    channel = PipeChannel([str(native_bundle / "smelt_run"), "--serve"])
    client = RunnerClient(channel, budget=Budget(replace(LIMITS, idle=0.3)))
    client.hello()
    assert channel.process.wait(HANGS) == 0
    client.close()


@pytest.mark.parametrize("text", [b"Welcome to board 7!\n", b"\x00" * 64, b"SML"])
def test_something_that_is_no_runner(text: bytes, tmp_path: Path) -> None:
    script = tmp_path / "smelt_run"
    (tmp_path / "text").write_bytes(text)
    script.write_text(f"#!/bin/sh\ncat '{tmp_path}/text'; cat >/dev/null; exit 0\n")
    script.chmod(0o755)
    client = RunnerClient(PipeChannel([str(script)]), budget=Budget(replace(LIMITS, connect=1.0)))
    start = time.monotonic()
    with pytest.raises(SmeltError) as caught:
        client.hello()
    assert caught.value.kind == "infra"
    assert time.monotonic() - start < HANGS
    client.close()


class Chatty:
    """A channel to a device that gives signs of life and no answer."""

    def send(self, data: bytes, deadline: float) -> None: ...
    def receive(self, deadline: float) -> bytes:
        time.sleep(0.01)
        return encode(Frame(FrameType.PING, b"", 1))

    def stderr_tail(self) -> str:
        return ""

    def ended(self) -> InfraError:
        return infra("it does not end")

    def close(self) -> None: ...


def test_signs_of_life_are_no_answer() -> None:
    client = RunnerClient(Chatty(), budget=Budget(replace(LIMITS, connect=0.5)))
    with pytest.raises(SmeltError, match="longer than its limit") as caught:
        client.hello()
    assert verdict_of_error(caught.value) is Verdict.LINK_STALLED
    client.close()


def test_runner_that_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "smelt_run").write_bytes(b"\x7fELF of another world")
    (tmp_path / "smelt_run").chmod(0o755)
    with pytest.raises(SmeltError) as caught, open_session(LocalTransport(), tmp_path):
        pass
    assert caught.value.kind == "infra"
    (tmp_path / "smelt_run").unlink()
    with pytest.raises(SmeltError, match="no runner"), open_session(LocalTransport(), tmp_path):
        pass


# ---- Android ----


def test_android_library_on_the_glibc_shim(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_qemu("qemu-aarch64-static")
    monkeypatch.delenv("SMELT_BIONIC_ROOT", raising=False)
    home = tmp_path_factory.mktemp("android")
    bundle = rig.build_arm64(
        home / "bundle", target="aarch64-linux-android", library_names="android"
    )
    shim_runner = home / "smelt_run.shim"
    shutil.move(bundle / "smelt_run", shim_runner)
    transport = android_emulated(home / "cache", shim_runner=shim_runner)
    assert transport.emulated
    assert "no bionic" in transport.name
    with open_session(transport, bundle, budget=Budget(LIMITS)) as client:
        assert np.array_equal(client.run([X, mode(FINE)]).outputs["y"], 2 * X)
        with pytest.raises(RunnerError, match="signal 11"):
            client.run([X, mode(SEGFAULT)])
