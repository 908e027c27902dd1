"""Numbers -> the geometry of a small chart, which the templates draw as SVG. No drawing library is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_WIDTH, _HEIGHT = 460, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 22, 32
_BINS = 32


@dataclass(frozen=True)
class Tick:
    """A mark on an axis. at: in pixels."""

    at: float
    text: str


@dataclass(frozen=True)
class Curve:
    """A series. points: 'x,y x,y', as SVG takes them; number: which of the page's colours it has; dots:
    points alone."""

    name: str
    points: str
    number: int = 0
    dots: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Chart:
    """A chart with its axes. bars: (x, y, width, height, number)."""

    title: str
    x_label: str
    curves: tuple[Curve, ...] = ()
    bars: tuple[tuple[float, float, float, float, int], ...] = ()
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()
    legend: tuple[tuple[str, int], ...] = field(default=())
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    base: int = _HEIGHT - _BOTTOM


Format = Callable[[float], str]
Series = tuple[str, Sequence[tuple[float, float]]]


def milliseconds(ns: float) -> str:
    """'0.123 ms'."""
    return f"{ns / 1e6:.4g} ms"


def size(n: float) -> str:
    """Bytes in powers of ten: '1.4 MB'."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= one:
            return f"{n / one:.3g} {unit}"
    return f"{n:.0f} B"


def plain(n: float) -> str:
    """A number without needless digits."""
    return f"{n:.4g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from low to high, a handful."""
    if not math.isfinite(high - low) or high <= low:
        return [low]
    raw = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(m * scale for m in (1, 2, 5, 10) if m * scale >= raw)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, first + 2 * most) if n * step <= high + step * 1e-9]


@dataclass(frozen=True)
class _Frame:
    """Where numbers lie in pixels."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The pixel of a point."""
        return self.across(x), self.up(y)

    def across(self, x: float) -> float:
        return round(_LEFT + _share(x, self.x) * (_WIDTH - _LEFT - _RIGHT), 1)

    def up(self, y: float) -> float:
        return round(_HEIGHT - _BOTTOM - _share(y, self.y) * (_HEIGHT - _TOP - _BOTTOM), 1)

    def axes(self, x: Format, y: Format) -> tuple[tuple[Tick, ...], tuple[Tick, ...]]:
        """The ticks of both."""
        return (
            tuple(Tick(self.across(v), x(v)) for v in ticks(*self.x, most=4)),
            tuple(Tick(self.up(v), y(v)) for v in ticks(*self.y, most=3)),
        )


def _share(value: float, span: tuple[float, float]) -> float:
    low, high = span
    return (value - low) / (high - low) if high > low else 0.5


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = (high - low) * 0.04 or abs(high) * 0.02 or 1.0
    return low - pad, high + pad


def lines(
    title: str, series: Sequence[Series], x_label: str, x: Format = plain, y: Format = plain, *,
    from_zero: bool = False, dots: Sequence[Series] = (),
) -> Chart | None:  # fmt: skip
    """Curves over a common axis; None where there is nothing to draw. dots: series of points alone."""
    given = [(n, [p for p in points if all(map(math.isfinite, p))]) for n, points in (*series, *dots)]
    every = [p for _, points in given for p in points]
    if not every:
        return None
    high = _span([b for _, b in every])
    frame = _Frame(_span([a for a, _ in every]), (0.0, high[1]) if from_zero else high)
    curves = []
    for k, (name, points) in enumerate(given):
        placed = tuple(frame.at(*p) for p in points)
        number = k if k < len(series) else k - len(series)
        if k < len(series):
            curves.append(Curve(name, " ".join(f"{a},{b}" for a, b in placed), number))
        else:
            curves.append(Curve(name, "", number, placed))
    across, up = frame.axes(x, y)
    legend = tuple((c.name, c.number) for c in curves if c.name)
    return Chart(title, x_label, tuple(curves), (), across, up, legend)


def histogram(title: str, samples: Sequence[tuple[str, Sequence[float]]], x: Format) -> Chart | None:
    """How often values of some samples fall into the same bins, as shares of each sample. Beyond the 99th
    percentile all are in the last bin, so that one outlier hides nothing."""
    given = [(name, sorted(v for v in values if math.isfinite(v))) for name, values in samples]
    given = [(name, values) for name, values in given if values]
    if not given:
        return None
    low = min(values[0] for _, values in given)
    high = max(values[int(0.99 * (len(values) - 1))] for _, values in given)
    low, high = (low, high) if high > low else (low - 1.0, high + 1.0)
    shares = [_shares(values, low, high) for _, values in given]
    frame = _Frame((low, high), (0.0, max(map(max, shares)) * 1.05))
    bars = []
    for k, found in enumerate(shares):
        wide = (_WIDTH - _LEFT - _RIGHT) / _BINS / len(shares)
        for n, share in enumerate(found):
            left, top = _LEFT + (n * len(shares) + k) * wide, frame.up(share)
            if share:
                tall = round(_HEIGHT - _BOTTOM - top, 1)
                bars.append((round(left, 1), top, round(wide * 0.92, 2), tall, k))
    across, up = frame.axes(x, lambda share: f"{share:.0%}")
    legend = tuple((name, k) for k, (name, _) in enumerate(given) if name)
    return Chart(title, "time of a run", (), tuple(bars), across, up, legend)


def _shares(values: Sequence[float], low: float, high: float) -> list[float]:
    counts = [0] * _BINS
    for v in values:
        counts[min(_BINS - 1, max(0, int((v - low) / (high - low) * _BINS)))] += 1
    return [c / len(values) for c in counts]
