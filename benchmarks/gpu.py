"""Single operators -> a table of their times on a unit by the unit's own events; `python benchmarks/gpu.py`.

Each is one model with dynamic dims, compiled once and run at several sizes, with inputs and outputs at the
unit. Where PyTorch with CUDA is installed its time for the same stands beside. `--keep FOLDER` compiles only,
and `--bundles FOLDER` runs what was compiled so, for a machine that has the GPU and no compiler.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import smelt

TURNS = 7
Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


@dataclass(frozen=True)
class Operator:
    """A graph as ONNX's text, and the extents of its inputs, a row for each run. constants: name -> shape and
    type of weights. flops: of a run; 0: it is bound by memory. peer: the same in PyTorch."""

    graph: str
    runs: Sequence[Mapping[str, tuple[int, ...]]]
    dtype: type[np.generic] = np.float32
    constants: Mapping[str, tuple[tuple[int, ...], type[np.generic]]] = field(default_factory=dict)
    flops: Callable[[Mapping[str, tuple[int, ...]]], int] = lambda shapes: 0
    peer: Callable[..., Any] | None = None


def product(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Operations of a [m, k] x [k, n]."""
    (m, k), n = shapes["a"], shapes.get("b", (0, 4096))[-1]
    return 2 * m * k * n


def attention(q: Any, k: Any, v: Any) -> Any:
    """PyTorch's own, with groups of heads."""
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


SQUARE = (4096, 4096)
ROWS = [{"a": (m, 4096)} for m in (1, 4, 16, 64, 4096)]
CACHES = [((1, 32, 1, 128), (1, 8, 16384, 128)), ((8, 32, 1, 128), (8, 8, 8192, 128)),
          ((1, 32, 2048, 128), (1, 8, 2048, 128))]  # fmt: skip
OPERATORS: Mapping[str, Operator] = {
    "matmul f32": Operator("(float[m,k] a, float[k,n] b) => (float[m,n] y) { y = MatMul(a, b) }",
                           [{"a": (m, 4096), "b": SQUARE} for m in (1, 64, 4096)], flops=product,
                           peer=lambda a, b: a @ b),
    "matmul f16": Operator("(float16[m,k] a, float16[k,n] b) => (float16[m,n] y) { y = MatMul(a, b) }",
                           [{"a": (m, 4096), "b": SQUARE} for m in (1, 64, 4096)], np.float16, flops=product,
                           peer=lambda a, b: a @ b),
    "matmul f16, weight": Operator("(float16[m,4096] a) => (float16[m,4096] y) { y = MatMul(a, w) }", ROWS,
                                   np.float16, {"w": (SQUARE, np.float16)}, product),
    "matmul 4 bits": Operator("(float16[m,4096] a) => (float16[m,28672] y) { y = com.microsoft.MatMulNBits"
                              "<K=4096, N=28672, bits=4, block_size=32>(a, q, s, z) }",
                              [{"a": (m, 4096)} for m in (1, 4, 16)], np.float16,
                              {"q": ((28672, 128, 16), np.uint8), "s": ((28672 * 128,), np.float16),
                               "z": ((28672 * 64,), np.uint8)}),
    "attention f16": Operator("(float16[b,32,t,128] q, float16[b,8,s,128] k, float16[b,8,s,128] v)"
                              " => (float16[b,32,t,128] y) { y = Attention(q, k, v) }",
                              [{"q": q, "k": k, "v": k} for q, k in CACHES], np.float16, peer=attention),
    "conv f32": Operator("(float[b,128,h,l] x) => (float[b,128,h,l] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
                         [{"x": (16, 128, 56, 56)}], constants={"w": ((128, 128, 3, 3), np.float32)},
                         flops=lambda s: 2 * 16 * 56 * 56 * 128 * 128 * 9),
    "conv f16": Operator("(float16[b,128,h,l] x) => "
                         "(float16[b,128,h,l] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
                         [{"x": (16, 128, 56, 56)}], np.float16, {"w": ((128, 128, 3, 3), np.float16)},
                         lambda s: 2 * 16 * 56 * 56 * 128 * 128 * 9),
    "softmax": Operator("(float[m,n] x) => (float[m,n] y) { y = Softmax<axis=-1>(x) }",
                        [{"x": s} for s in ((1_000_000, 100), (8192, 8192), (4, 10_000_000))],
                        peer=lambda x: x.softmax(-1)),
    "sum": Operator("(float[m,n] x) => (float y) { y = ReduceSum<keepdims=0>(x) }", [{"x": (8192, 8192)}],
                    peer=lambda x: x.sum()),
    "transpose": Operator("(float[m,n] x) => (float[n,m] y) { y = Transpose<perm=[1,0]>(x) }",
                          [{"x": s} for s in ((8192, 8192), (8191, 8193))], peer=lambda x: x.T.contiguous()),
    "mul": Operator("(float[m,n] x, float[m,n] z) => (float[m,n] y) { y = Mul(x, z) }",
                    [{"x": (8192, 8192), "z": (8192, 8192)}], peer=lambda x, z: x * z),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when every operator ran."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="host+cuda", help="with one unit besides the CPU")
    parser.add_argument("--only", action="append", default=[], help="operators whose name begins so")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="compile into this folder, run nothing")
    parser.add_argument("--bundles", type=Path, metavar="FOLDER", help="run what is in this folder")
    args = parser.parse_args(argv)
    chosen = [n for n in OPERATORS if not args.only or any(n.startswith(x) for x in args.only)]
    with tempfile.TemporaryDirectory(prefix="smelt-gpu-") as scratch:
        for name in chosen:
            folder = (args.bundles or args.keep or Path(scratch)) / name.replace(" ", "_").replace(",", "")
            if args.bundles is None:
                _compile(name, args.target, folder)
            for row in () if args.keep else _times(name, folder):
                print(row, flush=True)
    return 0


