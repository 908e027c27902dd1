"""A drawn model in; the same model spelled otherwise out: in functions, branches, loops, sequences, with its
weights in another file, under other names."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import onnx
from fuzz_graph import reads, regions
from onnx import AttributeProto, NodeProto, TensorProto, helper

Spelling = Callable[[onnx.ModelProto, random.Random], None]
"""Changes a model in place; leaves one alone that has nothing to spell otherwise."""

MANY = 130
LONGEST_RUN = 5


def respelled(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """The model after one to three changes of its spelling."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for spell in rng.sample(SPELLINGS, rng.randint(1, 3)):
        spell(made, rng)
    return made


# ---------------------------------------------------------------- names, weights, inputs


def _names(model: onnx.ModelProto, rng: random.Random) -> None:
    """Names of nodes: none, one for all, or that of another node's output."""
    nodes = list(model.graph.node)
    how = rng.choice(("", "same", "output"))
    for n in nodes:
        n.name = rng.choice(nodes).output[0] if how == "output" else how


def _as_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    """Weights that are inputs with these values by default, as old files have them."""
    for t in model.graph.initializer:
        if rng.random() < 0.7:
            info = helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
            model.graph.input.append(info)


def _as_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    """Weights that are Constant nodes."""
    kept, fed = [], {v.name for v in model.graph.input}
    for t in list(model.graph.initializer):
        if t.name not in fed and rng.random() < 0.7:
            made = helper.make_node("Constant", [], [t.name], value=t)
            model.graph.node.insert(0, made)
        else:
            kept.append(t)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


# ---------------------------------------------------------------- values that take a detour


def _listed(model: onnx.ModelProto, rng: random.Random) -> None:
    """A value that is an element of a sequence, or of an optional, before it is read."""
    found = _inner(model)
    if not found or _opset(model) < 16:
        return
    name = rng.choice(found)
    held, at, other = (f"{name}/{part}" for part in ("held", "at", "other"))
    at_node = helper.make_node("Constant", [], [at], value_int=rng.choice((-1, 0, 1)))
    ways = {
        "sequence": [
            at_node, helper.make_node("SequenceConstruct", [name, name], [held]),
            helper.make_node("SequenceAt", [held, at], [other]),
        ],
        "grown": [
            at_node, helper.make_node("SequenceConstruct", [name], [f"{held}.1"]),
            helper.make_node("SequenceInsert", [f"{held}.1", name], [held]),
            helper.make_node("SequenceAt", [held, at], [other]),
        ],
        "optional": [
            helper.make_node("Optional", [name], [held]),
            helper.make_node("OptionalGetElement", [held], [other]),
        ],
    }  # fmt: skip
    _detour(model, name, other, ways[rng.choice(sorted(ways))])


def _detour(model: onnx.ModelProto, name: str, other: str, through: Sequence[NodeProto]) -> None:
    """The nodes behind the one that makes the value; all that read it read `other`."""
    nodes = list(model.graph.node)
    at = next(k for k, n in enumerate(nodes) if name in n.output)
    for n in nodes[at + 1 :]:
        _rename(n, {name: other})
    del model.graph.node[:]
    model.graph.node.extend([*nodes[: at + 1], *through, *nodes[at + 1 :]])


def _many(model: onnx.ModelProto, rng: random.Random) -> None:
    """As many outputs as few models have: copies of one."""
    first = rng.choice(list(model.graph.output))
    for k in range(MANY):
        name = f"{first.name}/copy{k}"
        model.graph.node.append(helper.make_node("Identity", [first.name], [name]))
        model.graph.output.append(first)
        model.graph.output[-1].name = name


# ---------------------------------------------------------------- nodes inside of others


def _in_function(model: onnx.ModelProto, rng: random.Random) -> None:
    """A run of nodes that is a function of the model, whose attributes are the call's."""
    found = _run(model, rng)
    if found is None:
        return
    first, last, nodes, inputs, outputs = found
    if any(regions(n) for n in nodes):
        return
    name, given = f"f{first}", {}
    body = [_copy(n) for n in nodes]
    for k, n in enumerate(body):
        for a in n.attribute:
            if a.type in (AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.INTS):
                called = f"{a.name}_{k}"
                given[called] = _copy_attribute(a, called)
                kind = a.type
                a.Clear()
                a.name, a.ref_attr_name, a.type = _plain(called), called, kind
    domains = {o.domain: o.version for o in model.opset_import}
    opsets = [helper.make_opsetid(d, v) for d, v in domains.items() if d != "own"]
    f = helper.make_function("own", name, inputs, outputs, body, opsets, list(given))
    model.functions.append(f)
    call = helper.make_node(name, inputs, outputs, domain="own")
    call.attribute.extend(given.values())
    if "own" not in domains:
        model.opset_import.append(helper.make_opsetid("own", 1))
    model.ir_version = max(model.ir_version, 9)
    _replace(model, first, last, [call])


