"""Two values of one output in, how they differ out: per element, within the tolerance of its dtype or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smelt.core.dtype import Array
from smelt.core.lazily import Lazily
from smelt.groups import GroupValue

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element is right when |got - want| <= atol + scale * max|want| + rtol * |want|.

    scale is there because sums of many terms of both signs err by their largest terms, not by their value.
    """

    rtol: float
    atol: float
    scale: float = 0.0


# atol of float32: sigmoid and its like, computed as 1 - something near 1, err by a few 2**-24 in any runtime
TOLERANCES = {
    "float64": Tolerance(1e-7, 0.0, 1e-9),
    "float32": Tolerance(1e-3, 1e-6, 1e-5),
    "float16": Tolerance(1e-2, 0.0, 2e-3),
    "bfloat16": Tolerance(4e-2, 0.0, 1e-2),
}
FP16_TOLERANCE = Tolerance(1e-2, 1e-6, 1e-2)
"""For float32 outputs of a bundle made with fp16: tensors between kernels have 11 significant bits, and
errors add up. atol is that of float32, for the same reason."""
WEAK = 100.0
"""Values below this many absolute tolerances are reported as a weak check."""
EXACT_TOLERANCE = Tolerance(0.0, 0.0)
"""The tolerance of integers and booleans."""


@dataclass(frozen=True)
class OutputError:
    """How one output differs. max_abs: max|got - want| over finite elements. largest: max|want|.

    bad: how many elements are outside the tolerance (NaN against a number is); worst: the index of the worst.
    weak: the values are so small that the absolute tolerance decides, and agreement says little.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float
    largest: float
    bad: int
    worst: tuple[int, ...] | None = None
    got: str = ""
    want: str = ""
    note: str = ""
    weak: bool = False

    @property
    def ok(self) -> bool:
        """Every element is within the tolerance."""
        return self.bad == 0 and not self.note

    def __str__(self) -> str:
        if self.note:
            return self.note
        text = f"max error {self.max_abs:.3g} among values up to {self.largest:.3g}"
        if self.weak and not self.bad:
            text += " (weak: such small values agree easily)"
        if self.bad:
            text += f"; {self.bad} of {int(np.prod(self.shape))} elements differ, the worst at "
            text += f"{list(self.worst or ())}: got {self.got}, expected {self.want}"
        return text


def tolerance(
    dtype: Any, rtol: float | None = None, atol: float | None = None, half: bool = False
) -> Tolerance:
    """The tolerance of a NumPy dtype, with the user's rtol and atol in place of its own. half: made with
    fp16."""
    name = np.dtype(dtype).name
    found = FP16_TOLERANCE if half and name == "float32" else TOLERANCES.get(name, EXACT_TOLERANCE)
    if rtol is not None:
        found = replace(found, rtol=rtol)
    return found if atol is None else replace(found, atol=atol, scale=0.0)


def compare_arrays(
    name: str,
    got: Array,
    want: Array,
    rtol: float | None = None,
    atol: float | None = None,
    half: bool = False,
) -> OutputError:
    """Compare one output with what is wanted; a wrong shape or dtype is an error too. NaN agrees with NaN
    alone."""
    dtype = want.dtype.name
    if got.shape != want.shape or got.dtype != want.dtype:
        note = f"got {got.dtype}{list(got.shape)}, expected {dtype}{list(want.shape)}"
        return OutputError(name, dtype, want.shape, 0.0, 0.0, 1, note=note)
    if want.size == 0:
        return OutputError(name, dtype, want.shape, 0.0, 0.0, 0)
    a, b = got.astype(np.float64), want.astype(np.float64)
    # whole numbers are compared as they are: not every i64 is a float64
    limits = tolerance(dtype, rtol, atol, half)
    different = _outside(a, b, limits) if dtype in TOLERANCES else got != want
    finite = np.isfinite(a) & np.isfinite(b)
    gap = np.abs(np.where(finite, a, 0.0) - np.where(finite, b, 0.0))
    largest = float(np.abs(np.where(np.isfinite(b), b, 0.0)).max())
    bad = int(np.count_nonzero(different))
    worst: tuple[int, ...] | None = None
    if bad:
        weight = np.where(different, np.where(finite, gap, np.inf), -1.0)
        worst = tuple(int(i) for i in np.unravel_index(int(weight.argmax()), weight.shape))
    return OutputError(
        name, dtype, want.shape, float(gap.max()), largest, bad, worst,
        "" if worst is None else str(got[worst]), "" if worst is None else str(want[worst]),
        weak=0 < largest < WEAK * limits.atol,
    )  # fmt: skip


def compare_values(
    name: str,
    got: GroupValue,
    want: GroupValue,
    rtol: float | None = None,
    atol: float | None = None,
    half: bool = False,
) -> list[OutputError]:
    """Compare an output that may be a list of arrays or None: an OutputError per array, and at least one."""
    if _are_maps(got) and _are_maps(want) and [sorted(m) for m in got] == [sorted(m) for m in want]:
        got, want = (np.array([[m[k] for k in sorted(m)] for m in maps], np.float32) for maps in (got, want))
    if isinstance(got, list) and isinstance(want, list) and len(got) == len(want) > 0:
        pairs = zip(got, want, strict=True)
        return [compare_arrays(f"{name}[{k}]", g, w, rtol, atol, half) for k, (g, w) in enumerate(pairs)]
    if isinstance(got, np.ndarray) and isinstance(want, np.ndarray):
        if got.dtype == want.dtype == object and got.shape == want.shape:
            return [_compare_strings(name, got, want)]
        return [compare_arrays(name, got, want, rtol, atol, half)]
    if type(got) is type(want) and not got:
        return [OutputError(name, "", (), 0.0, 0.0, 0)]
    return [OutputError(name, "", (), 0.0, 0.0, 1, note=f"got {_told(got)}, expected {_told(want)}")]


def _are_maps(value: GroupValue) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) for m in value)


def _compare_strings(name: str, got: Array, want: Array) -> OutputError:
    """Compare strings for equality."""
    wrong = np.argwhere(np.asarray(got != want, np.bool_))
    if not len(wrong):
        return OutputError(name, "string", want.shape, 0.0, 0.0, 0)
    at = tuple(int(k) for k in wrong[0])
    return OutputError(
        name, "string", want.shape, 0.0, 0.0, len(wrong), worst=at, got=repr(got[at]), want=repr(want[at])
    )


def _told(value: GroupValue) -> str:
    if value is None:
        return "nothing"
    return f"{len(value)} arrays" if isinstance(value, list) else f"{value.dtype}{list(value.shape)}"


def _outside(a: Array, b: Array, t: Tolerance) -> Array:
    finite_b = np.isfinite(b)
    size = np.where(finite_b, np.abs(b), 0.0)
    limit = t.atol + t.scale * float(size.max()) + t.rtol * size
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= limit
        same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.asarray(~np.where(finite_b & np.isfinite(a), near, same))
