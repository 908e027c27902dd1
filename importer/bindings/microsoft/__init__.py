"""Bindings of com.microsoft: what exporters and optimisers write for common models."""
