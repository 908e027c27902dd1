"""Runs in the emulated machine: an engine, its model and a file of inputs in; a mark before and after each
run out.

usage: arm_guest.py smelt|onnxruntime MODEL INPUTS.npz ROUNDS. The marks are system calls that arm_counter.c
knows. One thread. smelt's MODEL is the folder of a bundle.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

MARK = 0x7FFFFFFE
"""No process has this number."""


def opened(engine: str, model: str, feed: Mapping[str, Any]) -> Callable[[], object]:
    """A run of the model on the inputs."""
    if engine == "smelt":
        import smelt

        ours = smelt.load(model, threads=1)
        return lambda: ours.run(None, feed)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: theirs.run(None, feed)


def mark() -> None:
    """Have the sum of instructions written down."""
    with contextlib.suppress(ProcessLookupError):
        os.getpgid(MARK)


def main() -> None:
    engine, model, inputs, rounds = sys.argv[1:]
    with np.load(inputs) as arrays:
        feed = dict(arrays)
    run = opened(engine, model, feed)
    run()
    for _ in range(int(rounds)):
        mark()
        run()
    mark()


if __name__ == "__main__":
    main()
