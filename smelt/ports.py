"""Arrays, and memory at a model's units, in; DLPack's DLTensor, as the model's code reads it, out."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from smelt.capsules import DLDataType, DLDevice, DLTensor, Taken, capsule_of
from smelt.core.diag import SmeltError, reading
from smelt.core.dlpack import DLPACK
from smelt.core.dtype import ALL, DType
from smelt.groups import as_array

ON_UNIT = 12
"""SMELT_ON_UNIT of smelt.h: the device type of such a tensor; its data is a handle."""


class UnitTensor:
    """A tensor in the memory of one of a model's units; `Session.tensor` makes it, and runs of that session
    take it for an input, or for the memory of an output. What lies at the unit where the model has the input
    or output does not cross. It lasts as long as the session, or until `free`."""

    def __init__(
        self, session: Any, port: BoundPort, shape: tuple[int, ...], tensor: DLTensor, lender: Any = None
    ) -> None:
        """session: which owns the memory. port: the input or output that it was made for. tensor: the ctypes
        DLTensor that describes it. lender: has the memory, and is let go of at the end; None: nobody else."""
        self._lender = lender
        self._session = session
        self._port = port
        self._tensor = tensor
        self.shape = shape

    @property
    def name(self) -> str:
        """Of the input or output that it was made for."""
        return str(self._port.name)

    @property
    def unit(self) -> int:
        """The number of the unit; 0 is the host."""
        return int(self._tensor.device.device_id) if self._tensor.device.device_type == ON_UNIT else 0

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in host memory. Raises SmeltError(kind='device')."""
        return self._session.copy_tensor(self._port, self.described(self._session), None)  # type: ignore[no-any-return]

    def write(self, value: Any) -> None:
        """Copy an array of this shape and type into it. Raises SmeltError(kind='shape')."""
        self._session.copy_tensor(self._port, self.described(self._session), value)

    def free(self) -> None:
        """Give the memory back; runs refuse the tensor from then on."""
        self._session.free_tensor(self._tensor, wait=True)
        self._let_go()

    def __del__(self) -> None:
        if hasattr(self, "_tensor"):
            self._session.free_tensor(self._tensor, wait=False)
            self._let_go()

    def _let_go(self) -> None:
        lender, self._lender = self._lender, None
        if lender is not None:
            lender.let_go()

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the device where it lies: 1 is the host, 2 CUDA, 4 OpenCL, 7 Vulkan."""
        device = self.exported().device
        return int(device.device_type), int(device.device_id)

    def __dlpack__(self, **_wishes: Any) -> Any:
        """A capsule of this memory for `from_dlpack` of another library, which has it as long as it wants,
        and the session with it. Nothing of the session is under way there. Raises SmeltError."""
        return capsule_of(self.exported(), self)

    def exported(self) -> DLTensor:
        """Its memory as other libraries know it; no work of the session is under way there."""
        t = self.described(self._session)
        out = DLTensor(None, DLDevice(1, 0), self._port.rank, self._port.dlpack, t.shape)
        self._session.tensor_call("_export", ctypes.byref(t), ctypes.byref(out))
        return out

    def described(self, session: Any) -> DLTensor:
        """The ctypes DLTensor, for a call of this session. Raises SmeltError for another session's."""
        if not session.same_session(self._session):
            raise SmeltError(f"the tensor '{self.name}' is one of another session", kind="invalid")
        if not self._tensor.data:
            raise SmeltError(f"the tensor '{self.name}' was freed", kind="invalid")
        return self._tensor


