"""Ops that read and make strings, regular expressions, tokens and n-grams: bindings and core ops."""

from __future__ import annotations

from smelt.core.ops.table import Op
from smelt.families.text import ngrams, strings, tokenizer
from smelt.families.text.ops import text, tokens
from smelt.importer.call import OnnxOp

BINDINGS: tuple[OnnxOp, ...] = (*strings.ROWS, *ngrams.ROWS, *tokenizer.ROWS)
OPS: tuple[Op, ...] = (*text.ROWS, *tokens.ROWS)