def _plain(called: str) -> str:
    return called.rsplit("_", 1)[0]


def _in_branch(model: onnx.ModelProto, rng: random.Random) -> None:
    """A run of nodes in both arms of an If, which reads what is around it; or in two, one in the other."""
    found = _run(model, rng)
    if found is None:
        return
    first, last, nodes, inputs, outputs = found
    types = _types(model)
    if not all(o in types for o in outputs):
        return
    cond = f"cond{first}"
    asked = _condition(rng, cond, inputs)
    for _ in range(rng.randint(1, 2)):
        arms = [_arm(nodes, outputs, types, f"{arm}{first}") for arm in ("then", "else")]
        nodes = [helper.make_node("If", [cond], outputs, then_branch=arms[0], else_branch=arms[1])]
    _replace(model, first, last, [*asked, *nodes])


def _condition(rng: random.Random, name: str, inputs: Sequence[str]) -> list[NodeProto]:
    """What the condition is made of: a constant, or the size of a value."""
    yes = helper.make_tensor(f"{name}.k", TensorProto.INT64, [], [rng.choice((0, 3, 40))])
    if not inputs or rng.random() < 0.3:
        truth = helper.make_tensor(f"{name}.b", TensorProto.BOOL, [], [rng.random() < 0.5])
        return [helper.make_node("Constant", [], [name], value=truth)]
    return [
        helper.make_node("Constant", [], [f"{name}.limit"], value=yes),
        helper.make_node("Size", [rng.choice(inputs)], [f"{name}.size"]),
        helper.make_node("Greater", [f"{name}.size", f"{name}.limit"], [name]),
    ]


def _arm(
    nodes: Sequence[NodeProto], outputs: Sequence[str], types: Mapping[str, int], prefix: str
) -> onnx.GraphProto:
    """A copy of the nodes as a graph without inputs, whose values have names of their own."""
    made = {o: f"{prefix}/{o}" for n in nodes for o in n.output if o}
    body = [_renamed(n, made) for n in nodes]
    results = [helper.make_tensor_value_info(made[o], types[o], None) for o in outputs]
    return helper.make_graph(body, prefix, [], results)


def _in_loop(model: onnx.ModelProto, rng: random.Random) -> None:
    """A run of nodes in the body of a Loop of one or two rounds, whose last results are picked."""
    found = _run(model, rng)
    if found is None or _opset(model) < 13:
        return
    first, last, nodes, _, outputs = found
    types = _types(model)
    if not all(o in types for o in outputs):
        return
    body = _arm(nodes, outputs, types, f"body{first}")
    name, rounds = f"loop{first}", rng.randint(1, 2)
    body.input.append(helper.make_tensor_value_info(f"{name}.i", TensorProto.INT64, []))
    body.input.append(helper.make_tensor_value_info(f"{name}.c", TensorProto.BOOL, []))
    body.node.append(helper.make_node("Identity", [f"{name}.c"], [f"{name}.more"]))
    body.output.insert(0, helper.make_tensor_value_info(f"{name}.more", TensorProto.BOOL, []))
    count = helper.make_tensor(f"{name}.n", TensorProto.INT64, [], [rounds])
    zero = helper.make_tensor(f"{name}.z", TensorProto.INT64, [], [-1])
    stacks = [f"{name}.{o}" for o in outputs]
    more: list[NodeProto] = [
        helper.make_node("Constant", [], [f"{name}.count"], value=count),
        helper.make_node("Constant", [], [f"{name}.last"], value=zero),
        helper.make_node("Loop", [f"{name}.count", ""], stacks, body=body),
        *(helper.make_node("Gather", [f"{name}.{o}", f"{name}.last"], [o], axis=0) for o in outputs),
    ]  # fmt: skip
    _replace(model, first, last, more)


