"""Models that round activations again and again; what ONNX Runtime says twice bounds what smelt may say."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from sample_models import Array, Model

from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.driver import Request

ROUNDED = ("smart_turn_v3.2_int8", "minilm_real_dynamic_int8", "smollm_genai_int4")
"""Models that round activations to bytes again and again: a last bit decides about a step, and a step about
the next ones. ONNX Runtime agrees with itself no better when it fuses other nodes, or none."""


def compiled(model: Model, folder: Path, target: str = "host") -> Bundle:
    return compile_here(Request(source=str(model.path()), target=target, output=str(folder / model.name)))


def differs_by_rounding_alone(
    model: Model, session: Any, ort: Any, other: Any, sizes: Sequence[Mapping[str, int]] = ()
) -> None:
    """About as near to ONNX Runtime as its own answers are to each other. No sizes: all of the model's."""
    own, ours = [], []
    for size in sizes or model.sizes:
        feeds = model.feeds(size)
        want, also, got = (r.run(None, feeds)[0] for r in (ort, other, session))
        own.append(apart(want, also))
        ours.append(min(apart(got, want), apart(got, also)))
    assert max(own) > 1e-4, "ONNX Runtime agrees with itself: compare strictly"
    assert max(ours) < 2 * max(own), (ours, own)


def apart(a: Array, b: Array) -> float:
    """The largest difference, as a share of the largest element."""
    return float(np.abs(a - b).max() / np.abs(b).max())


def other_answers(model: Model, folder: Path) -> Path:
    """The file itself; for packed weights one whose activations are not rounded."""
    return unrounded(model.path(), folder) if "int4" in model.name else model.path()


def unrounded(path: Path, folder: Path) -> Path:
    """A copy of a model whose MatMulNBits take activations as they are."""
    proto = onnx.load(str(path), load_external_data=False)
    for node in proto.graph.node:
        kept = [a for a in node.attribute if a.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend(kept)
    copy = folder / path.name
    copy.write_bytes(proto.SerializeToString())
    for data in path.parent.glob(f"{path.name}.*"):
        shutil.copyfile(data, folder / data.name)  # onnx refuses data with two hard links
    return copy
