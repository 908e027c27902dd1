"""Hand-scheduled kernels as IR text, each with sizes to run it at, for the tests of CPU emitters."""

from __future__ import annotations

from collections.abc import Mapping

TREES: Mapping[str, tuple[str, tuple[dict[str, int], ...]]] = {}


def _tree(name: str, text: str, *sizes: dict[str, int]) -> None:
    TREES[name] = (text, sizes)  # type: ignore[index]


def gemm_text(k: int, n: int, rows: int, width: int, epilogue: str = "acc[ii, jj] + b[jo*{w} + jj]") -> str:
    """y[m, n] = x[m, k] * w[n/width, k, width] + b in tiles of rows x width."""
    value = epilogue.replace("{w}", str(width))
    return f"""
kernel @gemm(m: dim in 0..*, x: f32[m, {k}], w: f32[{n // width}, {k}, {width}], b: f32[{n}])
    -> (y: f32[m, {n}]) {{
  group jo in {n // width} {{ tiles group (io, rows) in m: balanced({rows} .. 1) {{
    register acc: f32[rows, {width}]
    unroll ii in rows {{ vector jj in {width} {{ acc[ii, jj] = 0.0: f32 }} }}
    serial k in {k} {{ unroll ii in rows {{ vector jj in {width} {{
      acc[ii, jj] fma= x[io + ii, k] * w[jo, k, jj] }} }} }}
    unroll ii in rows {{ vector jj in {width} {{ y[io + ii, jo*{width} + jj] = {value} }} }}
  }} }}
}}"""


_M = tuple({"m": m} for m in (0, 1, 5, 12, 13, 25, 40))
_tree("gemm-12x32", gemm_text(17, 96, 12, 32), *_M)
_tree("gemm-6x16", gemm_text(9, 32, 6, 16), *_M)
_tree("gemm-8x12", gemm_text(9, 24, 8, 12), *_M)
_tree("gemm-4x5", gemm_text(3, 10, 4, 5, "max(acc[ii, jj] + b[jo*{w} + jj], 0.0: f32)"), *_M)
_tree("gemm-gelu", gemm_text(
    5, 32, 3, 16,
    "(acc[ii, jj] * 0.5: f32) * (erf((acc[ii, jj] + b[jo*{w} + jj]) * 0.707: f32) + 1.0: f32)"), {"m": 7})

_CONV = """
kernel @conv(h: dim in 1..*, v: dim in 1..*, x: f32[h, v, {c}], w: f32[3, 3, {c}, 16])
    -> (y: f32[(h - 1)//{s} + 1, (v - 1)//{s} + 1, 16]) {{
  group oh in (h - 1)//{s} + 1 {{ tiles group (ow, rows) in (v - 1)//{s} + 1: balanced(6 .. 1) {{
    register acc: f32[rows, 16]
    unroll ii in rows {{ vector jj in 16 {{ acc[ii, jj] = 0.0: f32 }} }}
    serial kh in 3 {{ serial kw in 3 {{ serial c in {c} {{ unroll ii in rows {{ vector jj in 16 {{
      acc[ii, jj] fma= (x[{s}*oh + kh - 1, {s}*(ow + ii) + kw - 1, c]
                        if (0 <= {s}*oh + kh - 1 < h, 0 <= {s}*(ow + ii) + kw - 1 < v))
                       * w[kh, kw, c, jj] }} }} }} }} }}
    unroll ii in rows {{ vector jj in 16 {{ y[oh, ow + ii, jj] = acc[ii, jj] }} }}
  }} }}
}}"""
_HW = ({"h": 1, "v": 1}, {"h": 5, "v": 4}, {"h": 3, "v": 15})
_tree("conv-s1", _CONV.format(c=5, s=1), *_HW)
_tree("conv-s2", _CONV.format(c=3, s=2), *_HW)
_tree("depthwise", """
kernel @depthwise(h: dim in 1..*, v: dim in 1..*, x: f32[h, v, 16], w: f32[3, 3, 16]) -> (y: f32[h, v, 16]) {
  group oh in h { tiles serial (ow, rows) in v: balanced(4 .. 1) {
    register acc: f32[rows, 16]
    unroll ii in rows { vector jj in 16 { acc[ii, jj] = 0.0: f32 } }
    unroll kh in 3 { unroll kw in 3 { unroll ii in rows { vector jj in 16 {
      acc[ii, jj] fma= (x[oh + kh - 1, ow + ii + kw - 1, jj]
                        if (0 <= oh + kh - 1 < h, 0 <= ow + ii + kw - 1 < v))
                       * w[kh, kw, jj] } } } }
    unroll ii in rows { vector jj in 16 { y[oh, ow + ii, jj] = max(acc[ii, jj], 0.0: f32) } }
  } }
}""", {"h": 1, "v": 1}, {"h": 4, "v": 11})

