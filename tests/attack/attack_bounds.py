"""Small files that demand much work: each compile must end with a bundle or a refusal, in bounded time and
memory.

Formulas that multiply out, nest or cancel late; functions that call each other; loops that are written out;
ranks; wide einsums; expressions of a hundred states. The compile runs as users run it, in its child; a limit
of the child that has to end it is a failure, for it is the last resort.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
from campaign import Outcome, main
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

import smelt
from smelt.core.diag import SmeltError

SECONDS = 60.0
"""Of processor time for one file of at most a few thousand nodes."""

GIGABYTES = 3.0

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def attack(seed: int) -> Outcome:
    """Compile a hostile model of a random class."""
    rng = random.Random(seed)
    name = rng.choice(list(CLASSES))
    return judged(name, CLASSES[name](rng), f"seed {seed}")


def judged(name: str, model: onnx.ModelProto, detail: str) -> Outcome:
    """What became of compiling the model."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        try:
            smelt.compile(model, output=out, time_limit=SECONDS, memory_limit=GIGABYTES)
        except SmeltError as e:
            left = [p.name for p in Path(folder).iterdir()]
            bad = e.kind in ("internal", "infra") or bool(left) or len(str(e)) > 100_000
            return Outcome(f"{name}: {e.kind}", bad, f"{detail} {name}: {str(e)[:2000]} {left}")
        shutil.rmtree(out)
    return Outcome(f"{name}: compiled")


# ---------------------------------------------------------------- models


