"""exp, log, sin, tanh, erf, pow and their kin on floats of 32 and 64 bits, to a few units of the last place.

GLSL.std.450 promises 2^-11 for sin and 4096 units for tanh, and has nothing for doubles. These use sums,
products, quotients and square roots alone. Series are Taylor's, cut where the rest is below half a unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from smelt.targets.vulkan import wide
from smelt.targets.vulkan.code import V
from smelt.targets.vulkan.spirv import PRIVATE

# ln 2 and pi/2 as heads of few bits, whose products with small integers are exact, and a rest
_LN2 = {"f": (0.6923828125, 0.0007643680599453094), "d": (0.6931471804855391, 7.440617110012397e-11)}
_HALF_PI = {
    "f": (1.5703125, 4.837512969970703e-4, 7.54953362047672e-08, 2.5633441515945189e-12),
    "d": (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21),
}
# erfc(x) * exp(x^2) = sum of row[i] * u^i, u = (1/(1+x) - middle) / radius; to x = 4.5 and 6.5
_ERFC = {
    "f": (
        4.5, 0.34090909090909090909, 0.15909090909090909091,
        (0.262705921311915058, 0.154113533385862006, 0.0124893075162179675, -0.00162131126647101285,
         -0.000158519592481017242, 5.89101682085695945e-05, -2.94411407219704963e-06,
         -1.74631743368112327e-06, 4.2516589969498078e-07),
    ),
    "d": (
        6.5, 0.31666666666666666667, 0.18333333333333333333,
        (0.239517601821123527, 0.173083852575961927, 0.0175377091709900852, -0.00231209947297684017,
         -0.000360084720013031012, 0.000123316114887065813, -1.97774707705465789e-06,
         -6.17570473377867752e-06, 1.48864300795366939e-06, 2.9821990863309318e-08,
         -1.13639652207068664e-07, 3.20582185458113999e-08, -1.285889368765329e-09,
         -2.24817717836466376e-09, 9.25704314928883776e-10, -1.49068627211115593e-10,
         -2.99313926440395575e-11, 3.02165492300714258e-11, -8.7615321432341551e-12,
         -8.62314145839621459e-13, 8.49514741544264931e-13),
    ),
}  # fmt: skip
# 1 / (2 pi), 32 bits a word
_TURNS = (
    0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410, 0x7F9458EA, 0xF7AEF158,
    0x6DC91B8E, 0x909374B8, 0x01924BBA, 0x82746487, 0x3F877AC7, 0x2C4A69CF, 0xBA208D7D, 0x4BAED121,
    0x3A671C09, 0xAD17DF90, 0x4E64758E, 0x60D4CE7D, 0x272117E2, 0xEF7E4A0E, 0xC7FE25FF, 0xF7816603,
    0xFBCBC462, 0xD6829B47, 0xDB4D9FB3, 0xC9F2C26D, 0xD3D18FD9, 0xA797FA8B, 0x5D49EEB1, 0xFAF97C5E,
    0xCF41CE7D, 0xE294A4BA, 0x9AFED7EC, 0x47E35742, 0x1580CC11, 0xBF1EDAEA, 0xFC33EF08, 0x26BD0D87,
    0x6A78E458,
)  # fmt: skip


def _is_double(x: V) -> bool:
    return x.kind == "d"


def polynomial(x: V, coefficients: Sequence[float]) -> V:
    """sum of coefficients[i] * x**i by Horner's rule."""
    total = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def absolute(x: V) -> V:
    return x.code.glsl("FAbs", x.kind, x)


def is_nan(x: V) -> V:
    """By the bits: drivers may take it that there are none."""
    if x.kind == "f":
        return (x.bits() & 0x7FFFFFFF) > 0x7F800000
    pair = x.bits()
    return ((pair.high & 0x7FFFFFFF) | wide.carry(pair.low.differs(0))) > 0x7FF00000


