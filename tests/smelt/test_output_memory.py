"""Arrays for outputs: their shapes before a run, their memory again once nobody has it, and never before."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from smelt import output_memory
from smelt.core.diag import SmeltError
from smelt.output_memory import OutputMemory
from smelt.ports import BoundPort, address

ROW = 1 << 15  # elements: more than GROWS in bytes


def ports(*shapes: tuple[int | str, ...], late: bool = False) -> list[BoundPort]:
    return [BoundPort({"name": "p", "dtype": "f32", "shape": list(s), "late": late}) for s in shapes]


def growing() -> OutputMemory:
    """y has a row more than x, and z is small."""
    return OutputMemory(ports(("n", ROW)), ports(("n + 1", ROW), (3,)), {})


def test_shapes_follow_from_formulas() -> None:
    inputs, outputs = ports(("n", 4), ("m", "n")), ports(("max(n, part)", 5), ("n", 0), ())
    found = OutputMemory(inputs, outputs, {"parts": [["part", "m + 1"]]}).arrays(((2, 4), (7, 2)))
    assert found is not None and [a.shape for a in found] == [(8, 5), (2, 0), ()]


@pytest.mark.parametrize(
    ("inputs", "outputs", "late", "shapes"),
    [
        ((("n",), ("n",)), ("n",), False, ((2,), (3,))),  # the inputs do not fit each other
        ((("n",),), ("n - 5",), False, ((2,),)),
        ((("n",),), ("found",), False, ((2,),)),  # something else than a shape says it
        ((("2*n",),), ("n",), False, ((2,),)),
        ((("part",),), ("n",), False, ((2,),)),  # stands for a formula
        ((("n",),), ("n",), True, ((2,),)),
    ],
)
def test_what_only_a_run_tells(inputs: Any, outputs: Any, late: bool, shapes: Any) -> None:
    memory = OutputMemory(ports(*inputs), ports(outputs, late=late), {"parts": [["part", "2*n"]]})
    assert memory.arrays(shapes) is None
    memory.learn(shapes, [np.empty(2, np.float32)])
    assert (memory.arrays(shapes) is None) == late


def test_a_cache_that_is_fed_to_the_next_run() -> None:
    """From the fourth run on no memory is new: a run takes that of the one before the last."""
    memory, fed, seen = growing(), np.empty((40, ROW), np.float32), []
    for step in range(12):
        made = memory.arrays((fed.shape,))
        assert made is not None and made[0].shape == (41 + step, ROW) and made[0].flags.c_contiguous
        made[0][...] = step
        assert step == 0 or (fed == step - 1).all()
        fed = made[0]
        seen.append((address(made[0]), address(made[1])))
        del made
    assert len({y for y, _ in seen[1:]}) == 2 and len({z for _, z in seen}) == 1


def test_results_that_somebody_has_are_nobody_elses() -> None:
    draw, memory, held = random.Random(0), growing(), []
    for number in range(200):
        rows = draw.choice((0, 1, 1, 2, 3, 9))
        made = memory.arrays(((rows, ROW),))
        assert made is not None and [a.shape for a in made] == [(rows + 1, ROW), (3,)]
        for a in made:
            a[...] = number
        held.append((number, draw.choice((made, made[:1], made[1:], [made[0][-1:]], [made[1].data]))))
        del made, a
        draw.shuffle(held)
        del held[draw.choice((0, 1, 2, 4)) :]
        for value, arrays in held:
            assert all((np.asarray(x) == value).all() for x in arrays)


def test_small_results_do_not_keep_large_memory() -> None:
    memory = growing()
    for rows in (50, 3):
        made = memory.arrays(((rows, ROW),))
        assert made is not None
    base = made[0].base
    assert base is not None and base.size <= 2 * made[0].size


def test_more_than_the_limit_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_memory, "MOST_REUSED", 4 * ROW)
    memory = growing()
    made = memory.arrays(((5, ROW),))
    assert made is not None
    (base, keeps) = made[0].base, memory._last + memory._before
    assert base is not None and not any(x is base for x in keeps)


def test_an_output_that_no_memory_holds_is_an_error() -> None:
    memory = OutputMemory(ports(("n",)), ports(("n*n*n*n",)), {})
    with pytest.raises(SmeltError, match="output 'p'"):
        memory.arrays(((1 << 12,),))
