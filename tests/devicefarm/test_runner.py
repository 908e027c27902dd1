"""The runner by itself: its command line, a fake sysfs, other C compilers' targets, and a
sanitized build under fuzz.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rig
from installed import program_path

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.channel import PipeChannel
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.frames import CHUNK, Frame, FrameType, encode
from smelt.devicefarm.measure import QUICK, TimingVerdict
from smelt.devicefarm.report import RunnerError, RunReport
from smelt.devicefarm.requests import LOAD_HEAD, PAIR, RUN_BODY, SETIN_HEAD
from smelt.targets.elf import code_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def shell(*argv: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("kind", ["native_bundle", "static_bundle"])
def test_command_line(kind: str, request: pytest.FixtureRequest) -> None:
    bundle = request.getfixturevalue(kind)
    info = shell(bundle / "smelt_run", bundle, "--info")
    assert info.returncode == 0
    assert "input  mode: int32 of rank 0" in info.stdout
    assert "output y: float32 of rank 2" in info.stdout
    done = shell(bundle / "smelt_run", bundle, "--shape", 'x"\n:3x5', "--repeat", "7", "--zero")
    assert done.returncode == 0, done.stderr
    assert "output y: float32[3, 5] crc32 " in done.stdout
    assert "then 7 runs: min " in done.stdout
    again = shell(bundle / "smelt_run", bundle, "--shape", 'x"\n:3x5', "--repeat", "0", "--zero")
    assert "runs:" not in again.stdout


@pytest.mark.parametrize("kind", ["native_bundle", "static_bundle"])
@pytest.mark.parametrize(("mode", "signal_number"), [(1, 11), (2, 6)])
def test_a_crash_has_a_backtrace(
    kind: str, mode: int, signal_number: int, request: pytest.FixtureRequest
) -> None:
    """Also where it is libc that ends the process: the model's own functions are found on the stack."""
    bundle: Path = request.getfixturevalue(kind)
    client = RunnerClient(PipeChannel([str(bundle / "smelt_run"), "--serve"]), budget=Budget())
    try:
        client.load(str(bundle))
        with pytest.raises(RunnerError) as caught:
            client.run([X, np.array(mode, np.int32)])
    finally:
        client.close()
    crash = caught.value.crash
    assert crash is not None and crash.signal == signal_number
    library = bundle / "libmodel.so"
    code = code_of((library if library.exists() else bundle / "smelt_run").read_bytes())
    found = [code.function_at(at - 1) for at in crash.frames if code.follows_call(at)]
    if signal_number == 11:
        found.insert(0, code.function_at(crash.offset))
    assert {"misbehave", "model_run"} & {*found}, (crash, found)


@contextlib.contextmanager
def opened(bundle: Path) -> Iterator[RunnerClient]:
    client = RunnerClient(PipeChannel([str(bundle / "smelt_run"), "--serve"]), budget=Budget())
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("kind", ["native_bundle", "static_bundle"])
def test_runs_are_bound_by_a_policy(kind: str, request: pytest.FixtureRequest) -> None:
    """The runner says which it has and what each unit has done; without one nothing of units."""
    bundle: Path = request.getfixturevalue(kind)
    feed = [X, np.array(0, np.int32)]
    with opened(bundle) as client:
        assert client.load(str(bundle)).policy == "static" and client.run(feed).shares == ()
        assert client.load(str(bundle), policy="thermal").policy == "thermal"
        client.run(feed)
        first, second = client.run(feed).shares
        assert (first.unit, first.runs, first.why) == ('Fake"CL', 0, "it is hot")
        assert (second.unit, second.processor, second.runs, second.expected_ns) == ("cpu", "any", 2, 5)
        assert client.use_entry("main").policy == "thermal"
        with pytest.raises(RunnerError, match="the battery policy finds no battery") as refused:
            client.load(str(bundle), policy="battery")
        assert refused.value.status == "invalid"
        with pytest.raises(SmeltError, match="expected one of static, load, thermal, battery, got 'fast'"):
            client.load(str(bundle), policy="fast")
        assert client.load(str(bundle), policy="load").policy == "load", "the runner goes on"