def with_sign(x: V, of: V) -> V:
    """The size of x with another number's sign."""
    c = x.code
    if x.kind == "f":
        return ((x.bits() & 0x7FFFFFFF) | (of.bits() & 0x80000000)).as_float()
    a, b = x.bits(), of.bits()
    return c.wide(a.low, (a.high & 0x7FFFFFFF) | (b.high & 0x80000000)).as_float()


def sqrt(x: V) -> V:
    c = x.code
    root = c.glsl("Sqrt", x.kind, x)
    root = c.select(x < 0.0, math.nan, root)
    return c.select(x.equals(0.0), x, root)


# ---------------------------------------------------------------- exp and log


def power_of_two(n: V, kind: str) -> V:
    """2^n as a float of the kind; n within its normal exponents."""
    if kind == "f":
        return ((n + 127) << 23).as_float()
    return n.code.wide(n.code.u(0), (n + 1023) << 20).as_float()


def scaled(x: V, n: V) -> V:
    """x * 2^n, n up to twice a normal exponent."""
    half = x.code.pure("ShiftRightArithmetic", "u", n, x.code.u(1))
    return x * power_of_two(half, x.kind) * power_of_two(n - half, x.kind)


def _reduced(x: V) -> tuple[V, V]:
    """(r, n) with x = r + n ln 2, |r| <= ln2 / 2."""
    c = x.code
    whole = c.glsl("RoundEven", x.kind, x * math.log2(math.e))
    head, rest = _LN2[x.kind]
    return (x - whole * head) - whole * rest, c.pure("ConvertFToS", "u", whole)


def _exp_tail(r: V) -> V:
    """exp(r) - 1 - r over r^2."""
    terms = 14 if _is_double(r) else 8
    return polynomial(r, [1 / math.factorial(n) for n in range(2, terms)])


def _within(x: V, low: float, high: float) -> V:
    c = x.code
    return c.select(x < low, low, c.select(x > high, high, x))


def _exp(x: V) -> V:
    ends = (-746.0, 710.0) if _is_double(x) else (-104.0, 89.0)
    r, n = _reduced(_within(x, *ends))
    return x.code.select(is_nan(x), x, scaled(r * r * _exp_tail(r) + r + 1.0, n))


def exp(x: V) -> V:
    return x.code.call("exp", x.kind, _exp, x)


def _expm1(x: V) -> V:
    """exp(x) - 1 without cancellation, |x| below the overflow of exp."""
    c = x.code
    ends = (-746.0, 709.0) if _is_double(x) else (-104.0, 88.0)
    r, n = _reduced(_within(x, *ends))
    small = r * r * _exp_tail(r) + r
    # 2^n * (small + 1) - 1
    n_low = c.select(n < -60, -60, n)
    up = c.select(n < -60, 0.0, power_of_two(n_low, x.kind))
    far = n > (60 if _is_double(x) else 30)
    value = c.select(far, up * (small + 1.0), up * small + (up - 1.0))
    value = c.select(n.equals(0), small, value)
    return c.select(is_nan(x) | x.equals(0.0), x, value)


def expm1(x: V) -> V:
    return x.code.call("expm1", x.kind, _expm1, x)


def _mantissa(x: V) -> tuple[V, V]:
    """(m, n) with x = m * 2^n, m from sqrt(1/2) to sqrt(2), of a positive finite x."""
    c = x.code
    tiny = x < (2.0**-1022 if _is_double(x) else 2.0**-126)
    lift = 54 if _is_double(x) else 25
    x = c.select(tiny, x * 2.0**lift, x)
    if x.kind == "f":
        raw = x.bits()
        n = c.pure("ShiftRightArithmetic", "u", raw - 0x3F3504F3, c.u(23))
        m = (raw - (n << 23)).as_float()
    else:
        pair = x.bits()
        n = c.pure("ShiftRightArithmetic", "u", pair.high - 0x3FE6A09E, c.u(20))
        m = c.wide(pair.low, pair.high - (n << 20)).as_float()
    return m, c.select(tiny, n - lift, n)


