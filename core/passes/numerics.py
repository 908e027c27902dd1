"""What a rewrite may do to numbers: the classes that rules are in, and the parts of --fast-math."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from smelt.core.diag import SmeltError

EXACT = "exact"
"""The same bits for all inputs: infinities, NaN (not the bits inside it) and the signs of zeros included."""
ROUNDING = "rounding"
"""The same but for roundings: what the model's own formula gives for inputs that are off by a few units in
the last place. Infinities and NaN come out where they did."""
SUMS = "sums"
"""As ROUNDING, for numbers between 2^-40 and 2^40, infinities, NaN and 0. Sums are taken in another order, or
a constant factor or term of a sum of products moves into its constant weights or bias, or a factor behind the
sum: larger numbers may overflow on one way and not on the other. Constants move in f32, f64 and bf16, where
no merged one overflows, vanishes or cancels; not in f16."""
INTEGERS = "integers"
"""As ROUNDING, but sums of dequantised bytes are sums of integers, which are exact: apart from the model's
own by what the latter lose, for scales between 2^-40 and 2^40. A quantised result next to the middle of two
steps may be either."""
WIDER = "wider"
"""As ROUNDING where numbers of 16 bits are, those between two operations included, and EXACT elsewhere: what
one kernel computes of them stays f32 up to the store, so that it is rounded once, and what would overflow
between two operations does not."""
TRANSFORMS = "transforms"
"""Outputs of a convolution are off by a share of the largest of their channel, about what its sum in f32 may
lose, where all that goes in is finite and below 2^40. Infinities and NaN reach all outputs of a tile."""
REASSOCIATE = "reassociate"
OVERFLOW = "overflow"
CONSTANTS = "constants"

FAST: Mapping[str, str] = MappingProxyType({
    REASSOCIATE: "(x + a) + b becomes x + (a + b), (x * a) * b becomes x * (a * b), GELU and hard swish that"
    " are spelt out become one op",
    OVERFLOW: "softmax, log_softmax and softplus that are spelt out become forms that do not overflow;"
    " transposed convolutions multiply by taps of 0",
    CONSTANTS: "constants near those of GELU and hard swish, within 1e-3, count as them",
})  # fmt: skip
"""The parts of --fast-math: what each allows besides EXACT and ROUNDING."""


def fast_parts(wanted: bool | str | Iterable[str]) -> tuple[str, ...]:
    """The parts in the order of FAST. wanted: True or 'all' for all of them, False or '' for none, 'a,b', or
    their names. Raises SmeltError for a part that there is not."""
    if isinstance(wanted, bool):
        return tuple(FAST) if wanted else ()
    names = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    names = [n.strip() for n in names if n.strip()]
    for n in names:
        if n != "all" and n not in FAST:
            raise SmeltError(
                f"fast-math has no part '{n}'",
                hint=f"the parts are {', '.join(FAST)}, or all",
                kind="invalid",
            )
    return tuple(FAST) if "all" in names else tuple(p for p in FAST if p in names)
