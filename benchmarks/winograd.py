"""What convolutions by transformed tiles lose -> a table of their errors, for several points and tiles.

    .venv/bin/python benchmarks/winograd.py

3 x 3 taps for all points, and other taps for those in use; random inputs and weights; sums in f32, one term
after the other. Errors are shares of the largest output, against f64.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from unittest.mock import patch

import numpy as np

from smelt.core.dtype import Array
from smelt.core.ops.rows import winograd

MADE, EXTENT = 32, 60
CHOICES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (2, ("0", "1", "-1")), (4, ("0", "1", "-1", "1/2", "-2")), (4, ("0", "1", "-1", "2", "-2")),
    (4, ("0", "1", "-1", "1/2", "-1/2")),
)  # fmt: skip


def plain(x: Array, w: Array) -> Array:
    """The convolution, with sums in the type of x."""
    y = np.zeros((EXTENT, EXTENT, MADE), x.dtype)
    for i, j, c in np.ndindex(*w.shape[:3]):
        y += x[i : i + EXTENT, j : j + EXTENT, c, None] * w[i, j, c]
    return y


def by_tiles(x: Array, w: Array, tile: int) -> Array:
    """The same by tiles, every step rounded to f32."""
    f = winograd.transforms(tile, len(w))
    back, data = (np.array(m, np.float32) for m in (f.back, f.data))
    n = len(data)
    u = winograd.transformed_weight(w, (tile, tile)).astype(np.float32).reshape(n, n, -1, MADE)
    y = np.zeros((EXTENT, EXTENT, MADE), np.float32)
    for i, j in np.ndindex(EXTENT // tile, EXTENT // tile):
        d = x[i * tile : i * tile + n, j * tile : j * tile + n]
        v = np.einsum("bj,ajc->abc", data, np.einsum("ai,ijc->ajc", data, d))
        m = np.zeros((n, n, MADE), np.float32)
        for c in range(x.shape[-1]):
            m += v[:, :, c, None] * u[:, :, c]
        t = np.einsum("vb,ubk->uvk", back, np.einsum("ua,abk->ubk", back, m))
        y[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile] = t
    return y


def main() -> None:
    """Print the table."""
    print(
        "| channels | plain sum | " + " | ".join(f"tiles of {t}: {', '.join(p)}" for t, p in CHOICES) + " |"
    )
    print("|---|---|" + "---|" * len(CHOICES))
    rng = np.random.default_rng(0)
    for channels in (16, 64, 256, 512):
        x, w, exact = drawn(rng, 3, channels)
        found = [plain(x, w)]
        for tile, points in CHOICES:
            with patch.object(winograd, "INTERPOLATION_POINTS", tuple(map(Fraction, points))):
                winograd.transforms.cache_clear()
                found.append(by_tiles(x, w, tile))
        print(f"| {channels} | {_shares(found, exact)} |", flush=True)
    winograd.transforms.cache_clear()
    print("\n| taps | channels | outputs of a tile | plain sum | tiles of 6 elements |")
    print("|---|---|---|---|---|")
    for taps, channels in product((2, 3, 4, 5), (64, 512)):
        x, w, exact = drawn(rng, taps, channels)
        tile = 7 - taps
        errors = _shares([plain(x, w), by_tiles(x, w, tile)], exact)
        print(f"| {taps} x {taps} | {channels} | {tile} x {tile} | {errors} |", flush=True)


def drawn(rng: np.random.Generator, taps: int, channels: int) -> tuple[Array, Array, Array]:
    """An input, a weight, and the output in f64."""
    x = rng.standard_normal((EXTENT + taps - 1, EXTENT + taps - 1, channels)).astype(np.float32)
    w = (rng.standard_normal((taps, taps, channels, MADE)) / (taps * np.sqrt(channels))).astype(np.float32)
    return x, w, plain(x.astype(np.float64), w.astype(np.float64))


def _shares(found: list[Array], exact: Array) -> str:
    return " | ".join(f"{np.abs(y - exact).max() / np.abs(exact).max():.1e}" for y in found)


if __name__ == "__main__":
    main()
