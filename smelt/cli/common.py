"""What commands share: results, usage errors, options for shapes and dims, progress and colour."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from smelt.core.diag import SmeltError
from smelt.core.exits import OK
from smelt.core.passes.numerics import FAST, fast_parts
from smelt.limits import MOST_THREADS

if TYPE_CHECKING:  # each command imports what it needs of these when it runs
    from smelt.core.bundle import Bundle
    from smelt.devicefarm.doctor import Finding
    from smelt.devicefarm.leases.desk import Waiting
    from smelt.leasing import Wish
    from smelt.request import DimSpec
    from smelt.shapes import Port, ShapeSpec

JSON_VERSION = 1
MOST_VALUE = 1e18
"""The largest magnitude of random inputs: every float type and 64-bit integers can hold it."""

DimSpecs = dict[str, "DimSpec"]


@dataclass(frozen=True)
class Result:
    """The result of a command: exit code, the fields of --json, the text that is printed without it."""

    code: int = OK
    data: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


class Usage(Exception):
    """The command line is wrong: exit code 2."""


class AddParser(Protocol):
    """The type of argparse's add_parser."""

    def __call__(self, name: str, **kwargs: Any) -> argparse.ArgumentParser: ...


Run = Callable[[argparse.Namespace], Result]

SUMMARIES: Mapping[str, str] = MappingProxyType(
    {
        "check": "tell every problem of a model at once",
        "compile": "compile a model into a bundle",
        "finalise": "make a bundle of a portable package",
        "run": "run a bundle on its device",
        "validate": "compare with ONNX Runtime on the device",
        "bench": "time a model on its device",
        "tune": "measure other schedules of a model's kernels",
        "inspect": "show what is in a model or bundle",
        "opt": "run passes on IR text",
        "devices": "the farm's boards and emulators",
        "doctor": "tell what this machine can build and run",
        "report": "compile, run, compare and time a model, and print one report",
        "farm": "one bundle on several devices at once",
    }
)
"""Command -> its summary, for a --help that imports no command."""


