"""The order of the passes, and why it is this one."""

from __future__ import annotations

from smelt.core.ir.graph import Module
from smelt.core.passes.cleanup.canonical import canonical
from smelt.core.passes.cleanup.checked import checked
from smelt.core.passes.cleanup.cse import cse
from smelt.core.passes.cleanup.dce import dce
from smelt.core.passes.cleanup.fold import fold
from smelt.core.passes.cleanup.views import views
from smelt.core.passes.context import Context, byte_products, costs, places, tiles, vectors
from smelt.core.passes.lowering.fuse import explain, fuse
from smelt.core.passes.lowering.half import half
from smelt.core.passes.lowering.lower import lower
from smelt.core.passes.lowering.place import explain_places, place
from smelt.core.passes.lowering.tied import tied
from smelt.core.passes.manager import Pass, run_pipeline
from smelt.core.passes.numerics import INTEGERS, ROUNDING, SUMS, TRANSFORMS, WIDER
from smelt.core.passes.quantized.byte_operands import channels, signs, words
from smelt.core.passes.quantized.quantize import quantize
from smelt.core.passes.whole_graph.batched import batched
from smelt.core.passes.whole_graph.expand import expand
from smelt.core.passes.whole_graph.layout import layout
from smelt.core.passes.whole_graph.libraries import libraries
from smelt.core.passes.whole_graph.patterns import patterns
from smelt.core.passes.whole_graph.phases import phases
from smelt.core.passes.whole_graph.regions import regions
from smelt.core.passes.whole_graph.tables import tables
from smelt.core.passes.whole_graph.winograd import winograd

PIPELINE: tuple[Pass, ...] = (
    Pass("dce", dce),  # exporters leave nodes that nothing uses; no later pass should look at them
    Pass("regions", regions),  # before fold: loops carry constants around, which then are constants inside
    # after regions, which moves work before a loop, but none that speaks of sizes the loop checks; before all
    # that look at sizes
    Pass("checked", checked, level=0),
    Pass("quantize", quantize, kind=INTEGERS),  # before fold, which would make floats of quantised weights
    # after quantize, which makes products of u8 and i8; before canonical merges sums
    Pass("signs", signs, asks=byte_products),
    # after quantize, whose rules know dequantised blocks; before fold and canonical, which move their parts
    Pass("words", words, kind=INTEGERS, asks=byte_products),
    Pass("fold", fold, kind=SUMS),  # before canonical: rules look at constants
    # before patterns: they rely on constants on the right, no x - c
    Pass("canonical", canonical, kind=ROUNDING),
    Pass("cse", cse),  # before patterns: exporters compute x - mean(x) twice
    Pass("patterns", patterns, kind=SUMS),
    # after patterns, which fold norms into weights; before layout, which moves channels
    Pass("phases", phases, kind=SUMS),
    Pass("expand", expand, level=0),  # after patterns: they see whole norms; before layout: it sees parts
    # after expand, whose parts may multiply; before layout, which looks at the products that stay
    Pass("tables", tables, kind=SUMS),
    Pass("fold", fold, kind=SUMS),  # patterns and expansions leave constants to compute
    Pass("canonical", canonical, kind=ROUNDING),
    Pass("layout", layout, kind=SUMS, asks=vectors),  # before fuse: it decides what is read in which order
    # after layout, which brings channels last; before fuse, which joins the pads
    Pass("channels", channels, asks=byte_products),
    # after layout, which brings channels last; before views and fuse, which look at what stays
    Pass("winograd", winograd, level=2, kind=TRANSFORMS, asks=tiles),
    # after layout, which makes views; before fuse, which they would stop
    Pass("views", views, kind=ROUNDING),
    # after layout and views, which would move its views to where they stop what fuses; before fuse
    Pass("batched", batched, kind=SUMS),
    Pass("cse", cse),  # layout makes the same transpose for every user
    Pass("dce", dce),
    Pass("libraries", libraries, kind=SUMS),  # before fuse: what a library does is no kernel's business
    Pass("fuse", fuse, kind=WIDER, why=explain, asks=costs),
    Pass("lower", lower, level=0),
    # last: what one kernel keeps to itself needs no storage, so it stays f32
    Pass("half", half, level=0, kind=""),
    # after half, which makes weights anew; before place, which gives them to units
    Pass("tied", tied),
    # kernels and what lies between them are settled
    Pass("place", place, level=0, kind="", why=explain_places, asks=places),
)


def run(module: Module, ctx: Context) -> Module:
    """The module after the whole pipeline."""
    return run_pipeline(module, PIPELINE, ctx)
