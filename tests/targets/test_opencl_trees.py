"""Hand-scheduled trees, and a kernel scheduled for lanes, agree with the interpreter on a device."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import ir_samples
import pytest
from device_trees import IN_STEP, LANES, check_tree, in_step
from opencl_run import OnDevice
from scheduled_trees import TREES

from smelt.core.diag import SmeltError
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule.module import schedule_kernel
from smelt.targets.opencl.emit import emit_program
from smelt.targets.opencl.machine import MACHINE
from smelt.targets.opencl.small_groups import every_other


@pytest.mark.parametrize("name", sorted(TREES))
def test_cpu_tree(name: str) -> None:
    text, sizes = TREES[name]
    assert all(p.lanes == 1 for p in check_tree(OnDevice, parse_kernel(text), sizes).parts)


@pytest.mark.parametrize("name", sorted(LANES))
def test_lanes(name: str) -> None:
    text, sizes, lanes = LANES[name]
    assert [p.lanes for p in check_tree(OnDevice, parse_kernel(text), sizes).parts] == [lanes]


def test_shared_tiles_and_registers() -> None:
    text = check_tree(OnDevice, ir_samples.gpu_gemm(), ({"m": 0}, {"m": 5}, {"m": 16})).text
    assert text.count("__local float") == 1  # xs is the group's, acc each work-item's own
    assert text.count("barrier(") == 2


@pytest.mark.parametrize("name", ["exchange", "own", "ordered"])
def test_barriers_stand_where_work_items_meet(name: str) -> None:
    text, _ = emit_program([parse_kernel(LANES[name][0])])
    # exchange: before the loop, between its nests, after each pass (which is also before the last nest)
    assert text.count("barrier(") == {"exchange": 4, "own": 0, "ordered": 2}[name]


def test_scheduled_for_lanes() -> None:
    kernel = schedule_kernel(ir_samples.matmul(), MACHINE)
    parts = check_tree(OnDevice, kernel, ({"m": 5, "n": 70, "k": 9}, {"m": 1, "n": 1, "k": 0})).parts
    assert all(p.lanes > 1 for p in parts)


SUMS = """
kernel @sums(n: dim in 0..*, x: f32[n, 24, 9]) -> (y: f32[n, 24]) {
  group i in n { lane j in 24 { y[i, j] = sum k in 9 { x[i, j, k] } } }
}"""


def test_groups_are_small_where_threads_are_few() -> None:
    """Lanes that do not meet are groups of 8, and those of a chain a loop; the others are as always."""
    small = partial(OnDevice, small=True)
    text, sizes, _ = LANES["ordered"]
    chain = check_tree(small, parse_kernel(text), sizes)
    assert chain.lanes == [1] and chain.parts[0].chain
    assert check_tree(small, parse_kernel(SUMS), ({"n": 0}, {"n": 1}, {"n": 5})).lanes == [8]
    assert check_tree(small, parse_kernel(LANES["exchange"][0]), ({"n": 3},)).lanes == [48]
    tiles = schedule_kernel(ir_samples.matmul(), MACHINE)
    made = check_tree(partial(small, tile_parts=2), tiles, ({"m": 19, "n": 70, "k": 9},))
    assert set(made.lanes) == {8} and "LANES(64, 8)" in made.text
    for parts in range(1, 9):
        order = [eval(every_other(str(g), parts).replace("/", "//")) for g in range(parts)]
        assert sorted(order) == [*range(parts)] and all(n % 2 == 0 for n in order[: (parts + 1) // 2])


def test_lanes_that_meet_in_a_part_of_a_chain_are_work_items() -> None:
    """A part that one lane after the other cannot do."""
    text = """
kernel @meeting(x: f32[48]) -> (a: f32[48], y: f32[48]) {
  group whole in 1 {
    block ordered { lane j in 48 { a[j] = x[j] } lane j in 48 { y[j] = a[47 - j] } }
    block ordered { lane j in 48 { y[j] mul= 2.0: f32 } }
  }
}"""
    made = check_tree(partial(OnDevice, small=True), parse_kernel(text), ({},))
    assert made.lanes == [48] and made.text.count("barrier(") == 2


@pytest.mark.table(2, 0)  # Vulkan has the others
@pytest.mark.parametrize("name", IN_STEP)
def test_scheduled_for_work_items_in_step(name: str) -> None:
    """As for a GPU; the machine of all OpenCL devices takes work-items for tasks of their own."""
    kernel, sizes = in_step(name, replace(MACHINE, vector_bits=0, subgroup=32))
    assert all(p.lanes > 1 for p in check_tree(OnDevice, kernel, sizes).parts)


def test_register_tiles_are_arrays_of_vectors() -> None:
    """Sums of a lane are float16s that no pointer reaches, so that compilers keep them in registers; the
    parts of a vector at the end of a line too."""
    text = """