def _atanh_tail(z: V) -> V:
    """2/3 + 2/5 z + 2/7 z^2 ...: the rest of 2 atanh(s) over s^3, z = s^2 up to 0.0295."""
    return polynomial(z, [2 / (2 * n + 1) for n in range(1, 12 if _is_double(z) else 6)])


def _log(x: V) -> V:
    c = x.code
    m, n = _mantissa(x)
    k = c.pure("ConvertSToF", x.kind, n)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    head, rest = _LN2[x.kind]
    tail = s * (half + z * _atanh_tail(z))
    value = k * head - ((half - (tail + k * rest)) - f)
    value = c.select(x.equals(0.0), -math.inf, c.select(x < 0.0, math.nan, value))
    return c.select(is_nan(x) | x.equals(math.inf), x, value)


def log(x: V) -> V:
    return x.code.call("log", x.kind, _log, x)


def _log1p(x: V) -> V:
    """Kahan's: log(1 + x) times what rounding 1 + x has changed."""
    c = x.code
    u = x + 1.0
    value = log(u) * (x / (u - 1.0))
    value = c.select(u.equals(1.0), x, value)
    return c.select(u.equals(math.inf) | u.equals(0.0) | is_nan(u), log(u), value)


def log1p(x: V) -> V:
    return x.code.call("log1p", x.kind, _log1p, x)


# ---------------------------------------------------------------- circles


def _limbs(x: V) -> tuple[list[V], V]:
    """The mantissa of |x| as limbs of 32 bits, the first bit set, and the exponent of the number 0.1.. that
    they are the digits of."""
    if x.kind == "f":
        raw = x.bits()
        return [((raw & 0x7FFFFF) | 0x800000) << 8], ((raw >> 23) & 0xFF) - 126
    pair = x.bits()
    high = (pair.high & 0xFFFFF) | 0x100000
    return [(high << 11) | (pair.low >> 21), pair.low << 11], ((pair.high >> 20) & 0x7FF) - 1022


def _far(x: V) -> tuple[V, V]:
    """Payne and Hanek's reduction of a large |x|: (r, quarter turns) by the bits of 1/(2 pi) that count."""
    c = x.code
    mantissa, exponent = _limbs(x)
    count = 3 if x.kind == "f" else 6
    first, part = exponent >> 5, exponent & 31
    more = len(mantissa) - 1  # words above that the mantissa's lower limbs bring below a whole turn
    table = c.m.table((*[0] * (more + 1), *_TURNS))

    def word(i: int) -> V:
        return c.impure("Load", "u", c.chain(PRIVATE, "u", table, first + (i + more)))

    raw = {i: word(i) for i in range(-more, count + 1)}
    window = {i: (raw[i] << part) | ((raw[i + 1] >> 1) >> (31 - part)) for i in range(-more, count)}
    sums = [c.u(0)] * count  # of the product, the limbs below one whole turn
    for j, m in reversed(list(enumerate(mantissa))):
        over = c.u(0)
        for i in reversed(range(-j, count)):
            pair = wide.add(wide.product(window[i], m), c.wide(over, c.u(0)))
            if i + j < count:
                pair = wide.add(pair, c.wide(sums[i + j], c.u(0)))
                sums[i + j] = pair.low
            over = pair.high
    return _turns(x, sums)


def _turns(x: V, sums: list[V]) -> tuple[V, V]:
    """The nearest quarter turn, and the rest as an angle, of a fraction of a turn in limbs."""
    c = x.code
    quarter = (sums[0] >> 30) + ((sums[0] >> 29) & 1)
    rest = [(a << 2) | (b >> 30) for a, b in pairwise(sums)]
    down = rest[0] < 0  # above a half: one quarter more, and a negative rest
    flipped = [c.select(down, ~r, r) for r in rest]
    if x.kind == "f":
        value = wide.to_float(c.wide(flipped[1], flipped[0]), "f", False) * (math.pi / 2 * 2.0**-64)
    else:
        value = x.like(0.0)
        for i, r in reversed(list(enumerate(flipped[:4]))):
            value = value + c.pure("ConvertUToF", "d", r) * 2.0 ** (-32 * (i + 1))
        value = value * (math.pi / 2)
    return c.select(down, -value, value), quarter


