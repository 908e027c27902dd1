"""Types and shapes in, the text of the loops that an instruction means out (core/machine.py, Instruction)."""

from __future__ import annotations


def dot(name: str, left: str, right: str, depth: int, columns: int) -> str:
    """d[j] = c[j] + sum over k of a[k] * b[j, k], of 8 or 16 bits into i32: `depth` neighbours at a time."""
    k, n = depth, columns
    return f"""
kernel @{name}(a: {left}[{k}], b: {right}[{n}, {k}], c: i32[{n}]) -> (d: i32[{n}]) {{
  serial j in {n} {{ d[j] = c[j] }}
  serial k in {k} {{ serial j in {n} {{ d[j] add= cast:i32(a[k]) * cast:i32(b[j, k]) }} }}
}}"""


def matrix(name: str, left: str, right: str, rows: int, depth: int, columns: int) -> str:
    """d[i, j] = c[i, j] + sum over k of a[i, k] * b[j, k], of bytes into i32: a tile in one register each."""
    m, k, n = rows, depth, columns
    return f"""
kernel @{name}(a: {left}[{m}, {k}], b: {right}[{n}, {k}], c: i32[{m}, {n}]) -> (d: i32[{m}, {n}]) {{
  serial i in {m} {{ serial j in {n} {{ d[i, j] = c[i, j] }} }}
  serial k in {k} {{ serial i in {m} {{ serial j in {n} {{
    d[i, j] add= cast:i32(a[i, k]) * cast:i32(b[j, k])
  }} }} }}
}}"""


def multiply_add(name: str, columns: int, left: str = "f32", right: str = "f32") -> str:
    """d[j] = c[j] + a * b[j]: rounded once in f32, in i32 for bytes."""
    of_bytes = left != "f32"
    kind, how = ("i32", "add") if of_bytes else ("f32", "fma")
    value = "cast:i32(a[]) * cast:i32(b[j])" if of_bytes else "a[] * b[j]"
    return f"""
kernel @{name}(a: {left}[], b: {right}[{columns}], c: {kind}[{columns}]) -> (d: {kind}[{columns}]) {{
  serial j in {columns} {{ d[j] = c[j] }}
  serial j in {columns} {{ d[j] {how}= {value} }}
}}"""
