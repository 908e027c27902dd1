"""The package index -> pip inside this virtual environment: for Pythons that come without ensurepip."""

from __future__ import annotations

import os
import re
import runpy
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")


def main() -> None:
    """Download the newest stable wheel of pip and let it install itself."""
    page = f"{INDEX.rstrip('/')}/pip/"
    with urllib.request.urlopen(page, timeout=60) as answer:
        text = answer.read().decode("utf-8")
    found = re.findall(r'href="([^"]*/pip-(\d+(?:\.\d+)+)-py3-none-any\.whl[^"]*)"', text)
    if not found:
        raise SystemExit(f"no wheel of pip at {page}")
    link, _ = max(found, key=lambda row: tuple(map(int, row[1].split("."))))
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / urllib.parse.unquote(link.partition("#")[0].rpartition("/")[2])
        with urllib.request.urlopen(urllib.parse.urljoin(page, link), timeout=120) as answer:
            wheel.write_bytes(answer.read())
        sys.path.insert(0, str(wheel))
        sys.argv = ["pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", str(wheel)]
        runpy.run_module("pip", run_name="__main__")


if __name__ == "__main__":
    main()
