"""DLPack's capsules of Python in, DLTensors out, and back: memory that libraries of one process hand over."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from smelt.core.diag import SmeltError

_NAME, _USED = b"dltensor", b"used_dltensor"
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_HOST_TYPES = (1, 3, 13)
"""kDLCPU, kDLCUDAHost, kDLCUDAManaged: what NumPy reads."""


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


def _python(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# of a capsule that is being destroyed, which nobody may hold any more
_is_dying = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)

_given: dict[int, tuple[_Managed, Any]] = {}
"""What others have of us: by its number, with what keeps the memory."""
_numbers = itertools.count(1)


def _done(at: int) -> None:
    """Whoever took a tensor lets go of it."""
    _given.pop(_Managed.from_address(at).context, None)


def _untaken(capsule: int) -> None:
    """A capsule ends that nobody has taken the tensor from."""
    if _is_dying(capsule, _NAME):
        _done(_dying(capsule, _NAME))


_DONE, _UNTAKEN = _Deleter(_done), _Deleter(_untaken)


def capsule_of(tensor: DLTensor, keeps: Any) -> Any:
    """A capsule for `from_dlpack` of another library. keeps: what has to live as long as anybody has it."""
    number = next(_numbers)
    managed = _Managed(tensor, number, ctypes.cast(_DONE, ctypes.c_void_p).value)
    _given[number] = managed, (keeps, tensor)
    return _new(ctypes.addressof(managed), _NAME, ctypes.cast(_UNTAKEN, ctypes.c_void_p).value)


def is_elsewhere(x: Any) -> bool:
    """Whether an object's memory is one that NumPy does not read."""
    where = getattr(type(x), "__dlpack_device__", None)
    return where is not None and int(where(x)[0]) not in _HOST_TYPES


class Taken:
    """A tensor that another library has handed over; `let_go` once, when nobody reads it any more."""

    def __init__(self, x: Any) -> None:
        """x: an object with DLPack. Raises SmeltError where it gives no capsule of a tensor."""
        capsule = x.__dlpack__()
        if not _is(capsule, _NAME):
            what = f"{type(x).__name__}.__dlpack__ gave no capsule of a tensor that nobody has taken"
            raise SmeltError(what, kind="shape")
        self._managed: _Managed | None = _Managed.from_address(_pointer(capsule, _NAME))
        _rename(capsule, _USED)
        self.tensor: DLTensor = self._managed.tensor

    def let_go(self) -> None:
        """Give it back."""
        managed, self._managed = self._managed, None
        if managed is not None and managed.deleter:
            _Deleter(managed.deleter)(ctypes.addressof(managed))
