"""Every form of com.microsoft's attention ops and their positions agrees with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from op_forms import Array, Form, In, Sizes, form_tests, k, onnx_model, w, x

from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model

H, G, D = 4, 2, 8
W, V = H * D, G * D


def lengths(low: int = 1) -> Callable[..., Array]:
    """Lengths up to the total number of columns, the first the longest."""

    def make(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        found = rng.integers(low, sizes["C"] + 1, shape)
        found.reshape(-1)[0] = sizes["C"]
        return np.asarray(found)

    return make


def ends_and_starts(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    ends = rng.integers(1, sizes["C"] + 1, shape[0] // 2)
    return np.concatenate([ends, ends // 2])


def padding(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Ones, then zeros; the first column is one."""
    mask = rng.integers(0, 2, shape)
    mask[..., 0] = 1
    return np.asarray(mask)


# C: all columns of the scores
PLAIN = ({"B": 2, "S": 3, "P": 0, "C": 3}, {"B": 1, "S": 1, "P": 0, "C": 1}, {"B": 3, "S": 6, "P": 0, "C": 6})
PAST = ({"B": 2, "S": 3, "P": 4, "C": 7}, {"B": 1, "S": 1, "P": 6, "C": 7}, {"B": 2, "S": 2, "P": 0, "C": 2})
QKV = (x("B S 16"), w("16 96"), w("96"))

# ---------------------------------------------------------------- Attention

MASKS: dict[str, In] = {
    "none": x("B C", "i32", make=padding),
    "ends": x("B", "i32", make=lengths()),
    "ends and starts": x("2*B", "i32", make=ends_and_starts),
    "rows": x("B S C", "i32", make=padding),
}


def _attention() -> dict[str, Form]:
    found = {}
    for causal in (0, 1):
        for name, mask in (("no mask", None), *MASKS.items()):
            for past in (False, True):
                given = [*QKV, mask, x("2 B 4 P 8") if past else None]
                attrs = {"num_heads": H, "unidirectional": causal}
                found[f"{name}, {'past' if past else 'no past'}, causal {causal}"] = Form(
                    "Attention", given, attrs, outputs=2 if past else 1, sizes=PAST if past else PLAIN
                )
    more = {
        "sizes": Form("Attention", [x("B S 16"), w("16 112"), w("112")],
                      {"num_heads": H, "qkv_hidden_sizes": [32, 32, 48]}),
        "scale": Form("Attention", QKV, {"num_heads": H, "scale": 0.3}),
        "filter": Form("Attention", [*QKV, MASKS["none"]], {"num_heads": H, "mask_filter_value": -50.0},
                       sizes=PLAIN),
        "added": Form("Attention", [*QKV, None, None, x("B 4 S C")], {"num_heads": H}, sizes=PLAIN),
        "added to all": Form("Attention", [*QKV, None, None, x("1 1 S C")], {"num_heads": H}, sizes=PLAIN),
        "one number each": Form("Attention", [*QKV, x("B 1", "i32")], {"num_heads": H}, sizes=PLAIN),
        "one number": Form("Attention", [*QKV, x("1 1", "i32")], {"num_heads": H}, sizes=PLAIN),
        "lengths and more": Form("Attention", [*QKV, x("3*B+2", "i32", make=lengths())], {"num_heads": H},
                                 sizes=PLAIN),
        "added, mask": Form("Attention", [*QKV, MASKS["none"], None, x("1 4 S C")], {"num_heads": H},
                            sizes=PLAIN),
        "present": Form("Attention", QKV, {"num_heads": H}, outputs=2),
        "weights at run time": Form("Attention", [x("B S E"), x("E 96"), x("96")], {"num_heads": H},
                                    sizes=({"B": 2, "S": 3, "E": 5}, {"B": 1, "S": 4, "E": 9})),
    }  # fmt: skip
    return found | more


# ---------------------------------------------------------------- MultiHeadAttention

CROSS = ({"B": 2, "S": 3, "C": 5}, {"B": 1, "S": 1, "C": 4}, {"B": 1, "S": 4, "C": 1})
SELF = (x("B S 32"), x("B S 32"), x("B S 32"))
OTHER = (x("B S 32"), x("B C 32"), x("B C 32"))
CACHE = (x("B 4 P 8"), x("B 4 P 8"))


