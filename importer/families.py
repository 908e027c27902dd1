"""A name that a model or a plug-in uses in; the module of the family that defines it out.

A family is a package of families/ with `BINDINGS` and `OPS`, as a plug-in has them. It is loaded when a model
uses one of its names; this index finds it without importing any.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from smelt.core import ops
from smelt.core.ops.table import Op
from smelt.importer.domains import ML, MS


@dataclass(frozen=True)
class Family:
    """module: what is imported. binds: domain -> the names of its ops, with spaces between them. core: the
    names of the core ops that it brings."""

    module: str
    binds: Mapping[str, str]
    core: str

    def bound(self) -> tuple[tuple[str, str], ...]:
        """(domain, name) of each op that it binds."""
        return tuple((domain, name) for domain, names in self.binds.items() for name in names.split())


FAMILIES = (
    Family(
        "smelt.families.ml",
        {
            ML: """
                ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer
                Imputer LabelEncoder LinearClassifier LinearRegressor Normalizer OneHotEncoder SVMClassifier
                SVMRegressor Scaler TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor ZipMap
            """
        },
        "forest coupled",
    ),
    Family(
        "smelt.families.text",
        {
            "": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
            MS: "Tokenizer",
        },
        "text_concat text_parts text_split text_match token_count tokens",
    ),
    Family(
        "smelt.families.microsoft",
        {
            MS: """
                BifurcationDetector BranchwiseRMSNorm CDist CausalConvWithState ConvTransposeWithDynamicPads
                CropAndResize DynamicTimeWarping EngramGate ExpandDims GatherND GridSample GroupNorm
                HyperConnectionPostMix HyperConnectionPreMix LinearAttention MRotaryEmbedding MoE
                NGramRepeatBlock NhwcConv NhwcMaxPool Pad QMoE Range SkipGroupNorm SparseAttention
                TorchEmbedding Trilu UnfoldTensor Unique
            """
        },
        "matmul_experts",
    ),
)

BY_BINDING: Mapping[tuple[str, str], str] = MappingProxyType(
    {key: f.module for f in FAMILIES for key in f.bound()}
)
"""(domain, name) -> the module that has its binding."""
BY_CORE: Mapping[str, str] = MappingProxyType({op: f.module for f in FAMILIES for op in f.core.split()})
"""Name of a core op -> the module that defines it."""


def touched(bound: Iterable[tuple[str, str]], core: Iterable[str]) -> tuple[str, ...]:
    """The modules of the families that define one of these names, loaded or not."""
    found = [*(BY_BINDING.get(k) for k in bound), *(BY_CORE.get(n) for n in core)]
    return tuple(dict.fromkeys(m for m in found if m is not None))


def core_op(name: str) -> Op | None:
    """A core op by name; its family's core ops are added to the op table. None where no family has it."""
    if name not in ops.OPS and name in BY_CORE:
        ops.extend(importlib.import_module(BY_CORE[name]).OPS)
    return ops.OPS.get(name)
