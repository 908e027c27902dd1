"""The names of operator domains besides the standard one, which is "" (or "ai.onnx")."""

ML = "ai.onnx.ml"
"""Classical models, defined by ONNX."""

MS = "com.microsoft"
"""ONNX Runtime's own ops, which exporters and optimisers write."""
