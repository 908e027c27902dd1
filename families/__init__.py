"""Rare ops of ONNX, a package per family: plug-ins that smelt loads when a model uses one of their ops."""
