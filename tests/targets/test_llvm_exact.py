"""What the host computes of a Dim is the integer that it stands for, or a jump away; checked with random Dims
at values around every power of two."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Mapping

import llvmlite.binding as llvm
import pytest

from smelt.core.dim import Dim, FloorDiv, Mod, SymbolAtom, dmax, dmin, sym, to_dim
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.compile import parse, target_machine
from smelt.targets.llvm.exact import LEAST, MOST, Exact
from smelt.targets.llvm.machines import host

NAMES = ("a", "b", "n", "m")
"""a and b are any integers, n and m sizes that are known to be 0 and more."""
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


def _dim(rng: random.Random, depth: int) -> Dim:
    if depth == 0:
        return rng.choice((sym(rng.choice(NAMES)), to_dim(rng.choice((1, 2, 3, 64, 1000, 2**31, -5, 2**62)))))
    x, y = _dim(rng, depth - 1), _dim(rng, rng.randrange(depth))
    number = rng.choice((1, 2, 7, 64, 4096, 2**40, -3))
    ways = (x + y, x - y, x * y, x * y, dmin(x, y), dmax(x, y), x // number, x % number, x // dmax(y, 1))
    return rng.choice(ways)


def _value(rng: random.Random, name: str) -> int:
    near = rng.choice((0, 1, 2 ** rng.randrange(63), 3037000499, 2642245, 2**21, 2**22)) + rng.randint(-2, 2)
    near = max(-(2**63), min(2**63 - 1, near * (1 if name in "nm" else rng.choice((1, -1)))))
    return max(near, 0) if name in "nm" else near


def _largest(d: Dim, env: Mapping[str, int]) -> int:
    """More than anything that comes up on the way to the value."""
    most = total = 0
    for coefficient, factors in d.terms():
        part = abs(coefficient)
        for atom, power in factors:
            inner = () if isinstance(atom, SymbolAtom) else _operands(atom)
            most = max([most, *(_largest(x, env) for x in inner)])
            value = abs(env[atom.name]) if isinstance(atom, SymbolAtom) else _of_atom(atom, env)
            part *= max(value, 1) ** power
        total += part
    return max(most, total)


def _operands(atom: object) -> tuple[Dim, ...]:
    return (atom.a, atom.b) if isinstance(atom, FloorDiv | Mod) else atom.args  # type: ignore[attr-defined]


def _of_atom(atom: object, env: Mapping[str, int]) -> int:
    return max(_largest(x, env) for x in _operands(atom))


def _function(d: Dim, name: str, declared: dict[str, str]) -> str:
    """i64 name(values, result): 1 where it jumps away."""
    b = FunctionBuilder(declared)
    away = b.block("away")
    ix = Exact(b, lambda whole: away.label)
    env = {}
    for n, s in enumerate(NAMES):
        at = b.here(f"getelementptr i64, ptr %env, i64 {n}", "ptr", 0)
        env[s] = b.here(f"load i64, ptr {at.text}", "i64", 0)
        env[s].low = 0 if s in "nm" else None
    made = ix.exact(d, env)  # type: ignore[arg-type]
    assert isinstance(made, Value)
    b.effect(f"store {made.typed}, ptr %out")
    away.lines.append("ret i64 1")
    return f"define i64 @{name}(ptr %env, ptr %out) nounwind {{\n{b.text('ret i64 0')}\n}}"


@pytest.mark.parametrize("seed", range(6))
def test_a_value_is_exact_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    dims = [d for d in (_dim(rng, rng.randint(1, 4)) for _ in range(60)) if not d.is_const]
    declared: dict[str, str] = {}
    texts = [_function(d, f"f{n}", declared) for n, d in enumerate(dims)]
    module = parse("\n".join([f'target triple = "{host().triple}"', *declared.values(), *texts]))
    engine = llvm.create_mcjit_compiler(module, target_machine(host(), within=True))
    engine.finalize_object()
    exact = refused = 0
    for n, d in enumerate(dims):
        run = ENTRY(engine.get_function_address(f"f{n}"))
        for _ in range(40):
            env = {s: _value(rng, s) for s in NAMES}
            got = ctypes.c_int64()
            if run((ctypes.c_int64 * 4)(*env.values()), ctypes.byref(got)):
                assert _largest(d, env) > 2**61, (str(d), env)
                refused += 1
            else:
                assert got.value == d.evaluate(env), (str(d), env)
                exact += 1
    assert exact > 500 and refused > 100


def test_a_number_that_has_no_64_bits_is_refused() -> None:
    declared: dict[str, str] = {}
    text = _function(sym("n") + 2**70, "f0", declared)
    assert "br i1 true, label %away" in text
    module = parse("\n".join([*declared.values(), text]))
    assert module.get_function("f0").name == "f0"


def test_bounds_spare_the_jump() -> None:
    """What cannot overflow is computed as it always was."""
    b = FunctionBuilder({})
    ix = Exact(b, lambda whole: "away")
    n = Value("%n", "i64", 0, b.root, None, 0, 1 << 20)
    ix.exact((sym("n") * sym("n") + 63) // 64 * 64, {"n": n})
    assert "overflow" not in b.text("ret i64 0") and "br i1" not in b.text("ret i64 0")
    assert LEAST == -(2**63) and MOST == 2**63 - 1


def test_sums_of_sizes_leave_once() -> None:
    """However many there are in a Dim."""
    b = FunctionBuilder({})
    ix = Exact(b, lambda whole: "away")
    sizes = {s: Value(f"%{s}", "i64", 0, b.root, None, 0, MOST) for s in "nmk"}
    n, m, k = (sym(s) for s in "nmk")
    ix.exact(dmax(n + m + k, m + k, dmin(7 + n, k)), sizes)
    assert b.text("ret i64 0").count("br i1") == 1
    ix.exact(dmax(n + m + k, m + k), sizes)
    assert b.text("ret i64 0").count("br i1") == 1, "what was found to fit is not looked at again"
