"""Mutants of sound models: a seed -> bytes flipped or cut, fields, nodes, attributes, extents, types or
weights changed, and smelt's answer to it. Results of mutants that ONNX Runtime accepts too are compared."""

from __future__ import annotations

import sys
import tempfile
from functools import cache, partial
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "support")]

import numpy as np
import onnx
from campaign import Outcome, main
from file_fields import EXTERNAL, change_a_field, specimen
from file_judge import Report, judge_file, judged, limited
from file_ops import base_models
from fuzzer import drawn
from mutate import damaged

TOGETHER = 20
"""Mutants of one drawn model: drawing takes longer than judging."""


def mutant(seed: int) -> bytes:
    """The file of a seed: of the specimen, of a model of one op, of a drawn model."""
    rng = np.random.default_rng([77, seed])
    way = seed % 4
    if way == 0:
        model = inlined()
    elif way == 1 and (found := _drawn(seed // TOGETHER)) is not None:
        model = found
    else:
        names = sorted(base_models())
        model = base_models()[names[int(rng.integers(len(names)))]]
    if rng.random() < 0.5:
        return damaged(model, seed)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for _ in range(int(rng.integers(1, 3))):
        change_a_field(made, rng)
    return bytes(made.SerializeToString())


@cache
def inlined() -> onnx.ModelProto:
    """The specimen with all weights in the file, so that ONNX Runtime takes it as bytes."""
    model = onnx.ModelProto()
    model.CopyFrom(specimen())
    for t in model.graph.initializer:
        if t.data_location == onnx.TensorProto.EXTERNAL:
            del t.external_data[:]
            t.ClearField("data_location")
            t.raw_data = EXTERNAL.tobytes()
    return model


@cache
def _drawn(seed: int) -> onnx.ModelProto | None:
    found = drawn(seed)
    return None if found is None else found.model


def examined(data: bytes, code: bool = True) -> Report:
    """The mutant written, checked and compiled in this process, which ends when it takes too much."""
    limited()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(data)
        return judge_file(path, opt=3, code=code)


def attack(seed: int) -> Outcome:
    """One mutant."""
    data = mutant(seed)
    return judged(f"mutant {seed}", partial(examined, data), lambda: data)


if __name__ == "__main__":
    import smelt.compiler
    import smelt.session  # noqa: F401  imported once, before the forks

    sys.exit(main(attack, __doc__ or "", count=10_000))
