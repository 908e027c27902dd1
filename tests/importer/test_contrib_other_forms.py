"""Every form of com.microsoft's small ops, recurrences and experts agrees with ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from op_forms import Array, Form, In, Sizes, feeds, form, form_tests, k, onnx_model, w, x
from oracle import plain_session

from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model

# ---------------------------------------------------------------- small ops


def regular(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Matrices far from singular ones, with a zero in the first corner."""
    a = rng.standard_normal(shape) + 3 * np.eye(shape[-1])[::-1]
    a[..., 0, 0] = 0
    return np.asarray(a)


def few(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.asarray(rng.integers(0, 4, shape))


def _small() -> dict[str, Form]:
    ints = ("i64",)
    lengths = ({"A": 0, "B": 7, "N": 9}, {"A": -2, "B": 3, "N": 1})
    start = x("", "i64", make=lambda rng, shape, s: s["A"])
    limit = x("", "i64", make=lambda rng, shape, s: s["B"])
    many = ({"N": 9}, {"N": 1}, {"N": 23})
    return {
        "Pad": form("Pad", x("B S 3"), k([1, 0, 2, 0, 3, 1], "i64"), k(1.5)),
        "Pad 2d": form("Pad", x("B S 3"), k([[1, 0, 2, 0, 3, 1]], "i64")),
        "Pad reflect": form("Pad", x("4 S 3"), k([1, 0, 2, 0, 0, 1], "i64"), mode="reflect"),
        "Pad edge": form("Pad", x("B S"), k([1, 2, 2, 0], "i64"), mode="edge"),
        "Pad at run time": form("Pad", x("B S"), x("4", "i64", low=0, high=3)),
        "Pad negative": form("Pad", x("4 6"), k([-1, 2, 0, -3], "i64")),
        "Range": form("Range", start, limit, k(2, "i64"), types=ints, sizes=lengths),
        "Range of ones": form("Range", start, limit, types=ints, sizes=lengths),
        "Range of floats": form("Range", k(0.5), k(4.0), k(0.75)),
        "Unique": form("Unique", x("N", make=few), outputs=3, types=("f32", "i64", "i64"), sizes=many),
        "Trilu": form("Trilu", x("B S T")),
        "Trilu lower": form("Trilu", x("B S T"), k(1, "i64"), upper=0),
        "Trilu i64": form("Trilu", x("S T", "i64"), x("", "i64", low=-2, high=3), types=ints),
        "GatherND": form("GatherND", x("5 6 T"), x("B S 2", "i64", low=-5, high=5)),
        "GatherND i32": form("GatherND", x("5 T"), x("B 1", "i32", low=0, high=5)),
        "ExpandDims": form("ExpandDims", x("B S"), k(1, "i32")),
        "ExpandDims last": form("ExpandDims", x("B S"), k(-1, "i32")),
        "TorchEmbedding": form(
            "TorchEmbedding", w("9 4"), x("B S", "i64", low=0, high=9), wanted=lambda a, b: [a[b]]
        ),
        "Inverse": form("Inverse", x("B 4 4", make=regular), atol=1e-4),
        "Inverse of any": form("Inverse", x("S S", make=regular), atol=1e-4),
        "Inverse of one": form("Inverse", x("B 1 1", scale=3.0), atol=1e-4),
        "Inverse of many": form("Inverse", x("B 2 12 12", make=regular), atol=1e-4),
        "Inverse double": form("Inverse", x("B S S", "f64", make=regular), types=("f64",)),
        "CDist": form("CDist", x("S 6"), x("T 6"), atol=1e-4),
        "CDist root": form("CDist", x("S 6"), x("T 6"), metric="euclidean", atol=1e-4),
        "CDist double": form("CDist", x("S 6", "f64"), x("T 6", "f64"), types=("f64",)),
        **{
            f"NGramRepeatBlock {n}": form(
                "NGramRepeatBlock", x("B N", "i64", make=few), x("B 6"), ngram_size=n,
                sizes=({"B": 2, "N": 12}, {"B": 3, "N": 5}, {"B": 1, "N": 1}),
            )
            for n in (1, 2, 3)
        },
    }  # fmt: skip


# ---------------------------------------------------------------- states


def _states() -> dict[str, Form]:
    sizes = ({"B": 2, "T": 5}, {"B": 1, "T": 1}, {"B": 3, "T": 11})
    found = {}
    for rule, gate, beta in (
        ("linear", "", ""), ("gated", "4", ""), ("gated", "32", ""), ("delta", "", "4"), ("delta", "", "1"),
        ("gated_delta", "4", "4"), ("gated_delta", "32", "1"),
    ):  # fmt: skip
        for past in (False, True):
            given = [x("B T 32", scale=0.3), x("B T 32", scale=0.3), x("B T 24")]
            given += [x("B 4 8 6") if past else None]
            given += [x(f"B T {gate}", make=decays) if gate else None, x(f"B T {beta}") if beta else None]
            found[f"LinearAttention {rule} {gate} {beta} {past}"] = form(
                "LinearAttention", *given, update_rule=rule, q_num_heads=4, kv_num_heads=4, outputs=2,
                sizes=sizes, atol=1e-4,
            )  # fmt: skip
    gates = (None, x("B T 2", make=decays), x("B T 2"))
    found |= {
        "LinearAttention groups": form(
            "LinearAttention", x("B T 32"), x("B T 16", scale=0.3), x("B T 12"), *gates, q_num_heads=4,
            kv_num_heads=2, outputs=2, sizes=sizes, scale=0.5, atol=1e-4,
        ),
        "LinearAttention fewer queries": form(
            "LinearAttention", x("B T 8"), x("B T 16", scale=0.3), x("B T 12"), *gates, q_num_heads=1,
            kv_num_heads=2, outputs=2, sizes=sizes, atol=1e-4,
        ),
    }  # fmt: skip
    for name, more in {
        "plain": {}, "silu": {"activation": "silu"}, "dilation": {"dilation": 2},
    }.items():  # fmt: skip
        rows = 6 if "dilation" in more else 3
        for past in (False, True):
            found[f"CausalConvWithState {name} {past}"] = form(
                "CausalConvWithState", x("B 6 T"), w("6 1 4"), w("6"), x(f"B 6 {rows}") if past else None,
                outputs=2, sizes=sizes, **more,
            )  # fmt: skip
            found[f"CausalConvWithState last {name} {past}"] = form(
                "CausalConvWithState", x("B T 2 3"), w("6 1 4"), None, x(f"B {rows} 2 3") if past else None,
                outputs=2, sizes=sizes, channels_last=1, **more,
            )  # fmt: skip
    places = x("3 B S", "i64", low=0, high=12)
    tables = (w("12 8"), w("12 8"))
    for layout in (0, 1):
        for pairs in (0, 1):
            own = {"mrope_section": [4, 2, 2], "mrope_layout": layout, "interleaved": pairs}
            found[f"MRotaryEmbedding {layout} {pairs}"] = form(
                "MRotaryEmbedding", x("B S 64"), places, *tables, num_heads=4, **own
            )
            found[f"MRotaryEmbedding part {layout} {pairs}"] = form(
                "MRotaryEmbedding", x("B S 80"), places, *tables, num_heads=4, rotary_embedding_dim=16, **own
            )
            found[f"MRotaryEmbedding heads {layout} {pairs}"] = form(
                "MRotaryEmbedding", x("B 4 S 16"), places, *tables, **own
            )
    found["MRotaryEmbedding part scaled"] = form(
        "MRotaryEmbedding", x("B S 80"), places, *tables, num_heads=4, rotary_embedding_dim=16, scale=0.5,
        mrope_section=[4, 2, 2],
    )  # fmt: skip
    return found


def decays(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Logarithms of factors between 0 and 1."""
    return -np.abs(rng.standard_normal(shape))


# ---------------------------------------------------------------- experts


def _experts() -> dict[str, Form]:
    sizes = ({"B": 2, "T": 3}, {"B": 1, "T": 1}, {"B": 1, "T": 9})
    first, second = (w("4 12 8"), w("4 12")), (w("4 8 12"), w("4 8"))
    data, router = x("B T 8"), x("B*T 4")

    def moe(*given: In | None, **attrs: Any) -> Form:
        return form("MoE", *given, sizes=sizes, atol=1e-4, **attrs)

    found = {
        f"MoE {name} {k} {normal}": moe(
            data, router, *first, *second, activation_type=name, k=k, normalize_routing_weights=normal
        )
        for name in ("relu", "gelu", "silu", "identity")
        for k, normal in ((1, 0), (2, 0), (2, 1), (4, 1))
    }
    both = (w("4 24 8"), w("4 24"))
    gate = {"activation_type": "swiglu", "k": 2, "normalize_routing_weights": 1}
    limits = {"swiglu_limit": 1.5, "activation_alpha": 1.7, "activation_beta": 1.0}
    found |= {
        "MoE rows": moe(x("T 8"), x("T 4"), *first, *second, k=2),
        "MoE no bias": moe(data, router, first[0], None, second[0], k=2, activation_type="silu"),
        "MoE pairs": moe(data, router, *both, *second, **gate, swiglu_fusion=1),
        "MoE pairs, limit": moe(data, router, *both, *second, **gate, **limits, swiglu_fusion=1),
        "MoE halves": moe(data, router, *both, *second, **gate, swiglu_fusion=2, wanted=halves),
    }

    def packed(bits: int, size: int, zeros: bool, fused: bool, **attrs: Any) -> Form:
        rows, out, depth = (64 if fused else 32), 32, 32
        n = (rows, depth), (out, 32)
        given: list[In | None] = [x("B T 32"), x("B*T 4")]
        for many, few_ in n:
            blocks = few_ // size if size else 0
            shape = f"4 {many} {blocks}" if size else f"4 {many}"
            given += [w(f"4 {many} {few_ * bits // 8}", "u8"), w(shape, make=small), w(f"4 {many}")]
        given += [None, None, None]
        for many, few_ in n:
            blocks = few_ // size if size else 0
            packed_zeros = f"4 {many} {-(-blocks * bits // 8)}" if size else f"4 {many * bits // 8}"
            given.append(w(packed_zeros, "u8") if zeros else None)
        more = {"block_size": size} if size else {}
        own = {"activation_type": "swiglu", "swiglu_fusion": 1} if fused else {"activation_type": "silu"}
        return form(
            "QMoE", *given, expert_weight_bits=bits, k=2, sizes=sizes, atol=1e-4, **more, **own, **attrs
        )

    shares = packed(4, 16, True, True)
    given = [*shares.inputs, None, x("B*T 4", make=lambda rng, shape, z: rng.uniform(0.1, 1, shape))]
    found["QMoE shares"] = replace(shares, inputs=given)
    found["QMoE shares, normed"] = replace(
        shares, inputs=given, attrs={**shares.attrs, "normalize_routing_weights": 1}
    )
    many = packed(8, 16, False, False)
    found["QMoE of 18 rows"] = replace(many, inputs=[x("1 9 32"), x("9 4"), *many.inputs[2:]], sizes=({},))
    found["QMoE in bytes"] = packed(4, 32, True, True, accuracy_level=4)
    return found | {
        f"QMoE {bits} bits of {size}, zeros {zeros}, fused {fused}": packed(bits, size, zeros, fused)
        for bits in (2, 4, 8)
        for size in (0, 16)
        for zeros in (False, True)
        for fused in (False, True)
    }


def small(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Scales."""
    return rng.uniform(0.002, 0.02, shape)


def halves(a: Array, router: Array, *given: Array) -> list[Array]:
    """Two of four experts, gates and then values: ONNX Runtime has pairs alone on CPUs. Of equal ones, as of
    pairs, the last come first."""
    (w1, b1, w2, b2), rows = given, a.reshape(-1, 8).astype(np.float64)
    y = np.zeros_like(rows)
    for t, row in enumerate(rows):
        every = np.exp(router[t] - router[t].max())  # what differs by less than it tells apart is equal
        best = 3 - np.argsort(-every[::-1], kind="stable")[:2]
        share = every[best]
        for e, s in zip(best, share / share.sum(), strict=True):
            gate, value = np.split(w1[e] @ row + b1[e], 2)
            y[t] += s * (w2[e] @ (gate / (1 + np.exp(-gate)) * value) + b2[e])
    return [y.reshape(a.shape).astype(np.float32)]


def test_layers_of_different_bits() -> None:
    """ONNX Runtime has one width for all layers: as the same weights, all of 4 bits."""
    rng = np.random.default_rng(7)
    first, second = (rng.integers(0, 256, (4, 32, 16)).astype(np.uint8) for _ in range(2))
    wide = np.stack([first & 15, first >> 4], -1).reshape(4, 32, 32) + np.uint8(128 - 8)
    scales = [k(rng.uniform(0.002, 0.02, (4, 32, 2))) for _ in range(2)]
    own = {"k": 2, "block_size": 16, "activation_type": "silu"}
    data, router = x("T 32"), x("T 4")
    even = form("QMoE", data, router, k(first, "u8"), scales[0], None, k(second, "u8"), scales[1], **own)
    mixed = form("QMoE", data, router, k(wide, "u8"), scales[0], None, k(second, "u8"), scales[1], **own,
                 fc1_expert_weight_bits=8)  # fmt: skip
    given = feeds(even, "bits", 0)
    (wanted,) = plain_session(onnx_model(even, "bits").SerializeToString()).run(None, given)
    (found,) = run_module(import_model(onnx_model(mixed, "bits")), given, OPS)
    # 8 bits are multiplied as bytes: activations in 127 steps
    np.testing.assert_allclose(found, wanted, atol=2e-2 * np.abs(wanted).max())


FORMS = {**_small(), **_states(), **_experts()}

test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS)