kernel @sums(n: dim in 0..*, x: f32[n, 16], w: f32[4]) -> (y: f32[n, 12]) {
  group i in n {
    register acc: f32[4, 16]
    unroll r in 4 { vector j in 16 { acc[r, j] = x[i, j] * w[r] } }
    unroll r in 4 { vector j in 12 { y[i, j] add= acc[r, j] } }
  }
}"""
    source, _ = emit_program([parse_kernel(text)])
    assert "float16 v_acc[4];" in source and "].s89ab" in source


TILE = """
kernel @tile(n: dim in 0..*, x: f32[n, 9], w: f32[9, 16]) -> (y: f32[n, 16], z: f32[n, 16]) {
  group i in (n + ROWS - 1)//ROWS {
    register acc: f32[ROWS, 16]
    unroll r in ROWS { vector j in 16 { acc[r, j] = 0.5: f32 } }
    serial k in 9 {
      unroll r in ROWS { vector j in 16 { acc[r, j] add= x[min(ROWS*i + r, n - 1), k] * w[k, j] } }
    }
    LAST
  }
}"""
FIRST = "y[ROWS*i + r, j] = acc[r, j] if (0 <= ROWS*i + r < n)"
OTHER = "z[ROWS*i + r, j] = (sum q in 2 { acc[r, j] }) if (0 <= ROWS*i + r < n)"
OWN = f"unroll r in ROWS {{ vector j in 16 {{ {FIRST} }} vector j in 16 {{ {OTHER} }} }}"


def tile(rows: int, last: str = OWN) -> Kernel:
    return parse_kernel(TILE.replace("LAST", last).replace("ROWS", str(rows)))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("rows", [6, 8])
def test_a_tile_of_sums_may_be_made_in_parts(rows: int, parts: int) -> None:
    """By devices whose registers hold half of it: the same text, with as many sums in a part."""
    sizes = ({"n": 0}, {"n": 1}, {"n": rows}, {"n": 3 * rows - 1})
    text = check_tree(partial(OnDevice, tile_parts=parts), tile(rows), sizes).text
    assert f"float16 v_acc[{rows} / TILE_PARTS];" in text and text.count("for (long first = 0") == 1
    assert f"first < {rows}L && (t * {rows}L + first) < n_n; first" in text  # of the last tile, what has rows


@pytest.mark.parametrize("last", [
    OWN.replace(OTHER, OTHER.split(" if ")[0]),  # the others are stored beyond the last row, too
    OWN.replace(FIRST, FIRST.replace("n)", "n - r)")),
    OWN.replace(FIRST, FIRST.replace("0 <= ROWS*i + r", "0 <= i - r")),
])  # fmt: skip
def test_parts_of_which_a_row_may_be_stored_are_made(last: str) -> None:
    """No bound of all stores says that they end."""
    assert "first < 8L; first" in emit_program([tile(8, last)])[0]


@pytest.mark.parametrize(("rows", "last"), [
    (4, OWN), (7, OWN),  # small enough for all; no two halves
    (8, OWN.replace("acc[r, j]", "acc[7 - r, j]")),  # another part's row
    (8, OWN.replace("unroll", "serial")),
    (8, "vector j in 16 { y[8*i, j] = acc[0, j] if (0 <= 8*i < n) }"),
    (8, f"unroll r in ROWS {{ vector j in 16 {{ {FIRST} {OTHER.replace('acc[r, j]', 'y[0, j]')} }} }}"),
    (8, f"unroll r in ROWS {{ vector j in 16 {{ {FIRST} {FIRST} }} }}"),
])  # fmt: skip
def test_other_tiles_stay_whole(rows: int, last: str) -> None:
    """Whatever is told, they are made at once, and right."""
    kernel = tile(rows, last)
    assert "/ TILE_PARTS" not in emit_program([kernel])[0]
    if "z[" in last and "y[0" not in last:
        check_tree(partial(OnDevice, tile_parts=2), kernel, ({"n": 1}, {"n": 17}))


def test_a_vector_loop_that_bounds_cut_short_has_a_whole_version() -> None:
    text = """