def _in_scan(model: onnx.ModelProto, rng: random.Random) -> None:
    """A run of nodes in the body of a Scan over one of the values that it reads, of one row."""
    found = _run(model, rng)
    if found is None or _opset(model) < 13:
        return
    first, last, nodes, inputs, outputs = found
    types = _types(model)
    known = [i for i in inputs if i in types]
    if not known or not all(o in types for o in outputs):
        return
    name, over = f"scan{first}", rng.choice(known)
    row = f"{name}.row"
    body = _arm([_renamed(n, {over: row}) for n in nodes], outputs, types, f"step{first}")
    body.input.append(helper.make_tensor_value_info(row, types[over], None))
    axis = helper.make_tensor(f"{name}.a", TensorProto.INT64, [1], [0])
    stacks = [f"{name}.{o}" for o in outputs]
    more: list[NodeProto] = [
        helper.make_node("Constant", [], [f"{name}.axis"], value=axis),
        helper.make_node("Unsqueeze", [over, f"{name}.axis"], [f"{name}.rows"]),
        helper.make_node("Scan", [f"{name}.rows"], stacks, body=body, num_scan_inputs=1),
        *(helper.make_node("Squeeze", [f"{name}.{o}", f"{name}.axis"], [o]) for o in outputs),
    ]  # fmt: skip
    _replace(model, first, last, more)


SPELLINGS: tuple[Spelling, ...] = (
    _names, _as_inputs, _as_nodes, _listed, _many, _in_function, _in_function, _in_branch, _in_branch,
    _in_loop, _in_scan,
)  # fmt: skip


# ---------------------------------------------------------------- parts of a model


def _opset(model: onnx.ModelProto) -> int:
    return next(o.version for o in model.opset_import if not o.domain)


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """The element types that inference knows."""
    g = onnx.shape_inference.infer_shapes(model).graph
    infos = (*g.input, *g.value_info, *g.output)
    found = {v.name: v.type.tensor_type.elem_type for v in infos if v.type.HasField("tensor_type")}
    found |= {t.name: t.data_type for t in g.initializer}
    return {name: kind for name, kind in found.items() if kind}


def _inner(model: onnx.ModelProto) -> list[str]:
    """Values that are tensors of a known type and that a node reads."""
    types = _types(model)
    read = {i for n in model.graph.node for i in reads(n)}
    return [o for n in model.graph.node for o in n.output if o in types and o in read]


Run = tuple[int, int, list[NodeProto], list[str], list[str]]


def _run(model: onnx.ModelProto, rng: random.Random) -> Run | None:
    """Nodes that follow each other: the first one's place, the last one's, the nodes, what they read, and
    what others read of what they make."""
    whole = list(model.graph.node)
    if not whole:
        return None
    first = rng.randrange(len(whole))
    last = min(len(whole) - 1, first + rng.randrange(LONGEST_RUN))
    nodes = whole[first : last + 1]
    made = {o for n in nodes for o in n.output if o}
    others = [*whole[:first], *whole[last + 1 :]]
    wanted = {i for n in others for i in reads(n)} | {o.name for o in model.graph.output}
    inputs = list(dict.fromkeys(i for n in nodes for i in reads(n) if i not in made))
    outputs = [o for n in nodes for o in n.output if o in wanted]
    return (first, last, nodes, inputs, outputs) if outputs else None


def _replace(model: onnx.ModelProto, first: int, last: int, nodes: Sequence[NodeProto]) -> None:
    whole = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*whole[:first], *nodes, *whole[last + 1 :]])


def _copy(node: NodeProto) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    return made


def _copy_attribute(a: AttributeProto, name: str) -> AttributeProto:
    made = AttributeProto()
    made.CopyFrom(a)
    made.name = name
    return made


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy that reads and makes values under other names, within its graphs as well."""
    made = _copy(node)
    for k, o in enumerate(made.output):
        made.output[k] = names.get(o, o)
    _rename(made, names)
    return made


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Other names of what the node reads, within its graphs as well."""
    for k, i in enumerate(node.input):
        node.input[k] = names.get(i, i)
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            own = {v.name for v in a.g.input} | {t.name for t in a.g.initializer}
            own |= {o for n in a.g.node for o in n.output}
            rest = {old: new for old, new in names.items() if old not in own}
            for n in a.g.node:
                _rename(n, rest)
            for v in a.g.output:
                v.name = rest.get(v.name, v.name)
