"""smelt finalise: a portable package -> a bundle for a target, or for a device of the farm."""

from __future__ import annotations

import argparse
import time
from typing import Any

from smelt.cli.common import (
    AddParser,
    Progress,
    Result,
    add_limits,
    add_rules,
    add_schedules,
    add_wait_options,
    check_target,
    command,
    count_bytes,
    whole,
    wished,
)
from smelt.core.bundle import Bundle
from smelt.core.exits import OK
from smelt.limits import MOST_THREADS


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(
        add, "finalise", run,
        "smelt compile model.onnx --portable -o package\n"
        "smelt finalise package --target arm64 -o out\n"
        "smelt finalise package --device board1 -o out",
    )  # fmt: skip
    parser.add_argument("package", metavar="PACKAGE")
    parser.add_argument("-o", "--output", default="out", metavar="DIR", help="the bundle (default: out)")
    parser.add_argument(
        "--target", metavar="T", help="platform[:cpu][+device] (default: host, or what --device is)"
    )
    parser.add_argument(
        "--device", metavar="D", help="a device of the farm; a bundle that was made for it before is kept"
    )
    parser.add_argument(
        "--threads", type=whole(1, MOST_THREADS), metavar="N", help="threads that the bundle uses by default"
    )
    add_bundle_options(parser)
    add_rules(parser)
    add_schedules(parser)
    add_limits(parser)
    add_wait_options(parser)


def add_bundle_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about what a bundle has besides the code of its target."""
    parser.add_argument("--static", action="store_true", help="also write a static library, such as libdet.a")
    parser.add_argument(
        "--fallback", action="store_true",
        help="code for the CPU as well, which runs where the device or its driver is missing, or fails",
    )  # fmt: skip
    parser.add_argument(
        "--choose", action="store_true",
        help="the whole model for each device, and for the CPU: the first whose driver works runs it",
    )  # fmt: skip
    parser.add_argument(
        "--name", help="of its C functions and files: det makes det_open and libdet.so (default: after MODEL)"
    )


def run(args: argparse.Namespace) -> Result:
    """Compile what the package has left open, in a child process, and report on the bundle."""
    from smelt.driver import finalise

    start, data = time.monotonic(), dict[str, Any]()
    progress = Progress(args)
    options = {
        "threads": args.threads, "name": args.name, "static": args.static, "libraries": args.libraries,
        "place": args.place, "fallback": args.fallback, "choose": args.choose, "progress": progress,
        "time_limit": args.limit_seconds, "memory_limit": args.limit_memory, "schedules": args.schedules,
    }  # fmt: skip
    target = check_target(args.target) if args.target else None
    try:
        if args.device is None:
            bundle = finalise(args.package, target or "host", args.output, **options)
        else:
            from smelt.finalising import finalise_for

            found = finalise_for(wished(args), args.package, args.output, target, **options)
            bundle, data = found.bundle, {"fingerprint": found.fingerprint, "kept": found.kept}
    finally:
        progress.done()
    seconds = time.monotonic() - start
    data |= {
        "package": args.package, "bundle": str(bundle.path), "digest": bundle.digest,
        "target": bundle.target, "seconds": round(seconds, 3),
    }  # fmt: skip
    return Result(OK, data, _text(bundle, seconds, data))


def _text(bundle: Bundle, seconds: float, data: dict[str, Any]) -> str:
    files = [*bundle.manifest["files"], "manifest.json"]
    size = sum((bundle.path / n).stat().st_size for n in files)
    how = "kept" if data.get("kept") else f"finished for {bundle.target} in {seconds:.1f} s"
    return f"{how}: {bundle.path} ({count_bytes(size)})"