kernel @tail(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) {
  group i in (n + 15)//16 { vector j in 16 { y[16*i + j] = exp(x[16*i + j]) if (0 <= 16*i + j < n) } }
}"""
    source = check_tree(OnDevice, parse_kernel(text), ({"n": 0}, {"n": 5}, {"n": 16}, {"n": 35})).text
    assert source.count("exp(((__global const smelt_float16_packed *)") == 1 and source.count("else") == 1


def test_rows_of_several_vectors_are_arrays_of_vectors() -> None:
    """The sums of 48 columns are three float16s; a row of 24 is no whole number of them, and stays floats."""
    text = """
kernel @sums(n: dim in 0..*, x: f32[n, COLUMNS], w: f32[5]) -> (y: f32[n, COLUMNS]) {
  group i in n {
    register acc: f32[2, COLUMNS]
    unroll r in 2 { vector j in COLUMNS { acc[r, j] = x[i, j] * w[r] } }
    serial r in 2 { vector j in 40 { acc[r, j] add= x[i, j] * w[r + 2] } }
    vector j in COLUMNS { y[i, j] = acc[0, j] + acc[1, j] }
  }
}"""
    sizes = ({"n": 0}, {"n": 3})
    whole = check_tree(OnDevice, parse_kernel(text.replace("COLUMNS", "48")), sizes).text
    assert "float16 v_acc[6];" in whole and "* 3L + 2L)].s01234567 = " in whole
    parts = check_tree(OnDevice, parse_kernel(text.replace("COLUMNS", "24").replace("40", "20")), sizes).text
    assert "float r_acc[48];" in parts


@pytest.mark.parametrize(("second", "asked"), [("k - 1", 1), ("k", 4)])
def test_what_all_loads_of_several_vectors_ask_is_asked_once(second: str, asked: int) -> None:
    """Where they ask for different things, each asks by itself. k - 1 of the first row is in no row."""
    text = f"""
kernel @window(n: dim in 0..*, x: f32[n, 32], w: f32[3, 32]) -> (y: f32[n, 32]) {{
  group i in n {{
    register acc: f32[32]
    vector j in 32 {{ acc[j] = 0.0: f32 }}
    serial k in 3 {{
      vector j in 32 {{
        acc[j] add= (x[i + k - 1, j] if (0 <= i + k - 1 < n) else 2.0: f32)
          * (x[i + {second}, j] if (0 <= i + {second} < n) else w[k, j])
      }}
    }}
    vector j in 32 {{ y[i, j] = acc[j] }}
  }}
}}"""
    source = check_tree(OnDevice, parse_kernel(text), ({"n": 0}, {"n": 1}, {"n": 5})).text
    assert source.count(" < n_n") == asked


@pytest.mark.parametrize(("index", "read"), [
    ("r", "(p_x + (t * n_k))[i_r]"), ("k - 1 - r", "p_x[(t * n_k + n_k - i_r - 1L)]"),
])  # fmt: skip
def test_what_stays_of_an_address_is_a_pointer(index: str, read: str) -> None:
    """Unless it would point outside of the buffer on the way: what moves may be negative."""
    text = f"""
kernel @rows(n: dim in 0..*, k: dim in 1..*, x: f32[n, k], w: f32[k, 16]) -> (y: f32[n, 16]) {{
  group i in n {{
    register acc: f32[16]
    vector j in 16 {{ acc[j] = 0.0: f32 }}
    serial r in k {{ vector j in 16 {{ acc[j] add= x[i, {index}] * w[r, j] }} }}
    vector j in 16 {{ y[i, j] = acc[j] }}
  }}
}}"""
    sizes = ({"n": 0, "k": 3}, {"n": 3, "k": 1}, {"n": 5, "k": 19})
    assert read in check_tree(OnDevice, parse_kernel(text), sizes).text


@pytest.mark.parametrize("value", [
    "select(lt(x[i, j], 0.5: f32), x[i, j] * 2.0: f32, neg(x[i, j]))", "min(x[i, j], x[i, 15 - j])",
    "cast:f32(cast:i32(x[i, j] * 9.0: f32) + cast:i32([j]:i64))", "cast:f32(ne(x[i, j], x[i, 0]))",
    "let g = ids[i] in 0 .. n - 1 { x[g, j] }", "sum k in 3 { x[i, (j + k) % 16] }",
    "(x[i, j] if (0 <= j < 5) else x[i, 2])",
])  # fmt: skip
def test_values_of_vectors(value: str) -> None:
    check_tree(OnDevice, parse_kernel(f"""
