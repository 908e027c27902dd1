"""A session's functions and its handle in; what it counts, of kernels, units and memory, out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smelt.core.session_memory import MEMORY_FIELDS, Memory
from smelt.policy import ShareFields, UnitShare

TimesByKernel = dict[str, tuple[int, int]]
"""Kernel name -> (total nanoseconds, launches)."""
@dataclass(frozen=True, slots=True)
class KernelForm:
    """Of a kernel that a unit's code has in several forms, each for devices that can do more: what the one
    that it has got asks of the device, '' where it asks nothing; what keeps it from better ones, or ''."""

    asks: str
    lesser: str


Asked = Callable[[int], None]
"""Raises the error of a call whose status is no success."""


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in MEMORY_FIELDS]


def memory_of(lib: Any, handle: ctypes.c_void_p, asked: Asked) -> Memory:
    """Bytes, and how often memory was asked for."""
    m = _Memory()
    asked(lib.smelt_memory_stats(handle, ctypes.byref(m)))
    return Memory(*(getattr(m, name) for name in MEMORY_FIELDS))


def kernel_times_of(lib: Any, handle: ctypes.c_void_p) -> TimesByKernel:
    """By the host's clock."""
    found, name, ns, launches = {}, ctypes.c_char_p(), ctypes.c_uint64(), ctypes.c_uint64()
    for i in range(lib.smelt_kernel_count(handle)):
        lib.smelt_kernel_stats(handle, i, ctypes.byref(name), ctypes.byref(ns), ctypes.byref(launches))
        found[(name.value or b"").decode()] = (ns.value, launches.value)
    return found


def device_times_of(lib: Any, handle: ctypes.c_void_p) -> TimesByKernel:
    """By the events of the devices, where there are any."""
    found, name, ns, launches = {}, ctypes.c_char_p(), ctypes.c_uint64(), ctypes.c_uint64()
    for i in range(lib.smelt_kernel_count(handle)):
        lib.smelt_kernel_stats(handle, i, ctypes.byref(name), None, None)
        lib.smelt_kernel_device_stats(handle, i, ctypes.byref(ns), ctypes.byref(launches))
        if launches.value:
            found[(name.value or b"").decode()] = (ns.value, launches.value)
    return found


def kernel_forms_of(lib: Any, handle: ctypes.c_void_p) -> dict[str, KernelForm]:
    """Of the kernels that have several."""
    found, name, form, why = {}, ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_char_p()
    for i in range(lib.smelt_kernel_count(handle)):
        lib.smelt_kernel_stats(handle, i, ctypes.byref(name), None, None)
        lib.smelt_kernel_form(handle, i, ctypes.byref(form), ctypes.byref(why))
        if form.value is not None:
            texts = (t.decode(errors="replace") for t in (form.value, why.value or b""))
            found[(name.value or b"").decode()] = KernelForm(*texts)
    return found


def shares_of(lib: Any, handle: ctypes.c_void_p, asked: Asked) -> tuple[UnitShare, ...]:
    """In the order in which a session takes the units."""
    found, row = [], ShareFields()
    for i in range(lib.smelt_share_count(handle)):
        asked(lib.smelt_share(handle, i, ctypes.byref(row)))
        found.append(row.read())
    return tuple(found)
