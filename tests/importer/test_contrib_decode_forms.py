"""Every form of com.microsoft's ops that steer decoding agrees with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from op_forms import Array, Form, In, Sizes, form, form_tests, k, onnx_model, w, x
from oracle import plain_session

from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model

# ---------------------------------------------------------------- bifurcation
# N: source tokens; A: where the source goes on; M: tokens so far; R: predicted rightly


def source(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.arange(shape[0]) % sizes["V"]


def guesses(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """The source from A on, R of them rightly, and one behind."""
    own = np.append(np.arange(sizes["A"], sizes["N"]) % sizes["V"], 1)
    own[sizes["R"] :] += sizes["off"]
    return own


def place(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.full(shape, sizes["A"])


def _bifurcation() -> dict[str, Form]:
    def sizes(**own: int) -> Sizes:
        return {"N": 9, "M": 4, "A": 2, "R": 3, "V": 9, "off": 3} | own

    several = (
        sizes(), sizes(A=0, R=0), sizes(A=9, R=0), sizes(A=0, R=9), sizes(A=0, R=9, off=-1),
        sizes(V=3, R=4), sizes(V=4, A=1, R=8, off=0), sizes(N=1, A=0, R=1, M=0), sizes(N=0, A=0, R=0, M=2),
        sizes(V=1, N=5, A=1, R=2, off=0),
    )  # fmt: skip
    tokens = (x("N", "i64", make=source), x("M", "i64", low=0, high=4))

    def made(*given: Any, **attrs: Any) -> Form:
        return form("BifurcationDetector", *tokens, *given, outputs=2, types=("i64", "i64"), sizes=several,
                    **attrs)  # fmt: skip

    last = x("N+1-A", "i64", make=guesses)
    where = x("1", "i64", make=place)
    return {
        "tokens": made(where),
        "guesses": made(where, last),
        "guesses of a fixed place": form(
            "BifurcationDetector", *tokens, k([2], "i64"), x("N-1", "i64", make=guesses), outputs=2,
            types=("i64", "i64"), sizes=(sizes(), sizes(R=0), sizes(N=2, R=0)),
        ),
        "a place of rank 0": made(x("", "i64", make=place), last),
        "pairs": made(where, last, min_ngram_size=2, max_ngram_size=2),
        "long": made(where, last, min_ngram_size=2, max_ngram_size=11),
    }  # fmt: skip


# ---------------------------------------------------------------- buffers of keys and values
# B: beams of all the batch, of E each; P: rows that a buffer of L holds; S: new ones

H, D = 4, 8
STEPS = ({"B": 4, "E": 2, "S": 1, "P": 3, "L": 6, "C": 4}, {"B": 3, "E": 3, "S": 1, "P": 0, "L": 1, "C": 1})
SEVERAL = (*STEPS, {"B": 2, "E": 1, "S": 3, "P": 2, "L": 9, "C": 5})


def held(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.full(shape, sizes["P"])


def beams(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.asarray(rng.integers(0, sizes["E"], shape))


def width(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.full(shape, sizes["E"])


def _buffers() -> dict[str, Form]:
    buffer = (x("B 4 L 8"), x("B 4 L 8"), x("1", "i32", make=held))
    which = x("B//E E L", "i32", make=beams)
    bias, added = w("96"), x("1 4 S C")
    mask = x("B C", "i32", low=0, high=2)

    def many(*given: Any, outputs: int = 3, sizes: Any = SEVERAL, **attrs: Any) -> Form:
        new = [x("B S 32")] * 3
        return Form(
            "MultiHeadAttention", [*new, *given], {"num_heads": H} | attrs, outputs=outputs, sizes=sizes
        )

    none = (None, None, None)
    return {
        "MultiHeadAttention: buffer": many(*none, *buffer),
        "MultiHeadAttention: buffer, causal": many(*none, *buffer, unidirectional=1),
        "MultiHeadAttention: buffer, mask": many(bias, mask, added, *buffer, outputs=4),
        "MultiHeadAttention: beams": many(*none, *buffer, which),
        "MultiHeadAttention: beams, mask": many(bias, mask, added, *buffer, which, sizes=STEPS),
        "MultiHeadAttention: beams, no buffer": many(*none, *buffer[:2], None, which, sizes=STEPS),
    }


def _masked() -> dict[str, Form]:
    new = [x("B 1 32")] * 3
    other = [x("B 1 32"), x("B 4 C 8"), x("B 4 C 8")]
    buffer = (x("B 4 L 8"), x("B 4 L 8"), x("1", "i32", make=held))
    beam = (x("1", "i32", make=width), x("B//E E L", "i32", make=beams))
    mask, bias = x("B C", "i32", low=0, high=2), w("96")

    def made(*given: Any, outputs: int = 3, skip: tuple[int, ...] = (), **attrs: Any) -> Form:
        own = {"num_heads": H, "past_present_share_buffer": int(buffer[0] in given)} | attrs
        return Form("DecoderMaskedMultiHeadAttention", given, own, outputs=outputs, skip=skip, sizes=STEPS)

    return {
        "other": made(*other, outputs=1),
        "other, mask": made(*other, mask, outputs=1, mask_filter_value=-20.0),
        "other, bias, scores": made(*other, *[None] * 7, bias, outputs=4, skip=(1, 2), output_qk=1),
        "buffer": made(*new, None, None, *buffer),
        "buffer, scale": made(*new, None, None, *buffer, scale=0.3),
        "buffer, bias": made(*new, mask, None, *buffer, None, None, bias),
        "beams": made(*new, None, None, *buffer, *beam),
        "beams, added": made(*new, mask, x("1 4 1 C"), *buffer, *beam, bias),
        "scores": made(*new, None, x("B 4 1 C"), *buffer, outputs=4, output_qk=1),
    }


# ---------------------------------------------------------------- time warping


def ties(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.asarray(rng.integers(0, 3, shape))


def _warping() -> dict[str, Form]:
    several = tuple(
        {"M": m, "N": n} for m, n in ((3, 5), (7, 2), (1, 1), (1, 4), (4, 1), (2, 2), (9, 9), (13, 6))
    )

    def made(given: In, sizes: Any = several) -> Form:
        return form("DynamicTimeWarping", given, types=("i32",), sizes=sizes)

    return {
        "costs": made(x("M N")),
        "one of them": made(x("1 M N")),
        "ties": made(x("M N", make=ties)),
        "short": made(x("1 4"), ({},)),
        "a row": made(x("1 N"), ({"N": 5}, {"N": 1})),
        "long": made(x("M N", scale=3.0), ({"M": 40, "N": 70},)),
    }


# ---------------------------------------------------------------- caches as long as the window
# C: the cache; T: positions with the new ones, of which there are S

FULL = (
    {"B": 2, "S": 1, "T": 4, "C": 4}, {"B": 2, "S": 1, "T": 11, "C": 4}, {"B": 1, "S": 3, "T": 9, "C": 4},
    {"B": 1, "S": 7, "T": 9, "C": 4}, {"B": 2, "S": 6, "T": 6, "C": 4},
)  # fmt: skip


def _sliding(
    *more: In | None, coded: bool = False, extent: str = "C", sizes: Any = FULL, **attrs: Any
) -> Form:
    t = "i8" if coded else "f32"
    if coded:
        attrs |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    length = x("B", "i32", make=lambda rng, shape, z: np.full(shape, z["T"] - 1))
    total = x("", "i32", make=lambda rng, shape, z: z["T"])
    given = [x("B S 64"), x("B S 32"), x("B S 32"), x(f"B 2 {extent} 16", t), x(f"B 2 {extent} 16", t)]
    own = {"num_heads": H, "kv_num_heads": 2, "sliding_window_cache": 1, "local_window_size": 4}
    return Form(
        "GroupQueryAttention", [*given, length, total, *more], own | attrs, outputs=3, sizes=sizes,
        types=("f32", t, t),
    )  # fmt: skip


TABLES = (w("24 8"), w("24 8"))
SLIDING = {
    "GroupQueryAttention: sliding": _sliding(),
    "GroupQueryAttention: sliding, rotary": _sliding(*TABLES, do_rotary=1),
    "GroupQueryAttention: sliding, added": _sliding(None, None, None, x("1 4 S T")),
    "GroupQueryAttention: sliding, 8 bits": _sliding(
        *[None] * 5, w("1", scale=0.1), w("1", scale=0.1), coded=True
    ),
}


@pytest.mark.parametrize(
    ("extent", "steps"), [(4, (3, 1, 1, 2, 1)), (7, (5, 1, 1, 1, 4, 1, 1)), (6, (13, 1, 1))]
)
def test_sliding_cache_over_steps(extent: int, steps: tuple[int, ...]) -> None:
    """Rows that a cache with room beside the window holds; what is behind them is left open."""
    model = onnx_model(_sliding(*TABLES, do_rotary=1), "steps")
    session, module = plain_session(model.SerializeToString()), import_model(model)
    rng, total = np.random.default_rng(extent), 0
    caches = [np.zeros((1, 2, extent, 16), np.float32)] * 2
    for n in steps:
        total += n
        new = [rng.standard_normal((1, n, size)).astype(np.float32) for size in (64, 32, 32)]
        given = [*new, *caches, np.array([total - 1], np.int32), np.array(total, np.int32)]
        given = dict(zip((f"x{i}" for i in range(7)), given, strict=True))
        wanted, found = session.run(None, given), run_module(module, given, OPS)
        spare = extent - 4 + 1
        kept = total if total <= extent else total - spare * -(-(total - extent) // spare)
        np.testing.assert_allclose(found[0], wanted[0], atol=2e-5)
        for y, want in zip(found[1:], wanted[1:], strict=True):
            np.testing.assert_allclose(y[:, :, :kept], want[:, :, :kept], atol=1e-6)
            assert not y[:, :, kept:].any()
        caches = wanted[1:]


FORMS: dict[str, Form] = (
    {
        f"{op}: {name}": f
        for op, forms in (
            ("BifurcationDetector", _bifurcation()),
            ("DecoderMaskedMultiHeadAttention", _masked()),
            ("DynamicTimeWarping", _warping()),
        )
        for name, f in forms.items()
    }
    | _buffers()
    | SLIDING
)

test_form: Callable[..., None]
test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS, fresh=1, native=2)
