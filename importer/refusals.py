"""An op without binding in; the reason of the refusal, and what to do instead, out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx

from smelt.importer.domains import MS

PLUGIN = "a plug-in that defines it (docs/add-op.md)"
LAYOUT = (
    "saving the model with ONNX Runtime's optimisation level 'extended' or below: weights in this layout are "
    "those of the machine that saved it"
)
SEARCH = "exporting the decoder alone, with its past as inputs and outputs: the search runs it token by token"
DEVICE = "an export for processors: ONNX Runtime has this operator on GPUs alone"

# (domain, op) -> what to do instead; the op '' stands for all of the domain
INSTEAD: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("com.microsoft.nchwc", ""): LAYOUT,
        ("com.ms.internal.nhwc", ""): LAYOUT,
        **{
            (MS, op): SEARCH
            for op in ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")
        },
        **{
            (MS, op): DEVICE
            for op in (
                "PagedAttention", "PackedAttention", "PackedMultiHeadAttention", "DecoderMaskedSelfAttention",
                "DecoderAttention", "LongformerAttention", "QOrderedAttention", "QOrderedGelu",
                "QOrderedLayerNormalization", "QOrderedLongformerAttention", "QOrderedMatMul",
                "RemovePadding", "RestorePadding", "GemmFloat8", "RelativePositionBias",
                "GatedRelativePositionBias",
            )
        },
        (MS, "EPContext"): "the model that the execution provider's cache was made of",
        (MS, "MatMulFpQ4"): "MatMulNBits, whose weights do not depend on the machine",
        (MS, "SparseToDenseMatMul"): "a dense matrix: smelt has no sparse tensors at run time",
    }
)  # fmt: skip


def message(domain: str, version: int, op: str) -> str:
    """The text of the refusal, which says whether the operator exists in ONNX at all."""
    where = f"opset {version}" if not domain else f"domain '{domain}', version {version}"
    try:
        if not domain:
            onnx.defs.get_schema(op, version, "")
        return f"operator ({where}) is not supported"
    except onnx.defs.SchemaError:
        return f"no such operator in {where}"


def instead(domain: str, op: str) -> str | None:
    """The hint: what to do instead; None where nothing is known."""
    found = INSTEAD.get((domain, op)) or INSTEAD.get((domain, ""))
    return found or (PLUGIN if domain else None)
