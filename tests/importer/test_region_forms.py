"""Every form of the ops that pool regions of an image agrees with ONNX Runtime."""

from __future__ import annotations

import numpy as np
from op_forms import Array, Form, Sizes, form, form_tests, k, w, x

SIZES = (
    {"N": 2, "H": 12, "W": 17, "R": 9},
    {"N": 1, "H": 5, "W": 1, "R": 1},
    {"N": 2, "H": 6, "W": 9, "R": 0},
)
EDGES = np.array([[0, 0, 4, 5], [-3, -2, 20, 14], [5, 5, 6, 5], [2, 2, 2, 2], [0, 0, 30, 3]])


def corners(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Left, top, right, bottom; some are empty, and some hang out."""
    start = rng.uniform(-4, 20, (shape[0], 2))
    return np.concatenate([start, start + np.maximum(rng.uniform(-3, 12, (shape[0], 2)), 0)], 1)


def regions(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """A batch in front of the corners."""
    return np.concatenate([rng.integers(0, sizes["N"], (shape[0], 1)), corners(rng, (shape[0], 4), sizes)], 1)


def batches(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.asarray(rng.integers(0, sizes["N"], shape))


def _aligned() -> dict[str, Form]:
    image = x("N 3 H W")
    found = {}
    for mode in ("avg", "max"):
        for scale in (1.0, 0.5):
            for ratio in (0, 2):
                for version, half in ((10, ""), (16, "half_pixel"), (16, "output_half_pixel")):
                    more = {"coordinate_transformation_mode": half} if half else {}
                    found[f"{mode}, {scale}, {ratio} samples, {half or 'old'}"] = form(
                        "RoiAlign", image, x("R 4", make=corners), x("R", "i64", make=batches), mode=mode,
                        spatial_scale=scale, sampling_ratio=ratio, output_height=2, output_width=3, domain="",
                        version=version, sizes=SIZES, **more,
                    )  # fmt: skip
    found["fixed regions"] = form(
        "RoiAlign", image, k(EDGES), k([0, 0, 0, 0, 0], "i64"), sampling_ratio=0, output_height=3,
        output_width=3, domain="", version=16, sizes=SIZES,
    )  # fmt: skip
    return found


def _pooled() -> dict[str, Form]:
    return {
        f"{size}, {scale}": form(
            "MaxRoiPool", x("N 3 H W"), x("R 5", make=regions), pooled_shape=size, spatial_scale=scale,
            domain="", version=16, sizes=SIZES,
        )
        for size in ([1, 1], [2, 3], [7, 7])
        for scale in (1.0, 0.5, 0.0625)
    } | {
        "no scale": form(
            "MaxRoiPool", x("N 3 H W"), x("R 5", make=regions), pooled_shape=[3, 2], domain="", version=16,
            sizes=SIZES,
        ),
        "middles": form(
            "MaxRoiPool", x("N 3 H W"), w("4 5", make=middles), pooled_shape=[2, 2], domain="", version=16,
            sizes=SIZES,
        ),
    }  # fmt: skip


def middles(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Edges that lie in the middle between two elements, of the first batch."""
    found = np.floor(rng.uniform(-3, 9, shape)) + 0.5
    found[:, 0] = 0
    return np.asarray(found)


FORMS = {
    f"{op}: {name}": f
    for op, forms in (("RoiAlign", _aligned()), ("MaxRoiPool", _pooled()))
    for name, f in forms.items()
}

test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS, fresh=1, native=4)
