"""Mutants of dumps: a seed -> the dump of a small model after some pass, with tokens, numbers, lines or bytes
changed, and the outcome of reading it and of continuing its compile."""

from __future__ import annotations

import sys
import tempfile
from functools import cache, partial
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "support")]

import contextlib

import numpy as np
from campaign import Outcome, main
from file_judge import HANG, KINDS, limited
from isolated import isolated
from model_sources import SOURCES
from mutate import NUMBERS

from smelt.compile_child import DEEPEST_STACK
from smelt.core.diag import SmeltError
from smelt.core.ir.text_tokens import Tokens
from smelt.core.ir.verify import module_facts
from smelt.core.passes.manager import run_pipeline
from smelt.core.plan.build import make_plan
from smelt.driver import Request
from smelt.stages import PASSES, Compilation, resumed
from smelt.targets.platform import parse_target
from smelt.targets.registry import default_unit, machines

HOST = parse_target("host")
UNITS, UNIT = machines(HOST), default_unit(HOST)
TOGETHER = 40
"""Mutants of one model: making its dumps takes longer than reading them."""
MAKERS = ("flow_models", "fuzz_draw", "qdq_models", "rule_forms", "front_models", "op_nodes")
WORDS = ('"', "`", "(" * 9000, "[" * 9000, "{", "}", "region @r(", "inf", "nan", "-", "..", "sha256", "%",
         "@", "9" * 5000, "1e999", "\0", "é", "\ud800", "n*n*n*n", "(n//3)" * 50,
         "4096 .. 1", "9999999999 .. 1", "dim", ":")  # fmt: skip


@cache
def dumps(seed: int) -> tuple[str, ...]:
    """The texts of one model: by hand, and after some passes."""
    module = None
    while module is None:
        with contextlib.suppress(SmeltError):
            module = SOURCES[MAKERS[seed % len(MAKERS)]](seed // len(MAKERS))
        seed += len(MAKERS)
    begun = Compilation(Request(source="m.onnx"), module, "0" * 64)
    context, found = begun.context(UNITS, UNIT), [begun.dump()]
    for p in PASSES:
        begun = begun.advanced(p.name, run_pipeline(begun.module, (p,), context))
        if p.name in ("expand", "fuse", "lower", "schedule"):
            found.append(begun.dump())
    return tuple(found)


def mutant(seed: int) -> str:
    """The text of a seed: one or two changes."""
    rng = np.random.default_rng([78, seed])
    texts = dumps(seed // TOGETHER)
    text = texts[int(rng.integers(len(texts)))]
    if rng.random() < 0.5:
        text = text[text.index("module ") :]  # as if somebody had written it
    for _ in range(int(rng.integers(1, 3))):
        text = changed(text, rng)
    return text


def changed(text: str, rng: np.random.Generator) -> str:
    """One change of a token, a number, a line or a character."""
    way = int(rng.integers(7))
    if way == 0:
        at = int(rng.integers(len(text)))
        return text[:at] + WORDS[int(rng.integers(len(WORDS)))] + text[at + int(rng.integers(3)) :]
    if way == 1:
        lines = text.splitlines()
        a, b = (int(x) for x in rng.integers(len(lines), size=2))
        lines[a] = lines[b] if rng.random() < 0.7 else ""
        return "\n".join(lines)
    try:
        t = Tokens(text)
    except SmeltError:
        return text
    places = [k for k, w in enumerate(t.tokens) if w and (way > 3 or w[0].isdigit())]
    if not places:
        return text
    k = places[int(rng.integers(len(places)))]
    new = t.tokens[places[int(rng.integers(len(places)))]]
    if way < 4:
        new = str(NUMBERS[int(rng.integers(len(NUMBERS)))])
    if way == 6:
        new = ""
    return text[: t.starts[k]] + new + text[t.starts[k] + len(t.tokens[k]) :]


def examined(text: str) -> tuple[str, str]:
    """What became of a text in this process: ('read', ''), or what is wrong. To be read it must be sound, so
    that passes and planner end in a plan, or in a refusal."""
    limited()
    sys.setrecursionlimit(DEEPEST_STACK)
    with tempfile.TemporaryDirectory(prefix="dump-") as folder:
        path = Path(folder) / "m.smelt"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            begun = resumed(Request(source=str(path)))
        except SmeltError as e:
            bad = e.kind not in KINDS or "\n" in e.message
            return ("reading: " + str(e) if bad else "", f"refused: {e.kind}")
    try:
        done = begun.finished(UNITS, UNIT, lambda stage: None)
        make_plan(done.module, module_facts(done.module))
    except SmeltError as e:
        return ("after reading: " + str(e) if e.kind not in KINDS else "", f"read, then {e.kind}")
    return "", "read, and done"


def attack(seed: int) -> Outcome:
    """One mutant."""
    text = mutant(seed)
    how, found = isolated(partial(examined, text), HANG)
    bad, what = found if how == "ok" else (how, f"{how}: {str(found)[-1500:]}")
    return Outcome(what[:200].split("\n")[-1], bool(bad), f"seed {seed}: {bad}\n{what}")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", count=5_000))