def _multi() -> dict[str, Form]:
    def form(*given: In | None, outputs: int = 1, sizes: Any = CROSS, **attrs: Any) -> Form:
        return Form("MultiHeadAttention", given, {"num_heads": H} | attrs, outputs=outputs, sizes=sizes)

    bias = w("96")
    return {
        "self": form(*SELF, sizes=PLAIN),
        "self, bias": form(*SELF, bias, sizes=PLAIN),
        "self, causal": form(*SELF, sizes=PLAIN, unidirectional=1),
        "cross": form(*OTHER),
        "cross, bias": form(*OTHER, bias),
        "cross, other width of values": form(x("B S 32"), x("B C 32"), x("B C 48"), w("112")),
        "cross, heads": form(x("B S 32"), x("B 4 C 8"), x("B 4 C 8")),
        "cross, heads, bias": form(x("B S 32"), x("B 4 C 8"), x("B 4 C 8"), w("96", scale=0.0)),
        "lengths": form(*OTHER, None, x("B", "i32", make=lengths())),
        "lengths and more": form(*OTHER, None, x("3*B+2", "i32", make=lengths())),
        "padding": form(*OTHER, None, x("B C", "i32", make=padding)),
        "padding, bias": form(*OTHER, bias, x("B C", "i32", make=padding)),
        "padding per row": form(*OTHER, None, x("B S C", "i32", make=padding)),
        "padding, filter": form(*OTHER, None, x("B C", "i32", make=padding), mask_filter_value=-20.0),
        "padding, causal": form(*SELF, None, x("B C", "i32", make=padding), sizes=PLAIN, unidirectional=1),
        "added": form(*OTHER, None, None, x("B 4 S C")),
        "added to heads": form(*OTHER, None, None, x("B 1 S C")),
        "added to batches": form(*OTHER, None, None, x("1 4 S C")),
        "added and padding": form(*OTHER, None, x("B C", "i32", make=padding), x("1 1 S C")),
        "past": form(*SELF, None, None, None, *CACHE, outputs=3, sizes=PAST),
        "past, bias": form(*SELF, bias, None, None, *CACHE, outputs=3, sizes=PAST),
        "past, causal": form(*SELF, None, None, None, *CACHE, outputs=3, sizes=PAST, unidirectional=1),
        "past, padding": form(
            *SELF, None, x("B C", "i32", make=padding), None, *CACHE, outputs=3, sizes=PAST
        ),
        "past, added": form(*SELF, None, None, x("1 4 S C"), *CACHE, outputs=3, sizes=PAST),
        "present": form(*SELF, outputs=3, sizes=PLAIN),
        "present of another": form(*OTHER, outputs=3),
        "scores": Form("MultiHeadAttention", OTHER, {"num_heads": H}, outputs=4, skip=(1, 2), sizes=CROSS),
        "scores, all": form(*SELF, None, None, x("1 4 S C"), *CACHE, outputs=4, sizes=PAST),
        "scale": form(*OTHER, scale=0.5),
        "one head": form(*OTHER, num_heads=1),
    }


# ---------------------------------------------------------------- GroupQueryAttention
# P: what the cache holds, L: its extent; every batch adds S rows