_tree("depthwise-silu", """
kernel @silu(h: dim in 1..*, v: dim in 1..*, x: f32[h, v, 16], w: f32[3, 3, 16], b: f32[16])
    -> (y: f32[h, v, 16]) {
  group oh in h { tiles serial (ow, rows) in v: balanced(4 .. 1) {
    register acc: f32[rows, 16]
    register part: f32[16]
    vector jj in 16 { part[jj] = b[jj] * 0.5: f32 }
    unroll ii in rows { vector jj in 16 { acc[ii, jj] = part[jj] } }
    unroll kh in 3 { unroll kw in 3 { unroll ii in rows { vector jj in 16 {
      acc[ii, jj] fma= (x[oh + kh - 1, ow + ii + kw - 1, jj]
                        if (0 <= oh + kh - 1 < h, 0 <= ow + ii + kw - 1 < v))
                       * w[kh, kw, jj] } } } }
    unroll ii in rows { vector jj in 16 {
      y[oh, ow + ii, jj] = (acc[ii, jj] + part[jj]) / (exp(0.0: f32 - acc[ii, jj]) + 1.0: f32) } }
  } }
}""", {"h": 1, "v": 1}, {"h": 4, "v": 13}, {"h": 2, "v": 2})

# what the loop adds to the address reaches past the page of zeros
_tree("guard-far", """
kernel @far(h: dim in 1..*, x: f32[h, 16400]) -> (y: f32[h]) {
  group i in h {
    register acc: f32[]
    acc[] = 0.0: f32
    serial c in 16400 { acc[] add= (x[i - 1, c] if (0 <= i - 1 < h)) }
    y[i] = acc[]
  }
}""", {"h": 2})

_tree("conv-otherwise", """
kernel @pool(h: dim in 1..*, x: f32[h, 8]) -> (y: f32[h, 8]) {
  group i in h {
    register acc: f32[8]
    vector c in 8 { acc[c] = -1e30: f32 }
    serial k in 3 { vector c in 8 { acc[c] max= (x[i + k - 1, c] if (0 <= i + k - 1 < h) else -7.5: f32) } }
    vector c in 8 { y[i, c] = acc[c] }
  }
}""", {"h": 1}, {"h": 6})

_tree("softmax", """
kernel @softmax(r: dim in 0..*, n: dim in 1..*, x: f32[r, n]) -> (y: f32[r, n]) {
  group i in r {
    register top: f32[16]
    register sums: f32[16]
    register peak: f32[]
    register total: f32[]
    vector j in 16 { top[j] = -inf: f32 }
    serial jo in n//16 { vector j in 16 { top[j] max= x[i, jo*16 + j] } }
    peak[] = max jj in 16 { top[jj] }
    serial jt in n - 16*(n//16) { peak[] max= x[i, 16*(n//16) + jt] }
    vector j in 16 { sums[j] = 0.0: f32 }
    serial jo in n//16 { vector j in 16 {
      y[i, jo*16 + j] = exp(x[i, jo*16 + j] - peak[])
      sums[j] add= y[i, jo*16 + j]
    } }
    total[] = sum jj in 16 { sums[jj] }
    serial jt in n - 16*(n//16) {
      y[i, 16*(n//16) + jt] = exp(x[i, 16*(n//16) + jt] - peak[])
      total[] add= y[i, 16*(n//16) + jt]
    }
    tiles serial (at, rows) in n: greedy(32, 8, 1) { vector j in rows {
      y[i, at + j] = y[i, at + j] / total[] } }
  }
}""", {"r": 0, "n": 3}, {"r": 3, "n": 1}, {"r": 2, "n": 16}, {"r": 4, "n": 77})

