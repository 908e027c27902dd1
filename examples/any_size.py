"""Compile a text detector once, run it at three image sizes, and compare with ONNX Runtime.

    .venv/bin/python examples/any_size.py
"""

from __future__ import annotations

import numpy as np

import smelt
from smelt.difference import compare_arrays
from smelt.reference import Reference
from smelt.samples import fetch


def main() -> None:
    """Print the error and the arena's size at each image size."""
    model = fetch("ppocrv4_det")
    bundle = smelt.compile(model, target="host", output="out/any_size")
    session = smelt.load(bundle)
    reference = Reference(model)
    (image,) = session.get_inputs()
    print(f"{bundle.target}: {image.name} {image.type}{image.shape}")

    rng = np.random.default_rng(0)
    for height, width in ((64, 64), (96, 160), (320, 320)):
        x = rng.random((1, 3, height, width), np.float32)
        (got,) = session.run(None, {image.name: x})
        (want,) = reference.run({image.name: x}).values()
        error = compare_arrays("text", got, want)
        print(f"{height}x{width}: {error}, arena {session.memory().arena_bytes:,} bytes")


if __name__ == "__main__":
    main()
