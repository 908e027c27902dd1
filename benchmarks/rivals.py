"""A name of another runtime and a model -> what runs the model with it; the rivals of `run.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smelt.bench import Rival
from smelt.core.diag import SmeltError
from smelt.reference import Reference


class OpenVINO:
    """One request of OpenVINO on the CPU, which computes floats in float32 (its default is what is fastest).

    Raises SmeltError: 'infra' when OpenVINO is not installed, 'invalid' when it refuses the model.
    """

    def __init__(self, model: Path, threads: int) -> None:
        try:
            import openvino
        except ImportError:
            raise SmeltError(
                "openvino is not installed", kind="infra", hint="pip install 'smelt[bench]'"
            ) from None
        settings = {
            "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
        }  # fmt: skip
        try:
            compiled = openvino.Core().compile_model(str(model), "CPU", settings)
        except RuntimeError as e:
            raise SmeltError(f"openvino refuses '{model}': {_first_line(e)}", kind="invalid") from None
        self._request = compiled.create_infer_request()
        self._names = {i.get_any_name() for i in compiled.inputs}

    def run(self, feed: Mapping[str, Any]) -> object:
        """The outputs. Raises SmeltError(kind='shape') when OpenVINO refuses these inputs."""
        asked = {n: a for n, a in feed.items() if n in self._names}  # it drops inputs that nothing reads
        try:
            return self._request.infer(asked, share_inputs=True, share_outputs=True)
        except RuntimeError as e:
            raise SmeltError(f"openvino refuses these inputs: {_first_line(e)}", kind="shape") from None


def _first_line(e: Exception) -> str:
    told = [line.strip() for line in str(e).splitlines() if line.strip()]
    return told[-1] if told else type(e).__name__


RIVALS: Mapping[str, Callable[[Path, int], Rival]] = {
    "onnxruntime": lambda model, threads: Reference(model, threads=threads, exact=False),
    "openvino": OpenVINO,
}
