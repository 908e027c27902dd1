"""A model and a feed in files -> what ONNX's reference evaluator computes, in a child process."""

from __future__ import annotations

import pickle
import resource
import sys
from pathlib import Path

EVALUATOR_SECONDS = 20
"""Seconds of processor time after which the evaluator is stopped: it is written for clarity, and a
convolution of a real model takes it minutes."""


def main() -> int:
    """argv: the model, a pickled (names, feed, whether to flush subnormal numbers), where the pickled list of
    outputs goes."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    from smelt.core.subnormals import flushed

    model, asked, answer = map(Path, sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_CPU, (EVALUATOR_SECONDS, EVALUATOR_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    names, feed, flush = pickle.loads(asked.read_bytes())
    with flushed(flush):
        found = ReferenceEvaluator(onnx.load(str(model))).run(list(names), feed)
    answer.write_bytes(pickle.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