_tree("register-in-memory", """
kernel @demoted(n: dim in 0..*, x: f32[n, 8]) -> (y: f32[n, 8]) {
  group i in n {
    register t: f32[8]
    serial k in 8 { t[k] = x[i, k] * 2.0: f32 }
    serial k in 8 { y[i, k] = t[7 - k] }
  }
}""", {"n": 3})

_tree("guarded-block", """
kernel @guarded(n: dim in 0..*, m: dim in 0..*, x: f32[n, 16]) -> (y: f32[n, 16]) {
  group i in n {
    register a: f32[16]
    vector j in 16 { a[j] = 1.0: f32 }
    serial k in m { block if (2 <= k < 5) { vector j in 16 { a[j] add= x[i, j] } } }
    block if (0 <= i < m) { vector j in 16 { a[j] mul= 3.0: f32 } }
    vector j in 16 { y[i, j] = a[j] }
  }
}""", {"n": 4, "m": 0}, {"n": 4, "m": 3}, {"n": 2, "m": 9})

_tree("serial-tiles-carry", """
kernel @sums(n: dim in 0..*, m: dim in 0..*, x: f32[n, m]) -> (y: f32[n]) {
  group i in n {
    register acc: f32[8]
    register total: f32[]
    vector j in 8 { acc[j] = 0.0: f32 }
    total[] = 0.0: f32
    tiles serial (at, rows) in m: greedy(8, 1) {
      block if (0 <= rows < 2) { total[] add= x[i, at] }
      block if (8 <= rows < 9) { vector j in 8 { acc[j] add= x[i, at + j] } }
    }
    total[] add= sum jj in 8 { acc[jj] }
    y[i] = total[]
  }
}""", {"n": 3, "m": 0}, {"n": 3, "m": 5}, {"n": 2, "m": 37})

_tree("serial-balanced", """
kernel @balanced(m: dim in 0..*, x: f32[m]) -> (y: f32[m], s: f32[1]) {
  block {
    register total: f32[]
    total[] = 0.0: f32
    tiles serial (at, rows) in m: balanced(4 .. 1) { unroll i in rows {
      y[at + i] = x[at + i] + [rows]: f32
      total[] add= x[at + i]
    } }
    s[0] = total[]
  }
}""", *({"m": m} for m in (0, 1, 5, 8, 11)))

_tree("static-tiles", """
kernel @static(x: f32[13]) -> (y: f32[13], z: f32[13]) {
  tiles serial (at, rows) in 13: greedy(8, 4, 1) { vector j in rows { y[at + j] = x[at + j] * 2.0: f32 } }
  tiles unroll (at, rows) in 13: balanced(5 .. 1) {
    register t: f32[rows]
    unroll j in rows { t[j] = x[at + j] }
    unroll j in rows { z[at + j] = t[rows - 1 - j] }
  }
}""", {})

_tree("masked", """
kernel @masked(n: dim in 0..*, x: f32[n], q: bool[n]) -> (y: f32[n + 3], z: bool[n]) {
  group at in (n + 18)//16 { vector j in 16 {
    y[16*at + j] = (x[16*at + j - 3] if (0 <= 16*at + j - 3 < n) else 5.0: f32) if (0 <= 16*at + j < n + 3)
    z[16*at + j] = not((q[16*at + j] if (0 <= 16*at + j < n))) if (0 <= 16*at + j < n)
  } }
}""", {"n": 0}, {"n": 1}, {"n": 15}, {"n": 40})

_tree("strided-and-reversed", """
kernel @strided(n: dim in 0..*, x: f32[n, 16, 3]) -> (y: f32[n, 3, 16], r: f32[n, 16]) {
  group i in n {
    serial c in 3 { vector j in 16 { y[i, c, j] = x[i, j, c] } }
    vector j in 16 { r[i, 15 - j] = x[i, 15 - j, 1] + x[i, j//2, 0] }
  }
}""", {"n": 0}, {"n": 3})