def _near(x: V) -> tuple[V, V]:
    """Cody and Waite's: exact products of few bits."""
    c = x.code
    whole = c.glsl("RoundEven", x.kind, x * (2 / math.pi))
    r = x
    for head in _HALF_PI[x.kind]:
        r = r - whole * head
    return r, c.pure("ConvertFToS", "u", whole)


def _sine(x: V, quarter: int) -> V:
    """sin(x + quarter * pi/2)."""
    r, n = _angle(x)
    return _quadrant(x, _sin(r), _cos(r), n + quarter, quarter == 0)


def _angle(x: V) -> tuple[V, V]:
    c = x.code
    size = absolute(x)
    size = c.select(size < math.inf, size, 0.0)
    limit = 1e6 if _is_double(x) else 5000.0
    number = c.variable("u")
    angle = c.variable(x.kind)

    def near() -> V:
        r, n = _near(size)
        angle.set(r)
        number.set(n)
        return r

    def far() -> V:
        r, n = _far(size)
        angle.set(r)
        number.set(n)
        return r

    c.choose(size < limit, near, far)
    # of a negative number: the angle and the turns, negative
    negative = x < 0.0
    r, n = angle.get(), number.get()
    return c.select(negative, -r, r), c.select(negative, 0 - n, n)


def _sin(r: V) -> V:
    z = r * r
    terms = 10 if _is_double(r) else 6
    return r + r * z * polynomial(z, [(-1) ** n / math.factorial(2 * n + 1) for n in range(1, terms)])


def _cos(r: V) -> V:
    z = r * r
    terms = 10 if _is_double(r) else 6
    tail = z * z * polynomial(z, [(-1) ** n / math.factorial(2 * n) for n in range(2, terms)])
    half = z * 0.5
    w = 1.0 - half
    return w + (((1.0 - w) - half) + tail)


def _quadrant(x: V, sine: V, cosine: V, n: V, odd: bool) -> V:
    c = x.code
    value = c.select((n & 1).differs(0), cosine, sine)
    value = c.select((n & 2).differs(0), -value, value)
    if odd:
        value = c.select(x.equals(0.0), x, value)
    return c.select(absolute(x) < math.inf, value, math.nan)


def sin(x: V) -> V:
    return x.code.call("sin", x.kind, lambda v: _sine(v, 0), x)


def cos(x: V) -> V:
    return x.code.call("cos", x.kind, lambda v: _sine(v, 1), x)


def _tan(x: V) -> V:
    c = x.code
    r, n = _angle(x)
    s, k = _sin(r), _cos(r)
    odd = (n & 1).differs(0)
    value = c.select(odd, -k, s) / c.select(odd, s, k)
    value = c.select(x.equals(0.0), x, value)
    return c.select(absolute(x) < math.inf, value, math.nan)


def tan(x: V) -> V:
    return x.code.call("tan", x.kind, _tan, x)


def _atan(x: V) -> V:
    c = x.code
    size = absolute(x)
    inverse = size > 1.0
    t = c.select(inverse, 1.0 / size, size)
    t = c.select(size.equals(math.inf), 0.0, t)
    middle = t > math.tan(math.pi / 8)
    t = c.select(middle, (t - 1.0) / (t + 1.0), t)
    z = t * t
    terms = 21 if _is_double(x) else 10
    small = t * z * polynomial(z, [(-1) ** n / (2 * n + 1) for n in range(1, terms)])
    rest = _PI_REST[x.kind]
    small = c.select(middle, math.pi / 4 + (small + rest / 2 + t), t + small)
    value = c.select(inverse, math.pi / 2 - (small - rest), small)
    return c.select(is_nan(x), x, with_sign(value, x))


