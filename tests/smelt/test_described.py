"""What `inspect --kernels` says of kernels: of a product's on every unit, of a model's at its shapes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from installed import program_path
from onnx import TensorProto, helper, numpy_helper

from smelt.cli.kernels import outline
from smelt.cli.main import main
from smelt.core.diag import SmeltError
from smelt.core.dim import parse_dim
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.driver import compile, described

HAS_PTXAS = importlib.util.find_spec("nvidia") is not None


def product(width: int = 48) -> onnx.ModelProto:
    """x [batch, seq, 64] times a weight, then relu."""
    weight = numpy_helper.from_array(np.ones((64, width), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", width])
    graph = helper.make_graph(nodes, "product", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("described") / "product.onnx"
    onnx.save(product(), path)
    return path


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    try:
        code = main([str(w) for w in words])
    except SystemExit as e:
        code = int(e.code or 0)
    found = capsys.readouterr()
    return code, found.out, found.err


@pytest.mark.parametrize(
    "target", ["x86_64-linux", "aarch64-linux", "x86+opencl", "x86+vulkan", "x86+cuda:sm_87"]
)
def test_a_product_on_every_unit(model: Path, target: str) -> None:
    """The work is the model's whatever the schedule; what a group takes is within the machine's limits."""
    (row,) = described(model, target)
    work = row["work"]
    at = {"batch": 3, "seq": 5}
    rows = 15
    values = {k: parse_dim(work[k]).evaluate(at) for k in ("floating", "integer", "read", "written")}
    relu = rows * 48
    assert values["floating"] - 2 * rows * 64 * 48 in (relu, 0)  # max is one
    assert values["integer"] == 0
    assert values["read"] == 4 * (rows * 64 + 64 * 48) and values["written"] == 4 * rows * 48
    above, below = (parse_dim(d).evaluate(at) for d in work["intensity"])
    assert above * (values["read"] + values["written"]) == below * values["floating"]
    assert parse_kernel(row["tree"]).name == row["name"]
    for part in row["parts"]:
        assert all(parse_dim(g).evaluate(at) >= 0 for g in part["groups"])
        assert 1 <= part["lanes"] <= row["machine"]["lanes"]
        assert 0 <= part["shared_bytes"] <= row["machine"]["shared_bytes"]
    assert row["unit"] == (target.split("+")[1].split(":")[0] if "+" in target else "cpu")


def test_groups_are_what_a_launch_starts(model: Path) -> None:
    """One part is for one row, one for few and one for many: one of them runs. One more row than fill the
    groups takes another one."""
    (row,) = described(model, "x86+opencl")
    one, few, many = (
        [parse_dim(part["groups"][0]).evaluate({"batch": 1, "seq": n}) for n in range(1, 400)]
        for part in row["parts"]
    )
    assert all(sum(n > 0 for n in at) == 1 for at in zip(one, few, many, strict=True))
    assert one[0] > 0 and few[1] > 0
    assert many == sorted(many) and many[-1] > 1


@pytest.mark.skipif(not HAS_PTXAS, reason="pip install nvidia-cuda-nvcc-cu12==12.6.85")
def test_cuda_tells_registers_and_occupancy(model: Path) -> None:
    (row,) = described(model, "x86+cuda:sm_72:sm_90:sm_120")
    for part in row["parts"]:
        known = {u["machine"]: u for u in part["usage"]}
        assert list(known) == ["sm_72", "sm_90", "sm_120"]
        for name in ("sm_72", "sm_90"):
            used = known[name]
            assert 0 < used["registers"] <= 255 and used["spilled"] == 0
            assert used["shared_bytes"] == part["shared_bytes"], "the compiler and ptxas agree"
            assert 0 < used["occupancy"]["share"] <= 1 and used["occupancy"]["groups"] >= 1
        assert known["sm_120"]["registers"] is None and known["sm_120"]["occupancy"] is None


def test_drivers_that_choose_registers_leave_them_unknown(model: Path) -> None:
    for target in ("x86+opencl", "x86+vulkan"):
        (row,) = described(model, target)
        assert [p["usage"] for p in row["parts"]] == [[]] * len(row["parts"])


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("x86_64-linux", ".globl"), ("aarch64-linux", ".globl"), ("x86+opencl", "__kernel"),
        ("x86+cuda", ".entry"),
        pytest.param(
            "x86+vulkan", "OpEntryPoint",
            marks=pytest.mark.skipif(program_path("spirv-dis") is None, reason="apt install spirv-tools"),
        ),
    ],
)  # fmt: skip
def test_code_is_shown_on_demand(model: Path, target: str, word: str) -> None:
    (row,) = described(model, target, listings=("matmul*",))
    texts = [row["listing"], *(p["listing"] for p in row["parts"])]
    assert all(word in t for t in texts if t) and any(texts)
    (plain,) = described(model, target)
    assert plain["listing"] is None and all(p["listing"] is None for p in plain["parts"])


def test_a_name_that_no_kernel_has(model: Path) -> None:
    with pytest.raises(SmeltError, match="no kernel is called 'nosuch'") as e:
        described(model, "x86_64-linux", listings=("nosuch",))
    assert "matmul" in str(e.value.hint)


def test_entries_share_kernels_and_their_work(model: Path, tmp_path: Path) -> None:
    """Two entries with equal kernels launch one kernel at two places; one of another width has its own."""
    other = tmp_path / "wide.onnx"
    onnx.save(product(32), other)
    (alone,) = described(model, "x86_64-linux")
    rows = described({"a": model, "b": model, "c": other}, "x86_64-linux")
    written = sorted(parse_dim(r["work"]["written"]).evaluate({"batch": 1, "seq": 1}) for r in rows)
    assert written == [4 * 32, 2 * parse_dim(alone["work"]["written"]).evaluate({"batch": 1, "seq": 1})]


def test_launches_add_up(tmp_path: Path) -> None:
    """What is launched at two places with different sizes has the work of both."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Concat", ["x", "x"], ["xx"], axis=0),
        helper.make_node("Relu", ["xx"], ["b"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("a", "b")]
    graph = helper.make_graph(nodes, "twice", [x], outs)
    path = tmp_path / "twice.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    rows = described(path, "x86_64-linux")
    total = sum((parse_dim(r["work"]["written"]) for r in rows), parse_dim("0"))
    assert total.evaluate({"n": 7}) >= 4 * 7 + 8 * 7


def test_the_forms_of_a_kernel_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one that stores halves and reduces by lanes; a kernel that has one form shows none."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["n", 1024]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "rows", [x], [y])
    path = tmp_path / "rows.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    (row,) = described(path, "x86+vulkan")
    forms = [p["forms"] for p in row["parts"]]
    assert forms[0][:3] == ["storage16+halves+subgroups", "storage16+subgroups", "subgroups"]
    assert forms[0][-1] == "" and len(set(forms[0])) == len(forms[0])
    code, out, _ = said(capsys, "inspect", path, "--target", "x86+vulkan", "--kernels")
    assert code == 0 and f"forms     {', '.join(f or 'plain' for f in forms[0])}\n" in out
    code, out, _ = said(capsys, "inspect", path, "--target", "x86+opencl", "--kernels")
    assert code == 0 and "forms  " not in out


def test_inspect_shows_costs_at_shapes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("inspect", model, "--target", "x86+opencl", "--kernels", "--shape", "x:2x16x64")
    code, out, _ = said(capsys, *words)
    assert code == 0
    assert "binding" in out and "shared    0 of 16,384 bytes" in out
    assert "registers unknown" in out and "least time unknown without --peak and --bandwidth of opencl" in out
    code, out, _ = said(capsys, *words, "--peak", "opencl=1e9", "--bandwidth", "1e6", "--json")
    assert code == 0
    data: dict[str, Any] = json.loads(out)
    (row,) = data["described"]
    (cost,) = row["costs"]
    moved, operations = cost["read"] + cost["written"], cost["floating"] + cost["integer"]
    assert cost["seconds"] == pytest.approx(max(operations / 1e9, moved / 1e6))
    assert cost["bound"] == "memory" and cost["intensity"] == pytest.approx(operations / moved)
    assert row["machine"]["operations"] == 1e9


def test_source_names_kernels(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "inspect", model, "--target", "x86+opencl", "--source", "matmul*")
    assert code == 0 and "| __kernel" in out and "kernel @matmul" in out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--peak", "gpu=1e9"), "there is no unit 'gpu'"),
        (("--peak", "fast"), "is no number"),
        (("--bandwidth", "0"), "above 0"),
        (("--bandwidth", "nan"), "is no number"),
    ],
)
def test_rates_that_are_none(
    model: Path, words: tuple[str, str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, "inspect", model, "--target", "x86_64-linux", "--kernels", *words)
    assert code == 2 and wanted in err


def test_a_bundle_has_no_trees(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = compile(model, "x86_64-linux", output=tmp_path / "out")
    assert said(capsys, "inspect", bundle.path, "--kernels")[0] == 0
    code, _, err = said(capsys, "inspect", bundle.path, "--source", "matmul*")
    assert code == 2 and "name the model" in err


def test_after_the_schedule_nobody_knows_the_work(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SMELT_DUMP", str(tmp_path / "dumps"))
    compile(model, "x86_64-linux", output=tmp_path / "out")
    monkeypatch.delenv("SMELT_DUMP")
    (last,) = (tmp_path / "dumps").glob("*-schedule.smelt")
    (row,) = described(last, "x86_64-linux")
    assert row["work"] is None
    words = ("--target", "x86_64-linux", "--kernels", "--shape", "batch=2")
    code, out, _ = said(capsys, "inspect", last, *words)
    assert code == 0 and "work      unknown" in out


def test_outline() -> None:
    text = """kernel @k(n: dim in 0..*, x: f32[n, 4]) -> (y: f32[n])
    origin "a {"
{
  group i in n {
    register acc: f32[]
    acc[] = 0.0:f32
    serial j in 4 {
      acc[] add= x[i, j]
    }
    y[i] = acc[]
  }
}
"""
    kernel = print_kernel(parse_kernel(text))
    assert outline(kernel) == [
        "  group i in n",
        "    register acc: f32[]",
        "    acc[] = ..",
        "    serial j in 4",
        "      acc[] add= ..",
        "    y[i] = ..",
    ]
