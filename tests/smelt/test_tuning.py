"""smelt tune: what is found lands in the file at once and is not measured again; compiles read the file;
whatever is wrong with it is told."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import smelt
from smelt.cli.main import main
from smelt.compiler import lower
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError, SmeltWarning
from smelt.core.dtype import Array
from smelt.core.exits import OK, UNSUPPORTED, USAGE
from smelt.core.ir.kernel import Call, Expr
from smelt.core.ir.rewrite import map_expr, map_stmt_exprs
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule.book import HAND, TUNE, Book, BookEntry, mark, parse_book, print_book
from smelt.core.schedule.candidates import Candidate, candidates, default
from smelt.core.schedule.question import Question
from smelt.core.schedule.recall import Recalled, notes
from smelt.request import Request
from smelt.shapes import RunCase
from smelt.tuning import Subject, TuneBudget, Tuned, TuneJob, find_jobs, store, subject, tune, tuner
from smelt.tuning import jobs as jobs_module
from smelt.tuning.budget import BudgetSpent
from smelt.tuning.race import PROOF_TURNS, Race, judged
from smelt.tuning.store import add_entries, read_book
from smelt.tuning.trial import feed, sizes_text
from smelt.tuning.tuner import tune_kernel

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g
(float[n,24] x) => (float[n,40] y) { a = MatMul(x, w) b = Softmax<axis = -1>(a) y = MatMul(b, v) }"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products, of which the second one is of a softmax's rows."""
    rng = np.random.default_rng(0)
    made = onnx.parser.parse_model(TEXT)
    for name, shape in (("w", (24, 48)), ("v", (48, 40))):
        made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype("f"), name))
    path = tmp_path_factory.mktemp("tune") / "net.onnx"
    onnx.save(made, str(path))
    return path


@pytest.fixture(scope="module")
def request_(model: Path) -> Request:
    return Request(str(model), threads=1)


@pytest.fixture(scope="module")
def whom(request_: Request) -> Subject:
    return subject(request_)


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return smelt.compile(model, threads=1, output=tmp_path_factory.mktemp("out") / "net")


@pytest.fixture(scope="module")
def jobs(request_: Request, bundle: Bundle) -> tuple[TuneJob, ...]:
    found = sorted(find_jobs(request_, bundle, [{"n": 3}, {"n": 17}]), key=lambda j: j.name)
    return tuple(replace(j, share=0.5) for j in found)  # on a busy machine any may seem short


def timed(monkeypatch: pytest.MonkeyPatch, times: Mapping[int, float]) -> list[int]:
    """Times by the numbers of candidates instead of this machine's; the numbers, as they are measured."""
    seen: list[int] = []

    def taken(self: Race, number: int, given: Mapping[str, Array]) -> float:
        self._budget.take()
        seen.append(number)
        return times.get(number, 100.0) * (1 + 1e-4 * (len(seen) % 7))

    monkeypatch.setattr(Race, "_timed", taken)
    return seen


def status(done: Sequence[Tuned]) -> list[str]:
    return [t.status for t in done]


# ---------------------------------------------------------------- jobs


def test_jobs_are_the_kernels_at_the_sizes_of_runs(jobs: tuple[TuneJob, ...], bundle: Bundle) -> None:
    assert {j.name for j in jobs} == {k["name"] for k in bundle.manifest["kernels"]}
    assert {j.sizes for j in jobs} == {((3,), (17,))}
    assert {j.name: len(j.weights) for j in jobs} == {"matmul": 1, "matmul_2": 1, "softmax": 0}
    assert sizes_text(jobs[0], (17,)) == "d0=17"


