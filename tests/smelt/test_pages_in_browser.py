"""Pages in a headless browser: what it lays out, what it says of errors, and what it asks the network for."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from installed import program_path

from smelt.pages.bench import bench_page
from smelt.pages.devices import DeviceView, devices_page
from tests.smelt.test_pages import HOSTILE, case, run

LOOK = """
const box = e => e.getBoundingClientRect();
const within = (from, to, low, high) => from >= low - 1 && to <= high + 1;
const inside = (a, b) => within(a.left, a.right, b.left, b.right) && within(a.top, a.bottom, b.top, b.bottom);
const texts = [...document.querySelectorAll("svg text")];
const bars = [...document.querySelectorAll("svg rect, svg polyline, svg circle")];
const found = {
  title: document.title,
  wide: document.documentElement.scrollWidth - window.innerWidth,
  fetched: performance.getEntriesByType("resource").map(r => r.name),
  outside: texts.filter(t => !inside(box(t), box(t.closest("svg")))).map(t => t.textContent),
  empty: [...document.querySelectorAll("svg, table, figure")].filter(e => box(e).width < 20).length,
  unseen: bars.filter(b => !inside(box(b), box(b.closest("svg")))).length,
  charts: document.querySelectorAll("svg").length,
  shapes: bars.length,
  ran: window.ran === true,
};
document.body.setAttribute("data-found", JSON.stringify(found));
"""
"""Written into a copy of the page, which runs no script itself."""


def laid_out(page: str, folder: Path, width: int) -> dict[str, Any]:
    """What LOOK finds in the page, in a window of so many pixels."""
    browser = program_path("chromium-headless-shell")
    if browser is None:
        pytest.skip("needs a browser: apt-get install chromium-headless-shell")
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*/>', page)
    assert policy is not None and "default-src 'none'" in policy[0]
    allowed = policy[0].replace("style-src", "script-src 'nonce-look'; style-src")
    script = f'<script nonce="look">//<![CDATA[\n{LOOK}//]]></script></body>'
    path = folder / "page.html"
    path.write_text(page.replace(policy[0], allowed).replace("</body>", script), "utf-8")
    own = f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900"
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", *own, "--enable-logging=stderr",
             "--dump-dom", path.as_uri()]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not said, said
    marked = re.search(r'data-found="([^"]*)"', done.stdout)
    assert marked is not None, done.stdout[-2000:]
    found: dict[str, Any] = json.loads(unescape(marked[1]))
    return found


def of_bench() -> str:
    kernels = [
        {"name": "conv" * 30, "ns": 700, "launches": 1, "origin": "layer/" * 40, "unit": "cpu"},
        {"name": HOSTILE, "ns": 300, "launches": 2, "origin": HOSTILE},
    ]
    readings = [{"at_ns": n * 10**8, "degrees": 40.0 + n, "khz": 1e6 + n} for n in range(9)]
    rows = case("x:1x3x224x224", kernels=kernels, telemetry=readings), case("x:" + "2x" * 90 + "2")
    older = case("x:1x3x224x224", 1e6, timing="busy", doubts=[{"kind": "busy", "text": HOSTILE}])
    curve = {"points": [(1, 64), (9, 576), (1 << 40, 1 << 50)], "measured": [(4, 256)]}
    memory = [{"symbol": "n", "others": "m = 3", "formula": "64*n + " * 40 + "1", **curve}]
    return bench_page(HOSTILE, [run("new", *rows), run(HOSTILE, older)], memory)


def of_devices() -> str:
    device, finding = {"platform": HOSTILE, "tags": ("a", HOSTILE)}, (False, "disk", "word" * 60)
    return devices_page([DeviceView(HOSTILE, device, HOSTILE, [finding], {"cpu": "c" * 200})], HOSTILE)


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("make", [of_bench, of_devices])
def test_a_browser_shows_it(make: Callable[[], str], width: int, tmp_path: Path) -> None:
    """Charts and words lie within the page, on a wide and a narrow one; nothing is fetched, nothing runs."""
    found = laid_out(make(), tmp_path, width)
    assert found["fetched"] == [] and not found["ran"]
    assert found["wide"] <= 0 and found["outside"] == [] and found["empty"] == found["unseen"] == 0, found
    if make is of_bench:
        assert HOSTILE[:25] in found["title"]
        assert found["charts"] >= 6 and found["shapes"] > 20, found
