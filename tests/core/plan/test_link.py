"""Modules that become entries of one library: which kernels, weights and working memory they share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smelt.core.ir.graph import Module
from smelt.core.ir.text import parse_module
from smelt.core.ir.verify import verify
from smelt.core.plan.link import Linked, link
from smelt.core.plan.stages import Home

HALF, TWICE = "x[i] * 0.5:f32", "x[i] * 2.0:f32"


def module(size: int, first: int = 0, **formulas: str) -> Module:
    """A chain of kernels, each over so many elements, that starts with a weight: first, first + 1, ..."""
    kernels, nodes, last = [], [], "@w"
    for n, (name, formula) in enumerate(formulas.items(), 1):
        body = f"serial i in {size} {{ y[i] = {formula} }}"
        kernels.append(f"kernel @{name}(x: f32[{size}]) -> (y: f32[{size}]) {{ {body} }}")
        nodes.append(f'%{n} = call_kernel({last}) {{dims = (), kernel = "{name}"}} : f32[{size}]')
        last = f"%{n}"
    numbers = ", ".join(str(first + n) for n in range(size))
    lines = [f"weight @w: f32[{size}] = [{numbers}]", *kernels]
    body = "\n".join(nodes)
    made = parse_module(
        'module "m" {\n' + "\n".join(lines) + f"\ngraph @main() -> ({last}) {{\n{body}\n}}\n}}"
    )
    made = made.with_main(made.main.with_(output_names=("y",)))
    verify(made, "lowered")
    return made


def linked(**modules: Module) -> Linked:
    return link([("any", [(name, m, ()) for name, m in modules.items()])])


def names(whole: Linked) -> list[list[str]]:
    """The kernels that each entry launches, by their names in the shared table."""
    return [[whole.rows[n].kernel for n in e.kernels] for e in whole.entries]


def test_a_module_alone_keeps_what_it_has() -> None:
    """Also kernels that are equal, which the planner is not to judge."""
    alone = module(4, a=HALF, b=HALF)
    whole = linked(main=alone)
    assert whole.entries[0].module is alone
    assert names(whole) == [["a", "b"]] and whole.entries[0].arenas == (0,)


def test_equal_kernels_are_one_and_others_keep_apart() -> None:
    whole = linked(one=module(4, a=HALF, b=TWICE), two=module(4, b=HALF, a=TWICE), three=module(8, a=HALF))
    assert names(whole) == [["a", "b"], ["a", "b"], ["a_three"]]
    assert {name: k.name for name, k in whole.kernels.items()} == {n: n for n in ("a", "b", "a_three")}
    calls = [n.attr("kernel") for n in whole.entries[1].module.main.nodes]
    assert calls == ["a", "b"] and whole.entries[1].module.kernels.keys() == {"a", "b"}


def test_a_new_name_is_one_that_nobody_has() -> None:
    whole = linked(one=module(4, a=HALF), two=module(4, a=TWICE, a_two="x[i] * 3.0:f32"))
    one, two = names(whole)
    assert one == ["a"] and len({*one, *two}) == 3 and two[1] == "a_two"


def test_weights_of_equal_bytes_lie_once() -> None:
    whole = linked(one=module(64, a=HALF), two=module(64, a=HALF), three=module(64, 1, a=HALF))
    offsets = [e.program.weights[0].offset for e in whole.entries]
    assert offsets[0] == offsets[1] != offsets[2]
    assert {e.program.weights_bytes for e in whole.entries} == {whole.weights_bytes}


def test_working_memory_has_the_bound_of_the_largest() -> None:
    small, large = module(16, a=HALF, b=TWICE), module(1024, a=HALF, b=TWICE)
    bounds = [linked(main=m).most[0] for m in (small, large)]
    whole = linked(small=small, large=large)
    assert [e.arenas for e in whole.entries] == [(0,), (0,)] and whole.homes == (Home(0),)
    assert whole.most == (max(n for n in bounds if n is not None),) and bounds[0] != bounds[1]


def at(unit: str, m: Module) -> Module:
    """The same with all kernels at a unit."""
    nodes = tuple(
        n.with_(outputs=tuple(replace(v, unit=unit) for v in n.outputs)) for n in m.main.nodes
    )
    return m.with_main(replace(m.main, nodes=nodes))


@pytest.mark.parametrize("kernels", [{"a": HALF}, {"a": HALF, "b": TWICE}], ids=["no memory", "memory"])
def test_a_variant_needs_the_units_that_it_names_alone(kernels: dict[str, str]) -> None:
    """Also where it has nothing to put into working memory."""
    m = module(4, **kernels)
    made = link([("any", [("main", at(u, m), ())]) for u in ("one", "two")] + [("any", [("main", m, ())])])
    assert made.units == ("one", "two")
    assert [v.units for v in made.variants] == [(1,), (2,), ()]
