"""Layouts that generated code takes from the runtime's headers are those that C compilers make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from smelt.core.session_memory import MEMORY_FIELDS
from smelt.targets.llvm.abi import constants, structs
from smelt.targets.platform import PLATFORMS
from smelt.targets.toolchain import runtime_dir


@pytest.mark.parametrize("name", ["x86_64-linux", "armv7-linux", "aarch64-android"])
def test_structs_lie_as_in_c(name: str, tmp_path: Path) -> None:
    platform = PLATFORMS[name]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(platform.triple)
    data = target.create_target_machine(features=platform.features, abiname=platform.abi).target_data
    lines = ['#include "smelt_abi.h"', "#include <stddef.h>"]
    for struct in structs().values():
        module = llvm.parse_assembly(f"@x = global {struct.type} zeroinitializer")
        type_ = module.get_global_variable("x").global_value_type
        told = {f"sizeof({struct.name})": data.get_abi_size(type_)}
        for i, field in enumerate(struct.fields):
            told[f"offsetof({struct.name}, {field})"] = data.get_element_offset(type_, i)
        lines += [f'_Static_assert({what} == {n}, "{what}");' for what, n in told.items()]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", platform.zig, *platform.zig_flags, "-c"]
    words = [*command, f"-I{runtime_dir()}", str(source), "-o", str(tmp_path / "layout.o")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(lines) > 70


def test_what_a_session_says_of_its_memory_is_named_as_in_c() -> None:
    assert dict(structs()["smelt_memory"].fields) == dict.fromkeys(MEMORY_FIELDS, "i64")
    assert tuple(structs()["smelt_memory"].fields) == MEMORY_FIELDS


def test_what_a_struct_has_not_is_refused() -> None:
    with pytest.raises(KeyError, match="no field 'codes', it has driver, code, code_bytes"):
        structs()["smelt_unit_desc"].value(codes="null")


def test_numbers_of_the_headers() -> None:
    """Statuses are never renumbered: callers compare them with what they were built with."""
    wanted = {"SMELT_OK": 0, "SMELT_INVALID": 1, "SMELT_UNSUPPORTED": 2, "SMELT_SHAPE": 3, "SMELT_DEVICE": 4,
              "SMELT_INFRA": 5, "SMELT_INTERNAL": 6, "SMELT_AGAIN": 7, "SMELT_END": 8}  # fmt: skip
    assert wanted.items() <= constants().items()
    assert constants()["SMELT_ABI_VERSION"] >= 5
