"""The order of the passes, and why it is this one."""

from __future__ import annotations

from smelt.core.ir.graph import Module
from smelt.core.passes.canonical import canonical
from smelt.core.passes.context import Context
from smelt.core.passes.cse import cse
from smelt.core.passes.dce import dce
from smelt.core.passes.dots import dots
from smelt.core.passes.expand import expand
from smelt.core.passes.fold import fold
from smelt.core.passes.fuse import fuse
from smelt.core.passes.half import half
from smelt.core.passes.layout import layout
from smelt.core.passes.libraries import libraries
from smelt.core.passes.lower import lower
from smelt.core.passes.manager import Pass, run_pipeline
from smelt.core.passes.numerics import INTEGERS, ROUNDING, SUMS, WIDER
from smelt.core.passes.patterns import patterns
from smelt.core.passes.phases import phases
from smelt.core.passes.quantize import quantize
from smelt.core.passes.regions import regions
from smelt.core.passes.views import views

PIPELINE: tuple[Pass, ...] = (
    Pass("dce", dce),  # exporters leave much behind; nothing later should look at it
    Pass("regions", regions),  # before fold: loops carry constants around, which then are constants inside
    Pass("quantize", quantize, kind=INTEGERS),  # before fold, which would make floats of quantised weights
    Pass("fold", fold, kind=SUMS),  # before canonical: rules look at constants
    # before patterns: they rely on constants on the right, no x - c
    Pass("canonical", canonical, kind=ROUNDING),
    Pass("cse", cse),  # before patterns: exporters compute x - mean(x) twice
    Pass("patterns", patterns, kind=SUMS),
    # after patterns, which fold norms into weights; before layout, which moves channels
    Pass("phases", phases, kind=SUMS),
    Pass("expand", expand, level=0),  # after patterns: they see whole norms; before layout: it sees parts
    Pass("fold", fold, kind=SUMS),  # patterns and expansions leave constants to compute
    Pass("canonical", canonical, kind=ROUNDING),
    Pass("layout", layout, kind=SUMS),  # before fuse: it decides what is read in which order
    Pass("dots", dots),  # after layout: bytes are packed along the channels
    # after layout, which makes views; before fuse, which they would stop
    Pass("views", views, kind=ROUNDING),
    Pass("cse", cse),  # layout makes the same transpose for every user
    Pass("dce", dce),
    Pass("libraries", libraries, kind=SUMS),  # before fuse: what a library does is no kernel's business
    Pass("fuse", fuse, kind=WIDER),
    Pass("lower", lower, level=0),
    # last: what one kernel keeps to itself needs no storage, so it stays f32
    Pass("half", half, level=0, kind=""),
)


def run(module: Module, ctx: Context) -> Module:
    """The module after the whole pipeline."""
    return run_pipeline(module, PIPELINE, ctx)
