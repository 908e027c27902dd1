"""smelt.conformance with the code for CUDA on this machine: words as for `python -m smelt.conformance`.

    python tests/support/cuda_conformance.py --sample 10 --form static --form dynamic
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from checkouts import ROOT
from cuda_sources import cuda_checkout, fake_libcuda


def conformance(folder: Path, words: Sequence[str], **more: object) -> subprocess.CompletedProcess[str]:
    """Run it in a copy of the sources, made in the folder. more: of subprocess.run."""
    copy = cuda_checkout(folder / "copy")
    env = {**os.environ, "PYTHONPATH": str(copy.path), "LD_LIBRARY_PATH": str(fake_libcuda())}
    known = str(ROOT / "tests" / "known_failures.txt")
    command = [sys.executable, "-m", "smelt.conformance", "--target", "x86+cuda", "--known", known, *words]
    return subprocess.run(command, cwd=copy.path, env=env, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="smelt-cuda-conformance-") as made:
        sys.exit(conformance(Path(made), sys.argv[1:]).returncode)