_PI_REST = {"f": -4.371139000186241e-08, "d": 6.123233995736766e-17}
"""pi/2 less pi/2 rounded to the kind."""


def atan(x: V) -> V:
    return x.code.call("atan", x.kind, _atan, x)


def asin(x: V) -> V:
    ratio = absolute(x) / sqrt((1.0 - absolute(x)) * (absolute(x) + 1.0))
    ratio = x.code.select(absolute(x).equals(1.0), math.inf, ratio)
    value = with_sign(atan(ratio), x)
    return x.code.select(absolute(x) <= 1.0, value, math.nan)


def acos(x: V) -> V:
    c = x.code
    ratio = c.select(x.equals(-1.0), math.inf, sqrt((1.0 - x) / (x + 1.0)))
    return c.select(absolute(x) <= 1.0, atan(ratio) * 2.0, math.nan)


# ---------------------------------------------------------------- hyperbolas


def _half_exp(size: V) -> V:
    """exp(size) / 2 where exp itself overflows."""
    e = exp(size * 0.5)
    return (e * 0.5) * e


def _large(x: V) -> float:
    return 709.0 if _is_double(x) else 88.0


def _sinh(x: V) -> V:
    c, size = x.code, absolute(x)
    t = expm1(size)
    value = (t + t / (t + 1.0)) * 0.5
    value = c.select(size > _large(x), _half_exp(size), value)
    return c.select(is_nan(x), x, with_sign(value, x))


def _cosh(x: V) -> V:
    c, size = x.code, absolute(x)
    e = exp(size)
    value = c.select(size > _large(x), _half_exp(size), e * 0.5 + 0.5 / e)
    return c.select(is_nan(x), x, value)


def _tanh(x: V) -> V:
    c, size = x.code, absolute(x)
    t = expm1(c.select(size > 1.0, size * 2.0, size * -2.0))
    value = c.select(size > 1.0, 1.0 - 2.0 / (t + 2.0), -t / (t + 2.0))
    value = c.select(size > 30.0, 1.0, value)
    return c.select(is_nan(x), x, with_sign(value, x))


def _asinh(x: V) -> V:
    c, size = x.code, absolute(x)
    square = size * size
    value = log1p(size + square / (sqrt(square + 1.0) + 1.0))
    value = c.select(size > _root_far(x), log(size) + math.log(2), value)
    return c.select(is_nan(x), x, with_sign(value, x))


def _root_far(x: V) -> float:
    """From where x^2 + 1 is x^2."""
    return 2.0**28 if _is_double(x) else 2.0**13


def _acosh(x: V) -> V:
    c = x.code
    t = x - 1.0
    value = log1p(t + sqrt(t * 2.0 + t * t))
    value = c.select(x > _root_far(x), log(x) + math.log(2), value)
    return c.select(x >= 1.0, value, math.nan)


def _atanh(x: V) -> V:
    c, size = x.code, absolute(x)
    value = log1p(size * 2.0 / (1.0 - size)) * 0.5
    value = c.select(size.equals(1.0), math.inf, value)
    return c.select(size <= 1.0, with_sign(value, x), math.nan)


# ---------------------------------------------------------------- erf and pow


def _erf(x: V) -> V:
    c, size = x.code, absolute(x)
    z = size * size
    terms = 20 if _is_double(x) else 11
    rows = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(terms)]
    near = size * polynomial(z, rows)
    last, middle, radius, row = _ERFC[x.kind]
    far = c.select(size > last, last, size)
    u = (1.0 / (far + 1.0) - middle) * (1 / radius)
    tail = exp(-(far * far)) * polynomial(u, row)
    value = c.select(size < 1.0, near, 1.0 - tail)
    value = c.select(size > last, 1.0, value)
    return c.select(is_nan(x), x, with_sign(value, x))