def longest(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.full(shape, sizes["P"] + sizes["S"] - 1)


def different(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Rows in front of a single one differ by batch."""
    total = sizes["P"] + sizes["S"]
    found = rng.integers(0, total, shape)
    found[0] = total - 1
    return np.asarray(found)


def total(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.array(sizes["P"] + sizes["S"])


PROMPT = (
    {"B": 2, "S": 5, "P": 0, "L": 0},
    {"B": 1, "S": 1, "P": 0, "L": 0},
    {"B": 3, "S": 8, "P": 0, "L": 0},
)
BUFFER = ({"B": 2, "S": 5, "P": 0, "L": 12}, {"B": 1, "S": 3, "P": 0, "L": 16})
STEP = ({"B": 2, "S": 1, "P": 6, "L": 6}, {"B": 1, "S": 1, "P": 9, "L": 9})
SHARED = ({"B": 2, "S": 1, "P": 6, "L": 12}, {"B": 3, "S": 1, "P": 2, "L": 9})
SEVERAL = (
    {"B": 1, "S": 3, "P": 6, "L": 6},
    {"B": 1, "S": 5, "P": 2, "L": 2},
    {"B": 1, "S": 4, "P": 0, "L": 0},
)
EVERY = (PROMPT[0], STEP[0], SEVERAL[0], PROMPT[2])
SIZES_OF = {
    "prompt": PROMPT,
    "buffer": BUFFER,
    "step": STEP,
    "shared": SHARED,
    "several": SEVERAL,
    "every": EVERY,
}
TABLE = (w("24 8"), w("24 8"))  # positions of heads of 16


def places(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.asarray(rng.integers(0, 24, shape))


def _grouped() -> dict[str, Form]:
    def form(
        sizes: str, *more: In | None, packed: bool = False, cache: bool = True, size: int = D,
        groups: int = G, ends: Callable[..., Array] = longest, outputs: int = 3, t: str = "f32",
        heads: int = H, stored: tuple[str, int] = ("", 1), **attrs: Any,
    ) -> Form:  # fmt: skip
        new: list[In | None]
        if packed:
            new = [x(f"B S {(heads + 2 * groups) * size}", t), None, None]
        else:
            new = [x(f"B S {heads * size}", t), *(x(f"B S {groups * size}", t) for _ in range(2))]
        kind, per = stored
        old = [x(f"B {groups} L {size // per}", kind or t) if cache else None for _ in range(2)]
        given = [*new, *old, x("B", "i32", make=ends), x("", "i32", make=total), *more]
        attrs = {"num_heads": heads, "kv_num_heads": groups} | attrs
        loose = 4e-3 if t == "f16" else 2e-5
        return Form(
            "GroupQueryAttention", given, attrs, outputs=outputs, sizes=SIZES_OF[sizes],
            types=(t, kind or t, kind or t, t), atol=loose, rtol=loose * 5,
        )  # fmt: skip

    none = (None, None, None)
    found = {
        f"{s}, {'packed' if p else 'apart'}{', rotary' if r else ''}": form(
            s, *(TABLE if r else ()), packed=p, size=16 if r else D, **({"do_rotary": 1} if r else {})
        )
        for s in SIZES_OF
        for p in (False, True)
        for r in (False, True)
    }
    more = {
        "no cache": form("prompt", cache=False),
        "different lengths": form("shared", ends=different),
        "different lengths, rotary": form("shared", *TABLE, ends=different, size=16, do_rotary=1),
        "pairs": form("every", *TABLE, size=16, do_rotary=1, rotary_interleaved=1),
        "part of the head": form("every", *TABLE, size=32, do_rotary=1),
        "positions": form("step", *TABLE, x("B S", "i64", make=places), size=16, do_rotary=1),
        "positions of a prompt": form("prompt", *TABLE, x("B S", "i64", make=places), size=16, do_rotary=1),
        "one group": form("every", groups=1),
        "as many groups": form("every", groups=4),
        "window of a prompt": form("prompt", local_window_size=2),
        "window": form("every", local_window_size=3),
        "window of a shared buffer": form("shared", ends=different, local_window_size=3),
        "softcap": form("every", softcap=5.0, scale=0.7),
        "smooth": form("every", smooth_softmax=1),
        "not smooth": form("every", smooth_softmax=-1),
        "sink": form("every", *none, None, x("4")),
        "sink, window": form("every", *none, None, w("4"), local_window_size=3),
        "added": form("every", *none, x("1 1 S P+S")),
        "added per head": form("every", *none, x("B 4 S P+S")),
        "added per batch, window": form("every", *none, x("B 1 S P+S"), local_window_size=2, softcap=4.0),
        "bidirectional": form("every", causal=0),
        "scores before": form("prompt", outputs=4, qk_output=1),
        "scores after": form("several", outputs=4, qk_output=2),
        "scores, softcap": form("several", outputs=4, qk_output=1, softcap=3.0),
        "half": form("every", *(w("24 8", "f16"),) * 2, size=16, do_rotary=1, t="f16"),
        "half, packed": form("every", packed=True, t="f16"),
    }  # fmt: skip

    def coded(sizes: str, bits: int, each: bool, *front: In | None, **more: Any) -> Form:
        """A cache of 8 or 4 bits, of a scale, or of one each channel."""
        scales = [w("2 8" if each else "1", make=uneven) for _ in range(2)]
        kind = "PER_CHANNEL" if each else "PER_TENSOR"
        return form(
            sizes, *front, *[None] * (5 - len(front)), *scales, kv_cache_bit_width=bits, k_quant_type=kind,
            v_quant_type=kind, stored=("i8", 1) if bits == 8 else ("u8", 2), **more,
        )  # fmt: skip

    found |= {
        f"{s}, {bits} bits{' each' if each else ''}": coded(s, bits, each)
        for s in ("prompt", "every", "shared")
        for bits in (8, 4)
        for each in (False, True)
    }
    more |= {
        "8 bits, packed, window, sink": coded(
            "every", 8, True, *none, None, w("4"), packed=True, local_window_size=3
        ),
        "4 bits, lengths": coded("shared", 4, False, ends=different, softcap=3.0),
        "8 bits, added": coded("every", 8, False, *none, x("1 1 S P+S")),
        "8 bits, half": coded("every", 8, True, t="f16"),
        "4 bits, half": coded("every", 4, False, t="f16"),
    }
    return found | more


def uneven(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Scales of stored keys and values: some are beyond the range."""
    return rng.uniform(0.01, 0.3, shape)


# ---------------------------------------------------------------- rotary positions


def one_place(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.asarray(rng.integers(0, 12, shape))


def _rotary() -> dict[str, Form]:
    def form(data: str, ids: str, half: int = 4, t: str = "f32", **attrs: Any) -> Form:
        tables = (w(f"24 {half}", t), w(f"24 {half}", t))
        loose = 4e-3 if t == "f16" else 2e-5
        given = [x(data, t), x(ids, "i64", make=one_place), *tables]
        return Form("RotaryEmbedding", given, attrs, types=(t,), atol=loose, rtol=loose * 5)

    found = {
        f"{data}, {ids}, pairs {pairs}": form(data, ids, interleaved=pairs)
        for data in ("B S 32", "B 4 S 8")
        for ids in ("1", "B S")
        for pairs in (0, 1)
    }
    return found | {
        "part": form("B S 32", "B S", 2, num_heads=4, rotary_embedding_dim=4),
        "part of heads": form("B 4 S 8", "B S", 2, num_heads=4, rotary_embedding_dim=4),
        "part, pairs": form("B S 32", "1", 3, num_heads=2, rotary_embedding_dim=6, interleaved=1),
        "heads": form("B S 32", "1", num_heads=4, rotary_embedding_dim=8),
        "scale": form("B S 32", "1", scale=0.5),
        "ragged": form("B S 32", "B S", is_packed_batching=1),
        "half": form("B S 32", "B S", t="f16"),
        "half, heads": form("B 4 S 8", "1", t="f16", interleaved=1),
    }


def test_normed_heads() -> None:
    """ONNX Runtime norms queries and keys on GPUs alone: as normed by the model before."""
    rng = np.random.default_rng(5)
    q, key, v = (rng.standard_normal((2, 3, n * D)).astype(np.float32) for n in (H, G, G))
    scales = [rng.standard_normal(D).astype(np.float32) for _ in range(2)]
    normed = []
    for a, scale in zip((q, key), scales, strict=True):
        heads = a.reshape(2, 3, -1, D)
        root = np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-3)
        normed.append((heads / root * scale).reshape(a.shape))
    own = {"num_heads": H, "kv_num_heads": G}
    found = []
    for first, second, more in ((q, key, scales), (*normed, [])):
        given = [k(first), k(second), x(f"B S {V}"), None, None, k([2, 2], "i32"), k(3, "i32"), *[None] * 7]
        form = Form(
            "GroupQueryAttention",
            [*given, *(k(s) for s in more)],
            own | ({"qk_norm_epsilon": 1e-3} if more else {}),
        )
        module = import_model(onnx_model(form, "norms"))
        (y,) = run_module(module, {"x2": v}, OPS)
        found.append(y)
    np.testing.assert_allclose(*found, atol=1e-5)


FORMS = {
    f"{op}: {name}": form
    for op, forms in (
        ("Attention", _attention()), ("MultiHeadAttention", _multi()), ("GroupQueryAttention", _grouped()),
        ("RotaryEmbedding", _rotary()),
    )
    for name, form in forms.items()
}  # fmt: skip

test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS)