def test_a_policy_wants_a_choice(native_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(native_bundle, tmp_path / "alone")
    with opened(native_bundle) as client, pytest.raises(RunnerError) as refused:
        client.load(str(tmp_path / "alone"), policy="load")
    assert "code for one unit alone; compile it with --choose or --fallback" in str(refused.value)
    runner = native_bundle / "smelt_run"
    wanted = ("--shape", 'x"\n:3x5', "--repeat", "2", "--zero", "--policy")
    bound = shell(runner, native_bundle, *wanted, "load")
    assert bound.returncode == 0 and '"unit":"cpu"' in bound.stdout.split("\nshares ")[1]
    assert "\nshares" not in shell(runner, native_bundle, *wanted, "static").stdout
    alone = shell(runner, tmp_path / "alone", *wanted, "load")
    assert alone.returncode == 1 and "code for one unit alone" in alone.stderr
    wrong, named = shell(runner, native_bundle, *wanted, "fast"), "static, load, thermal or battery"
    assert wrong.returncode == 2 and f'--policy "fast": wanted {named}' in wrong.stderr


def test_a_number_that_is_no_policy(native_bundle: Path) -> None:
    channel = PipeChannel([str(native_bundle / "smelt_run"), "--serve"])
    client = RunnerClient(channel, budget=Budget())
    client.hello()
    head = LOAD_HEAD.pack(9000, 0, 0, 9, 0)
    with pytest.raises(RunnerError, match="policy 9 is none; there are static, load, thermal and battery"):
        client._request(FrameType.LOAD, head + str(native_bundle).encode(), 9)
    client.close()


def test_command_line_errors(native_bundle: Path, tmp_path: Path) -> None:
    runner = native_bundle / "smelt_run"
    assert shell(runner).returncode == 2
    assert "usage" in shell(runner, native_bundle, "--frobnicate").stderr
    wrong = shell(runner, native_bundle, "--shape", 'x"\n:3x5x7')
    assert wrong.returncode == 1
    assert "its --shape does not fit (shape)" in wrong.stderr
    missing = shell(runner, tmp_path)
    assert missing.returncode == 1
    assert "has no library lib*.so" in missing.stderr
    assert "cannot be read" in shell(runner, tmp_path / "nowhere").stderr
    for name in ("libdet.so", "librec.so"):
        shutil.copyfile(native_bundle / "libmodel.so", tmp_path / name)
    assert "has 2 libraries lib*.so; pass a folder with one" in shell(runner, tmp_path).stderr
    (tmp_path / "librec.so").unlink()
    renamed = shell(runner, tmp_path)
    assert renamed.returncode == 1
    assert "has no symbol det_open" in renamed.stderr


HUGE = str(10**30)


@pytest.mark.parametrize("option", ["--repeat", "--threads"])
@pytest.mark.parametrize("number", ["", "-1", "x", "1x", " 1", "1e3", "99999999", HUGE, str(2**64)])
def test_numbers_out_of_range_are_usage_errors(native_bundle: Path, option: str, number: str) -> None:
    done = shell(native_bundle / "smelt_run", native_bundle, option, number)
    assert done.returncode == 2
    assert f'{option} "{number}": wanted a whole number from 0 to ' in done.stderr
    assert "(invalid)" in done.stderr and "usage" in done.stderr


@pytest.mark.parametrize(
    ("dims", "code", "said"),
    [
        ("3x", 2, "(invalid)"), ("3xx5", 2, "(invalid)"), ("-3x5", 2, "(invalid)"), ("3x5q", 2, "(invalid)"),
        (f"3x{HUGE}", 2, "(invalid)"), (f"3x{2**63}", 2, "(invalid)"), ("x", 2, "(invalid)"),
        ("", 1, "(shape)"),
        ("3", 1, "(shape)"), ("3x5x7", 1, "(shape)"), ("1x" * 90 + "1", 1, "(shape)"),
        (f"{2**62}x{2**62}", 1, "more bytes than there are addresses"), (f"{2**40}x{2**10}", 1, "(device)"),
    ],
)  # fmt: skip
def test_shapes_out_of_range(native_bundle: Path, dims: str, code: int, said: str) -> None:
    done = shell(native_bundle / "smelt_run", native_bundle, "--shape", f'x"\n:{dims}', "--zero")
    assert (done.returncode, done.stdout.count("crc32")) == (code, 0), done
    assert said in done.stderr


def test_a_shape_of_no_input_is_a_usage_error(native_bundle: Path) -> None:
    done = shell(native_bundle / "smelt_run", native_bundle, "--shape", "nobody:3x5")
    assert done.returncode == 2 and "with the name of an input" in done.stderr


CPUFREQ = "devices/system/cpu/cpufreq"


def write_files(root: Path, files: dict[str, object]) -> None:
    """Files of a fake sysfs; none is ever seen half written."""
    for path, value in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{path}.new").write_text(f"{value}\n")
        (root / f"{path}.new").replace(root / path)


def fake_sysfs(root: Path, hottest: int = 63_500, limit_khz: int = 1_800_000, level: int = 0) -> None:
    """A phone: two clusters, the big one's figures as given; many zones, one that is absent and one below
    0."""
    files: dict[str, object] = {f"class/thermal/thermal_zone{i}/temp": 41_000 + i for i in range(30)}
    files |= {f"class/thermal/thermal_zone{i}/type": f"sensor{i}" for i in range(30)}
    files |= {"class/thermal/thermal_zone23/temp": hottest, "class/thermal/thermal_zone4/temp": -40_000}
    files |= {"class/thermal/thermal_zone5/temp": 2**31 - 1}
    files |= {"class/thermal/cooling_device0/type": "pwm-fan", "class/thermal/cooling_device0/cur_state": 3}
    files |= {"class/thermal/cooling_device1/type": "thermal-cpufreq-0"}
    files |= {"class/thermal/cooling_device1/cur_state": level}
    for number, cpus, limit in ((0, "0-3", 1_400_000), (4, "4-7", limit_khz)):
        policy = f"{CPUFREQ}/policy{number}"
        files |= {f"{policy}/scaling_cur_freq": 1_200_000, f"{policy}/scaling_max_freq": limit}
        files |= {f"{policy}/related_cpus": cpus, f"{policy}/scaling_governor": f"governor{number}"}
        files |= {f"{policy}/cpuinfo_max_freq": 1_900_000}
    write_files(root, files)


@pytest.fixture
def phone(native_bundle: Path, tmp_path: Path) -> Iterator[RunnerClient]:
    """A runner of this machine that sees the fake sysfs in tmp_path."""
    fake_sysfs(tmp_path)
    channel = PipeChannel([str(native_bundle / "smelt_run"), "--serve", "--sysfs", str(tmp_path)])
    client = RunnerClient(channel, budget=Budget(StepLimits(total=60)))
    client.load(str(native_bundle))
    yield client
    client.close()


def said_of(report: RunReport, kind: TimingVerdict) -> str:
    return "; ".join(d.text for d in report.doubts if d.kind is kind)


def test_the_condition_has_all_zones_and_policies(phone: RunnerClient) -> None:
    assert phone.facts is not None
    c = phone.facts.condition
    assert (len(c.zones), c.temperature, c.zones[4].degrees, c.zones[5].degrees) == (30, 63.5, -40.0, None)
    assert [(p.policy, p.cpus, p.limit_khz, p.most_khz) for p in c.policies] == [
        (0, "0-3", 1_400_000, 1_900_000), (4, "4-7", 1_800_000, 1_900_000)
    ]  # fmt: skip
    assert c.governors == ("governor0", "governor4")
    assert [(d.type, d.level) for d in c.cooling] == [("thermal-cpufreq-0", 0)]  # a fan slows nothing down
    calm = phone.run([X, np.int32(9)], QUICK)
    assert not said_of(calm, TimingVerdict.THROTTLED) and not said_of(calm, TimingVerdict.TOO_HOT)
    assert {(r.degrees, r.limits_khz) for r in calm.telemetry} == {(63.5, 3_200_000)}


def test_policies_of_an_old_kernel_lie_with_their_processors(native_bundle: Path, tmp_path: Path) -> None:
    files = {f"devices/system/cpu/cpu{i}/cpufreq/scaling_max_freq": 10**6 + i for i in range(12)}
    write_files(tmp_path, {"devices/system/cpu/cpufreq/boost": 1, **files})
    channel = PipeChannel([str(native_bundle / "smelt_run"), "--serve", "--sysfs", str(tmp_path)])
    client = RunnerClient(channel, budget=Budget(StepLimits(total=60)))
    found = client.hello().condition
    client.close()
    assert [p.limit_khz for p in found.policies] == [10**6 + i for i in range(12)]
    assert found.temperature is None and found.zones == ()


def test_heat_and_throttling_in_the_last_zone_and_policy(phone: RunnerClient, tmp_path: Path) -> None:
    threading.Timer(0.15, fake_sysfs, (tmp_path, 97_000, 600_000)).start()
    hot = phone.run([X, np.int32(9)], QUICK)
    assert "processors 4-7 fell from 1800000 to 600000 kHz" in said_of(hot, TimingVerdict.THROTTLED)
    assert "97 degrees C, the limit is 85" in said_of(hot, TimingVerdict.TOO_HOT)
    assert hot.timing is not None and hot.timing.verdict is TimingVerdict.THROTTLED


def test_throttling_that_ends_before_the_run_does(phone: RunnerClient, tmp_path: Path) -> None:
    """What before and after do not show, telemetry does."""

    def for_a_while() -> None:
        fake_sysfs(tmp_path, limit_khz=900_000, level=2)
        time.sleep(0.3)
        fake_sysfs(tmp_path)

    plan = replace(QUICK, min_time=1.0)
    threading.Timer(0.25, for_a_while).start()
    found = phone.run([X, np.int32(9)], plan)
    assert found.before.policies == found.after.policies
    said = said_of(found, TimingVerdict.THROTTLED)
    assert "fell for a time, in all from 3200000 to 2300000 kHz" in said
    assert "slows processors down to cool them (level 2)" in said


def test_telemetry_stays_short_in_a_long_run(phone: RunnerClient) -> None:
    found = phone.run([X, np.int32(9)], replace(QUICK, min_time=1.0))
    told = [r.at_ns for r in found.telemetry]
    assert told == sorted(told) and told[0] < 10**7 and len(told) >= 5
    assert [found.telemetry[i].sample for i in (0, -1)] == [0, len(found.samples_ns)]
    assert all(b - a > 9 * 10**7 for a, b in itertools.pairwise(told[:-1]))  # none while a sample runs


TRIPLES = [
    "x86_64-linux-musl", "aarch64-linux-musl", "arm-linux-musleabihf", "riscv64-linux-musl",
    "aarch64-linux-android", "arm-linux-androideabi",
]  # fmt: skip


@pytest.mark.table(2)
@pytest.mark.parametrize("triple", TRIPLES)
def test_compiles_for_every_platform_without_libc_headers(triple: str, tmp_path: Path) -> None:
    static = [file for file in rig.RUNNER if "SMELT_STATIC" in Path(file).read_text()]
    assert static
    for more in (rig.RUNNER, ["-DSMELT_STATIC", *static]):
        flags = ["-c", "-O0", "-std=c11", "-fPIC", "-Wall", "-Wextra", "-Werror"]
        runtime = ["-fno-sanitize=all", "-fno-stack-protector"]
        command = [*rig.zig(), "cc", "-target", triple, *flags, *runtime, *more]
        rig.run(command, cwd=tmp_path, env=rig.zig_env())


# ---- a sanitized build under mutated requests ----


def valid_session(bundle: Path) -> list[bytes]:
    """Frames of a whole good session."""

    def frame(kind: FrameType, body: bytes, job: int) -> bytes:
        return encode(Frame(kind, body, job))

    load = LOAD_HEAD.pack(3000, 1, 0, 0, 0) + str(bundle).encode()
    x = SETIN_HEAD.pack(3000, 0, 2, 32, 1, 2, 24) + np.array([2, 3], np.int64).tobytes()
    mode = SETIN_HEAD.pack(3000, 1, 0, 32, 1, 0, 4)
    plan = RUN_BODY.pack(3000, 1, 1, 5, 0, 10**7, 0, 10**8, 10**5)
    return [
        frame(FrameType.HELLO, PAIR.pack(0, 2000), 1),
        frame(FrameType.LOAD, load, 2),
        frame(FrameType.SETIN, x, 3),
        frame(FrameType.DATA, bytes(8) + X.tobytes(), 3),
        frame(FrameType.SETIN, mode, 4),
        frame(FrameType.DATA, bytes(8) + bytes(4), 4),
        frame(FrameType.RUN, plan, 5),
        frame(FrameType.GETOUT, PAIR.pack(3000, 0), 6),
        frame(FrameType.QUIT, PAIR.pack(0, 0), 7),
    ]


def mutated(frames: list[bytes], rng: random.Random) -> list[bytes]:
    """One change: of a payload with a right checksum (so that it gets deep), of raw bytes, or of
    the order.
    """
    frames = list(frames)
    at = rng.randrange(len(frames))
    how = rng.randrange(4)
    if how == 0:
        payload = bytearray(frames[at][32:-4])
        if payload:
            payload[rng.randrange(len(payload))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            kind = FrameType(frames[at][5])
            # the job number stays, so that the answer counts
            frames[at] = encode(Frame(kind, bytes(payload), int.from_bytes(frames[at][8:16], "little")))
    elif how == 1:
        payload = frames[at][32:-4]
        cut = (
            payload[: rng.randrange(len(payload) + 1)]
            if rng.random() < 0.7
            else payload + bytes(rng.randrange(99))
        )
        frames[at] = encode(Frame(FrameType(frames[at][5]), cut, int.from_bytes(frames[at][8:16], "little")))
    elif how == 2:
        raw = bytearray(frames[at])
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        frames[at] = bytes(raw)
    else:
        frames.insert(at, frames[rng.randrange(len(frames))])
    return frames


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rig.need(program_path("gcc"), "needs a C compiler: apt-get install gcc libc6-dev")
    out = tmp_path_factory.mktemp("sanitized")
    flags = ["gcc", "-std=c11", "-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
             "-Wno-builtin-declaration-mismatch", f"-I{rig.RUNTIME}"]  # fmt: skip
    rig.run([*flags, *rig.RUNNER, "-o", str(out / "smelt_run")])
    rig.run(
        [
            *flags,
            "-w",
            "-shared",
            "-fPIC",
            str(rig.HERE / "fake_model.c"),
            "-o",
            str(out / "libmodel.so"),
        ]
    )
    return out


def converse(runner: Path, frames: list[bytes], patience: float = 0.3) -> tuple[int, str]:
    """Send frame by frame, each once the last request was answered or so many seconds have gone; the exit
    code and stderr.
    """
    channel = PipeChannel([str(runner), "--serve"], close_limit=3.0)
    try:
        for data in frames:
            channel.send(data, time.monotonic() + 5)
            if data[5] != FrameType.SETIN:
                try:
                    answer = channel.receive(time.monotonic() + patience)
                    while answer and b'"status"' not in answer:
                        answer = channel.receive(time.monotonic() + patience)
                except SmeltError:
                    pass
    except SmeltError:
        pass  # the runner has left: its exit code tells whether it meant to
    assert channel.process.stdin is not None
    channel.process.stdin.close()
    try:
        code = channel.process.wait(5)
    finally:
        channel.close()
    return code, channel.stderr_tail()


def test_sanitized_runner_survives_mutated_requests(sanitized: Path) -> None:
    good = valid_session(sanitized)
    code, stderr = converse(sanitized / "smelt_run", good, patience=30)  # all are answered, however late
    assert (code, stderr) == (0, "")
    seed = 20
    rng = random.Random(seed)
    for case in range(30):
        code, stderr = converse(sanitized / "smelt_run", mutated(good, rng))
        assert code in (0, 3), f"seed {seed} case {case}: {code} {stderr}"
        assert "Sanitizer" not in stderr and "runtime error" not in stderr, (
            f"seed {seed} case {case}: {stderr}"
        )


def test_sanitized_runner_passes_a_large_tensor(sanitized: Path) -> None:
    client = RunnerClient(PipeChannel([str(sanitized / "smelt_run"), "--serve"]), budget=Budget())
    try:
        client.load(str(sanitized))
        x = np.random.default_rng(3).random((1024, 1024), np.float32)
        assert x.nbytes > CHUNK
        report = client.run([x, np.int32(0)], QUICK)
        assert np.array_equal(report.outputs["y"], 2 * x)
        assert "Sanitizer" not in report.log and "runtime error" not in report.log
    finally:
        client.close()