class BoundPort:
    """An input or output of the manifest, ready for calls."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.name: str = row["name"]
        self.dtype: DType = ALL[row["dtype"]]
        self.numpy = self.dtype.numpy
        self.dims: list[int | str] = list(row["shape"])
        self.rank = len(self.dims)
        self.late = bool(row.get("late", False))
        self.shape = (ctypes.c_int64 * max(1, self.rank))()
        self.written: tuple[int, ...] | None = None
        self.dlpack = DLDataType(*DLPACK[self.dtype], 1)

    def set_shape(self, shape: tuple[int, ...]) -> None:
        """Write the extents where the model reads them, when they are not those of the last call."""
        if shape != self.written:
            self.shape[: self.rank] = shape  # type: ignore[call-overload]  # a tuple serves as well
            self.written = shape

    def place(self, t: DLTensor, x: UnitTensor, session: Any) -> UnitTensor:
        """Describe a tensor at a unit to the model's code. Raises SmeltError for another type or rank."""
        own = x.described(session)
        if len(x.shape) != self.rank or bytes(own.dtype) != bytes(self.dlpack):
            raise SmeltError(f"'{self.name}': the tensor made for '{x.name}' has another type", kind="shape")
        t.data, t.device = own.data, own.device
        self.set_shape(x.shape)
        return x

    def array(self, x: Any, role: str = "input") -> np.ndarray[Any, Any]:
        """x as a contiguous numpy.ndarray (no subclass). Raises SmeltError(kind='shape') for a wrong dtype or
        rank; extents are checked by the model's code."""
        if type(x) is not np.ndarray:
            x = as_array(x, f"{role} '{self.name}'")
        if x.dtype is not self.numpy and x.dtype != self.numpy:
            raise SmeltError(
                f"{role} '{self.name}': expected {self.numpy} elements, got {x.dtype}", kind="shape"
            )
        if x.ndim != self.rank:
            raise SmeltError(
                f"{role} '{self.name}': expected rank {self.rank} {self.dims}, got rank {x.ndim} "
                f"{list(x.shape)}",
                kind="shape",
            )
        if x.flags.c_contiguous:
            return x  # type: ignore[no-any-return]  # its type was asked above
        with reading(f"{role} '{self.name}', made compact"):
            compact: np.ndarray[Any, Any] = np.ascontiguousarray(x)
        return compact


def new_array(p: BoundPort, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A new array for an output. Raises SmeltError(kind='device') when there is no memory."""
    try:
        return np.empty(shape, p.numpy)
    except (MemoryError, ValueError) as e:
        raise SmeltError(f"output '{p.name}' of shape {list(shape)}: {e}", kind="device") from None


def copied(t: DLTensor, p: BoundPort) -> np.ndarray[Any, Any]:
    """A copy of an output in the session's memory."""
    shape = tuple(t.shape[a] for a in range(p.rank))
    result = new_array(p, shape)
    if result.nbytes:
        ctypes.memmove(address(result), t.data, result.nbytes)
    return result


_DATA_AT = object.__basicsize__
"""Offset in bytes of a PyArrayObject's data pointer: right after the object's header, by NumPy's C ABI."""


def _read_address(a: np.ndarray[Any, Any]) -> int:
    """The address of the first element, read from the object itself: a.__array_interface__ builds a
    dictionary, which takes as long as a small model's run (0.9 us)."""
    return ctypes.c_void_p.from_address(id(a) + _DATA_AT).value or 0


def _asked_address(a: np.ndarray[Any, Any]) -> int:
    """The address of the first element, through NumPy's interface."""
    return int(a.__array_interface__["data"][0])


def _layout_holds() -> bool:
    """Whether this interpreter and this NumPy keep the pointer at _DATA_AT, by three arrays as a test. The
    smallest array object is larger than what is read."""
    probes = np.zeros(3), np.zeros((2, 3))[1:], np.frombuffer(b"12345678")
    size = np.ndarray.__basicsize__
    return size >= _DATA_AT + ctypes.sizeof(ctypes.c_void_p) and all(
        _read_address(a) == _asked_address(a) for a in probes
    )


# arrays are of the exact type when they come here (see BoundPort.array): a subclass may not be laid out so
address = _read_address if _layout_holds() else _asked_address


def lent(session: Any, p: BoundPort, value: Any) -> UnitTensor:
    """The memory of another library's tensor, as one of this session for a port. Raises SmeltError."""
    taken = Taken(value)
    try:
        theirs = taken.tensor
        shape = tuple(theirs.shape[k] for k in range(theirs.ndim))
        if len(shape) != p.rank or bytes(theirs.dtype) != bytes(p.dlpack):
            what = f"expected rank {p.rank} {p.dims} of {p.numpy}, got {list(shape)} of type code "
            what += f"{theirs.dtype.code}, {theirs.dtype.bits} bits"
            raise SmeltError(f"tensor '{p.name}': {what}", kind="shape")
        extents = (ctypes.c_int64 * max(1, p.rank))(*shape)
        t = DLTensor(None, DLDevice(1, 0), p.rank, p.dlpack, extents)
        size = math.prod(shape) * p.numpy.itemsize
        session.tensor_call("_import", session.unit_of(p), size, ctypes.byref(theirs), ctypes.byref(t))
    except SmeltError:
        taken.let_go()
        raise
    return UnitTensor(session, p, shape, t, taken)
