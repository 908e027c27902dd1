"""Every form of ops on branches, and of early experiments of ONNX, agrees with ONNX Runtime."""

from __future__ import annotations

from typing import Any

from op_forms import Form, In, form, form_tests, k, w, x

# ---------------------------------------------------------------- branches

WHOLE, FLAT = x("B S 4 8"), x("B S 32")


def _branches() -> dict[str, Form]:
    found = {}
    for name, data, count in (("grouped", WHOLE, 0), ("flat", FLAT, 4)):
        own = {"num_branches": count}
        for scale in ("", "32", "4 8", "8"):
            found[f"norm, {name}, scale {scale or 'absent'}"] = form(
                "BranchwiseRMSNorm", data, w(scale) if scale else None, epsilon=1e-3, **own
            )
        for gate in ("B S 4", "B S 4 1", "B S 4 8", "B S 32"):
            if gate == "B S 32" and not count:
                continue
            found[f"before, {name}, gates {gate}"] = form(
                "HyperConnectionPreMix", data, x(gate), reduction_scale=0.5, **own
            )
            if gate != "B S 32":
                for mix in (None, x("B S 4 4")):
                    found[f"behind, {name}, gates {gate}, {'mixed' if mix else 'plain'}"] = form(
                        "HyperConnectionPostMix", data, x("B S 8"), x(gate), mix, **own
                    )
    gated = [x("B S 4 8"), x("B S 4 8"), x("B S 8"), w("4 8"), w("4 8")]
    return found | {
        "norm of rank 2": form("BranchwiseRMSNorm", x("B 32"), w("8"), num_branches=4),
        "gates": form("EngramGate", *gated),
        "gates, normed": form("EngramGate", *gated, w("4 8"), outputs=2, epsilon=1e-3),
        "norm, half": half("BranchwiseRMSNorm", x("B S 4 8", "f16"), w("8", "f16")),
        "before, half": half("HyperConnectionPreMix", x("B S 4 8", "f16"), x("B S 4")),
        "behind, half": half("HyperConnectionPostMix", x("B S 4 8", "f16"), x("B S 8", "f16"), x("B S 4")),
        "gates, half": half("EngramGate", *(In(a.dims, "f16", a.fixed) for a in gated)),
    }


def half(op: str, *given: In | None, **more: Any) -> Form:
    return form(op, *given, types=("f16",) * 2, atol=4e-3, rtol=2e-2, **more)


# ---------------------------------------------------------------- early ops, slices

IMAGE = ({"B": 2, "I": 7, "J": 5}, {"B": 1, "I": 4, "J": 11})


def _early() -> dict[str, Form]:
    def made(op: str, *given: In | None, dims: str = "B 3 I J", **attrs: Any) -> Form:
        return form(op, x(dims), *given, domain="", version=9, sizes=IMAGE, **attrs)

    def early(op: str, **attrs: Any) -> Form:
        return form(op, x("B 3 I J"), domain="", version=8, sizes=IMAGE, **attrs)

    pair = {"alpha": 1.5, "beta": 0.3}
    return {
        "Affine": made("Affine", **pair),
        "Affine as it is": made("Affine"),
        "ParametricSoftplus": made("ParametricSoftplus", **pair),
        "ScaledTanh": made("ScaledTanh", dims="B J", **pair),
        "ThresholdedRelu": made("ThresholdedRelu", alpha=0.4),
        "MeanVarianceNormalization": early("MeanVarianceNormalization"),
        "MeanVarianceNormalization across channels": early("MeanVarianceNormalization", across_channels=1),
        "MeanVarianceNormalization, mean alone": early("MeanVarianceNormalization", normalize_variance=0),
        "Scale": made("Scale", scale=3.0),
        "Scale as it is": made("Scale", dims="I"),
        "ImageScaler": made("ImageScaler", scale=0.5, bias=[1.0, -2.0, 3.0]),
        "ImageScaler, bias": made("ImageScaler", bias=[1.0, -2.0, 3.0]),
        "ImageScaler of one channel": made("ImageScaler", bias=[1.0], dims="B 1 I J"),
        "Crop": made("Crop", border=[1, 2, 1, 1]),
        "Crop to a size": made("Crop", border=[1, 2, 0, 0], scale=[2, 3]),
        "Crop nothing": made("Crop", border=[0, 0, 0, 0]),
        "DynamicSlice": made("DynamicSlice", k([0, -4], "i64"), k([1, 100], "i64"), k([0, 3], "i64")),
        "DynamicSlice, axes in order": made("DynamicSlice", k([0, 1], "i32"), k([9, -1], "i32")),
        "DynamicSlice at run time": made(
            "DynamicSlice", x("2", "i64", low=-3, high=3), x("2", "i64", low=-3, high=9), k([1, 2], "i64")
        ),
    }


def _slices() -> dict[str, Form]:
    return {
        f"UnfoldTensor {axis} {size} {step}": form(
            "UnfoldTensor", x("B 3 I J"), dim=axis, size=size, step=step, sizes=IMAGE
        )
        for axis, size, step in ((-1, 3, 1), (2, 2, 2), (0, 1, 1), (1, 3, 5), (3, 5, 1), (2, 4, 3))
    } | {"UnfoldTensor i64": form("UnfoldTensor", x("S", "i64"), size=1, step=2, types=("i64",))}


FORMS = {**_branches(), **_early(), **_slices()}

test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS, fresh=1, native=6)