kernel @values(n: dim in 1..*, x: f32[n, 16], ids: i32[n]) -> (y: f32[n, 16]) {{
  group i in n {{ vector j in 16 {{ y[i, j] = {value} }} }}
}}"""), ({"n": 1}, {"n": 6}))  # fmt: skip


@pytest.mark.parametrize(("first", "second", "third", "loads"), [
    ("y[i, j] = x[i, j] * 2.0: f32", "z[i, j] = x[i, j] * 2.0: f32 + 1.0: f32", "u[i, j] = x[i, j]", 1),
    # behind bounds, but there: computed ahead of them
    ("y[i, j] = x[0, j]", "z[i, j] = x[i, j] if (0 <= 2*i < n)",
     "u[i, j] = exp(x[i, j]) if (0 <= 2*i < n)", 2),
    # there where the bounds hold alone
    ("y[i, j] = x[0, j]", "z[i, j] = x[i + 1, j] if (0 <= i < n - 1)",
     "u[i, j] = exp(x[i + 1, j]) if (0 <= i < n - 1)", 3),
    # what one writes is what another reads
    ("y[i, j] = x[i, j]", "z[i, j] = y[i, j] + 0.0: f32", "y[i, j] = y[i, j] + -0.0: f32", 3),
    ("y[i, j] = x[i, j] + 0.0: f32", "z[i, j] = x[i, j] + -0.0: f32", "u[i, j] add= x[i, j]", 4),
])  # fmt: skip
def test_what_several_stores_use_is_computed_once(first: str, second: str, third: str, loads: int) -> None:
    """Of one vector loop, unless only a store's bounds say that it is there, or what one writes is read."""
    source = check_tree(OnDevice, parse_kernel(f"""
kernel @several(n: dim in 1..*, x: f32[n, 16]) -> (y: f32[n, 16], z: f32[n, 16], u: f32[n, 16]) {{
  group i in n {{
    vector j in 16 {{ z[i, j] = 0.0: f32 }}
    vector j in 16 {{ u[i, j] = 1.0: f32 }}
    vector j in 16 {{ {first} {second} {third} }}
  }}
}}"""), ({"n": 1}, {"n": 2}, {"n": 7})).text  # fmt: skip
    assert source.count("smelt_float16_packed *)") - 5 == loads


def test_text_is_deterministic() -> None:
    texts = {emit_program([parse_kernel(t) for t, _ in TREES.values()])[0] for _ in range(2)}
    assert len(texts) == 1


def test_names_of_parts_differ() -> None:
    one = TREES["static-tiles"][0]
    kernels = [parse_kernel(one).with_(name=n) for n in ("a.1", "a", "a_1", "half")]
    _, parts = emit_program(kernels)
    assert len({p.name for p in parts.values()}) == len(parts) == 8


def test_too_much_shared_memory_is_refused() -> None:
    text = LANES["exchange"][0].replace("48", "5000")
    with pytest.raises(SmeltError, match="kernel 'exchange' needs 20000 bytes of memory for a group"):
        emit_program([parse_kernel(text)])


@pytest.mark.parametrize(("extent", "sizes"), [(12, 1), (13, 2), (3, 1), (1, 1)])
def test_tiles_of_constant_extents_have_constant_loops(extent: int, sizes: int) -> None:
    kernel = parse_kernel(f"""
kernel @tiles(x: f32[{extent}]) -> (y: f32[{extent}]) {{
  tiles group (at, rows) in {extent}: balanced(4 .. 1) {{
    register t: f32[rows]
    unroll i in rows {{ t[i] = x[at + i] }}
    unroll i in rows {{ y[at + i] = t[i] * 2.0: f32 }}
  }}
}}""")
    text = check_tree(OnDevice, kernel, ({},)).text
    assert text.count("float r_t") == sizes
    assert text.count("#pragma unroll") == text.count("for (")
