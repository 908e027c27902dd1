"""An ONNX model -> the results of ONNX Runtime: the oracle of `validate`, the competitor of `bench`."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.core.diag import SmeltError
from smelt.core.dtype import Array
from smelt.core.lazily import Lazily
from smelt.core.scratch import scratch_folder
from smelt.core.subnormals import flushed

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")


class Reference:
    """One ONNX Runtime session on the CPU with a fixed number of threads.

    outputs: names of values to return after the model's own outputs. optimise: False runs every node as it
    is written. exact: False lets sums of byte products saturate where ONNX Runtime's default does, which is
    faster. flush: subnormal numbers are 0 to it. instead: arrays in the place of initialisers of the same
    name, type and shape. edit: changes the onnx.ModelProto first.
    Raises SmeltError: 'infra' when ONNX Runtime is not installed, 'invalid' when it refuses the model.
    """

    name = "onnxruntime"

    def __init__(
        self,
        model: Path,
        *,
        threads: int = 1,
        outputs: Sequence[str] = (),
        optimise: bool = True,
        exact: bool = True,
        flush: bool = False,
        instead: Mapping[str, Array] | None = None,
        edit: Callable[[Any], None] | None = None,
    ) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise SmeltError(
                "onnxruntime is not installed, and it is the reference", kind="infra",
                hint="pip install 'smelt[validate]'",
            ) from None  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what it refuses is told by its exception
        # On x86 without VNNI, u8 times i8 saturates at 2^15 (onnxruntime.ai, "Quantize ONNX models"); its
        # optimiser then makes weights u8.
        options.add_session_config_entry("session.x64quantprecision", str(int(exact)))
        if not optimise:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._flush = flush
        self._kept = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in (instead or {}).items()}
        for name, value in self._kept.items():
            options.add_initializer(name, value)
        try:
            as_it_is = not outputs and edit is None and _is_unicode(model)  # it takes no other paths
            source: Any = str(model) if as_it_is else _edited(model, outputs, edit)
            self._session = _opened(onnxruntime, source, options, optimise and exact)
        except Exception as e:
            raise SmeltError(f"onnxruntime refuses '{model}': {_first_line(e)}", kind="invalid") from None
        self.label: str = f"onnxruntime {onnxruntime.__version__}"
        self.outputs = [o.name for o in self._session.get_outputs()]

    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name: arrays, lists of them, or None, as in the feed.

        Raises SmeltError(kind='shape') when ONNX Runtime refuses these inputs.
        """
        try:
            found = self._run(dict(feed))
        except Exception as e:
            raise SmeltError(f"onnxruntime refuses these inputs: {_first_line(e)}", kind="shape") from None
        values = (a if a is None or isinstance(a, list) else np.asarray(a) for a in found)
        return dict(zip(self.outputs, values, strict=True))

    def _run(self, feed: dict[str, Any]) -> Any:
        if not self._flush:
            return self._session.run(None, feed)
        with flushed():
            return self._session.run(None, feed)


def _opened(onnxruntime: Any, source: Any, options: Any, again: bool) -> Any:
    """The session. again: where it fails, once more without the optimiser's later steps, of which the one
    that makes weights u8 adds a zero point that several of them share twice, and fails (1.32). Without these
    steps products between dequantised values are of floats, which are exact too."""
    open_session = partial(onnxruntime.InferenceSession, source, options, providers=["CPUExecutionProvider"])
    try:
        return open_session()
    except Exception:
        if not again:
            raise
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        return open_session()


def evaluated(
    model: Path, names: Sequence[str], feed: Mapping[str, Any], flush: bool = False
) -> dict[str, Any] | None:
    """The results of ONNX's reference evaluator for these values, by name. None when it is slow, lacks an op
    or fails. flush: subnormal numbers are 0 to it."""
    with scratch_folder("evaluate") as folder:
        asked, answer = Path(folder, "asked"), Path(folder, "answer")
        asked.write_bytes(pickle.dumps((list(names), dict(feed), flush)))
        words = [sys.executable, "-m", "smelt.evaluate_child", str(model), str(asked), str(answer)]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode or not answer.is_file():
            return None
        return dict(zip(names, pickle.loads(answer.read_bytes()), strict=True))


def _is_unicode(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _edited(model: Path, names: Sequence[str], edit: Callable[[Any], None] | None) -> bytes:
    import onnx

    proto = onnx.load(str(model))
    if edit is not None:
        edit(proto)
    there = {o.name for o in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in there)
    return bytes(proto.SerializeToString())


def value_names(model: Path) -> list[str]:
    """Names of everything that the main graph's nodes compute, in the file's (topological) order."""
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    own = {o.name for o in graph.output}
    skip = {"Constant", "ConstantOfShape"}
    return [n for node in graph.node if node.op_type not in skip for n in node.output if n and n not in own]


def _first_line(e: Exception) -> str:
    text = str(e).strip().splitlines()
    return text[0][:400] if text else type(e).__name__
