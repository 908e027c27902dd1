"""The jobs of a campaign, drawn from its seed: what each does to its device, and how it may end."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODES = {
    0: ("fine", 40), 1: ("segfault", 4), 2: ("abort", 3), 3: ("spin", 3), 4: ("print", 3), 5: ("eat", 2),
    6: ("leave", 3), 8: ("flood", 2), 10: ("overflow", 3), 11: ("fork", 3),
}  # fmt: skip
"""The fake model's modes (tests/devicefarm/fake_model.c) -> name and weight."""
HOSTILE = (
    "'; DROP TABLE job; --", "../../../etc/passwd", "$(reboot)", "`id`", "a\nb\rc", "%s%n{0}",
    "\u202egnp.exe", "-rf", "x" * 500,
)  # fmt: skip


def hostile_bundles(folder: Path, native: Path) -> dict[str, Path]:
    """Copies of a bundle: in a folder of a hostile name, and with a file that no device takes."""
    odd = folder / "it's; rm -rf $HOME `id` \u202e"
    shutil.copytree(native, odd)
    refused = folder / "refused names"
    shutil.copytree(native, refused)
    (refused / "a b;c").write_text("")
    return {"odd": odd, "refused": refused}


def jobs(
    seed: int, devices: list[str], native: list[str], hostile: dict[str, Path]
) -> Iterator[dict[str, Any]]:
    """Endless jobs: id, devices, work, and the verdicts that it may end with besides those of infrastructure.

    native: the devices that run the hostile bundles."""
    rng = random.Random(seed)
    names, weights = list(MODES), [w for _, w in MODES.values()]
    allowed = {
        "fine": ["pass"], "print": ["pass"], "flood": ["pass"], "spin": ["timeout"],
        "eat": ["crash", "timeout"],
    }  # fmt: skip
    k = 0
    while True:
        mode = rng.choices(names, weights)[0]
        work: dict[str, Any] = {"mode": mode, "rows": rng.choice([1, 7, 1000]), "careful": rng.random() < 0.3}
        id, where = f"{k:05d}", rng.sample(devices, min(rng.choice([1, 1, 2, 6]), len(devices)))
        may = allowed.get(MODES[mode][0], ["crash"])
        if rng.random() < 0.06:
            id += rng.choice(HOSTILE)
        if rng.random() < 0.06:
            which = rng.choice(list(hostile))
            work |= {"bundle": str(hostile[which])}
            where = rng.sample(native, min(2, len(native)))
            may = ["unsupported"] if which == "refused" else may
        yield {"id": id, "devices": where, "work": work, "may": may}
        k += 1


def write(path: Path, count: int, *args: Any) -> None:
    """The first `count` of them as a file, a JSON line each."""
    made = jobs(*args)
    path.write_text("".join(json.dumps(next(made)) + "\n" for _ in range(count)))
