"""A target in; the processor features that its code may use, which the runtime checks before it runs, out.

The features of an LLVM cpu name are read from the tables of the C compiler that smelt ships.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from smelt.core.diag import SmeltError
from smelt.targets.platform import CPU_TABLES, TargetSpec, zig_directory


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ASKED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "x86_64": _words(
            "sse3 ssse3 sse4.1 sse4.2 movbe popcnt avx fma f16c bmi avx2 bmi2 adx avx512f avx512dq "
            "avx512ifma avx512cd avx512bw avx512vl avx512vbmi avx512vbmi2 "
            "gfni vaes vpclmulqdq avx512vnni avx512bitalg "
            "avx512vpopcntdq avx512fp16 avxvnni avx512bf16 avxifma avxvnniint8 avxneconvert avxvnniint16 "
            "lzcnt sse4a xop fma4 tbm"
        ),
        "aarch64": _words(
            "neon lse fullfp16 rdm jsconv complxnum rcpc dotprod sve fp16fml rcpc-immo flagm sve2 altnzcv "
            "fptoint i8mm bf16"
        ),
        "arm": _words("neon vfp3 vfp4 hwdiv-arm hwdiv d32 fullfp16 dotprod"),
        "riscv64": _words("m a f d c v zba zbb zbs zicond"),
    }
)
"""Architecture -> features that its processors may lack; runtime/cpu.c has a row for each."""


def required(spec: TargetSpec) -> tuple[str, ...]:
    """Features of ASKED that code for a target may use: those of its cpu, changed by the target's own."""
    own = {f[1:]: f[0] == "+" for f in spec.features.split(",") if f}
    found = features_of(spec.platform.arch, spec.cpu, own)
    return tuple(f for f in ASKED[spec.platform.arch] if f in found)


def features_of(arch: str, cpu: str, own: Mapping[str, bool]) -> frozenset[str]:
    """LLVM's features of a cpu, with those of `own` added (True) or taken away (False). A cpu that the tables
    do not have brings none."""
    needs, cpus = _tables(arch)
    found = _with_needed(cpus.get(cpu, frozenset()), needs)
    found |= _with_needed(frozenset(f for f, on in own.items() if on), needs)
    return found - {f for f, on in own.items() if not on}


Tables = tuple[Mapping[str, frozenset[str]], Mapping[str, frozenset[str]]]
_FEATURE = re.compile(
    r'Feature\.(?:@")?([\w.+-]+)"?\)\] = \.\{\s*\.llvm_name = (?:"([^"]+)"|null),.*?'
    r"\.dependencies = featureSet\(&\[_\]Feature\{(.*?)\}\)",
    re.DOTALL,
)
_CPU = re.compile(r'\.llvm_name = "([^"]+)",\s*\.features = featureSet\(&\[_\]Feature\{(.*?)\}\)', re.DOTALL)
_WORD = re.compile(r'\.(?:@"([^"]+)"|(\w+))')


@cache
def _tables(arch: str) -> Tables:
    """LLVM's feature -> the features it needs, LLVM's cpu name -> its features; empty without the tables."""
    try:
        file = zig_directory() / "lib" / "std" / "Target" / f"{CPU_TABLES[arch]}.zig"
        text = file.read_text(encoding="utf-8")
    except (OSError, SmeltError):
        return {}, {}
    rows = [(m[1], m[2] or m[1], m[3]) for m in _FEATURE.finditer(text)]
    llvm = {name: real for name, real, _ in rows}  # zig's names have '_' where LLVM's have '.' or '-'

    def names(listed: str) -> frozenset[str]:
        words = (m[1] or m[2] for m in _WORD.finditer(listed))
        return frozenset(llvm.get(w, w) for w in words)

    cpus = text.partition("pub const cpu = struct")[2]
    return {real: names(needs) for _, real, needs in rows}, {m[1]: names(m[2]) for m in _CPU.finditer(cpus)}


def _with_needed(features: frozenset[str], needs: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The features, and transitively those that they need."""
    found, rest = set(features), list(features)
    while rest:
        more = needs.get(rest.pop(), frozenset()) - found
        found |= more
        rest += more
    return frozenset(found)
