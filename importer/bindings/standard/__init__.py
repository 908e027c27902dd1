"""Bindings of the standard domain (ai.onnx), a file by subject."""
