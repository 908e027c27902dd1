"""Hostile names of models and tensors -> names of functions and files: legal in C, and not taken by a
platform's headers and libraries.

python tests/attack/attack_names.py [--seed N] [--count N]
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

from campaign import Outcome, main

from smelt.core.diag import SmeltError, printable
from smelt.core.dim import parse_dim
from smelt.core.dtype import ALL
from smelt.core.naming import LONGEST_PREFIX, RESERVED, Names, check_name, name_from
from smelt.core.plan.program import HostProgram, Tensor
from smelt.model_header import model_header
from smelt.targets.toolchain import runtime_dir

sys.path.append(str(Path(__file__).parents[1] / "support"))
from installed import program_path

PIECES = (
    "", "_", "__", "-", ".", " ", "/", "\\", "\n", "*/", "/*", "//", "??/", '"', "'", "%s", "${x}", "`", "\0",
    "3d", "0", "lib", ".so", "smelt", "model", "det", "DET", "ﬁ", "é", "e\u0301", "ß", "İ", "ı", "检测",
    "\x1b[2J", "\u2028", "модель", "🦙",
    "\u202e", "\u200b", "\udcff", "\U000e0041", "½", "٣", "x" * 30, "y" * 300,
)  # fmt: skip
PROGRAM_EACH = 50
"""Of so many seeds one has a header that compilers read: they take as long as all the others."""


def draw(rng: random.Random) -> str:
    """A name: pieces, reserved words and any characters, in any case."""
    kinds = (
        lambda: rng.choice(PIECES),
        lambda: rng.choice(sorted(RESERVED)),
        lambda: rng.choice(("det", "rec_v4", "ocr", "net2", "m", "model")),
        lambda: "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(8))),
        lambda: chr(rng.choice((rng.randrange(0x250), rng.randrange(0x3000), rng.randrange(0x110000)))),
    )
    text = "".join(rng.choice(kinds)() for _ in range(rng.choice((1, 1, 2, 3, 6))))
    return rng.choice((str, str, str.upper, str.title))(text)


def letters(text: str) -> str:
    """What must stay apart in two names: their letters and digits, whatever their case, width and accents."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LN" or 0xDC80 <= ord(c) < 0xE000)


def wrong_with(text: str) -> str:
    """What is wrong with the name made of a text; '' when nothing."""
    name = name_from(text)
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or not len(name) <= LONGEST_PREFIX:
        return f"no identifier: {name}"
    if name in RESERVED:
        return f"taken: {name}"
    if name_from(name) != name or check_name(name) != name:
        return f"not accepted itself: {name}"
    try:
        if check_name(text) != text or name != text:
            return f"accepted as another: {name}"
    except SmeltError as e:
        if e.kind != "invalid" or name not in str(e.hint) or "\n" in e.message:
            return f"refused without the reason: {e!r}"
    return ""


def wrong_with_pair(rng: random.Random, text: str) -> str:
    """Another text, near or far, with other letters, has another name and other symbols."""
    at = rng.randrange(len(text) + 1)
    longer, shorter = text[:at] + rng.choice("az09éж检") + text[at:], text[:at] + text[at + 1 :]
    other = rng.choice((draw(rng), longer, shorter))
    mine, its = Names(name_from(text)), Names(name_from(other))
    # 'm_3d', 'log_model' and 'model' are made of '3d', 'log' and '', and may be names of their own
    bare = [letters(t or "model").removeprefix("m").removesuffix("model") for t in (text, other)]
    if mine == its and bare[0] != bare[1]:
        return f"{other!r} has its name: {its.prefix}"
    if mine != its and set(mine.functions) & set(its.functions):
        return f"{other!r} has some of its functions: {mine.prefix}, {its.prefix}"
    return ""


def wrong_with_header(rng: random.Random, text: str) -> str:
    """What C and C++ compilers say of the header of a model with such a name and such tensors."""
    tensors = tuple(Tensor(printable(draw(rng)), ALL["f32"], (parse_dim("3*n"),)) for _ in range(3))
    program = HostProgram(tensors, tensors, (), (), (), (), (), 0, (), (), (), (), (), 0)
    names = Names(name_from(text), f"{rng.getrandbits(32):08x}")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(runtime_dir() / "smelt.h", Path(folder) / "smelt.h")
        file = Path(folder) / names.header
        file.write_text(model_header(printable(text), names, program), "utf-8")
        use = Path(folder) / "use.c"
        called = "\n".join(f"void *p{i} = (void *){f};" for i, f in enumerate(names.functions))
        use.write_text(
            f'#include <math.h>\n#include <stdlib.h>\n#include "{names.header}"\n'
            f'#define SMELT_PREFIX {names.prefix}\n#include "smelt.h"\n{called}\n'
            "void *q = (void *)smelt_open;\n"
        )
        for words in (["gcc", "-std=gnu11"], ["g++", "-x", "c++"]):
            if program_path(words[0]) is None:
                continue
            command = [*words, "-Wall", "-Wextra", "-Werror", f"-I{folder}", "-fsyntax-only", str(use)]
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
            if done.returncode:
                return f"{words[0]}: {done.stderr[:2000]}"
    return ""


def attack(seed: int) -> Outcome:
    """A name, another beside it, and for some seeds a header of it."""
    rng = random.Random(seed)
    text = draw(rng)
    found = wrong_with(text) or wrong_with_pair(rng, text)
    if not found and seed % PROGRAM_EACH == 0:
        found = wrong_with_header(rng, text)
    if found:
        return Outcome(re.split("[:(]", found)[0], failed=True, detail=f"{text!r}: {found}")
    return Outcome("kept" if name_from(text) == text else "made")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 20000))
