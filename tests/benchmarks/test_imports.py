"""Every benchmark finds what it imports: nothing else runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
IMPORTS = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for path in sys.argv[2:]:
    runpy.run_path(path, run_name="imported")
"""


def test_benchmarks_find_what_they_import() -> None:
    paths = sorted(map(str, FOLDER.glob("*.py")))
    argv = [sys.executable, "-c", IMPORTS, str(FOLDER), *paths]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert len(paths) > 10 and done.returncode == 0, done.stderr[-2000:]