def _compile(name: str, target: str, folder: Path) -> None:
    o = OPERATORS[name]
    head = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
    model = onnx.parser.parse_model(f"{head} g {o.graph}")
    for n, (shape, dtype) in o.constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(_values(shape, dtype), n))
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = folder.with_suffix(".onnx")
    onnx.save(model, str(source))
    smelt.compile(str(source), target, output=str(folder))


def _values(shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
    rng = np.random.default_rng(len(shape))
    if dtype is np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    return (rng.standard_normal(shape, np.float32) / 8).astype(dtype)


def _times(name: str, folder: Path) -> Iterator[str]:
    o, session = OPERATORS[name], smelt.load(str(folder))
    if session.fallback is not None:
        raise SystemExit(f"{name}: {session.fallback}")
    for shapes in o.runs:
        feeds = {n: _values(s, o.dtype) for n, s in shapes.items()}
        ns = _device_ns(session, feeds)
        flops = o.flops(shapes)
        rate = f"{flops / ns / 1e3:8.1f} TFLOP/s" if flops else f"{_moved(session, feeds) / ns:8.0f} GB/s   "
        peer = _peer_ns(o, feeds)
        beside = "" if peer is None else f"  PyTorch {peer / 1e3:10.1f} us, ratio {ns / peer:.2f}"
        label = " x ".join(str(list(s)) for s in shapes.values())
        yield f"{name:20} {label:60} {ns / 1e3:10.1f} us {rate}{beside}"


def _device_ns(session: smelt.Session, feeds: Feeds) -> float:
    """The median of runs, of each the sum over its kernels."""
    outputs = session.run(None, feeds)
    ins = {n: session.tensor(n, a) for n, a in feeds.items()}
    names = [o.name for o in session.get_outputs()]
    outs = {n: session.tensor(n, y.shape) for n, y in zip(names, outputs, strict=True)}
    found = []
    for _ in range(TURNS):
        session.run_into(outs, ins)
        session.profile()
        session.run_into(outs, ins)
        found.append(sum(ns for ns, _ in session.device_times().values()))
        session.profile(False)
    return sorted(found)[TURNS // 2]


def _moved(session: smelt.Session, feeds: Feeds) -> int:
    return sum(a.nbytes for a in (*feeds.values(), *session.run(None, feeds)))


def _peer_ns(o: Operator, feeds: Feeds) -> float | None:
    """PyTorch's time by events, median; None where it, or its way to do this, is not there."""
    try:
        import torch
    except ImportError:
        return None
    if o.peer is None or not torch.cuda.is_available():
        return None
    args = [torch.from_numpy(a).cuda() for a in feeds.values()]
    found = []
    for _ in range(TURNS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        o.peer(*args)
        end.record()
        end.synchronize()
        found.append(1e6 * begin.elapsed_time(end))
    return float(sorted(found[3:])[TURNS // 2])


if __name__ == "__main__":
    sys.exit(main())
