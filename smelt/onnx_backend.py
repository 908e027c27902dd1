"""The standard ONNX backend interface (onnx.backend.base) over compile and load, on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.core.dtype import Array
from smelt.driver import compile
from smelt.importer import check_model
from smelt.request import Request
from smelt.session import Session, load


class SmeltRep(BackendRep):
    """A compiled model in a temporary folder, which lives as long as this object."""

    def __init__(self, session: Session, folder: tempfile.TemporaryDirectory[str]) -> None:
        self.session = session
        self._folder = folder

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Outputs by position and name. inputs: a sequence in the model's order, a mapping, or one array."""
        names = [a.name for a in self.session.get_inputs()]
        if isinstance(inputs, Mapping):
            feed = dict(inputs)
        else:
            values = inputs if isinstance(inputs, Sequence) else [inputs]
            if len(values) != len(names):
                raise SmeltError(f"the model has {len(names)} inputs, got {len(values)}", kind="shape")
            feed = dict(zip(names, values, strict=True))
        found = self.session.run(None, feed)
        outputs = [o.name for o in self.session.get_outputs()]
        return tuple(namedtupledict("Outputs", outputs)(*found))


class SmeltBackend(Backend):
    """onnx.backend.base.Backend: `prepare` compiles for this machine's processor; the only device is
    'CPU'."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether every node of the model can be translated."""
        return not check_model(model)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> SmeltRep:
        """Compile and load. kwargs: those of smelt.compile; child=False compiles in this process. Raises
        SmeltError as smelt.compile and smelt.load."""
        if not cls.supports_device(device):
            raise SmeltError(f"there is no device '{device}', only CPU", kind="unsupported")
        child = bool(kwargs.pop("child", True))
        folder = tempfile.TemporaryDirectory(prefix="smelt-backend-")
        out = str(Path(folder.name) / "out")
        if child:
            bundle = compile(model, "host", output=out, **kwargs)
        else:
            source = Path(folder.name) / "model.onnx"
            source.write_bytes(model.SerializeToString())
            bundle = compile_here(Request(str(source), "host", output=out, name="model", **kwargs))
        return SmeltRep(load(bundle, threads=kwargs.get("threads")), folder)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Array, ...]:
        """Compile, load and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Array, ...]:
        """Run one node. outputs_info: (dtype, shape) per output; else ONNX's shape inference decides."""
        values = [np.asarray(a) for a in (inputs.values() if isinstance(inputs, Mapping) else inputs)]
        given = [n for n in node.input if n]
        typed = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(given, values, strict=True)
        ]
        if outputs_info is None:
            declared = [onnx.ValueInfoProto(name=n) for n in node.output if n]
        else:
            declared = [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(d)), s)
                for n, (d, s) in zip(node.output, outputs_info, strict=True)
            ]
        version = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        graph = helper.make_graph([node], "node", typed, declared)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
        return cls.run_model(onnx.shape_inference.infer_shapes(model), values, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is 'CPU' or 'CPU:0'."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, KeyError, ValueError):
            return False


is_compatible = SmeltBackend.is_compatible
prepare = SmeltBackend.prepare
run_model = SmeltBackend.run_model
run_node = SmeltBackend.run_node
supports_device = SmeltBackend.supports_device
