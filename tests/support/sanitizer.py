"""Models in, reports of memory errors out: generated code and runtime under AddressSanitizer, the runtime
under UndefinedBehaviorSanitizer as well.

python tests/support/sanitizer.py [--forms static,dynamic,strict,extents,others,drawn] [--share PERCENT]
Each case of onnx.backend.test, (others) each form of an op of com.microsoft and ai.onnx.ml, and (drawn)
models of the generators of tests/attack, some with hot sizes, is compiled as always; then its code is built
once more with every load and store checked, put in the bundle's place, and run in a process of its own: on
the case's data, on the same data with integers that lie far outside, and (extents, others) with axes and
sizes that no memory holds. The runtime's memory comes from an allocator with forbidden zones.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import drawn_builds
import extents
import numpy as np
import onnx
from installed import program_path
from made_once import made_once, program_and_age

import smelt.compiler as compiler
from smelt.core.diag import SmeltError
from smelt.core.naming import Names
from smelt.request import DimSpec
from smelt.targets.platform import zig_directory
from smelt.targets.toolchain import runtime_dir

ZIG = zig_directory() / "zig"
GCC = program_path("gcc")
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ROUNDS = 1000
"""After so many rounds a loop ends with an error here."""
EXTREMES = (-(2**63), 2**63 - 1, 2**62, -(2**31), 2**31 - 1, 1000, -1000, -1)
ASAN = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=256:abort_on_error=0:exitcode=99"
FEEDS = 24
"""Feeds with extreme extents for a case."""
OTHERS = "others"
DRAWN, DRAWN_BY = "drawn", ("attention", "convolutions", "fourier", "packed", "regions", "windows")
DRAWN_SEEDS = 100
"""Of each generator."""
PIECE = 60
"""Cases in one process."""
PATIENCE = 2400
"""Seconds for them on a busy machine: strings by the million, checked byte by byte, take minutes."""

ALLOCATOR = """
#include <stdlib.h>
void *smelt_test_map(size_t n) {
  void *at = 0;
  return posix_memalign(&at, 4096, n - %d) ? 0 : at;
}
void smelt_test_unmap(void *at, size_t n) { (void)n; free(at); }
"""


def missing() -> str:
    """What this machine lacks; '' when nothing."""
    if GCC is None:
        return "no gcc: apt install gcc libc6-dev"
    if os.uname().machine != "x86_64":
        return "the processor is not an x86"
    return "" if Path(library("asan")).is_file() else "no libasan: apt install libasan8"


def library(name: str) -> str:
    """The file of a sanitizer's runtime."""
    said = subprocess.run(
        [str(GCC), f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


# ---------------------------------------------------------------- building


@dataclass
class Workshop:
    """Builds checked libraries. short: bytes that the runtime's allocator leaves out, to see it noticed."""

    folder: Path
    short: int = 0
    objects: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        source = self.folder / "allocator.c"
        source.write_text(ALLOCATOR % self.short)
        files = [p for p in sorted(runtime_dir().glob("*.c")) if p.stem != "crt" and "runner" not in p.stem]
        flags = ["-std=gnu11", "-g1", "-O0", "-fPIC", "-DSMELT_TEST_ALLOC", f"-DSMELT_MAX_ROUNDS={ROUNDS}"]
        flags.append("-DSMELT_PREFIX=model")
        command = [str(GCC), *flags, f"-I{runtime_dir()}", *CHECKED, "-c", *map(str, files)]
        made = made_once(
            lambda folder: subprocess.run(command, check=True, cwd=folder),
            *command, program_and_age(GCC), runtime_dir(),
        )  # fmt: skip
        allocator = self.folder / "allocator.o"
        subprocess.run([str(GCC), "-O0", "-fPIC", "-c", str(source), "-o", str(allocator)], check=True)
        self.objects += [*map(str, sorted(made.glob("*.o"))), str(allocator)]

    def library(self, ir: str, out: Path) -> None:
        """libmodel.so of LLVM IR, in which every load and store is checked."""
        text = re.sub(r"^(define [^\n]*?\)) ", r"\1 sanitize_address ", ir, flags=re.M)
        assert "sanitize_address" in text
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder) / "model.ll", Path(folder) / "model.o"
            source.write_text(text)
            zig = [str(ZIG), "clang", "-target", "x86_64-linux-gnu", "-march=native", "-O0", "-fPIC"]
            subprocess.run(
                [*zig, "-w", "-fsanitize=address", "-c", "-x", "ir", str(source), "-o", str(made)], check=True
            )
            link = [str(GCC), "-shared", "-fsanitize=address,undefined", str(made), *self.objects]
            subprocess.run([*link, "-o", str(out), "-ldl", "-lpthread", "-lm"], check=True)

    def bundle(
        self, source: Path, out: Path, opt: int = 3, dims: Mapping[str, DimSpec] = MappingProxyType({})
    ) -> None:
        """A bundle whose library is checked. Raises SmeltError."""
        texts: dict[str, str] = {}
        target = compiler.cpu_target()

        def cpu_target() -> Any:
            class Listening:
                machine = staticmethod(target.machine)

                @staticmethod
                def emit(*args: Any, **more: Any) -> Any:
                    artifact = target.emit(*args, **more)
                    texts["model.ll"] = artifact.dumps["model.ll"]()
                    return artifact

            return Listening

        def build_library(spec: Any, made: bytes, folder: Path, names: Names) -> None:
            self.library(texts["model.ll"], folder / names.library)

        # in the compile itself: a library that is put into a bundle later is not what its manifest says
        with (
            mock.patch.object(compiler, "cpu_target", cpu_target),
            mock.patch.object(compiler, "build_library", build_library),
        ):
            request = compiler.Request(
                str(source), output=str(out), opt=opt, dims=dims, name="model", runner=False
            )
            with drawn_builds.small_kernels_too() if dims else nullcontext():
                compiler.compile_here(request)


# ---------------------------------------------------------------- running


@dataclass(frozen=True)
class Work:
    """A checked bundle and what it is fed. extents: how many feeds with extreme extents as well."""

    name: str
    bundle: str
    feeds: tuple[dict[str, Any], ...]
    extents: int = 0


def extremes(feed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same feed with integers from far outside, all the same, then mixed."""
    whole = {n: a for n, a in feed.items() if isinstance(a, np.ndarray) and a.dtype.kind in "iu" and a.size}
    rng = np.random.default_rng(0)
    for k in range(len(EXTREMES) + 1) if whole else ():
        drawn = {
            n: np.full(a.shape, EXTREMES[k]) if k < len(EXTREMES) else rng.choice(EXTREMES, a.shape)
            for n, a in whole.items()
        }
        yield {**feed, **{n: d.astype(whole[n].dtype) for n, d in drawn.items()}}


def work_off(items: Sequence[Work]) -> None:
    """Run all; an error that is told is no finding. Stands in the sanitised process."""
    for item in items:
        print(f"@ {item.name}", flush=True)
        try:
            _feed_all(item)
        except Exception as e:
            print(f"told: {type(e).__name__}: {e}")
    print("@", flush=True)


def _feed_all(item: Work) -> None:
    import smelt

    session = smelt.load(item.bundle, threads=2)
    known = {a.name for a in session.get_inputs()}
    for feed in item.feeds:
        mine = {n: v for n, v in feed.items() if n in known}
        session.run(None, mine)
        for far in (*extremes(mine), *extents.draws(mine, item.name, item.extents)):
            try:
                session.run(None, far)
            except (SmeltError, MemoryError, OverflowError):
                continue
        session.run(None, mine)
    session.close()


def findings(items: Sequence[Work]) -> dict[str, str]:
    """Name -> report of what went wrong; a process that dies is started again after the case it died of."""
    found: dict[str, str] = {}
    left = list(items)
    while left:
        piece, rest = left[:PIECE], left[PIECE:]
        said = _child(piece)
        ran = re.findall(r"^@ (.*)$", said, re.M)
        if re.search(r"^@$", said, re.M):
            left = rest
            continue
        last = ran[-1] if ran else piece[0].name
        found[last] = (said[said.rfind(f"@ {last}") :] if ran else said)[:6000]
        at = next(k for k, w in enumerate(piece) if w.name == last)
        left = piece[at + 1 :] + rest
    return found


def _child(items: Sequence[Work]) -> str:
    with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as kept:
        file.write(pickle.dumps(list(items)))
        file.flush()
        env = {
            **os.environ, "LD_PRELOAD": f"{library('asan')}:{library('ubsan')}", "ASAN_OPTIONS": ASAN,
            "UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONMALLOC": "malloc", "OMP_NUM_THREADS": "1",
            "SMELT_KEEP_CODE": kept,
        }  # fmt: skip
        command = [sys.executable, __file__, "--work", file.name]
        try:
            done = subprocess.run(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=PATIENCE, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired as e:
            return (e.stdout or b"").decode(errors="replace") + "\nit takes too long"
        return done.stdout + ("" if done.returncode == 0 else f"\nended with status {done.returncode}")


# ---------------------------------------------------------------- cases of onnx.backend.test


def backend_work(shop: Workshop, cases: Iterable[tuple[str, Any]], folder: Path) -> Iterator[Work]:
    """The cases that compile, each with its form, built. Those that are refused are no business here."""
    for form, case in cases:
        name = f"{form}:{case.name}"
        here = folder / re.sub(r"\W", "_", name)
        here.mkdir()
        (here / "m.onnx").write_bytes(case.model.SerializeToString())
        try:
            made = case.build if form == DRAWN else drawn_builds.Build()
            shop.bundle(here / "m.onnx", here / "out", made.opt, made.dims)
        except SmeltError:
            continue
        names = [v.name for v in case.model.graph.input]
        feeds = tuple(dict(zip(names, d[0], strict=False)) for d in case.data)
        yield Work(name, str(here / "out"), feeds, FEEDS if form in ("extents", OTHERS) else 0)


@dataclass(frozen=True)
class DrawnCase:
    """A drawn model as a case: feeds in the order of its inputs."""

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[list[Any]]]
    build: drawn_builds.Build


def drawn_cases(share: float, only: str, seed: int) -> Iterator[DrawnCase]:
    """The same share of the seeds of each generator, from `seed` on."""
    sys.path.append(str(Path(__file__).parents[1] / "attack"))
    for generator in DRAWN_BY:
        module = importlib.import_module(f"attack_{generator}")
        for s in range(seed, seed + math.ceil(DRAWN_SEEDS * share / 100)):
            if only in f"{generator}-{s}":
                made = module.drawn(s)
                names = [v.name for v in made.model.graph.input]
                data = [([feed[n] for n in names],) for feed in made.feeds]
                yield DrawnCase(f"{generator}-{s}", made.model, data, made.build)


def chosen(forms: Sequence[str], share: float, only: str = "", seed: int = 0) -> list[tuple[str, Any]]:
    """A share (in per cent) of the cases in each form, by hash. extents: strict, with extreme extents fed;
    others: the same of ops that ONNX has no cases of; drawn: by seed."""
    from other_ops import other_cases

    from smelt.conformance.cases import bucket, in_form, shipped

    def taken(name: str, form: str) -> bool:
        return only in name and (bucket(f"{form}:{name}") * 100 + bucket(f"{name}/{form}")) < share * 100

    in_forms = [(f, s) for f in forms if f not in (OTHERS, DRAWN) for s in shipped() if taken(s.name, f)]
    found: list[tuple[str, Any]] = [(f, in_form(s, "strict" if f == "extents" else f)) for f, s in in_forms]  # type: ignore[arg-type]
    others = other_cases() if OTHERS in forms else ()
    found += [(OTHERS, c) for c in others if taken(c.name, OTHERS)]
    return found + [(DRAWN, c) for c in (drawn_cases(share, only, seed) if DRAWN in forms else ())]


def campaign(
    forms: Sequence[str], share: float, only: str = "", log: Any = None, seed: int = 0
) -> tuple[int, dict[str, str]]:
    """(cases that ran, findings) of the backend's cases."""
    count, found = 0, {}
    with tempfile.TemporaryDirectory(prefix="sanitize-") as folder:
        base = Path(folder)
        (base / "shop").mkdir()
        shop = Workshop(base / "shop")
        cases = chosen(forms, share, only, seed)
        for first in range(0, len(cases), PIECE):
            items = list(backend_work(shop, cases[first : first + PIECE], base))
            count += len(items)
            more = findings(items)
            found.update(more)
            for item in items:
                shutil.rmtree(Path(item.bundle).parent, ignore_errors=True)
            if log is not None:
                print(
                    f"# {first + PIECE} of {len(cases)} cases, {count} ran, {len(found)} findings", file=log
                )
                for name, text in more.items():
                    print(f"{'#' * 100}\n{name}\n{text}", file=log, flush=True)
    return count, found


def main() -> int:
    """The command line; exit code 1 when something was found, 3 when this machine cannot look."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--forms", default="static,dynamic,strict,extents,others,drawn")
    p.add_argument("--share", type=float, default=100)
    p.add_argument("--only", default="")
    p.add_argument("--seed", type=int, default=0, help="the first one of drawn models")
    p.add_argument("--work", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.work:
        work_off(pickle.loads(Path(args.work).read_bytes()))
        return 0
    if missing():
        print(missing())
        return 3
    count, found = campaign(args.forms.split(","), args.share, args.only, sys.stdout, args.seed)
    print(f"{count} cases ran, {len(found)} findings: {', '.join(sorted(found))}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
