"""The words of a command line in, exit code out: parse, run one command, print its result or error."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from smelt.cli.common import JSON_VERSION, SUMMARIES, Result, Usage, colour, load_named_plugins
from smelt.core.diag import SmeltError, SmeltWarning
from smelt.core.exits import CANCELLED, INTERNAL, UNSUPPORTED, USAGE

# module of smelt.cli -> the commands that its `register` adds, in the order of --help
COMMANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compile": ("check", "compile"),
        "finalise": ("finalise",),
        "run": ("run",),
        "validate": ("validate",),
        "bench": ("bench",),
        "tune": ("tune",),
        "inspect": ("inspect",),
        "opt": ("opt",),
        "devices": ("devices",),
        "doctor": ("doctor",),
        "report": ("report",),
        "farm": ("farm",),
    }
)

READING = ("check", "validate", "tune", "opt", "report", "farm run")
"""Commands that import a model in this process, which therefore loads the plug-ins of SMELT_PLUGINS."""

COMPILING = ("check", "compile", "finalise", "tune", "inspect", "opt")
"""Commands for which an error of kind 'shape' is a fault of the model, not of a run."""


def execute(words: Sequence[str]) -> int:
    """Run a command line; its exit code. Raises nothing but argparse's SystemExit for wrong usage."""
    args = _parser(words).parse_args(words)
    with warnings.catch_warnings():
        warnings.showwarning = partial(_show, args.command, warnings.showwarning)
        return _execute(args)


def _show(command: str, usual: Callable[..., None], text: Warning, kind: type[Warning], *at: Any) -> None:
    """Print a warning; one of smelt's own without its place in the source."""
    if issubclass(kind, SmeltWarning):
        print(f"smelt {command}: {colour('warning', 'yellow')}: {text}", file=sys.stderr)
    else:
        usual(text, kind, *at)


def _execute(args: argparse.Namespace) -> int:
    """Run the command that was parsed; its exit code."""
    try:
        if args.command in READING and os.environ.get("SMELT_PLUGINS"):
            load_named_plugins()
        result = args.run(args)
        try:
            _print(args, result)
        except BrokenPipeError:
            raise
        except OSError as e:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # so that the exit does not flush into it
            raise SmeltError(f"cannot write the result: {e.strerror}", kind="infra") from None
        return int(result.code)
    except KeyboardInterrupt:
        print("\ncancelled", file=sys.stderr)
        return CANCELLED
    except BrokenPipeError:  # the reader (head, less) has gone: nothing is left to say
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # so that the exit does not flush into it
        return 0
    except Exception as e:
        return _failed(args, e)


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of argv's command in full; of the other commands only name and summary. Importing one
    command takes a fraction of a second, importing all takes more than one."""
    from smelt import __version__

    parser = argparse.ArgumentParser(
        "smelt",
        description="Compile ONNX models with dynamic axes into native code, and prove it on the device.",
        epilog="exit codes: 0 ok, 1 mismatch or crash, 2 usage, 3 unsupported or invalid model, "
        "4 no such device, 5 inconclusive timing, 6 infrastructure, 70 internal error, 130 cancelled",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"smelt {__version__}")
    group = parser.add_subparsers(metavar="COMMAND", required=True)
    for module, names in COMMANDS.items():
        if argv and argv[0] in names:
            importlib.import_module(f"smelt.cli.{module}").register(group.add_parser)
            continue
        for name in names:
            group.add_parser(name, help=SUMMARIES[name])
    return parser


def _print(args: argparse.Namespace, result: Result) -> None:
    if args.json:
        _print_json(args, result.code, dict(result.data))
    elif result.text:
        print(result.text)
    sys.stdout.flush()


def _print_json(args: argparse.Namespace, code: int, data: dict[str, Any]) -> None:
    head = {"schema_version": JSON_VERSION, "command": args.command, "ok": code == 0, "exit_code": code}
    print(json.dumps({**head, **data}, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    """A JSON value for NumPy's numbers and for paths."""
    return value.item() if hasattr(value, "item") else str(value)


def _failed(args: argparse.Namespace, e: Exception) -> int:
    """Print the error, as JSON with --json, and return the exit code."""
    if os.environ.get("SMELT_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()
    code, found = _explain(args.command, e)
    if args.json:
        with contextlib.suppress(BrokenPipeError):
            _print_json(args, code, {"error": found})
    print(f"smelt {args.command}: {colour('error', 'red')}: {found['message']}", file=sys.stderr)
    if found["hint"]:
        print(f"  hint: {found['hint']}", file=sys.stderr)
    return code


def _explain(command: str, e: Exception) -> tuple[int, dict[str, Any]]:
    if isinstance(e, Usage):
        hint = f"smelt {command} --help"
        return USAGE, {"kind": "usage", "message": str(e), "node": None, "hint": hint, "problems": []}
    if isinstance(e, SmeltError):
        from smelt.devicefarm.verdict import verdict_of_error

        code = verdict_of_error(e).exit_code
        if e.kind == "shape" and command in COMPILING:
            code = UNSUPPORTED
        where = f"node '{e.node}': " if e.node else ""
        problems = [
            {"kind": p.kind, "message": p.message, "node": p.node, "hint": p.hint, "inputs": p.inputs}
            for p in e.problems
        ]
        found = {"kind": e.kind, "message": where + e.message, "node": e.node, "hint": e.hint}
        return code, {**found, "problems": problems}
    what = f"{type(e).__name__}: {e}"
    hint = "this is a bug of smelt; run again with SMELT_DEBUG=1 for the place, and report it"
    return INTERNAL, {"kind": "internal", "message": what, "node": None, "hint": hint, "problems": []}
