"""Branches and loops as torch (cond, while_loop, scan), TensorFlow and Paddle write them, and rarer ones, as
native code against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from text_models import Flow, agree_flow, flag, floats, model_of, whole

import smelt
from smelt.compiler import compile_here
from smelt.driver import Request

FLOWS: dict[str, Flow] = {
    "dynamo: cond with captured tensors": Flow(
        "float[a, b] x, float[b] w, bool p", "float[] y",
        """
        y = If (p) < then_branch = t () => (float[?,?] a1) { a1 = Mul (x, w) },
        else_branch = e () => (float[?,?] b1) { b0 = Add (x, w) b1 = Sin (b0) }>
        """,
        [{"x": floats(3, 2), "w": floats(2), "p": flag(v)} for v in (0, 1)],
    ),
    "dynamo: while_loop": Flow(
        "float[a] x, int64 n", "int64[] i, float[] y",
        """
        many = Constant <value_int: int = 9223372036854775807> () zero = Constant <value_int: int = 0> ()
        one = Constant <value_int: int = 1> () c0 = Less (zero, n) i, y = Loop (, c0, zero, x) <
        body = b (int64 it, bool c, int64 k, float[?] v) => (bool c1, int64 k1, float[?] v1) {
        k1 = Add (k, one) v1 = Sin (v) c1 = Less (k1, n) }>
        """,
        [{"x": floats(3), "n": whole(n)} for n in (0, 1, 5)],
    ),
    "dynamo: scan with two states": Flow(
        "float[t, a] x, float[a] h", "float[] hl, float[] cl, float[] ys, float[] zs",
        """
        hl, cl, ys, zs = Scan <num_scan_inputs: int=1, body = b (float[?] h0, float[?] c0, float[?] xt) =>
        (float[?] h1, float[?] c1, float[?] y1, float[?] z1) { s = Add (h0, xt) h1 = Tanh (s)
        c1 = Add (c0, h1) y1 = Mul (h1, c1) z1 = Neg (c1) }> (h, h, x)
        """,
        [{"x": floats(t, 3), "h": floats(3)} for t in (1, 2, 6)],
    ),
    "dynamo: cond in while_loop": Flow(
        "float[a] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () two = Constant <value_int: int = 2> ()
        zero = Constant <value_int: int = 0> () y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1) { c1 = Identity (c)
        m = Mod (i, two) e = Equal (m, zero) v1 = If (e) < then_branch = t () => (float[?] p) {
        p = Add (v, x) }, else_branch = q () => (float[?] r) { r = Mul (v, x) }> }>
        """,
        [{"x": floats(3), "n": whole(n)} for n in (0, 1, 4)],
    ),
    "dynamo: associative map over rows (Scan, no state)": Flow(
        "float[t, a, b] x, float[b, k] w", "float[] y",
        """
        y = Scan <num_scan_inputs: int=1, body = b (float[?,?] r) => (float[?,?] o) { m = MatMul (r, w)
        o = Relu (m) }> (x)
        """,
        [{"x": floats(t, 2, 3), "w": floats(3, 4)} for t in (1, 2, 6)],
    ),
    "dynamo: cond whose branches differ in size": Flow(
        "float[a, b] x, bool p", "float[] y",
        """
        y = If (p) < then_branch = t () => (float[?,?] a1) { a1 = Concat <axis: int=1> (x, x) },
        else_branch = e () => (float[?,?] b1) { b1 = Identity (x) }>
        """,
        [{"x": floats(3, 2), "p": flag(v)} for v in (0, 1)],
    ),
    "tf: while with TensorArray written by scan output": Flow(
        "float[b, t, a] x", "float[] y",
        """
        true = Constant <value = bool {1}> () one = Constant <value_int: int = 1> () s = Shape (x)
        n = Gather <axis: int=0> (s, one) xt = Transpose <perm: ints=[1,0,2]> (x)
        z2 = Constant <value_ints: ints = [0]> () x0 = Gather <axis: int=0> (xt, k0)
        k0 = Constant <value_int: int=0> () h, st = Loop (n, true, x0) <
        body = b (int64 i, bool c, float[?,?] v) => (bool c1, float[?,?] v1, float[?,?] o) {
        c1 = Identity (c) r = Gather <axis: int=0> (xt, i) v1 = Add (v, r) o = Tanh (v1) }>
        y = Transpose <perm: ints=[1,0,2]> (st)
        """,
        [{"x": floats(b, t, 3)} for b, t in ((1, 1), (2, 3), (3, 6))],
    ),
    "tf: TensorListSetItem (Erase and Insert)": Flow(
        "float[t, a] x", "float[] y",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        l0 = SplitToSequence <axis: int=0, keepdims: int=0> (x) n = SequenceLength (l0)
        l = Loop (n, true, l0) <
        body = b (int64 i, bool c, seq(float[?]) q) => (bool c1, seq(float[?]) q1) { c1 = Identity (c)
        r = SequenceAt (q, i) r1 = Exp (r) q0 = SequenceErase (q, i) q1 = SequenceInsert (q0, r1, i) }>
        y = ConcatFromSequence <axis: int=0, new_axis: int=1> (l)
        """,
        [{"x": floats(*s)} for s in ((3, 2), (1, 4))],
    ),
    "tf: int32 counter and cond": Flow(
        "float[a] x, int32 n", "int32[] i, float[] y",
        """
        zero = Constant <value = int32 {0}> () one = Constant <value = int32 {1}> () c0 = Less (zero, n)
        i, y = Loop (, c0, zero, x) <
        body = b (int64 it, bool c, int32 k, float[?] v) => (bool c1, int32 k1, float[?] v1) {
        k1 = Add (k, one) v1 = Add (v, v) c1 = Less (k1, n) }>
        """,
        [{"x": floats(3), "n": np.array(n, np.int32)} for n in (0, 1, 5)],
    ),
    "tf: loop over slices with dynamic slice ends": Flow(
        "float[t, a] x", "float[] y",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        one = Constant <value_int: int = 1> () ax = Constant <value_ints: ints = [0]> ()
        z = Constant <value_float: float = 0> () s = Shape (x) n = Gather <axis: int=0> (s, zero)
        y0, y = Loop (n, true, z) < body = b (int64 i, bool c, float v) => (bool c1, float v1, float o) {
        c1 = Identity (c) i1 = Add (i, one) e = Unsqueeze (i1, ax) st = Constant <value_ints: ints=[0]> ()
        sl = Slice (x, st, e, ax) o = ReduceMax <keepdims: int=0> (sl) v1 = Add (v, o) }>
        """,
        [{"x": floats(*s)} for s in ((3, 2), (1, 4), (6, 1))],
    ),
    "tf: Scan reversed in and out": Flow(
        "float[t, a] x, float[a] h", "float[] l, float[] y",
        """
        l, y = Scan <num_scan_inputs: int=1, scan_input_directions: ints=[1], scan_output_directions:
        ints=[1], body = b (float[?] h0, float[?] xt) => (float[?] h1, float[?] o) { h1 = Sub (xt, h0)
        o = Identity (h1) }> (h, x)
        """,
        [{"x": floats(t, 3), "h": floats(3)} for t in (1, 2, 6)],
    ),
    "tf: Scan with negative axes": Flow(
        "float[a, b, t] x, float[a, b] h, float[a, t, b] w", "float[] l, float[] y, float[] z",
        """
        l, y, z = Scan <num_scan_inputs: int=2, scan_input_axes: ints=[-1, -2], scan_output_axes: ints=[-1,
        -2], scan_input_directions: ints=[0, 1], scan_output_directions: ints=[1, 0], body = b (float[?,?]
        h0, float[?,?] xt, float[?,?] wt) => (float[?,?] h1, float[?,?] o, float[?,?] p) { s = Mul (xt, wt)
        h1 = Add (s, h0) o = Identity (h1) p = Neg (s) }> (h, x, w)
        """,
        [{"x": floats(2, 3, t), "h": floats(2, 3), "w": floats(2, t, 3)} for t in (1, 2, 6)],
    ),
    "tf: Scan of zero steps": Flow(
        "float[t, a] x, float[a] h", "float[] l, float[] y",
        """
        l, y = Scan <num_scan_inputs: int=1, body = b (float[?] h0, float[?] xt) => (float[?] h1, float[?]
        o) { h1 = Sub (xt, h0) o = Identity (h1) }> (h, x)
        """,
        [{"x": floats(1, 3), "h": floats(3)}],
    ),
    "tf: Scan in Scan": Flow(
        "float[t, u, a] x, float[a] h", "float[] l, float[] y",
        """
        l, y = Scan <num_scan_inputs: int=1, body = b (float[?] h0, float[?,?] xt) => (float[?] h1,
        float[?,?] o) {
        h1, o = Scan <num_scan_inputs: int=1, scan_input_directions: ints=[1], body = b2 (float[?] g0,
        float[?] xu) => (float[?] g1, float[?] p) { m = Mul (xu, h0) g1 = Add (g0, m)
        p = Tanh (g1) }> (h0, xt) }> (h, x)
        """,
        [{"x": floats(t, u, 3), "h": floats(3)} for t, u in ((1, 1), (2, 3), (3, 1))],
    ),
    "tf: Scan 8 with a batch": Flow(
        "float[b, t, a] x, float[b, a] h", "float[] l, float[] y",
        """
        l, y = Scan <num_scan_inputs: int=1, body = b (float[?] h0, float[?] xt) => (float[?] h1, float[?]
        o) { h1 = Add (xt, h0) o = Tanh (h1) }> ( , h, x)
        """,
        [{"x": floats(b, t, 3), "h": floats(b, 3)} for b, t in ((1, 1), (2, 3))],
        opset=8,
    ),
    "paddle: while, everything carried, [1]-shaped counter": Flow(
        "float[a] x, int64[1] n", "int64[] i, float[] y",
        """
        many = Constant <value_int: int = 9223372036854775807> ()
        zero = Constant <value_ints: ints = [0]> () one = Constant <value_ints: ints = [1]> ()
        c0 = Less (zero, n) k0 = Squeeze (c0) i, y, cc = Loop (many, k0, zero, x, c0) <
        body = b (int64 it, bool c, int64[?] k, float[?] v, bool[?] p) => (bool c1, int64[?] k1, float[?]
        v1, bool[?] p1) { k1 = Add (k, one) v1 = Add (v, x) p1 = Less (k1, n) c1 = Squeeze (p1) }>
        """,
        [{"x": floats(3), "n": whole([n])} for n in (0, 1, 5)],
    ),
    "paddle: conditional_block, cond [1]": Flow(
        "float[a] x, bool[1] c", "float[] y",
        """
        cb = Cast <to: int=9> (c) y0 = If (cb) < then_branch = t () => (float[?] a1) { a1 = Exp (x) },
        else_branch = e () => (float[?] b1) { b1 = Identity (x) }> y = Where (cb, y0, x)
        """,
        [{"x": floats(3), "c": flag([v])} for v in (0, 1)],
    ),
    "trips 0 by constants, stack": Flow(
        "float[a, b] x", "float[] y, float[] z",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        y, z = Loop (zero, true, x) <
        body = b (int64 i, bool c, float[?,?] v) => (bool c1, float[?,?] v1, float[?,?] o) {
        c1 = Identity (c) v1 = Add (v, v) o = Neg (v) }>
        """,
        [{"x": floats(3, 2)}],
    ),
    "condition false before the loop": Flow(
        "float[a] x, int64 n", "float[] y, float[] z",
        """
        no = Constant <value = bool {0}> () y, z = Loop (n, no, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1, float[?] o) { c1 = Identity (c)
        v1 = Add (v, v) o = Neg (v) }>
        """,
        [{"x": floats(3), "n": whole(4)}],
    ),
    "trips run-time zero, stack": Flow(
        "float[a, b] x, int64 n", "float[] y, float[] z",
        """
        true = Constant <value = bool {1}> () y, z = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?,?] v) => (bool c1, float[?,?] v1, float[?,?] o) {
        c1 = Identity (c) v1 = Add (v, v) o = Neg (v) }>
        """,
        [{"x": floats(3, 2), "n": whole(n)} for n in (0, 2, -3)],
    ),
    "round, condition and constants as stacks": Flow(
        "float[a] x, int64 n", "int64[] i, bool[] c, float[] k, float[] q",
        """
        true = Constant <value = bool {1}> () i, c, k, q = Loop (n, true) <
        body = b (int64 it, bool co) => (bool c1, int64 o1, bool o2, float o3, float[?] o4) {
        c1 = Identity (co) o1 = Identity (it) o2 = Identity (co) o3 = Constant <value_float: float=2.5> ()
        o4 = Identity (x) }>
        """,
        [{"x": floats(3), "n": whole(n)} for n in (1, 4)],
    ),
    "states swap": Flow(
        "float[a] x, float[a] w, int64 n", "float[] p, float[] q",
        """
        true = Constant <value = bool {1}> () p, q = Loop (n, true, x, w) <
        body = b (int64 it, bool co, float[?] u, float[?] v) => (bool c1, float[?] u1, float[?] v1) {
        c1 = Identity (co) u1 = Identity (v) v1 = Identity (u) }>
        """,
        [{"x": floats(3), "w": -floats(3), "n": whole(n)} for n in (0, 1, 4)],
    ),
    "captured sequence read in an If in a Loop": Flow(
        "float[a, b] x, int64 n, bool p", "float[] y",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        z = Constant <value_float: float = 0> () l = SplitToSequence <axis: int=1> (x)
        len = SequenceLength (l) y = Loop (n, true, z) <
        body = b (int64 i, bool c, float v) => (bool c1, float v1) { c1 = Identity (c) k = Mod (i, len)
        v1 = If (p) < then_branch = t () => (float a1) { r = SequenceAt (l, k)
        s = ReduceSum <keepdims: int=0> (r) a1 = Add (v, s) }, else_branch = e () => (float b1) {
        ln = SequenceLength (l) lf = Cast <to: int=1> (ln) b1 = Sub (v, lf) }> }>
        """,
        [{"x": floats(*s), "n": whole(n), "p": flag(p)}
        for s, n, p in (((3, 2), 0, 1), ((1, 4), 3, 1), ((2, 3), 5, 0))],
    ),
    "captured growing sequence, inner loop reads": Flow(
        "float[a, b] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () z = Constant <value_float: float = 0> ()
        e = SequenceEmpty <dtype: int=1> () l, y = Loop (n, true, e, z) <
        body = b (int64 i, bool c, seq(float[?,?]) q, float v) => (bool c1, seq(float[?,?]) q1, float v1) {
        c1 = Identity (c) fi = Cast <to: int=1> (i) r = Add (x, fi) q1 = SequenceInsert (q, r)
        n1 = SequenceLength (q1) v1 = Loop (n1, c, v) <
        body = b2 (int64 j, bool d, float w) => (bool d1, float w1) { d1 = Identity (d)
        t = SequenceAt (q1, j) s = ReduceMax <keepdims: int=0> (t) w1 = Add (w, s) }> }>
        """,
        [{"x": floats(*s), "n": whole(n)} for s, n in (((3, 2), 0), ((1, 4), 3))],
    ),
    "captured optional in branches": Flow(
        "float[a] x, bool p, bool q", "float[] y",
        """
        o = If (p) < then_branch = t () => (optional(float[?]) a1) { a1 = Optional (x) },
        else_branch = e () => (optional(float[?]) b1) { b1 = Optional <type = float[?]> () }>
        h = OptionalHasElement (o) y = If (h) < then_branch = t2 () => (float[?] c1) {
        g1 = OptionalGetElement (o) c1 = Neg (g1) }, else_branch = e2 () => (float[?] d1) { d1 = Exp (x) }>
        """,
        [{"x": floats(3), "p": flag(p), "q": flag(0)} for p in (0, 1)],
        opset=18,
    ),
    "nonzero in a loop": Flow(
        "float[a, b] x, int64 n", "int64[] y, float[] z",
        """
        true = Constant <value = bool {1}> () k0 = Constant <value_int: int = 0> ()
        y, z = Loop (n, true, k0) < body = b (int64 i, bool c, int64 v) => (bool c1, int64 v1, float[?] o) {
        c1 = Identity (c) fi = Cast <to: int=1> (i) t = Sub (x, fi) r = Relu (t) nz = NonZero (r)
        sz = Size (nz) v1 = Add (v, sz) m = ReduceSum <keepdims: int=0> (r) o = Identity (m) }>
        """,
        [{"x": floats(*s), "n": whole(n)} for s, n in (((3, 2), 1), ((1, 4), 3))],
    ),
    "branches three deep": Flow(
        "float[a] x, bool p, bool q, bool r", "float[] y",
        """
        y = If (p) < then_branch = t () => (float[?] a1) { a1 = If (q) <
        then_branch = t2 () => (float[?] a2) { a2 = If (r) < then_branch = t3 () => (float[?] a3) {
        a3 = Neg (x) }, else_branch = e3 () => (float[?] b3) { b3 = Concat <axis: int=0> (x, x) }> },
        else_branch = e2 () => (float[?] b2) { b2 = Exp (x) }> }, else_branch = e () => (float[?] b1) {
        b1 = Abs (x) }>
        """,
        [{"x": floats(3), "p": flag(v & 1), "q": flag(v & 2), "r": flag(v & 4)} for v in range(8)],
    ),
    "body with initialisers, branch with nothing else": Flow(
        "float[a] x, int64 n, bool p", "float[] y",
        """
        true = Constant <value = bool {1}> () y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1) <float[1] w = {2.0}> {
        c1 = Identity (c) k = If (p) < then_branch = t () => (float[1] q1) <float[1] q1 = {3.0}> { },
        else_branch = e () => (float[1] q2) <float[1] q2 = {4.0}> { }> v0 = Mul (v, w) v1 = Add (v0, k) }>
        """,
        [{"x": floats(3), "n": whole(n), "p": flag(n & 1)} for n in (0, 1, 2)],
    ),
    "stack of what grows is not legal; of a fixed slice it is": Flow(
        "float[a] x, int64 n", "float[] y, float[] z",
        """
        true = Constant <value = bool {1}> () o = Constant <value_ints: ints = [0]> ()
        t = Constant <value_ints: ints = [1]> () y, z = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1, float[?] s) { c1 = Identity (c)
        v1 = Concat <axis: int=0> (v, x) s = Slice (v1, o, t) }>
        """,
        [{"x": floats(3), "n": whole(n)} for n in (1, 2)],
    ),
    "cond output a constant false": Flow(
        "float[a] x, int64 n", "float[] y, float[] z",
        """
        true = Constant <value = bool {1}> () y, z = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1, float[?] o) {
        c1 = Constant <value = bool {0}> () v1 = Add (v, v) o = Neg (v) }>
        """,
        [{"x": floats(3), "n": whole(n)} for n in (1, 4)],
    ),
    "TopK and gather in a loop, beams": Flow(
        "float[b, v] x, int64 n", "float[] s, int64[] y",
        """
        true = Constant <value = bool {1}> () k = Constant <value_ints: ints = [2]> ()
        h = Constant <value_float: float = 0.5> () s, y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?,?] v) => (bool c1, float[?,?] v1, int64[?,?] ix) {
        c1 = Identity (c) t, ix = TopK (v, k) m = ReduceMean <axes: ints=[1], keepdims: int=1> (t)
        v0 = Sub (v, m) v1 = Mul (v0, h) }>
        """,
        [{"x": floats(*s), "n": whole(n)} for s, n in (((3, 4), 1), ((1, 6), 3))],
    ),
    "shape carried as a vector": Flow(
        "float[a] x, int64 n", "float[] y, int64[] s",
        """
        true = Constant <value = bool {1}> () two = Constant <value_ints: ints = [2]> () s0 = Shape (x)
        s = Loop (n, true, s0) < body = b (int64 i, bool c, int64[?] v) => (bool c1, int64[?] v1) {
        c1 = Identity (c) v1 = Mul (v, two) }> y = ConstantOfShape (s)
        """,
        [{"x": floats(3), "n": whole(n)} for n in (0, 1, 3)],
    ),
    "shape vector that grows": Flow(
        "float[a] x", "float[] y, int64[] s",
        """
        true = Constant <value = bool {1}> () two = Constant <value_ints: ints = [2]> ()
        n = Constant <value_int: int = 2> () s0 = Shape (x) s = Loop (n, true, s0) <
        body = b (int64 i, bool c, int64[?] v) => (bool c1, int64[?] v1) { c1 = Identity (c)
        v1 = Concat <axis: int=0> (v, two) }> y0 = ConstantOfShape (s) y = ReduceSum <keepdims: int=0> (y0)
        """,
        [{"x": floats(3)}],
    ),
    "SequenceMap": Flow(
        "float[a, b] x, float[b] w", "float[] y",
        """
        l = SplitToSequence <axis: int=0> (x) m = SequenceMap < body = b (float[?,?] r) => (float[?,?] o) {
        o = Mul (r, w) }> (l) y = ConcatFromSequence <axis: int=0> (m)
        """,
        [{"x": floats(*s), "w": floats(s[1])} for s in ((3, 2), (1, 4))],
        opset=18,
    ),
    "If on a size with a Loop inside": Flow(
        "float[a, b] x", "float[] y",
        """
        zero = Constant <value_int: int = 0> () three = Constant <value_int: int = 3> ()
        true = Constant <value = bool {1}> () s = Shape (x) n = Gather <axis: int=0> (s, zero)
        p = Greater (n, three) y = If (p) < then_branch = t () => (float[?] a1) {
        v0 = ReduceSum <axes: ints=[0], keepdims: int=0> (x) a1 = Identity (v0) },
        else_branch = e () => (float[?] b1) { z = Constant <value_float: float=0.0> () sb = Shape (x)
        k1 = Constant <value_int: int=1> () nb = Gather <axis: int=0> (sb, k1) u, b1 = Loop (nb, true, z) <
        body = b (int64 i, bool c, float v) => (bool c1, float v1, float o) { c1 = Identity (c)
        col = Gather <axis: int=1> (x, i) o = ReduceProd <keepdims: int=0> (col) v1 = Add (v, o) }> }>
        """,
        [{"x": floats(*s)} for s in ((3, 2), (5, 4), (1, 1))],
        opset=12,
    ),
    "trips by a constant: a rank that grows": Flow(
        "float[a] x", "float[] y",
        """
        true = Constant <value = bool {1}> () n = Constant <value_int: int = 3> ()
        ax = Constant <value_ints: ints = [0]> () y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1) { c1 = Identity (c) v0 = Tanh (v)
        v1 = Unsqueeze (v0, ax) }>
        """,
        [{"x": floats(3)}, {"x": floats(1)}],
    ),
    "If inside If decides a rank": Flow(
        "float[a, b] x, bool p", "float[] z",
        """
        one = Constant <value_int: int = 1> () ax = Constant <value_ints: ints = [1]> ()
        m = Constant <value_ints: ints = [-1]> () s = Shape (x) k = Gather <axis: int=0> (s, one)
        c = Equal (k, one) y = If (p) < then_branch = t () => (float[?] a1) { a1 = If (c) <
        then_branch = t2 () => (float[?] a2) { a2 = Squeeze (x, ax) },
        else_branch = e2 () => (float[?] b2) { b2 = Exp (x) }> }, else_branch = e () => (float[?] b1) {
        b1 = Neg (x) }> w = Relu (y) z = Reshape (w, m)
        """,
        [{"x": floats(*s), "p": flag(p)} for s in ((3, 1), (3, 2)) for p in (0, 1)],
    ),
    "loop whose state If squeezes and widens": Flow(
        "float[a, b] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () one = Constant <value_int: int = 1> ()
        ax = Constant <value_ints: ints = [1]> () y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?,?] v) => (bool c1, float[?,?] v1) { c1 = Identity (c)
        s = Shape (v) k = Gather <axis: int=0> (s, one) e = Equal (k, one) q = If (e) <
        then_branch = t2 () => (float[?] a2) { a2 = Squeeze (v, ax) },
        else_branch = e2 () => (float[?] b2) { b2 = ReduceMean <axes: ints=[1], keepdims: int=0> (v) }>
        u = Unsqueeze (q, ax) v1 = Add (v, u) }>
        """,
        [{"x": floats(*s), "n": whole(n)} for s in ((3, 1), (3, 2)) for n in (1, 3)],
    ),
    "sequence state through an If": Flow(
        "float[a, b] x, int64 n", "float[] y, int64[] k",
        """
        true = Constant <value = bool {1}> () two = Constant <value_int: int = 2> ()
        zero = Constant <value_int: int = 0> () l0 = SequenceConstruct (x) l = Loop (n, true, l0) <
        body = b (int64 i, bool c, seq(float[?,?]) q) => (bool c1, seq(float[?,?]) q1) { c1 = Identity (c)
        m = Mod (i, two) e = Equal (m, zero) q1 = If (e) < then_branch = t () => (seq(float[?,?]) p) {
        r = SequenceAt (q, zero) r1 = Concat <axis: int=0> (r, x) p = SequenceInsert (q, r1) },
        else_branch = o () => (seq(float[?,?]) w) { w = Identity (q) }> }>
        y = ConcatFromSequence <axis: int=0> (l) k = SequenceLength (l)
        """,
        [{"x": floats(*s), "n": whole(n)} for s, n in (((3, 2), 0), ((1, 4), 3), ((2, 2), 4))],
    ),
    "optional of a sequence captured in a Loop": Flow(
        "float[a, b] x, int64 n, bool p", "float[] y",
        """
        true = Constant <value = bool {1}> () z = Constant <value_float: float = 0> ()
        l = SplitToSequence <axis: int=0> (x) o = If (p) <
        then_branch = t () => (optional(seq(float[?,?])) a1) { a1 = Optional (l) },
        else_branch = e () => (optional(seq(float[?,?])) b1) { b1 = Optional <type = seq(float[?,?])> () }>
        y = Loop (n, true, z) < body = b (int64 i, bool c, float v) => (bool c1, float v1) {
        c1 = Identity (c) h = OptionalHasElement (o) v1 = If (h) < then_branch = t2 () => (float g1) {
        q = OptionalGetElement (o) r = SequenceAt (q, i) s = ReduceSum <keepdims: int=0> (r)
        g1 = Add (v, s) }, else_branch = e2 () => (float g2) { one = Constant <value_float: float=1.0> ()
        g2 = Sub (v, one) }> }>
        """,
        [{"x": floats(3, 2), "n": whole(n), "p": flag(p)} for n in (0, 2) for p in (0, 1)],
        opset=18,
    ),
    "stacks of three kinds, a size that data decides": Flow(
        "float[a] x, int64 n", "float[] y, bool[] p, int64[] q",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_float: float = 0> ()
        l, y, p, q = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1, float[?] o, bool[?] s, int64[?] k)
        { c1 = Identity (c) v1 = Sin (v) o = Cos (v1) s = Greater (v1, zero)
        k = ArgMax <axis: int=0> (v1) }>
        """,
        [{"x": floats(5), "n": whole(n)} for n in (1, 4)],
    ),
    "the condition ends it before the trips do, with a stack": Flow(
        "float[a] x, int64 n", "float[] y, float[] z",
        """
        true = Constant <value = bool {1}> () lim = Constant <value_float: float = 8> ()
        y, z = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1, float[?] o) { v1 = Add (v, v)
        o = Neg (v) m = ReduceMax <keepdims: int=0> (v1) c1 = Less (m, lim) }>
        """,
        [{"x": np.ones(3, np.float32), "n": whole(n)} for n in (1, 2, 10)],
    ),
    "a Loop over a Loop's stack": Flow(
        "float[a] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () z = Constant <value_float: float = 0> ()
        zero = Constant <value_int: int = 0> () l, st = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1, float[?] o) { c1 = Identity (c)
        v1 = Sin (v) o = Add (v1, x) }> s = Shape (st) m = Gather <axis: int=0> (s, zero)
        y = Loop (m, true, z) < body = b2 (int64 i, bool c, float w) => (bool c1, float w1) {
        c1 = Identity (c) r = Gather <axis: int=0> (st, i) t = ReduceMax <keepdims: int=0> (r)
        w1 = Add (w, t) }>
        """,
        [{"x": floats(3), "n": whole(n)} for n in (1, 3)],
    ),
    "f16 and f64 states": Flow(
        "float16[a] x, double[a] w, int64 n", "float16[] y, double[] z",
        """
        true = Constant <value = bool {1}> () y, z = Loop (n, true, x, w) <
        body = b (int64 i, bool c, float16[?] v, double[?] u) => (bool c1, float16[?] v1, double[?] u1) {
        c1 = Identity (c) v1 = Add (v, v) t = Cast <to: int=11> (v) u1 = Add (u, t) }>
        """,
        [{"x": floats(3).astype(np.float16), "w": floats(3).astype(np.float64), "n": whole(n)}
        for n in (0, 3)],
    ),
    "a branch with no reads, another empty": Flow(
        "float[a] x, bool p", "float[] y",
        """
        y = If (p) < then_branch = t () => (float[?] a1) { a1 = Constant <value = float[2] {1, 2}> () },
        else_branch = e () => (float[?] b1) { b1 = Identity (x) }>
        """,
        [{"x": floats(3), "p": flag(p)} for p in (0, 1)],
    ),
    "rank-0 x rank-1 branches of one element": Flow(
        "float[a] x, bool p", "float[] y",
        """
        s = ReduceSum <keepdims: int=0> (x) t = ReduceSum <keepdims: int=1> (x) u = If (p) <
        then_branch = q () => (float[?] a1) { a1 = Neg (s) }, else_branch = e () => (float[?] b1) {
        b1 = Exp (t) }> y = Add (u, x)
        """,
        [{"x": floats(3), "p": flag(p)} for p in (0, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOWS)
def test_flow(name: str, tmp_path: Path) -> None:
    agree_flow(FLOWS[name], tmp_path)


@pytest.mark.parametrize("trips", [0, -3])
def test_a_stack_without_rounds_keeps_its_other_extents(trips: int, tmp_path: Path) -> None:
    flow = FLOWS["trips run-time zero, stack"]
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(flow.inputs, flow.outputs, flow.body).SerializeToString())
    found = smelt.load(compile_here(Request(source=str(path), output=str(tmp_path / "bundle"))), threads=1)
    y, z = found.run(None, {"x": floats(3, 2), "n": whole(trips)})
    assert (y.shape, z.shape) == ((3, 2), (0, 3, 2))
    np.testing.assert_array_equal(y, floats(3, 2))