def test_shapes_that_the_model_refuses_are_replaced(
    request_: Request, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By further ones, as long as nobody has asked for them."""
    look = jobs_module._look

    def refuses(client: Any, view: Bundle, case: RunCase, seen: Any) -> None:
        if case.shapes["x"][0] < limit:
            raise SmeltError("too few rows", kind="shape")
        look(client, view, case, seen)

    monkeypatch.setattr(jobs_module, "_look", refuses)
    limit = 2
    found = find_jobs(request_, bundle, count=2)
    assert {n for j in found for (n,) in j.sizes} == {2, 3}
    with pytest.raises(SmeltError, match="too few rows"):
        find_jobs(request_, bundle, [{"n": 1}])
    limit = 100
    with pytest.raises(SmeltError, match="too few rows"):
        find_jobs(request_, bundle, count=2)


SIGNATURE = "d0: dim in 0..*, d1: dim in 0..64, x0: f32[(d0 + 15)//16, 80], x1: f32[d1, 80]"
INSIDE = f"""kernel @inside({SIGNATURE}) -> (y: f32[d0, 80])
{{
  serial i0 in d0 {{
    serial i1 in 80 {{
      y[i0, i1] = tanh(x0[i0//16, i1]) + sum k0 in d1 {{ x1[k0, i1] }}
    }}
  }}
}}"""
"""Of its dims, an input tells the second one; ceil(d0/16) rows tell no d0."""


def test_a_state_is_at_its_start_in_every_run(tmp_path: Path) -> None:
    """The mask fits no other."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,64] x, float[past,64] old, float[all] mask)
        => (float[n,all] y, float[all,64] new)
        { new = Concat<axis = 0>(old, x)  t = Transpose<perm = [1, 0]>(new)  p = MatMul(x, t)
          y = Add(p, mask) }"""
    made = onnx.parser.parse_model(text)
    made.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "past + n"
    onnx.save(made, str(tmp_path / "m.onnx"))
    given: dict[str, Any] = {"threads": 1, "state": {"old": "new"}, "dims": {"past": (4, 64)}}
    bundle = smelt.compile(tmp_path / "m.onnx", output=tmp_path / "out", **given)
    found = find_jobs(Request(str(tmp_path / "m.onnx"), **given), bundle, count=3)
    product = next(j for j in found if j.name.startswith("matmul"))
    rows = {n for n, _ in product.sizes}
    assert len(rows) == 3 and set(product.sizes) <= {(n, n + 4) for n in rows} | {(n, 4) for n in rows}


def test_dims_that_no_input_tells_are_fed(whom: Subject) -> None:
    """Inputs whose shapes tell too little are fed flat; candidates of the kernel compile, and agree."""
    question = Question(parse_kernel(INSIDE).with_(name=""))
    chosen = default(question, whom.machine).kernel
    job = TuneJob("inside", Recalled(question, question.kernel, chosen, chosen), ((40, 3), (7, 5)), share=1.0)
    given = feed(job, (40, 3))
    assert {n: a.shape for n, a in given.items()} == {"x0": (240,), "x1": (3, 80), "sizes": (2,)}
    assert given["sizes"].tolist() == [40, 3]
    found = tune_kernel(whom, job, TuneBudget())
    assert (found.tried > 0, found.failed) == (True, ())


def test_a_kernel_that_does_not_run_alone_is_told_and_the_others_are_tuned(
    whom: Subject, jobs: tuple[TuneJob, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, {})
    large = replace(jobs[1], sizes=((1 << 40,),))
    first, second = tune(whom, [large, jobs[0]], tmp_path / "f", TuneBudget())
    assert (first.status, second.status) == ("failed", "kept")
    assert "this machine has" in first.why


@pytest.mark.parametrize(("target", "said"), [
    ("host+opencl", r"schedules of devices \(opencl\) are not measured yet"),
    ("x86", "several processors"), ("armv7", "cannot be measured on this machine"),
])  # fmt: skip
def test_what_cannot_be_measured_here_is_refused(target: str, said: str) -> None:
    with pytest.raises(SmeltError, match=said) as e:
        subject(Request("m.onnx", target=target))
    assert e.value.kind == "unsupported"
    assert e.value.hint


# ---------------------------------------------------------------- tuning


def test_all_is_measured_once_and_known_then(
    whom: Subject, jobs: tuple[TuneJob, ...], tmp_path: Path
) -> None:
    """By this machine's own times, whatever they say."""
    path, budget, jobs = tmp_path / "f", TuneBudget(), jobs[1:2]
    first = tune(whom, jobs, path, budget)
    assert {*status(first)} <= {"faster", "kept"}
    assert all(t.tried > 1 and not t.failed for t in first)
    assert budget.done >= 3 * 2 * (1 + first[0].tried)
    text, again = path.read_bytes(), TuneBudget()
    assert status(tune(whom, jobs, path, again)) == ["known"] * len(jobs)
    assert (again.done, path.read_bytes()) == (0, text)


def test_the_fastest_wins_and_a_compile_takes_it(
    whom: Subject, jobs: tuple[TuneJob, ...], model: Path, bundle: Bundle, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    timed(monkeypatch, {2: 50.0})
    path = tmp_path / "f"
    (found,) = tune(whom, jobs[:1], path, TuneBudget())
    want = list(candidates(jobs[0].question, whom.machine))
    entry = read_book(path).entries[0]
    assert found.status == "kept"  # in the proof it is number 1, and slow
    assert (entry.schedule, entry.against) == (want[0].schedule, mark(want[0].schedule))
    path.unlink()
    timed(monkeypatch, {2: 50.0, 1: 60.0})
    (found,) = tune(whom, jobs[:1], path, TuneBudget())
    entry = read_book(path).entries[0]
    assert found.status == "faster"
    assert found.ratio == pytest.approx(0.5, abs=0.01)
    assert entry.schedule == want[1].schedule  # there it is number 2, since it looked the slower one
    assert {name for name, _ in entry.at} == {"d0=3", "d0=17"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned = smelt.compile(model, threads=1, output=tmp_path / "out", schedules=path)
    rows = {k["name"]: k["schedule"] for k in tuned.manifest["kernels"]}
    assert rows[jobs[0].name] == entry.schedule
    assert tuned.manifest["schedules"]["kernels"] == 1
    x = np.random.default_rng(1).standard_normal((5, 24)).astype("f")
    (got,), (wanted,) = (smelt.load(b).run(None, {"x": x}) for b in (tuned, bundle))
    np.testing.assert_allclose(got, wanted, rtol=1e-4)


def test_a_candidate_that_is_slower_at_one_size_loses() -> None:
    """Whatever it gains at the others; and one whose gain does not matter, too."""

    def at(*ratios: float) -> bool:
        noise = [1 + 0.002 * (k % 5 - 2) for k in range(PROOF_TURNS)]
        return judged(1, {(k,): [r * n for n in noise] for k, r in enumerate(ratios)}, 1).faster

    assert at(0.5, 0.9)
    assert at(0.5, 1.02)
    assert not at(0.5, 1.05)
    assert not at(0.98, 0.99)


def _sum_for_product(e: Expr) -> Expr:
    return replace(e, fn="add") if isinstance(e, Call) and e.fn == "mul" else e


def test_a_candidate_that_computes_something_else_does_not_count(
    whom: Subject, jobs: tuple[TuneJob, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, *_ = candidates(jobs[0].question, whom.machine)
    naive = jobs[0].question.kernel
    sums = tuple(map_stmt_exprs(s, lambda e: map_expr(e, _sum_for_product)) for s in naive.body)
    other = replace(jobs[0].question, kernel=naive.with_(body=sums))
    broken = Candidate(other.drafted(whom.machine).kernel, second.answers, "broken")
    monkeypatch.setattr(tuner, "candidates", lambda q, m: iter([first, broken, third]))
    timed(monkeypatch, {1: 50.0})
    (found,) = tune(whom, jobs[:1], tmp_path / "f", TuneBudget())
    assert found.tried == 1
    assert found.failed
    assert found.failed[0].startswith("broken: differs from the default at (3,): max error")
    assert read_book(tmp_path / "f").entries[0].schedule == third.schedule  # number 1 of those that are left


# ---------------------------------------------------------------- budgets and interruptions


def test_a_budget_ends_between_measurements_and_a_kernel_that_is_not_finished_leaves_nothing(
    whom: Subject, jobs: tuple[TuneJob, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "f", timed(monkeypatch, {})
    assert status(tune(whom, jobs, path, TuneBudget(measurements=5))) == ["unfinished"] * len(jobs)
    assert (len(seen), path.exists()) == (5, False)
    count = 3 * 2 * len(list(candidates(jobs[0].question, whom.machine)))
    assert status(tune(whom, jobs, path, TuneBudget(measurements=count + 1)))[:2] == ["kept", "unfinished"]
    assert len(read_book(path).entries) == 1
    seen.clear()
    assert status(tune(whom, jobs, path, TuneBudget()))[:2] == ["known", "kept"]


def test_a_budget_of_seconds_is_one_too() -> None:
    now = [0.0]
    budget = TuneBudget(seconds=2, clock=lambda: now[0])
    budget.take()
    now[0] = 2.5
    assert budget.is_spent
    with pytest.raises(BudgetSpent):
        budget.take()


def _killed(whom: Subject, jobs: tuple[TuneJob, ...], path: Path) -> None:
    begun: list[str] = []

    def on_kernel(name: str) -> None:
        begun.append(name)
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    tune(whom, jobs, path, TuneBudget(), on_kernel=on_kernel)


def test_a_tuner_that_is_killed_goes_on_where_it_was(
    whom: Subject, jobs: tuple[TuneJob, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "f", timed(monkeypatch, {})
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(whom, jobs, path))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert [e.name for e in read_book(path).entries] == [jobs[0].name]
    done = tune(whom, jobs, path, TuneBudget())
    assert status(done) == ["known", *["kept"] * (len(jobs) - 1)]
    assert seen


def test_other_sizes_are_measured_anew(
    whom: Subject, jobs: tuple[TuneJob, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, {})
    tune(whom, jobs[:1], tmp_path / "f", TuneBudget())
    fewer, other = replace(jobs[0], sizes=((3,),)), replace(jobs[0], sizes=((3,), (4,)))
    assert status(tune(whom, [fewer], tmp_path / "f", TuneBudget())) == ["known"]
    assert status(tune(whom, [other], tmp_path / "f", TuneBudget())) == ["kept"]


# ---------------------------------------------------------------- the file


def entry(kernel: int, **changes: Any) -> BookEntry:
    made = BookEntry(f"{kernel:032x}", "m", "normalise", "k", TUNE, mark(""), "", (("fixed", 1.0),))
    return replace(made, **changes)


def _adds(path: Path, first: int) -> None:
    for k in range(first, first + 20):
        add_entries(path, entry(k))


def test_two_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    both = [multiprocessing.get_context("fork").Process(target=_adds, args=(path, n)) for n in (0, 100)]
    for p in both:
        p.start()
    for p in both:
        p.join()
    kernels = [int(e.kernel, 16) for e in read_book(path).entries]
    assert kernels == [*range(20), *range(100, 120)]
    assert [f.name for f in tmp_path.iterdir()] == ["f"]


def test_a_folder_that_stays_locked_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ADD_LIMIT", 0.2)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(SmeltError, match=f"'{tmp_path}' has been locked for 0.2 s by process {os.getpid()} "):
        add_entries(tmp_path / "f", entry(1))
    os.close(fd)
    assert len(add_entries(tmp_path / "f", entry(1)).entries) == 1


def test_a_corrupted_entry_goes_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "f"
    add_entries(path, entry(1), entry(2))
    path.write_text(path.read_text().replace(f"kernel {1:032x}", "kernel 00\x00zz"))
    assert [e.kernel for e in read_book(path).entries] == [f"{2:032x}"]
    assert len(read_book(path).faults) == 1
    add_entries(path, entry(3))
    assert (len(read_book(path).entries), read_book(path).faults) == (2, ())


def test_a_folder_that_takes_no_file_is_told_before_anything_is_measured(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smelt.cli.tune.find_jobs", None)  # calling it would be an internal error
    for place in ("/proc/self/x", f"{model.parent}/none/x", f"{model}/x"):
        assert main(["tune", str(model), "-o", place]) == 6
        assert f"cannot write '{place}'" in capsys.readouterr().err


def test_a_file_that_is_none_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("my diary\n")
    with pytest.raises(SmeltError, match="no file of schedules"):
        add_entries(path, entry(1))
    assert path.read_text() == "my diary\n"


# ---------------------------------------------------------------- compiles


@pytest.fixture
def by_hand(jobs: tuple[TuneJob, ...], whom: Subject, tmp_path: Path) -> tuple[Path, TuneJob, BookEntry]:
    """A file with an entry by hand, for any machine: the last candidate of a kernel."""
    *_, last = candidates(jobs[0].question, whom.machine)
    made = BookEntry(jobs[0].question.digest, "any", last.schedule, "mine", HAND)
    path = tmp_path / "mine"
    path.write_text(print_book(Book().with_entries([made])))
    return path, jobs[0], made


def test_an_override_by_hand_is_obeyed(
    by_hand: tuple[Path, TuneJob, BookEntry], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As opt prints the scheduled module, and as a tuner does, which leaves it alone."""
    path, job, made = by_hand
    lowered = tmp_path / "l.smelt"
    assert main(["opt", str(model), "-o", str(lowered)]) == OK
    assert main(["opt", str(lowered), "-p", "schedule", "--schedules", str(path)]) == OK
    assert f'schedule "{made.schedule}"' in capsys.readouterr().out
    assert main(["opt", str(lowered), "-p", "schedule"]) == OK
    assert f'schedule "{made.schedule}"' not in capsys.readouterr().out
    whom = subject(Request(str(model), threads=1))
    assert status(tune(whom, [job], path, TuneBudget(measurements=0))) == ["by hand"]


def test_the_file_is_part_of_what_a_bundle_is(
    by_hand: tuple[Path, TuneJob, BookEntry], model: Path, bundle: Bundle, tmp_path: Path
) -> None:
    """Same file, same bytes; another one, another bundle; and a package makes of it what a compile does."""
    path, _, _ = by_hand
    first, second = (
        smelt.compile(model, threads=1, output=tmp_path / n / "net", schedules=path, name="net") for n in "ab"
    )
    assert first.digest == second.digest != bundle.digest
    assert first.manifest["schedules"] == {**first.manifest["schedules"], "kernels": 1, "notes": []}
    assert "schedules" not in bundle.manifest
    package = smelt.compile_portable(model, output=tmp_path / "package", name="net")
    made = smelt.finalise(package.path, output=tmp_path / "c", threads=1, name="net", schedules=path)
    assert made.digest == first.digest


def test_each_processor_of_a_bundle_takes_the_entries_that_are_its_own(
    by_hand: tuple[Path, TuneJob, BookEntry], model: Path, tmp_path: Path
) -> None:
    """The entry is of one level's machine; the question is the same for all, and nobody is warned."""
    path, _, made = by_hand
    asked = lower(Request(str(model), target="x86_64-linux:x86-64-v2:x86-64-v3")).asked
    mine = [a for a in asked if a.question.digest == made.kernel]
    assert len({a.machine for a in mine}) == len(mine) == 2
    own = replace(made, machine=mine[0].machine, schedule=mine[0].chosen.schedule)
    path.write_text(print_book(Book().with_entries([own])))
    request = Request(str(model), target="x86_64-linux:x86-64-v2:x86-64-v3", schedules=path.read_text())
    found = lower(request).asked
    assert [a.entry == own for a in found if a.question.digest == made.kernel] == [True, False]
    assert notes(Book((own,)), found) == ()


def test_entries_that_do_not_fit_are_told(
    by_hand: tuple[Path, TuneJob, BookEntry], model: Path, tmp_path: Path
) -> None:
    path, job, made = by_hand
    foreign = replace(made, machine="another machine", by=TUNE, against=mark(""), at=(("fixed", 0.5),))
    path.write_text(print_book(Book().with_entries([foreign])) + "\nkernel broken\n")
    why = f"{job.name} are of other machines or other numbers of threads only"
    with pytest.warns(SmeltWarning, match=why) as told:
        plain = smelt.compile(model, threads=1, output=tmp_path / "out", schedules=path)
    assert "skipped an entry that cannot be read: line" in str(told[0].message)
    assert plain.manifest["schedules"]["kernels"] == 0


def test_a_step_that_does_not_replay_is_the_users_to_correct(
    by_hand: tuple[Path, TuneJob, BookEntry], model: Path, tmp_path: Path
) -> None:
    path, _, made = by_hand
    path.write_text(print_book(Book().with_entries([replace(made, schedule="normalise; peel nowhere 3 .t")])))
    with pytest.raises(SmeltError, match=r"does not replay: peel nowhere") as e:
        smelt.compile(model, threads=1, output=tmp_path / "out", schedules=path)
    assert e.value.kind == "invalid"


def test_schedules_come_too_late_for_a_dump_that_has_them(
    by_hand: tuple[Path, TuneJob, BookEntry], model: Path, tmp_path: Path
) -> None:
    path, _, _ = by_hand
    assert main(["opt", str(model), "-o", str(tmp_path / "l.smelt")]) == OK
    assert main(["opt", str(tmp_path / "l.smelt"), "-p", "schedule", "-o", str(tmp_path / "s.smelt")]) == OK
    with pytest.raises(SmeltError, match="scheduled already"):
        smelt.compile(tmp_path / "s.smelt", output=tmp_path / "out", schedules=path)
    with pytest.raises(SmeltError, match=r"cannot read .*nowhere"):
        smelt.compile(model, output=tmp_path / "out", schedules=tmp_path / "nowhere")


# ---------------------------------------------------------------- the command


def test_the_command_lists_measures_and_goes_on(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, {})
    path = tmp_path / "f"
    assert main(["tune", str(model), "--list", "--threads", "1"]) == OK
    listed = parse_book(capsys.readouterr().out)
    assert {e.by for e in listed.entries} == {HAND}
    words = ["tune", str(model), "--threads", "1", "-o", str(path), "--shape", "n=3", "--json"]
    assert main([*words, "--measurements", "0"]) == OK
    data = json.loads(capsys.readouterr().out)
    assert {k["status"] for k in data["kernels"]} == {"unfinished"}
    assert main(words) == OK
    data = json.loads(capsys.readouterr().out)
    assert data["measurements"] > 0
    assert {k["digest"] for k in data["kernels"]} <= {e.kernel for e in listed.entries}
    assert main([w for w in words if w != "--json"]) == OK
    assert "known" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "code"), [
    (["--target", "host+opencl"], UNSUPPORTED), (["--schedules", "f"], USAGE), (["--budget", "-1"], USAGE),
])  # fmt: skip
def test_the_command_refuses_what_it_cannot_do(
    words: list[str], code: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        found = main(["tune", str(model), *words])
    except SystemExit as e:
        found = int(str(e.code))
    assert found == code
    assert [*tmp_path.iterdir()] == []


def test_a_package_is_for_any_target(model: Path, tmp_path: Path) -> None:
    words = ["compile", str(model), "--portable", "--schedules", "f", "-o", str(tmp_path / "p")]
    assert main(words) == USAGE