_tree("gather-rows", """
kernel @gather(n: dim in 1..*, k: dim in 0..*, x: f32[n, 24], ids: i64[k]) -> (y: f32[k, 24], z: f32[k]) {
  group i in k {
    block let (g = ids[i] in 0 .. n - 1) { tiles serial (at, w) in 24: greedy(16, 8, 1) { vector j in w {
      y[i, at + j] = x[g, at + j] } } }
  }
  tiles group (at, w) in k: greedy(16, 1) { vector j in w {
    z[at + j] = let g = ids[at + j] in 0 .. n - 1 { x[g, 3] * [g]: f32 } } }
}""", {"n": 1, "k": 0}, {"n": 5, "k": 21})

_tree("scratch-stages", """
kernel @stages(n: dim in 0..*, x: f32[n, 4]) -> (y: f32[n]) scratch (t: f32[n, 4]) {
  group i in n { vector j in 4 { t[i, j] = x[i, j] * x[i, j] } }
  group i in n { y[n - 1 - i] = sum j in 4 { t[i, j] } }
}""", {"n": 0}, {"n": 6})

_tree("lane-sums", """
kernel @lanes(n: dim in 0..*, x: f32[n, 16], i8s: i8[n, 16]) -> (y: f32[n], q: i32[n]) {
  group i in n {
    y[i] = 0.0: f32
    q[i] = 0: i32
    vector j in 16 { y[i] add= x[i, j] * x[i, j] }
    vector j in 16 { q[i] add= cast: i32(i8s[i, j]) }
  }
}""", {"n": 4})

_tree("nested-groups", """
kernel @nested(a: dim in 0..*, b: dim in 0..*, x: f32[a, b, 3]) -> (y: f32[a, 3, b]) {
  tiles group (at, rows) in a: greedy(4, 2, 1) { group c in 3 { group j in b {
    unroll i in rows { y[at + i, c, j] = x[at + i, j, c] + [c]: f32 }
  } } }
}""", {"a": 0, "b": 2}, {"a": 3, "b": 1}, {"a": 11, "b": 2})

_tree("halves", """
kernel @halves(n: dim in 0..*, x: f16[n], z: bf16[n]) -> (y: f16[n], s: bf16[n]) {
  tiles group (at, rows) in n: greedy(16, 1) {
    register t: f16[rows]
    vector j in rows { t[j] = x[at + j] * x[at + j] }
    vector j in rows { y[at + j] = t[j] + 1.0: f16
                       s[at + j] = z[at + j] / 3.0: bf16 }
  }
}""", {"n": 0}, {"n": 35})

_tree("mixed-widths", """
kernel @mixed(x: f32[32]) -> (y: f32[32], s: f32[4]) {
  block {
    register t: f32[32]
    vector j in 32 { t[j] = x[j] * 2.0: f32 }
    unroll h in 4 { vector j in 8 { t[8*h + j] add= x[j] } }
    unroll h in 4 { s[h] = t[8*h + 3] }
    vector j in 32 { y[j] = t[j] }
    t[5] = 0.0: f32
  }
}""", {})

_tree("negative-division", """
kernel @floors(n: dim in 1..*, x: f32[n]) -> (y: i64[n], z: i64[n]) {
  group i in n {
    y[i] = [(i - 5)//3 + 10*((i - 7) % 4)]: i64
    z[i] = [(2*i - n)//(n + 1) + min(i, 3)*max(i - 2, 0)]: i64
  }
}""", {"n": 12})

_tree("index-lanes", """
kernel @iota(n: dim in 0..*, x: f32[n]) -> (y: i32[n, 16], z: f32[n, 16]) {
  group i in n { vector j in 16 {
    y[i, j] = [(3*i + j)//5 - j*j]: i32
    z[i, j] = [4*j + i]: f32 + x[i]
  } }
}""", {"n": 7})

for _width in (4, 8, 12, 16, 24, 32, 64):  # LLVM has an instruction for some of these
    _tree(f"sum-of-{_width}-products-of-bytes", f"""
kernel @dots(n: dim in 0..*, x: u8[n, {_width}], z: i8[n, {_width}]) -> (y: i32[n]) {{
  group g in n {{
    register acc: i32[]
    block {{
      register p: i32[{_width}]
      vector k in {_width} {{ p[k] = 0: i32 }}
      vector k in {_width} {{ p[k] add= cast:i32(x[g, k]) * cast:i32(z[g, k]) }}
      acc[] = sum k in {_width} {{ p[k] }}
    }}
    y[g] = acc[]
  }}
}}""", {"n": 3})
