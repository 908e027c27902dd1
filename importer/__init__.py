"""ONNX file -> core Module: the only code that knows protobuf or the name of an ONNX opset."""

from __future__ import annotations

from smelt.importer.interface import interface
from smelt.importer.model import check_model, import_model, import_named, names_of

__all__ = ["check_model", "import_model", "import_named", "interface", "names_of"]
