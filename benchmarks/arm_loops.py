"""Assembly of a function in; its busiest inner loop, what that spills and how many cycles it takes, out.

Cycles are those of llvm-mca: every load is in the first cache, every branch predicted. So they are a bound of
what a schedule of instructions and registers allows, never a time.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PRODUCTS = re.compile(r"(fmla|fmls|[su]dot|usdot|[su]mmla|usmmla|[su]mlal2?|mla|fmlal2?)$")
"""Instructions that multiply and add: what products and convolutions are made of."""
MOVES = re.compile(r"(ld|st|mov|mvni|fmov|dup|ins|[us]mov|zip|uzp|trn|ext|rev|tb[lx]|prfm)")
"""Instructions on vectors that compute nothing."""
LABEL = re.compile(r"(\.L\w+):")
BRANCH = re.compile(r"\s*(?:b(?:\.\w+)?|cbn?z|tbn?z)\s.*?(\.L\w+)\s*$")
CALL = re.compile(r"\s*blr?\s")
STACK = re.compile(r"\s*(?:ld|st)\w*\s.*\[sp\b")
ROUNDS = 200


@dataclass(frozen=True)
class Core:
    """A core as llvm-mca knows it. compiled: LLVM's name that smelt's code is for. model: the core whose
    tables llvm-mca takes, the nearest that it has. wide: vector instructions of 128 bits that the core starts
    in a cycle where the tables say more; 0: the tables are right. why: this model."""

    compiled: str
    model: str
    why: str
    wide: float = 0.0


CORES: Mapping[str, Core] = {
    c.compiled: c
    for c in (
        Core("cortex-a55", "cortex-a55", "its own tables, but one 128-bit operation a cycle", 1.0),
        Core("cortex-a76", "neoverse-n1", "the same core for servers; its own name has the tables of A57"),
        Core("cortex-x2", "neoverse-v2", "four vector pipes as X2 has; its own name has N2's two"),
        Core("neoverse-n1", "neoverse-n1", "its own tables"),
        Core("neoverse-v1", "neoverse-v1", "its own tables"),
    )
}


@dataclass(frozen=True)
class Loop:
    """An inner loop's instructions, without labels and comments."""

    lines: tuple[str, ...]

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """What the arithmetic limit counts: the products, where they are most of what is computed on vectors,
        else all of it."""
        vectors = [x for x in self.lines if re.search(r"\bv\d+\.", x) and not MOVES.match(mnemonic(x))]
        products = tuple(x for x in vectors if PRODUCTS.match(mnemonic(x)))
        return products if 2 * len(products) >= len(vectors) else tuple(vectors)

    @property
    def spills(self) -> int:
        """Loads and stores of the stack."""
        return sum(bool(STACK.match(x)) for x in self.lines)

    @property
    def calls(self) -> bool:
        """Whether it calls a function, of which llvm-mca knows nothing."""
        return any(CALL.match(x) for x in self.lines)


def mnemonic(line: str) -> str:
    """The first word of an instruction."""
    return line.split()[0]


def busiest(assembly: str) -> Loop | None:
    """The loop without loops inside that has the most arithmetic; None where there is none with any."""
    lines = [line.split("//")[0].rstrip() for line in assembly.splitlines()]
    at = {m[1]: i for i, line in enumerate(lines) if (m := LABEL.match(line))}
    ends = [(at[m[1]], i) for i, x in enumerate(lines) if (m := BRANCH.match(x)) and at.get(m[1], i) < i]
    inner = [(a, b) for a, b in ends if not any((a, b) != (c, d) and a <= c and d <= b for c, d in ends)]
    loops = [Loop(tuple(x.strip() for x in lines[a : b + 1] if re.match(r"\s+[a-z]", x))) for a, b in inner]
    best = max(loops, key=lambda loop: (_weight(loop), -len(loop.lines)), default=None)
    return best if best is not None and best.arithmetic else None


def _weight(loop: Loop) -> int:
    """Products count before any other arithmetic."""
    found = loop.arithmetic
    return len(found) * (100 if found and PRODUCTS.match(mnemonic(found[0])) else 1)


@dataclass(frozen=True)
class Mca:
    """llvm-mca: the words that start it."""

    program: tuple[str, ...]

    def version(self) -> str:
        """What it calls itself."""
        return next(x.strip() for x in self._run(["--version"], "").splitlines() if "LLVM version" in x)

    def share(self, loop: Loop, core: Core) -> float:
        """Of a round of the loop in the long run, the cycles that its arithmetic takes at least over all."""
        runs = [self._ask(loop.lines, core, n * ROUNDS)["TotalCycles"] for n in (1, 2)]
        least = self.limit(loop, core)
        return least / max((runs[1] - runs[0]) / ROUNDS, least)

    def limit(self, loop: Loop, core: Core) -> float:
        """Cycles that the arithmetic of a round takes at least, by the units that the core has for it."""
        told = self._ask(loop.arithmetic, core, ROUNDS)["BlockRThroughput"]
        return max(told, len(loop.arithmetic) / core.wide if core.wide else 0.0)

    def _ask(self, lines: tuple[str, ...], core: Core, rounds: int) -> Mapping[str, float]:
        words = ["-mtriple=aarch64", f"-mcpu={core.model}", "-mattr=+dotprod,+i8mm,+fullfp16,+bf16",
                 f"-iterations={rounds}", "-json"]  # fmt: skip
        told = json.loads(self._run(words, "\n".join(_without_labels(lines))))
        found: Mapping[str, float] = told["CodeRegions"][0]["SummaryView"]
        return found

    def _run(self, words: Sequence[str], text: str) -> str:
        done = subprocess.run(
            [*self.program, *words], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"llvm-mca: {done.stderr.strip()[:500]}")
        return done.stdout


def _without_labels(lines: Sequence[str]) -> list[str]:
    """Branches go nowhere: llvm-mca takes them as instructions like any other."""
    return [re.sub(r"\.L\w+", "0", re.sub(r":lo12:[\w.$]+", "0", x)) for x in lines]