def command(
    add: AddParser, name: str, run: Run, example: str, summary: str | None = None
) -> argparse.ArgumentParser:
    """Add a command's parser with --json, -v and an example at the end of --help. summary: that of a
    subcommand; None takes it from SUMMARIES."""
    summary = SUMMARIES[name] if summary is None else summary
    parser = add(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="example:\n" + "\n".join(f"  {line}" for line in example.splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell every step and its time on stderr")
    parser.set_defaults(run=run, command=name)
    return parser


# ---------------------------------------------------------------- options


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a compile: --target, --dim, -O, --threads, --fp16, --fast-math,
    --keep-subnormals, --place, --schedules, --state and trtexec's profiles of shapes."""
    parser.add_argument(
        "--target", default="host", metavar="T", help="platform[:cpu][+device] (default: host)"
    )
    add_dims(parser)
    parser.add_argument(
        "--threads", type=whole(1, MOST_THREADS), metavar="N", help="threads that the bundle uses by default"
    )
    parser.add_argument(
        "-O", dest="opt", type=int, choices=range(4), default=3, help="optimisation (default: 3)"
    )
    parser.add_argument(
        "--fp16", action="store_true", help="store weights and tensors between kernels in float16"
    )
    add_numbers(parser)
    add_rules(parser)
    add_schedules(parser)
    parser.add_argument(
        "--state", action="append", default=[], metavar="IN=OUT",
        help="an input that an output of the last run replaces; a * on each side pairs many (docs/state.md)",
    )  # fmt: skip
    add_limits(parser)
    for kind in ("min", "opt", "max"):
        parser.add_argument(
            f"--{kind}Shapes", f"--{kind}-shapes", dest=f"{kind}_shapes", metavar="x:1x3x64x64,...",
            help=f"{kind} shapes, as trtexec takes them",
        )  # fmt: skip


def add_dims(parser: argparse.ArgumentParser) -> None:
    """Add --dim."""
    parser.add_argument(
        "--dim", action="append", default=[], metavar="N=4|N=1..512|N=1..512:opt=1,128",
        help="fix or bound a symbolic dim; opt: sizes at which it is to be fast (docs/dims.md)",
    )  # fmt: skip


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add what decides where kernels run: --place and --libraries."""
    parser.add_argument(
        "--place", type=_rules, default={}, metavar="NAME=UNIT,...",
        help="which kernels run where, by their names, nodes or op types (with * and ?); first fit: "
        "'Conv=cpu,*=opencl' (default: all on the target's first device); the unit 'auto' is the one that "
        "costs least, by what 'auto@UNIT.FIGURE=N;DIM=SIZE' says besides (docs/units.md)",
    )  # fmt: skip
    parser.add_argument(
        "--libraries", action="store_true", help="matrix products may call a BLAS on the device"
    )


def add_schedules(parser: argparse.ArgumentParser) -> None:
    """Add --schedules."""
    parser.add_argument(
        "--schedules", metavar="FILE",
        help="schedules of kernels, measured by 'smelt tune' or written by hand (docs/tune.md)",
    )  # fmt: skip


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add --limit-memory and --limit-seconds."""
    parser.add_argument(
        "--limit-memory", type=float, metavar="GB", help="memory that the compile may use (default: 90 %%)"
    )
    parser.add_argument(
        "--limit-seconds", type=float, metavar="S", help="processor time that it may use (default: an hour)"
    )


def add_numbers(parser: argparse.ArgumentParser) -> None:
    """Add what decides how floats are computed: --fast-math, alone or with names of its parts, and
    --keep-subnormals."""
    parser.add_argument(
        "--fast-math", type=_fast_parts, nargs="?", const=fast_parts(True), default=(), metavar="PART,...",
        help=f"rewrites that may change what overflows and how sums are bracketed: {', '.join(FAST)}; "
        "without parts all of them (docs/floating-point.md)",
    )  # fmt: skip
    parser.add_argument(
        "--keep-subnormals", action="store_true",
        help="keep numbers below the least normal one; by default they are 0 to arithmetic, which saves time",
    )  # fmt: skip


def _fast_parts(text: str) -> tuple[str, ...]:
    try:
        return fast_parts(text)
    except SmeltError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _rules(text: str) -> dict[str, str]:
    from smelt.core.machine import ANY_UNIT

    rules: dict[str, str] = {}
    for rule in filter(None, text.split(",")):
        pattern, costs, said = rule.partition(f"={ANY_UNIT}@")
        unit = f"{ANY_UNIT}@{said}"
        if not costs:
            pattern, _, unit = rule.rpartition("=")
        if not (pattern and unit):
            raise argparse.ArgumentTypeError(f"'{rule}' is not of the form NAME=UNIT, as in 'conv*=cpu'")
        rules.setdefault(pattern, unit)
    return rules


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    """Add --shape with its synonyms, --seed and --val-range."""
    parser.add_argument(
        "--shape", "--shapes", "--input-shapes", dest="shape", action="append", default=[], nargs="+",
        metavar="x:1x3x64x64|N=4", help="shapes of inputs or values of dims; repeat for several runs",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole(0, 2**63 - 1), default=0, help="seed of random inputs (default: 0)"
    )
    parser.add_argument(
        "--val-range", action="append", default=[], metavar="[NAME:]LOW,HIGH",
        help="random values are uniform over this range (default: normal floats, integers 0 and 1)",
    )  # fmt: skip


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Add --device."""
    parser.add_argument(
        "--device", metavar="D", help="where to run (default: the platform's own; see 'smelt devices list')"
    )
    add_wait_options(parser)


def add_wait_options(parser: argparse.ArgumentParser) -> None:
    """Add --priority and --wait, for devices that others may use now."""
    parser.add_argument(
        "--priority", choices=("high", "normal", "low"), default="normal",
        help="the class in the queue for the device (default: normal)",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=tolerance, metavar="S",
        help="exit with code 4 when the device is not free after S seconds (default: wait)",
    )  # fmt: skip


def wished(args: argparse.Namespace) -> Wish | None:
    """--device as a wish, whose place in the queue is told on stderr; None without one."""
    if args.device is None:
        return None
    from smelt.leasing import Wish

    return Wish(args.device, args.priority, args.wait, lambda w: tell_place(args.command, args.device, w))


def tell_place(command: str, device: str, waiting: Waiting) -> None:
    """Print the place in a queue, and how long it may take."""
    least = "" if waiting.seconds is None else f", about {waiting.seconds:.0f} s"
    place = f"place {waiting.place} in the queue{least}"
    print(f"smelt {command}: waiting for device '{device}': {place}", file=sys.stderr)


def add_trial_options(parser: argparse.ArgumentParser, count: int) -> None:
    """Add the options of a compile and runs on a device at several shapes, `count` of them by default."""
    parser.add_argument(
        "--count", type=whole(1, 10_000), default=count,
        help=f"shapes to try when none are given (default: {count})",
    )  # fmt: skip
    add_compile_options(parser)
    add_shape_options(parser)
    add_device_options(parser)


def whole(low: int, high: int) -> Callable[[str], int]:
    """The argparse type of an integer from low to high, both included."""

    def read(text: str) -> int:
        # not longer than the bounds: Python refuses to read a number of thousands of digits
        if not re.fullmatch(r"-?[0-9]{1,20}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text:.40}' is no whole number from {low} to {high}")
        return int(text)

    return read


def tolerance(text: str) -> float:
    """The argparse type of a finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text:.40}' is no number from 0")
    return value


def shape_specs(args: argparse.Namespace) -> list[ShapeSpec]:
    """One spec per --shape; trtexec's min, opt and max shapes are one each."""
    from smelt.shapes import parse_shapes

    texts = [",".join(words) for words in args.shape]
    texts += [t for k in ("min", "opt", "max") if (t := getattr(args, f"{k}_shapes", None)) is not None]
    try:
        return [parse_shapes(t) for t in texts]
    except SmeltError as e:
        raise Usage(str(e)) from None


def value_ranges(args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """--val-range as input name -> (low, high)."""
    found = {}
    for text in args.val_range:
        name, _, span = text.rpartition(":")
        try:
            low, high = (float(v) for v in span.strip("[]").split(","))
        except ValueError:
            raise Usage(f"cannot read the range '{text:.80}'; write LOW,HIGH or NAME:LOW,HIGH") from None
        if not -MOST_VALUE <= low <= high <= MOST_VALUE:
            raise Usage(f"the range '{text:.80}' is empty, or beyond {MOST_VALUE:g}")
        found[name] = (low, high)
    return found


def profiled(args: argparse.Namespace) -> bool:
    """Whether one of trtexec's options for a profile of shapes is given."""
    return any((args.min_shapes, args.opt_shapes, args.max_shapes))


def dim_specs(args: argparse.Namespace) -> DimSpecs:
    """Symbol -> size or range, with hot sizes, from --dim and from trtexec's profiles of shapes. Raises
    Usage."""
    found = given_dims(args)
    if not profiled(args):
        return found
    from smelt.shapes import bounds_of, parse_shapes

    try:
        profile = {
            k: {n: s for n, s in parse_shapes(t).items() if isinstance(s, tuple)}
            for k in ("min", "opt", "max")
            if (t := getattr(args, f"{k}_shapes", None)) is not None
        }
    except SmeltError as e:
        raise Usage(str(e)) from None
    if getattr(args, "entries", None):
        raise Usage("min, opt and max shapes are for one model; say --dim ENTRY/DIM=LOW..HIGH")
    least = profile.get("min") or profile.get("opt") or profile["max"]
    most = profile.get("max") or profile.get("opt") or profile["min"]
    ports = model_ports(Path(args.model), found)
    return {**bounds_of(ports, least, most, profile.get("opt", {})), **found}


def given_dims(args: argparse.Namespace) -> DimSpecs:
    """Symbol -> size or range, with hot sizes, from --dim. Raises Usage."""
    if not args.dim:
        return {}
    from smelt.shapes import parse_dim_spec

    try:
        return dict(parse_dim_spec(t) for t in args.dim)
    except SmeltError as e:
        raise Usage(str(e)) from None


def state_pairs(args: argparse.Namespace) -> dict[str, str]:
    """--state as input -> the output that replaces it. Raises Usage."""
    found: dict[str, str] = {}
    for text in args.state:
        name, equals, output = text.partition("=")
        if not (name and equals and output):
            raise Usage(f"cannot read the state '{text:.200}'; write INPUT=OUTPUT, such as past=present")
        if found.setdefault(name, output) != output:
            raise Usage(f"--state names '{name}' twice, with '{found[name]}' and '{output}'")
    return found


def model_ports(model: Path, dims: DimSpecs) -> tuple[Port, ...]:
    """The inputs of an ONNX file. Raises SmeltError when it cannot be imported."""
    from smelt.importer import import_model
    from smelt.shapes import Port

    if model.suffix == ".smelt":
        raise Usage("a .smelt file has its dims already; min, opt and max shapes are for ONNX models")
    load_named_plugins()
    graph = import_model(model, dict(dims)).main
    return tuple(Port(v.origin or v.name, v.type.dtype, tuple(v.type.shape)) for v in graph.inputs)


def load_named_plugins() -> None:
    """Load the plug-ins that SMELT_PLUGINS names, as a compile does."""
    from smelt.plugin import load_plugins, look_here

    with contextlib.redirect_stdout(sys.stderr):  # stdout has the command's own result
        look_here()
        load_plugins()


def model_file(text: str) -> Path:
    """The path of an ONNX model that exists. Raises Usage."""
    from smelt.core.bundle import is_bundle

    path = Path(text)
    if os.path.isdir(path) and not is_bundle(path):
        raise Usage(f"'{text}' is a folder, expected an ONNX file")
    if not os.path.exists(path):
        raise Usage(f"no model file '{text}'")
    return path


def check_target(text: str) -> str:
    """The target, if it can be parsed. Raises Usage naming those that exist."""
    from smelt.targets.platform import parse_target

    try:
        parse_target(text, ask=False)
    except SmeltError as e:
        raise Usage(str(e)) from None
    return text


def open_bundle(text: str) -> Bundle:
    """A bundle directory. Raises Usage when there is nothing at the path, SmeltError when it is damaged."""
    from smelt.core.bundle import read_bundle

    if not os.path.exists(text):
        raise Usage(f"no bundle '{text}'")
    return read_bundle(text)


def write_result(
    path: str, data: bytes, suffix: str, beside: Callable[[Path], None] = lambda folder: None
) -> None:
    """Write a file at the user's path atomically, and through a symbolic link.

    beside: writes into the file's folder what the file refers to, before that is there: where it fails, an
    older file stays. Raises SmeltError where the path holds a file without this suffix, or writing fails.
    """
    from smelt.core.bundle import replace_file

    place = Path(os.path.realpath(path))
    try:
        if os.path.exists(place) and not os.path.isfile(place):
            place.write_bytes(data)  # a pipe or a device; of a folder the system says what is wrong
            return
        if os.path.exists(place) and place.suffix != suffix and place.stat().st_size:
            raise SmeltError(
                f"'{path}' exists and is no {suffix} file; it will not be overwritten",
                hint="choose another -o, or remove it",
            )
        os.stat(place.parent)  # it is not made
        beside(place.parent)
        replace_file(place, data)
    except OSError as e:
        raise SmeltError(f"cannot write '{path}': {e.strerror or e}", kind="infra") from None


# ---------------------------------------------------------------- talking


class Progress:
    """Progress on stderr: on a terminal one line that shows the step and how long all has taken, elsewhere
    nothing; with -v a line per step with its time."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._verbose: bool = args.verbose
        self._live = sys.stderr.isatty() and not args.verbose and not args.json
        self._start = time.monotonic()
        self._shown: Any = None

    def __call__(self, what: str) -> None:
        """Show the step that begins."""
        if self._verbose:
            print(f"[{time.monotonic() - self._start:6.1f} s] {what}", file=sys.stderr, flush=True)
        elif self._live:
            self._show(what)

    def _show(self, what: str) -> None:
        from rich.console import Console
        from rich.progress import Progress as Line
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        if self._shown is None:
            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
            self._shown = Line(*columns, console=Console(stderr=True), transient=True)
            self._shown.add_task(what, total=None)
            self._shown.start()
        self._shown.update(self._shown.task_ids[0], description=what)

    def done(self) -> None:
        """Clear the line."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


def colour(text: str, name: str) -> str:
    """The text in a colour where stdout is a terminal, unless NO_COLOR is set."""
    codes = {"red": 31, "green": 32, "yellow": 33, "bold": 1}
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{codes[name]}m{text}\033[0m"


def finding_text(f: Finding) -> str:
    """A finding as one line: ok or not, the check, the detail."""
    mark, name = {True: ("ok", "green"), False: ("BAD", "red"), None: ("?", "yellow")}[f.ok]
    return f"{colour(mark.ljust(4), name)} {f.check}: {f.detail}"


def table(rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Rows as aligned columns; cells that look like numbers are right-aligned."""
    if not rows:
        return ""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = []
    for r in rows:
        cells = [c.rjust(w) if c[:1].isdigit() else c.ljust(w) for c, w in zip(r, widths, strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def count_bytes(n: int) -> str:
    """Bytes in powers of ten: '1.4 MB'."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def milliseconds(ns: float) -> str:
    """Nanoseconds as milliseconds: '0.123 ms'."""
    return f"{ns / 1e6:.3f} ms"
