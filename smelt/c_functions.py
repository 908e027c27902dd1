"""A bundle's loaded library in; the functions of smelt.h that a session calls, with their types, out."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

from smelt.capsules import DLDataType
from smelt.core.bundle import Bundle, damaged
from smelt.library import Held
from smelt.ports import BoundPort


def typed_functions(held: Held) -> Any:
    """The functions of the bundle's shared library, under the names that smelt.h has for them. Raises
    SmeltError (invalid) for a library that lacks one."""
    lib = held.library()
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    signatures: dict[str, tuple[list[Any], Any]] = {
        "smelt_open": ([ctypes.c_char_p, pointer, pointer], ctypes.c_int),
        "smelt_run": ([pointer, pointer, size, pointer, size], ctypes.c_int),
        "smelt_close": ([pointer], None),
        "smelt_cancel": ([pointer], None),
        "smelt_error": ([pointer], ctypes.c_char_p),
        "smelt_entry": ([pointer, ctypes.c_char_p], pointer),
        "smelt_entry_count": ([pointer], size),
        "smelt_entry_name": ([pointer, size], ctypes.c_char_p),
        "smelt_memory_stats": ([pointer, pointer], ctypes.c_int),
        "smelt_trim": ([pointer], ctypes.c_int),
        "smelt_input_unit": ([pointer, size], ctypes.c_int32),
        "smelt_output_unit": ([pointer, size], ctypes.c_int32),
        "smelt_tensor": ([pointer, ctypes.c_int32, ctypes.c_uint64, pointer], ctypes.c_int),
        "smelt_tensor_export": ([pointer, pointer, pointer], ctypes.c_int),
        "smelt_tensor_import": (
            [pointer, ctypes.c_int32, ctypes.c_uint64, pointer, pointer], ctypes.c_int
        ),
        "smelt_tensor_free": ([pointer, pointer], ctypes.c_int),
        "smelt_tensor_copy": ([pointer, pointer, pointer], ctypes.c_int),
        "smelt_profile": ([pointer, ctypes.c_int32], ctypes.c_int),
        "smelt_kernel_count": ([pointer], size),
        "smelt_input_count": ([pointer], size),
        "smelt_input_rank": ([pointer, size], ctypes.c_int32),
        "smelt_input_type": ([pointer, size], DLDataType),
        "smelt_output_count": ([pointer], size),
        "smelt_output_rank": ([pointer, size], ctypes.c_int32),
        "smelt_output_type": ([pointer, size], DLDataType),
        "smelt_state_count": ([pointer], size),
        "smelt_state_rank": ([pointer, size], ctypes.c_int32),
        "smelt_state_type": ([pointer, size], DLDataType),
        "smelt_state_get": ([pointer, size, pointer], ctypes.c_int),
        "smelt_state_set": ([pointer, size, pointer], ctypes.c_int),
        "smelt_reset": ([pointer], ctypes.c_int),
        "smelt_fallback": ([pointer], ctypes.c_char_p),
        "smelt_variant": ([pointer], ctypes.c_char_p),
        "smelt_policy": ([pointer, pointer], ctypes.c_int),
        "smelt_policy_note": ([pointer], ctypes.c_char_p),
        "smelt_share_count": ([pointer], size),
        "smelt_share": ([pointer, size, pointer], ctypes.c_int),
        "smelt_fork": ([pointer, pointer], ctypes.c_int),
        "smelt_kernel_device_stats": ([pointer, size, pointer, pointer], ctypes.c_int),
        "smelt_kernel_form": ([pointer, size, pointer, pointer], ctypes.c_int),
        "smelt_kernel_stats": ([pointer, size, pointer, pointer, pointer], ctypes.c_int),
    }
    functions = SimpleNamespace()
    for name, (arguments, result) in signatures.items():
        symbol = name.replace("smelt", held.bundle.names.prefix, 1)
        if not hasattr(lib, symbol):
            raise damaged(held.bundle.path, f"its code has no function '{symbol}'")
        function = lib[symbol]
        function.argtypes, function.restype = arguments, result
        setattr(functions, name, function)
    return functions


def entry_names(lib: Any, handle: ctypes.c_void_p) -> tuple[str, ...]:
    """The names of the library's entries."""
    count = lib.smelt_entry_count(handle)
    return tuple((lib.smelt_entry_name(handle, i) or b"").decode(errors="replace") for i in range(count))


def check_ports(lib: Any, handle: ctypes.c_void_p, side: str, ports: list[BoundPort], bundle: Bundle) -> None:
    """Raise SmeltError where the library's tensors are not those of the manifest, from which arrays are
    made."""
    count, rank, kind = (getattr(lib, f"smelt_{side}_{what}") for what in ("count", "rank", "type"))
    said = [(p.rank, p.dlpack.code, p.dlpack.bits) for p in ports]
    found = [(rank(handle, i), (t := kind(handle, i)).code, t.bits) for i in range(count(handle))]
    if said != found:
        raise damaged(bundle.path, f"its manifest and its code have other {side}s")