class Maker:
    """Nodes of one model; values are names."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def input(self, shape: Sequence[int | str], kind: int = FLOAT) -> str:
        found = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(found, kind, list(shape)))
        return found

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        out = self.name()
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=f"n_{out}", **attributes))
        return out

    def ints(self, *values: int) -> str:
        tensor = helper.make_tensor("c", INT, [len(values)], values)
        return self.op("Constant", value=tensor)

    def scalar(self, value: int) -> str:
        return self.op("Constant", value=helper.make_tensor("c", INT, [], [value]))

    def sizes(self, x: str, rank: int) -> list[str]:
        """The extents of x, i64[1] each."""
        shape = self.op("Shape", x)
        return [self.op("Slice", shape, self.ints(k), self.ints(k + 1)) for k in range(rank)]

    def model(self, *outputs: str, opset: int = 18) -> onnx.ModelProto:
        infos = [onnx.ValueInfoProto(name=o) for o in outputs]
        graph = helper.make_graph(self.nodes, "bounds", self.inputs, infos)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=self.functions)

    def filled(self, *dims: str) -> str:
        """A tensor of that shape."""
        shape = self.op("Concat", *dims, axis=0) if len(dims) > 1 else dims[0]
        return self.op("ConstantOfShape", shape)


def arithmetic(rng: random.Random) -> onnx.ModelProto:
    """A ladder of sums, products, quotients, minima and maxima of sizes."""
    m = Maker()
    rank = rng.randint(1, 4)
    x = m.input([f"d{k}" for k in range(rank)])
    values = m.sizes(x, rank)
    kinds = rng.sample(["Add", "Sub", "Mul", "Div", "Min", "Max", "Mod"], rng.randint(2, 7))
    for _ in range(rng.choice([10, 40, 200, 600])):
        kind = rng.choice(kinds)
        a, b = rng.choice(values[-3:]), rng.choice(values[-3:] if rng.random() < 0.7 else values)
        if kind in ("Div", "Mod"):
            b = m.ints(rng.randint(2, 7)) if rng.random() < 0.6 else m.op("Max", b, m.ints(1))
        elif rng.random() < 0.3:
            b = m.ints(rng.randint(-3, 5))
        values.append(m.op(kind, a, b))
    used = [m.op("Max", v, m.ints(0)) for v in rng.sample(values, min(3, len(values)))]
    return m.model(m.filled(*used))


def extremes(rng: random.Random) -> onnx.ModelProto:
    """min(a + max(b, c + min(...))): nested, doubled, spread over several sizes."""
    m = Maker()
    x = m.input(["a", "b", "c"])
    a, b, c = m.sizes(x, 3)
    value, other = a, b
    for k in range(rng.choice([8, 30, 100, 400])):
        kind = ("Min", "Max")[k % 2]
        value, other = (
            m.op(kind, m.op("Add", value, other), c),
            m.op("Add", value, m.op("Div", other, m.ints(2))),
        )
        if rng.random() < 0.3:
            other = m.op(kind, other, m.op("Mul", value, m.ints(rng.randint(2, 3))))
    return m.model(m.filled(m.op("Max", value, m.ints(1)), a))


def squares(rng: random.Random) -> onnx.ModelProto:
    """A tensor whose size is squared over and over, by shapes or by tiles."""
    m = Maker()
    x = m.input(["n", "m"][: rng.randint(1, 2)])
    how = rng.choice(["values", "tiles", "products"])
    if how == "values":
        n = m.sizes(x, 1)[0]
        for _ in range(rng.choice([5, 20, 64])):
            n = m.op("Mul", n, m.op("Add", n, m.ints(rng.randint(0, 1))))
        return m.model(m.filled(n))
    flat = m.op("Reshape", x, m.ints(-1))
    for _ in range(rng.choice([4, 12, 40])):
        if how == "tiles":
            flat = m.op("Tile", flat, m.op("Shape", flat))
        else:
            column = m.op("Unsqueeze", flat, m.ints(1))
            row = m.op("Unsqueeze", m.op("Concat", flat, flat, axis=0), m.ints(0))
            flat = m.op("Reshape", m.op("MatMul", column, row), m.ints(-1))
    return m.model(flat)


def towers(rng: random.Random) -> onnx.ModelProto:
    """Functions that call the one before them several times."""
    m = Maker()
    x = m.input(["n"])
    times, height = rng.choice([(2, 60), (3, 12), (2, 8), (1, 70), (10, 5), (1, 30)])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    for k in range(height):
        nodes, last = [], "x"
        for t in range(times):
            kind, domain = ("Sin", "") if not k else (f"f{k - 1}", "own")
            nodes.append(helper.make_node(kind, [last], [f"t{t}"], domain=domain))
            last = f"t{t}"
        if rng.random() < 0.2 and k:
            inner = helper.make_graph(
                [helper.make_node(f"f{k - 1}", ["x"], ["z"], domain="own")],
                "g",
                [],
                [onnx.ValueInfoProto(name="z")],
            )
            nodes.append(
                helper.make_node(
                    "Constant", [], ["yes"], value=helper.make_tensor("c", TensorProto.BOOL, [], [1])
                )
            )
            nodes.append(helper.make_node("If", ["yes"], ["w"], then_branch=inner, else_branch=inner))
        m.functions.append(helper.make_function("own", f"f{k}", ["x"], [last], nodes, imports))
    m.nodes.append(helper.make_node(f"f{height - 1}", [x], ["y"], domain="own"))
    return m.model("y")


def ranks(rng: random.Random) -> onnx.ModelProto:
    """Tensors of many axes, given or made."""
    m = Maker()
    rank = rng.choice([8, 16, 31, 33, 70, 500])
    how = rng.choice(["given", "made", "transposed", "grown", "weight"])
    if how in ("given", "transposed"):
        x = m.input([f"d{k}" if rng.random() < 0.5 else rng.randint(1, 2) for k in range(rank)])
        perm = list(range(rank))
        rng.shuffle(perm)
        y = m.op("Transpose", x, perm=perm) if how == "transposed" else m.op("ReduceSum", x, keepdims=0)
        return m.model(m.op("Sin", y))
    if how == "weight":
        tensor = helper.make_tensor("c", FLOAT, [1] * rank, [1.0])
        return m.model(m.op("Add", m.input(["n"]), m.op("Constant", value=tensor)))
    x = m.input(["n", "m"])
    if how == "made":
        x = m.op("Reshape", x, m.ints(*[1] * (rank - 2), 0 if rank == 3 else 1, -1))
    else:
        for _ in range(rank):
            x = m.op("Unsqueeze", x, m.ints(rng.randint(0, 1)))
    return m.model(m.op("Sin", x))


def nests(rng: random.Random) -> onnx.ModelProto:
    """Branches inside branches, with sizes that differ."""
    m = Maker()
    x, flag = m.input(["n", "m"]), m.input([], TensorProto.BOOL)
    depth = rng.choice([2, 5, 9, 25])

    def arm(k: int, way: int) -> onnx.GraphProto:
        out = f"o{k}_{way}_{rng.random()}"
        if k == 0:
            nodes = [helper.make_node("Concat", [x] * (1 + way), [out], axis=0)]
        else:
            both = {"then_branch": arm(k - 1, 0), "else_branch": arm(k - 1 if k <= 5 else 0, 1)}
            nodes = [helper.make_node("If", [flag], [f"{out}i"], **both)]
            nodes.append(helper.make_node("Concat", [f"{out}i", x], [out], axis=0))
        return helper.make_graph(nodes, "arm", [], [onnx.ValueInfoProto(name=out)])

    m.nodes.append(helper.make_node("If", [flag], ["y"], then_branch=arm(depth, 0), else_branch=arm(0, 1)))
    return m.model(m.op("Sin", "y"))


def names(rng: random.Random) -> onnx.ModelProto:
    """Dims whose names are long, or formulas."""
    m = Maker()
    pick = rng.randint(0, 4)
    text = {
        0: "n" * rng.choice([300, 20_000, 200_000]),
        1: "*".join(["(a+b+c+d)"] * rng.choice([4, 12, 60])),
        2: "(" * rng.choice([20, 59, 500]) + "a" + ")" * 20,
        3: "max(a, min(b, " * 15 + "a" + "))" * 15,
        4: "+".join(f"(a//{k})*(b//{k + 1})" for k in range(2, rng.choice([10, 100, 400]))),
    }[pick]
    x = m.input([text, "a", "b", "c", "d"])
    y = m.op("Reshape", x, m.ints(-1))
    return m.model(m.op("Concat", y, y, axis=0))


def unrolls(rng: random.Random) -> onnx.ModelProto:
    """Loops of constant counts inside each other, whose states change their shapes."""
    m = Maker()
    x = m.input(["n"])
    grows = rng.random() < 0.6
    counts = [rng.choice([4, 60, 500, 10**9]) for _ in range(rng.randint(1, 4))]

    def body(k: int) -> onnx.GraphProto:
        s, o = f"s{k}", f"o{k}"
        head = [
            helper.make_tensor_value_info(f"i{k}", INT, []),
            helper.make_tensor_value_info(f"c{k}", TensorProto.BOOL, []),
            onnx.ValueInfoProto(name=s),
        ]
        nodes = [helper.make_node("Identity", [f"c{k}"], [f"d{k}"])]
        if k + 1 < len(counts):
            trip = helper.make_tensor("t", INT, [], [counts[k + 1]])
            nodes.append(helper.make_node("Constant", [], [f"t{k}"], value=trip))
            nodes.append(helper.make_node("Loop", [f"t{k}", "", s], [o], body=body(k + 1)))
        else:
            nodes.append(helper.make_node("Concat", [s, x] if grows else [s], [o], axis=0))
        outs = [onnx.ValueInfoProto(name=f"d{k}"), onnx.ValueInfoProto(name=o)]
        return helper.make_graph(nodes, f"body{k}", head, outs)

    m.nodes.append(helper.make_node("Loop", [m.scalar(counts[0]), "", x], ["y"], body=body(0)))
    return m.model(m.op("Sin", "y"))


def einsums(rng: random.Random) -> onnx.ModelProto:
    """Many operands with many letters."""
    m = Maker()
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[: rng.choice([6, 20, 52])]
    terms = ["".join(rng.sample(letters, rng.randint(1, 5))) for _ in range(rng.choice([2, 6, 20]))]
    inputs = [m.input([f"d_{c}" for c in t]) for t in terms]
    out = "".join(sorted(set("".join(terms)))) if rng.random() < 0.5 else ""
    return m.model(m.op("Einsum", *inputs, equation=f"{','.join(terms)}->{out}"))


def mixtures(rng: random.Random) -> onnx.ModelProto:
    """Unrelated sizes that are joined, added up, multiplied and compared."""
    m = Maker()
    count = rng.choice([5, 25, 80, 200])
    kind = rng.choice(["concat", "broadcast", "sum"])
    inputs = [m.input([f"n{k}", f"m{k}"] if kind != "concat" else [f"n{k}", 4]) for k in range(count)]
    if kind == "concat":
        y = m.op("Concat", *inputs, axis=0)
        z = m.op("MatMul", y, m.op("Transpose", y, perm=[1, 0]))
        return m.model(m.op("Softmax", m.op("Add", z, z)), m.op("Reshape", z, m.ints(-1)))
    y = m.op("Sum", *inputs) if kind == "sum" else inputs[0]
    for x in inputs[1:] if kind == "broadcast" else ():
        y = m.op("Add", y, x)
    return m.model(m.op("Reshape", y, m.ints(-1)))


def windows(rng: random.Random) -> onnx.ModelProto:
    """Pools, pads, slices and resizes, one after the other: quotients of quotients."""
    m = Maker()
    x = m.input(["n", 1, "h", "w"])
    for _ in range(rng.choice([10, 40, 120])):
        kind = rng.choice(["pool", "pad", "slice", "resize", "concat"])
        if kind == "pool":
            k, s = rng.randint(1, 3), rng.randint(1, 2)
            x = m.op("MaxPool", x, kernel_shape=[k, k], strides=[s, s], ceil_mode=rng.randint(0, 1))
        elif kind == "pad":
            x = m.op("Pad", x, m.ints(0, 0, rng.randint(0, 9), 3, 0, 0, 2, rng.randint(0, 9)))
        elif kind == "slice":
            x = m.op(
                "Slice", x, m.ints(rng.randint(0, 2)), m.ints(10**9), m.ints(2), m.ints(rng.randint(1, 3))
            )
        elif kind == "resize":
            scales = helper.make_tensor("s", FLOAT, [4], [1.0, 1.0, rng.choice([1.5, 2.0, 0.7]), 2.0])
            x = m.op("Resize", x, "", m.op("Constant", value=scales), mode="nearest")
        else:
            x = m.op("Concat", x, x, axis=rng.randint(2, 3))
    return m.model(x)


def vectors(rng: random.Random) -> onnx.ModelProto:
    """Products and sums over long vectors of sizes."""
    m = Maker()
    count = rng.choice([4, 40, 120])
    inputs = [m.input([f"n{k}", f"m{k}"]) for k in range(min(count, 12))]
    sizes = [s for x in inputs for s in m.sizes(x, 2)]
    y = m.op("Concat", *(rng.choice(sizes) for _ in range(count)), axis=0)
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(["CumSum", "Mul", "Add", "MatMul"])
        if kind == "CumSum":
            y = m.op("CumSum", y, m.scalar(0))
        elif kind == "MatMul":
            y = m.op("Mul", y, m.op("Reshape", m.op("MatMul", y, y), m.ints(1)))
        else:
            y = m.op(kind, y, m.op("Slice", y, m.ints(-1), m.ints(-2 - count), m.ints(0), m.ints(-1)))
    total = m.op(rng.choice(["ReduceProd", "ReduceSum", "ReduceMax"]), y, keepdims=1)
    return m.model(m.filled(m.op("Max", total, m.ints(0))))


def texts(rng: random.Random) -> onnx.ModelProto:
    """Expressions with many states."""
    m = Maker()
    x = m.input(["n"], TensorProto.STRING)
    n = rng.choice([5, 14, 40, 900])
    patterns = [
        f"(a|b)*a(a|b){{{n}}}",
        f"(a{{1,{n}}}){{1,{n}}}",
        "(" * n + "a" + ")?" * n,
        f"(.*a.{{{n}}})+",
        "|".join("abc"[k % 3] * k for k in range(1, n)),
        f"([a-z]*[0-9]*){{{n}}}",
    ]
    return m.model(m.op("RegexFullMatch", x, pattern=rng.choice(patterns)), opset=20)


def constants(rng: random.Random) -> onnx.ModelProto:
    """Constants that would fill the memory when they are folded."""
    m = Maker()
    x = m.input(["n"])
    big = rng.choice([2**16, 2**20, 2**28, 2**36])
    y = m.op("ConstantOfShape", m.ints(big), value=helper.make_tensor("v", FLOAT, [1], [1.5]))
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(["Sin", "Tile", "Range", "Expand", "CumSum", "NonZero"])
        if kind == "Tile":
            y = m.op("Tile", y, m.ints(rng.choice([2, 16, 2**10])))
        elif kind == "Expand":
            y = m.op("Reshape", m.op("Expand", y, m.ints(rng.choice([2, 2**8]), 1)), m.ints(-1))
        elif kind == "CumSum":
            y = m.op("CumSum", y, m.scalar(0))
        elif kind == "Range":
            r = m.op("Cast", m.op("Range", m.scalar(0), m.scalar(big), m.scalar(1)), to=FLOAT)
            y = m.op("Add", r, m.op("ReduceMax", y))
        elif kind == "NonZero":
            y = m.op("Cast", m.op("Reshape", m.op("NonZero", y), m.ints(-1)), to=FLOAT)
        else:
            y = m.op("Sin", y)
    return m.model(m.op("Add", x, m.op("ReduceSum", y, keepdims=0)))


def joined(rng: random.Random) -> onnx.ModelProto:
    """Lengths that only data decides, and lists of tensors, all joined at the end."""
    m = Maker()
    count = rng.choice([5, 20, 40])
    x = m.input(["n", 4])
    parts = []
    for k in range(count):
        limit = m.op("Constant", value=helper.make_tensor("c", FLOAT, [], [float(k)]))
        found = m.op("Transpose", m.op("NonZero", m.op("Greater", x, limit)))
        parts.append(m.op("GatherND", x, found))
    if rng.random() < 0.3:
        return m.model(m.op("ConcatFromSequence", m.op("SequenceConstruct", *parts), axis=0))
    return m.model(m.op("Concat", *parts, axis=0))


CLASSES: dict[str, Callable[[random.Random], onnx.ModelProto]] = {
    f.__name__: f
    for f in (arithmetic, extremes, squares, towers, ranks, nests, names, unrolls, einsums, mixtures, windows,
              vectors, texts, constants, joined)
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 300))
