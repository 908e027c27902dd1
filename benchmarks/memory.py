"""Models -> the memory that a process needs for each, by smelt and by ONNX Runtime, at the same shapes.

usage: memory.py MODEL...

Each runs the shapes of `shapes.toml` in a process of its own, one thread. loaded: what opening the model
added to the process's resident set. peak: the most that it added until all shapes had run (VmHWM). less
weights: the peak without the bytes of the weights, which each has once at least: of the bundle as it is
packed, of the model as its initialisers are.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from run import cases_of, name_of  # beside this file

from smelt.driver import compile

MIB = 1 << 20


def main() -> None:
    """Print the table, or be the process that is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--child", choices=OPENED, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(args.child, *args.models)))
        return
    each = "loaded | peak | less weights"
    print(f"| model | smelt: {each} | ONNX Runtime: {each} | ratio |\n|{'---|' * 8}")
    for model in args.models:
        with tempfile.TemporaryDirectory(prefix="smelt-memory-") as folder:
            print(row(model, Path(folder)), flush=True)


def row(model: Path, folder: Path) -> str:
    """The model's row of the table, in MiB."""
    name = name_of(model)
    bundle = compile(str(model), "host", output=str(folder / "out"))
    feeds = folder / "feeds"
    feeds.write_bytes(pickle.dumps([(c.feed, c.state) for c in cases_of(bundle, name)]))
    cells, rest = [name], []
    for who, source, weights in (
        ("smelt", Path(bundle.path), int(bundle.manifest["weights"]["bytes"])),
        ("onnxruntime", model, initialisers(model)),
    ):
        words = [sys.executable, __file__, "--child", who, str(source), str(feeds)]
        found = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
        rest.append(found["peak"] - weights)
        cells += [f"{n / MIB:.1f}" for n in (found["loaded"], found["peak"], rest[-1])]
    return "| " + " | ".join([*cells, f"{rest[0] / rest[1]:.2f}"]) + " |"


def initialisers(model: Path) -> int:
    """Bytes of the model's weights: initialisers and constants, of inner graphs too."""
    import onnx
    from onnx import numpy_helper

    def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
        yield from graph.initializer
        for attribute in chain.from_iterable(n.attribute for n in graph.node):
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from tensors(attribute.g)

    return sum(numpy_helper.to_array(t).nbytes for t in tensors(onnx.load(str(model)).graph))


def measured(who: str, source: Path, feeds: Path) -> dict[str, int]:
    """In this process: open, run all; what that added, in bytes."""
    fed: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = pickle.loads(feeds.read_bytes())
    ready = OPENED[who]()
    before = resident("VmRSS")
    run = ready(source)
    loaded = resident("VmRSS") - before
    for feed, state in fed:
        run(feed, state)
        run(feed, state)
    return {"loaded": loaded, "peak": resident("VmHWM") - before}


def resident(what: str) -> int:
    """VmRSS or VmHWM of this process (proc(5)), in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(what + ":"))
    return 1024 * int(line.split()[1])


Run = Callable[[Mapping[str, Any], Mapping[str, Any]], object]


def _smelt() -> Callable[[Path], Run]:
    from smelt.session import load

    def opened(source: Path) -> Run:
        session = load(str(source), threads=1)

        def run(feed: Mapping[str, Any], state: Mapping[str, Any]) -> object:
            if state:
                session.reset()
            return session.run(None, feed)

        return run

    return opened


def _onnxruntime() -> Callable[[Path], Run]:
    import onnxruntime

    def opened(source: Path) -> Run:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        return lambda feed, state: session.run(None, {**feed, **state})

    return opened


OPENED: Mapping[str, Callable[[], Callable[[Path], Run]]] = {"smelt": _smelt, "onnxruntime": _onnxruntime}
"""Who -> what imports it, which gives what opens a model, which gives what runs it."""

if __name__ == "__main__":
    main()
