"""Peaks and the least times that they allow; where one of them is not known, nothing is said."""

from __future__ import annotations

from typing import Any

import pytest

from smelt.devicefarm.probe import Launched, LaunchTrace
from smelt.roofline import Least, Peaks, least_times, measured_peaks, stated_peaks

PEAKS = Peaks(1e9, 1e9, "of this test")
WORK = {"flops": "100*n", "integers": "0", "bytes": "40*n"}


def manifest(**changes: Any) -> dict[str, Any]:
    kernels = [
        {"name": "mm", "unit": "cpu", "statements": 1, "work": WORK | changes.pop("work", {})} | changes,
        {"name": "odd", "unit": "cpu", "statements": 1},
    ]
    callees, sites = {"mm": {"dims": ["n"]}, "odd": {"dims": []}}, [{"callee": "mm"}, {"callee": "odd"}]
    return {"kernels": kernels, "probes": {"callees": callees, "sites": sites}}


TRACE = LaunchTrace((Launched(0, (3,)), Launched(1, ()), Launched(0, (1,))))


def test_launches_add_up_with_their_own_dims() -> None:
    assert least_times(manifest(), TRACE, PEAKS) == {"mm": Least(400.0, 400.0, 160.0)}
    memory = least_times(manifest(work={"bytes": "90*n*n"}), TRACE, PEAKS)["mm"]
    assert memory == Least(810.0 + 100.0, 400.0, 900.0), "of each launch what limits that one"


def test_statements_share_the_work_of_their_kernel() -> None:
    twice = LaunchTrace((Launched(0, (3,)), Launched(0, (3,))))
    assert least_times(manifest(statements=2), twice, PEAKS)["mm"].ns == pytest.approx(300.0)


def test_a_launch_counts_where_the_kernel_runs() -> None:
    """Of a kernel and those in its place at some sizes, the first that fits has the work."""
    made = manifest()
    rows = [made["kernels"][0] | {"name": name, "hot": {"of": "mm", "dims": {"n": n}}}
            for name, n in (("mm_hot", 3), ("mm_hot_2", 1))]  # fmt: skip
    made["kernels"] += rows
    made["probes"]["callees"] |= {name: {"dims": ["n"]} for name in ("mm_hot", "mm_hot_2")}
    made["probes"]["sites"] = [{"callee": name} for name in ("mm_hot", "mm_hot_2", "mm")]
    launched = LaunchTrace(tuple(Launched(site, (n,)) for n in (3, 2, 3) for site in range(3)))
    found = least_times(made, launched, PEAKS)
    assert {name: least.ns for name, least in found.items()} == {"mm_hot": 600.0, "mm": 200.0}


def test_what_is_not_known_is_not_told() -> None:
    assert least_times(manifest(unit="opencl"), TRACE, PEAKS) == {}
    assert least_times(manifest(work={"integers": "200*n"}), TRACE, PEAKS) == {}
    assert least_times(manifest(), LaunchTrace(TRACE.launches, cut=True), PEAKS) == {}
    for strange in ("other", "1//(n - 3)", "n**16 * n**16 * n**16 * 10**16"):
        large = LaunchTrace((Launched(0, (3,)), Launched(0, (2**62,)), Launched(9, ())))
        assert least_times(manifest(work={"bytes": strange}), large, PEAKS) == {}, strange


def test_peaks_are_stated_or_measured() -> None:
    assert stated_peaks("120,25.5") == Peaks(120e9, 25.5e9, "stated with --peak 120,25.5")
    for wrong in ("", "120", "0,5", "5,0", "-1,2", "1e3,2", "nan,1", "1,2,3"):
        with pytest.raises(ValueError, match="GFLOP/s,GB/s"):
            stated_peaks(wrong)
    one = measured_peaks(1)
    assert one.flops > 1e8 and one.bytes > 1e7 and "measured on this machine" in one.source