def _split(a: V) -> tuple[V, V]:
    """Veltkamp's: two halves whose products are exact."""
    big = a * (134217729.0 if _is_double(a) else 4097.0)
    high = big - (big - a)
    return high, a - high


def _two_product(a: V, b: V) -> tuple[V, V]:
    """Dekker's: a * b and what rounding took from it."""
    p = a * b
    (ah, al), (bh, bl) = _split(a), _split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _log_pair(x: V) -> tuple[V, V]:
    """log(x) as a sum of two floats, x positive and finite."""
    c = x.code
    m, n = _mantissa(x)
    k = c.pure("ConvertSToF", x.kind, n)
    f = m - 1.0
    g = m + 1.0
    g_rest = m - (g - 1.0)
    s = f / g
    p, e = _two_product(s, g)
    s_rest = ((f - p) - e - s * g_rest) / g
    z = s * s
    head, rest = _LN2[x.kind]
    first, second = k * head, s * 2.0
    total = first + second
    lost = (first - total) + second
    # without the larger one first, Knuth's form
    back = total - first
    lost = (first - (total - back)) + (second - back)
    low = lost + (s_rest * 2.0 + (k * rest + s * z * _atanh_tail(z)))
    high = total + low
    return high, (total - high) + low


def _pow(a: V, b: V) -> V:
    """C's pow."""
    c = a.code
    size = absolute(a)
    ordinary = (size > 0.0) & (size < math.inf) & (absolute(b) < math.inf)
    high, low = _log_pair(c.select(ordinary, size, 1.0))
    safe = c.select(ordinary, b, 1.0)
    # beyond this the result is 0 or infinite; and the splits must not overflow
    most = 1e12 if _is_double(a) else 1e10
    safe = _within(safe, -most, most)
    p, e = _two_product(safe, high)
    e = e + safe * low
    ends = (-746.0, 710.0) if _is_double(a) else (-104.0, 89.0)
    e = c.select((p < ends[0]) | (p > ends[1]), 0.0, e)
    r, n = _reduced(_within(p, *ends))
    r = r + e
    value = scaled(r * r * _exp_tail(r) + r + 1.0, n)
    value = c.select(ordinary, value, _pow_edges(size, b))
    whole = c.glsl("Trunc", b.kind, b).equals(b)
    half = b * 0.5
    odd = whole & c.glsl("Trunc", b.kind, half).differs(half) & (absolute(b) < math.inf)
    negative = with_sign(a.like(1.0), a) < 0.0
    value = c.select(negative & odd, -value, value)
    value = c.select((a < 0.0) & ~whole & (size < math.inf), math.nan, value)
    value = c.select(is_nan(a), a, c.select(is_nan(b), b, value))
    value = c.select(a.equals(-1.0) & absolute(b).equals(math.inf), 1.0, value)
    return c.select(a.equals(1.0) | b.equals(0.0), 1.0, value)


def _pow_edges(size: V, b: V) -> V:
    """0 and infinity to a power, and powers of infinity."""
    c = size.code
    grows = (size > 1.0) ^ (b < 0.0)
    return c.select(grows, c.constant(size.kind, math.inf), 0.0)


def power(a: V, b: V) -> V:
    return a.code.call("pow", a.kind, _pow, a, b)


def _helper(name: str, build: Callable[[V], V]) -> Callable[[V], V]:
    return lambda x: x.code.call(name, x.kind, build, x)


MATH: Mapping[str, Callable[[V], V]] = {
    "exp": exp, "log": log, "log1p": log1p, "sqrt": sqrt, "sin": sin, "cos": cos, "tan": tan,
    "atan": atan, "asin": _helper("asin", asin), "acos": _helper("acos", acos),
    "sinh": _helper("sinh", _sinh), "cosh": _helper("cosh", _cosh), "tanh": _helper("tanh", _tanh),
    "asinh": _helper("asinh", _asinh), "acosh": _helper("acosh", _acosh), "atanh": _helper("atanh", _atanh),
    "erf": _helper("erf", _erf),
}  # fmt: skip
