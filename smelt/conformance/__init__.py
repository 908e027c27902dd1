"""ONNX's own backend cases through the compiler on this machine, in three forms; see docs/ops.md."""
