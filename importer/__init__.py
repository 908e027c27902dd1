"""ONNX file -> core Module: the only code that knows protobuf or the name of an ONNX opset."""

from __future__ import annotations

from smelt.importer.interface import interface
from smelt.importer.model import check_model, import_model, names_of

__all__ = ["check_model", "import_model", "interface", "names_of"]
