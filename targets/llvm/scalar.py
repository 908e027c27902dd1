"""Intrinsics of the kernel IR in, LLVM instructions out: arithmetic, comparison, bits, conversions.

Values are held in a computing type: f16 and bf16 as float, bool as i1, integers in their own width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from smelt.core.dtype import DType, bf16, bool_, f16, f64
from smelt.targets.llvm.builder import FLOAT_ELEMS, FunctionBuilder, Value, type_text
from smelt.targets.llvm.machines import Cpu


def compute_elem(dtype: DType) -> str:
    """The LLVM type that values of a dtype are computed in."""
    if dtype.is_float:
        return "double" if dtype == f64 else "float"
    return "i1" if dtype == bool_ else f"i{dtype.bits}"


def storage_elem(dtype: DType) -> str:
    """The LLVM type of an element in memory."""
    if dtype.is_float:
        return {64: "double", 32: "float", 16: "i16"}[dtype.bits]
    return f"i{dtype.bits}"


def lowest(dtype: DType) -> int | float:
    """The value that no other is below."""
    if dtype.is_float:
        return float("-inf")
    return -(1 << (dtype.bits - 1)) if dtype.category == "int" else 0


def highest(dtype: DType) -> int | float:
    """The value that no other is above."""
    if dtype.is_float:
        return float("inf")
    if dtype == bool_:
        return 1
    return (1 << (dtype.bits - (dtype.category == "int"))) - 1


class Scalars:
    """Emits intrinsics for one function on one cpu; operands are scalars or vectors of equal lanes."""

    def __init__(self, b: FunctionBuilder, cpu: Cpu) -> None:
        self.b = b
        self.cpu = cpu

    # -- plumbing

    def same(self, *values: Value) -> tuple[Value, ...]:
        """Scalars splatted when any of the values is a vector."""
        lanes = max([v.lanes for v in values])
        return tuple(self.b.splat(v, lanes) for v in values)

    def binary(self, op: str, a: Value, b: Value) -> Value:
        a, b = self.same(a, b)
        return self.b.pure(f"{op} {a.typed}, {b.text}", a.elem, a.lanes, a, b)

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """op with its keyword: 'fcmp olt', 'icmp eq' ..."""
        a, b = self.same(a, b)
        return self.b.pure(f"{op} {a.typed}, {b.text}", "i1", a.lanes, a, b)

    def convert(self, op: str, v: Value, elem: str) -> Value:
        return self.b.pure(f"{op} {v.typed} to {type_text(elem, v.lanes)}", elem, v.lanes, v)

    def like(self, v: Value, value: int | float, elem: str | None = None) -> Value:
        """A constant with v's lanes (and type)."""
        return self.b.const(value, elem or v.elem, v.lanes)

    def select(self, c: Value, a: Value, b: Value) -> Value:
        if c.const is not None:
            return a if c.const else b
        if a is b:
            return a
        lanes = max(c.lanes, a.lanes, b.lanes)
        a, b = self.b.splat(a, lanes), self.b.splat(b, lanes)
        rhs = f"select {c.typed}, {a.typed}, {b.typed}"
        return self.b.pure(rhs, a.elem, lanes, c, a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a*b + c, fused where the cpu can."""
        if a.elem not in FLOAT_ELEMS:
            return self.binary("add", self.binary("mul", a, b), c)
        a, b, c = self.same(a, b, c)
        if self.cpu.fma:
            return self.b.intrinsic("fma", a.elem, a.lanes, a, b, c)
        return self.binary("fadd", self.binary("fmul", a, b), c)

    def add(self, a: Value, b: Value) -> Value:
        return self.binary("fadd" if a.elem in FLOAT_ELEMS else "add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.binary("fsub" if a.elem in FLOAT_ELEMS else "sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.binary("fmul" if a.elem in FLOAT_ELEMS else "mul", a, b)

    def unary(self, intrinsic: str, v: Value) -> Value:
        return self.b.intrinsic(intrinsic, v.elem, v.lanes, v)

    def both(self, a: Value, b: Value) -> Value:
        """Conjunction of conditions."""
        if a.const is not None:
            return b if a.const else a
        if b.const is not None:
            return a if b.const else b
        return self.binary("and", a, b)

    def bits(self, v: Value) -> Value:
        """The bits of a float as an integer."""
        return self.convert("bitcast", v, {"float": "i32", "double": "i64"}[v.elem])

    def from_bits(self, v: Value) -> Value:
        return self.convert("bitcast", v, {"i32": "float", "i64": "double"}[v.elem])

    # -- min and max: NaN in, NaN out

    def extreme(self, fn: str, kind: DType, a: Value, b: Value) -> Value:
        """fn: 'min' or 'max'."""
        if kind == bool_:
            return self.binary("and" if fn == "min" else "or", a, b)
        if not kind.is_float:
            sign = "s" if kind.category == "int" else "u"
            a, b = self.same(a, b)
            return self.b.intrinsic(f"{sign}{fn}", a.elem, a.lanes, a, b)
        if self.cpu.propagating:
            a, b = self.same(a, b)
            return self.b.intrinsic(f"{fn}imum", a.elem, a.lanes, a, b)
        op = "fcmp olt" if fn == "min" else "fcmp ogt"
        # select(a < b, a, b) gives b when either is NaN: one instruction on x86, right when a is no NaN.
        if b.const is not None and b.const == b.const:
            a, b = b, a
        plain = self.select(self.compare(op, a, b), a, b)
        if a.const is not None and a.const == a.const:
            return plain
        return self.select(self.compare("fcmp uno", a, a), a, plain)

    # -- integers

    def quotient(self, kind: DType, a: Value, b: Value) -> Value:
        """Truncating division; 0 when b is 0, and no trap for the lowest value by -1."""
        safe, zero = self._safe_divisor(kind, a, b)
        q = self.binary("sdiv" if kind.category == "int" else "udiv", a, safe)
        return q if zero is None else self.select(zero, self.like(q, 0), q)

    def remainder(self, kind: DType, a: Value, b: Value) -> Value:
        """C's remainder (sign of the dividend); 0 when b is 0."""
        safe, zero = self._safe_divisor(kind, a, b)
        r = self.binary("srem" if kind.category == "int" else "urem", a, safe)
        return r if zero is None else self.select(zero, self.like(r, 0), r)

    def _safe_divisor(self, kind: DType, a: Value, b: Value) -> tuple[Value, Value | None]:
        if b.const is not None and b.const not in (0, -1):
            return b, None
        zero = self.compare("icmp eq", b, self.like(b, 0))
        bad = zero
        if kind.category == "int":
            # lowest / -1 overflows, which traps on x86; the wrapped result is lowest / 1.
            least = self.compare("icmp eq", a, self.like(a, lowest(kind)))
            minus = self.compare("icmp eq", b, self.like(b, -1))
            bad = self.binary("or", bad, self.binary("and", least, minus))
        return self.select(bad, self.like(b, 1), b), zero

    def int_power(self, kind: DType, a: Value, b: Value) -> Value:
        """a**b by squaring, wrapping; a negative exponent leaves only the powers of 1 and -1."""
        one, zero = self.like(a, 1), self.like(a, 0)
        result, base = one, a
        for bit in range(kind.bits - (kind.category == "int")):
            odd = self.compare("icmp ne", self.binary("and", b, self.like(b, 1 << bit)), zero)
            result = self.select(odd, self.binary("mul", result, base), result)
            base = self.binary("mul", base, base)
        if kind.category == "uint":
            return result
        odd = self.compare("icmp ne", self.binary("and", b, self.like(b, 1)), zero)
        minus = self.like(a, -1)
        of_minus = self.select(odd, minus, one)
        small = self.select(self.compare("icmp eq", a, minus), of_minus, zero)
        small = self.select(self.compare("icmp eq", a, one), one, small)
        return self.select(self.compare("icmp slt", b, zero), small, result)

    # -- rounding

    def round_by_adding(self, v: Value) -> Value:
        """Half to even for cpus without an instruction: |v| + 2^23 - 2^23 drops the fraction."""
        limit = {"float": 2.0**23, "double": 2.0**52}[v.elem]
        size = self.unary("fabs", v)
        there = self.binary("fadd", size, self.like(v, limit))
        back = self.binary("fsub", there, self.like(v, limit))
        signed = self.copysign(back, v)
        return self.select(self.compare("fcmp olt", size, self.like(v, limit)), signed, v)

    def copysign(self, size: Value, sign: Value) -> Value:
        return self.b.intrinsic("copysign", size.elem, size.lanes, size, sign)

    def rounded(self, fn: str, v: Value) -> Value:
        """fn: floor, ceil, trunc, roundeven."""
        if self.cpu.rounding:
            return self.unary(fn, v)
        near = self.round_by_adding(v)
        if fn == "roundeven":
            return near
        one, zero = self.like(v, 1.0), self.like(v, 0.0)
        over = self.binary("fsub", near, one)
        under = self.binary("fadd", near, one)
        down = self.select(self.compare("fcmp ogt", near, v), over, near)
        up = self.select(self.compare("fcmp olt", near, v), under, near)
        if fn == "trunc":
            both = self.select(self.compare("fcmp olt", v, zero), up, down)
            return self.copysign(both, v)
        return self.copysign(up, v) if fn == "ceil" else down

    # -- conversions

    def cast(self, v: Value, source: DType, target: DType) -> Value:
        """ONNX's Cast: to bool is != 0, float to integer truncates (saturating, NaN is 0), integers wrap."""
        elem = compute_elem(target)
        if target == bool_:
            if source == bool_:
                return v
            op = "fcmp une" if source.is_float else "icmp ne"
            return self.compare(op, v, self.like(v, 0))
        if source.is_float and target.is_float:
            if v.elem != elem:
                v = self.convert("fpext" if elem == "double" else "fptrunc", v, elem)
            return self.through_half(v, target)
        if source.is_float:
            return self.float_to_int(v, target)
        if target.is_float:
            op = "sitofp" if source.category == "int" else "uitofp"
            return self.through_half(self.convert(op, v, elem), target)
        if source.bits >= target.bits and source != bool_:
            return v if source.bits == target.bits else self.convert("trunc", v, elem)
        return self.convert("sext" if source.category == "int" else "zext", v, elem)

    def float_to_int(self, v: Value, target: DType) -> Value:
        if v.lanes and target.bits < 32:
            return self._vector_to_narrow(v, target)
        if v.lanes and not self.cpu.saturates:
            return self._vector_to_wide(v, target)
        elem = compute_elem(target)
        sign = "s" if target.category == "int" else "u"
        short = {"float": "f32", "double": "f64"}[v.elem]
        pre = f"v{v.lanes}" if v.lanes else ""
        return self.b.call(f"llvm.fpto{sign}i.sat.{pre}{elem}.{pre}{short}", elem, v.lanes, v)

    def _vector_to_wide(self, v: Value, target: DType) -> Value:
        """Saturating, NaN is 0, by choices beside a conversion that is undefined out of range: without such
        an instruction LLVM's own takes an element at a time."""
        low, high = target.limits
        plain = self.convert("fptosi" if target.category == "int" else "fptoui", v, compute_elem(target))
        above = self.compare("fcmp oge", v, self.like(v, float(high + 1)))
        # -0.5 is 0; the least of signed integers is a float
        under = self.like(v, float(low) if low else -1.0)
        below = self.compare("fcmp olt" if low else "fcmp ole", v, under)
        held = self.select(above, self.like(plain, high), self.select(below, self.like(plain, low), plain))
        return self.select(self.compare("fcmp uno", v, v), self.like(plain, 0), held)

    def _vector_to_narrow(self, v: Value, target: DType) -> Value:
        """Saturating, NaN is 0: in floats, which hold both ends; LLVM's own takes an element at a time."""
        low, high = (self.like(v, float(end)) for end in target.limits)
        number = self.select(self.compare("fcmp ord", v, v), v, self.like(v, 0.0))
        above = self.select(self.compare("fcmp olt", number, low), low, number)
        inside = self.select(self.compare("fcmp ogt", above, high), high, above)
        return self.convert("trunc", self.convert("fptosi", inside, "i32"), compute_elem(target))

    def through_half(self, v: Value, target: DType) -> Value:
        """v rounded to the precision of a 16-bit float, for an explicit Cast."""
        if target.bits != 16:
            return v
        return self.widen(self.narrow(v, target), target)

    def narrow(self, v: Value, target: DType) -> Value:
        """A float as the 16 bits of f16 or bf16, rounded half to even."""
        if v.const is not None and v.const == 0.0 and str(v.const)[0] != "-":
            return self.b.integer(0, "i16", v.lanes)
        if target == bf16:
            return self._to_bf16(v)
        if self.cpu.half:
            return self.convert("bitcast", self.convert("fptrunc", v, "half"), "i16")
        return self._to_f16(v)

    def widen(self, v: Value, source: DType) -> Value:
        """The 16 bits of f16 or bf16 as a float."""
        if source == bf16:
            wide = self.convert("zext", v, "i32")
            return self.from_bits(self.binary("shl", wide, self.like(wide, 16)))
        if self.cpu.half:
            half = self.convert("bitcast", v, "half")
            wide = self.convert("fpext", half, "float")
            if not v.lanes:
                self.b.halves[wide.text] = half
            return wide
        return self._from_f16(v)

    def _to_bf16(self, v: Value) -> Value:
        x = self.bits(v)
        odd = self.binary("and", self.binary("lshr", x, self.like(x, 16)), self.like(x, 1))
        up = self.binary("add", x, self.binary("add", odd, self.like(x, 0x7FFF)))
        nan = self.compare("fcmp uno", v, v)
        quiet = self.binary("or", x, self.like(x, 0x400000))
        high = self.binary("lshr", self.select(nan, quiet, up), self.like(x, 16))
        return self.convert("trunc", high, "i16")

    def _to_f16(self, v: Value) -> Value:
        x = self.bits(v)

        def k(n: int) -> Value:
            return self.like(x, n)

        sign = self.binary("lshr", self.binary("and", x, k(-(1 << 31))), k(16))
        size = self.binary("and", x, k(0x7FFFFFFF))
        # normal: rebias the exponent by 112 and round half to even at bit 13
        odd = self.binary("and", self.binary("lshr", size, k(13)), k(1))
        biased = self.binary("add", size, k(0xFFF - (112 << 23)))
        normal = self.binary("lshr", self.binary("add", biased, odd), k(13))
        # subnormal: adding 0.5 leaves the rounded fraction in the low bits
        shifted = self.binary("fadd", self.from_bits(size), self.like(v, 0.5))
        small = self.binary("sub", self.bits(shifted), k(0x3F000000))
        result = self.select(self.compare("icmp ult", size, k(113 << 23)), small, normal)
        huge = self.compare("icmp ugt", size, k(0x477FEFFF))
        result = self.select(huge, k(0x7C00), result)
        nan = self.compare("icmp ugt", size, k(0x7F800000))
        result = self.select(nan, k(0x7E00), result)
        return self.convert("trunc", self.binary("or", result, sign), "i16")

    def _from_f16(self, v: Value) -> Value:
        x = self.convert("zext", v, "i32")

        def k(n: int) -> Value:
            return self.like(x, n)

        sign = self.binary("shl", self.binary("and", x, k(0x8000)), k(16))
        size = self.binary("and", x, k(0x7FFF))
        # the exponent is rebiased by 112, and once more for infinities and NaN
        shifted = self.binary("shl", size, k(13))
        top = self.compare("icmp uge", size, k(0x7C00))
        rebias = self.select(top, k(224 << 23), k(112 << 23))
        # subnormals are whole multiples of 2^-24; no subnormal float is met, which NEON would flush
        small = self.convert("uitofp", size, "float")
        small = self.binary("fmul", small, self.like(small, 2.0**-24))
        is_small = self.compare("icmp ult", size, k(0x400))
        out = self.select(is_small, self.bits(small), self.binary("add", shifted, rebias))
        return self.from_bits(self.binary("or", out, sign))


# ---------------------------------------------------------------- the table

Emit: TypeAlias = Callable[..., Value]


def _arith(float_op: str, int_op: str) -> Emit:
    def emit(s: Scalars, kind: DType, a: Value, b: Value) -> Value:
        return s.binary(float_op if kind.is_float else int_op, a, b)

    return emit


def _compare(float_op: str, int_op: str, signed: bool = True) -> Emit:
    def emit(s: Scalars, kind: DType, a: Value, b: Value) -> Value:
        if kind.is_float:
            return s.compare(f"fcmp {float_op}", a, b)
        sign = ("s" if kind.category == "int" else "u") if signed else ""
        return s.compare(f"icmp {sign}{int_op}", a, b)

    return emit


def _div(s: Scalars, kind: DType, a: Value, b: Value) -> Value:
    return s.binary("fdiv", a, b) if kind.is_float else s.quotient(kind, a, b)


def _fmod(s: Scalars, kind: DType, a: Value, b: Value) -> Value:
    if not kind.is_float:
        return s.remainder(kind, a, b)
    if s.cpu.remainder:
        return s.binary("frem", a, b)
    return s.b.call("fmodf" if a.elem == "float" else "fmod", a.elem, 0, a, b)


def _mod(s: Scalars, kind: DType, a: Value, b: Value) -> Value:
    r = _fmod(s, kind, a, b)
    if kind.category == "uint":
        return r
    zero = s.like(r, 0)
    if kind.is_float:
        mixed = s.binary("xor", s.compare("fcmp olt", r, zero), s.compare("fcmp olt", b, zero))
        some = s.compare("fcmp one", r, zero)
        fixed = s.select(s.both(some, mixed), s.binary("fadd", r, b), r)
        r, b = s.same(r, b)
        return s.select(s.compare("fcmp oeq", r, zero), s.copysign(zero, b), fixed)
    mixed = s.compare("icmp slt", s.binary("xor", r, b), zero)
    some = s.compare("icmp ne", r, zero)
    # b is 0 only where r is 0 too
    return s.select(s.both(some, mixed), s.binary("add", r, b), r)


def _neg(s: Scalars, kind: DType, a: Value) -> Value:
    if kind.is_float:
        return s.b.pure(f"fneg {a.typed}", a.elem, a.lanes, a)
    return s.binary("sub", s.like(a, 0), a)


def _abs(s: Scalars, kind: DType, a: Value) -> Value:
    if kind.is_float:
        return s.unary("fabs", a)
    if kind.category != "int":
        return a
    return s.select(s.compare("icmp slt", a, s.like(a, 0)), s.binary("sub", s.like(a, 0), a), a)


def _sign(s: Scalars, kind: DType, a: Value) -> Value:
    zero = s.like(a, 0)
    below = _compare("olt", "lt")(s, kind, a, zero)
    above = _compare("ogt", "gt")(s, kind, a, zero)
    if kind.category == "uint":
        return s.select(above, s.like(a, 1), zero)
    if kind.is_float:  # NaN stays, both zeros are +0
        zero = s.select(s.compare("fcmp uno", a, a), a, zero)
    return s.select(above, s.like(a, 1), s.select(below, s.like(a, -1), zero))


def _round(fn: str) -> Emit:
    def emit(s: Scalars, kind: DType, a: Value) -> Value:
        return s.rounded(fn, a) if kind.is_float else a

    return emit


def _isnan(s: Scalars, kind: DType, a: Value) -> Value:
    return s.compare("fcmp uno", a, a) if kind.is_float else s.like(a, 0, "i1")


def _isinf(s: Scalars, kind: DType, a: Value) -> Value:
    if not kind.is_float:
        return s.like(a, 0, "i1")
    if kind == f16:
        # computed in more range than f16 has: what would overflow on a store is infinite already
        return s.compare("fcmp oge", s.unary("fabs", a), s.like(a, 65520.0))
    return s.compare("fcmp oeq", s.unary("fabs", a), s.like(a, float("inf")))


def _saturate(s: Scalars, kind: DType, a: Value) -> Value:
    size = s.unary("fabs", a)
    beyond = s.compare("fcmp ogt", size, s.like(a, 65504.0))
    beyond = s.both(beyond, s.compare("fcmp olt", size, s.like(a, float("inf"))))
    return s.select(beyond, s.b.intrinsic("copysign", a.elem, a.lanes, s.like(a, 65504.0), a), a)


def _not(s: Scalars, kind: DType, a: Value) -> Value:
    return s.binary("xor", a, s.like(a, 1 if kind == bool_ else -1))


def _shift(op: str) -> Emit:
    def emit(s: Scalars, kind: DType, a: Value, b: Value) -> Value:
        over = s.compare("icmp uge", b, s.like(b, kind.bits))
        op_ = "ashr" if op == "lshr" and kind.category == "int" else op
        moved = s.binary(op_, a, s.select(over, s.like(b, 0), b))
        return s.select(over, s.like(moved, 0), moved)

    return emit


def _fma(s: Scalars, kind: DType, a: Value, b: Value, c: Value) -> Value:
    return s.fma(a, b, c)


def _min(s: Scalars, kind: DType, a: Value, b: Value) -> Value:
    return s.extreme("min", kind, a, b)


def _max(s: Scalars, kind: DType, a: Value, b: Value) -> Value:
    return s.extreme("max", kind, a, b)


TABLE: dict[str, Emit] = {
    "add": _arith("fadd", "add"),
    "sub": _arith("fsub", "sub"),
    "mul": _arith("fmul", "mul"),
    "div": _div,
    "mod": _mod,
    "fmod": _fmod,
    "fma": _fma,
    "min": _min,
    "max": _max,
    "neg": _neg,
    "abs": _abs,
    "floor": _round("floor"),
    "ceil": _round("ceil"),
    "round": _round("roundeven"),
    "trunc": _round("trunc"),
    "sign": _sign,
    "eq": _compare("oeq", "eq", signed=False),
    "ne": _compare("une", "ne", signed=False),
    "lt": _compare("olt", "lt"),
    "le": _compare("ole", "le"),
    "gt": _compare("ogt", "gt"),
    "ge": _compare("oge", "ge"),
    "isnan": _isnan,
    "isinf": _isinf,
    "saturate": _saturate,
    "and": _arith("", "and"),
    "or": _arith("", "or"),
    "xor": _arith("", "xor"),
    "not": _not,
    "shl": _shift("shl"),
    "shr": _shift("lshr"),
}
