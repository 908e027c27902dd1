"""Branches and loops as torch writes its scripts, as native code against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from text_models import Flow, agree_flow, floats, whole

FLOWS: dict[str, Flow] = {
    "script: while s < 100: s = s*2, n = n+1": Flow(
        "float[a] x", "float[] y, int64[] n",
        """
        many = Constant <value_int: int = 9223372036854775807> () zero = Constant <value_int: int = 0> ()
        one = Constant <value_int: int = 1> () lim = Constant <value_float: float = 100> ()
        s0 = ReduceSum <keepdims: int=0> (x) c0 = Less (s0, lim) y, n = Loop (many, c0, x, zero) <
        body = b (int64 i, bool c, float[?] v, int64 k) => (bool c1, float[?] v1, int64 k1) {
        v1 = Add (v, v) k1 = Add (k, one) s = ReduceSum <keepdims: int=0> (v1) c1 = Less (s, lim) }>
        """,
        [{"x": np.full(3, 1.0, np.float32)}, {"x": np.full(3, 60.0, np.float32)},
        {"x": np.full(1, 0.1, np.float32)}],
    ),
    "script: for i in range(n): x = x + i": Flow(
        "float[a] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1) { c1 = Identity (c)
        fi = Cast <to: int=1> (i) v1 = Add (v, fi) }>
        """,
        [{"x": floats(3), "n": whole(n)} for n in (0, 1, 5)],
    ),
    "script: list append and stack": Flow(
        "float[a, b] x", "float[] y",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        e = SequenceEmpty <dtype: int=1> () s = Shape (x) n = Gather <axis: int=0> (s, zero)
        l = Loop (n, true, e) < body = b (int64 i, bool c, seq(float[?]) q) => (bool c1, seq(float[?]) q1) {
        c1 = Identity (c) r = Gather <axis: int=0> (x, i) t = Tanh (r) q1 = SequenceInsert (q, t) }>
        y = ConcatFromSequence <axis: int=0, new_axis: int=1> (l)
        """,
        [{"x": floats(*s)} for s in ((3, 2), (1, 4), (5, 1))],
    ),
    "script: list append, cat on axis 1": Flow(
        "float[a, b] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () e = SequenceEmpty <dtype: int=1> () l = Loop (n, true, e) <
        body = b (int64 i, bool c, seq(float[?,?]) q) => (bool c1, seq(float[?,?]) q1) { c1 = Identity (c)
        fi = Cast <to: int=1> (i) r = Mul (x, fi) q1 = SequenceInsert (q, r) }>
        y = ConcatFromSequence <axis: int=1> (l)
        """,
        [{"x": floats(*s), "n": whole(n)} for s, n in (((3, 2), 1), ((1, 4), 3))],
    ),
    "script: nested for, inner trips from i": Flow(
        "float[a] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1) { c1 = Identity (c)
        v1 = Loop (i, c, v) < body = b2 (int64 j, bool d, float[?] w) => (bool d1, float[?] w1) {
        d1 = Identity (d) p = Mul (i, j) fp = Cast <to: int=1> (p) w0 = Add (w, fp) w1 = Sub (w0, x) }> }>
        """,
        [{"x": floats(3), "n": whole(n)} for n in (0, 1, 4)],
    ),
    "script: early break": Flow(
        "float[a] x", "float[] y, int64[] k",
        """
        true = Constant <value = bool {1}> () ten = Constant <value_int: int = 10> ()
        zero = Constant <value_int: int = 0> () lim = Constant <value_float: float = 5> ()
        y, k = Loop (ten, true, x, zero) <
        body = b (int64 i, bool c, float[?] v, int64 q) => (bool c1, float[?] v1, int64 q1) {
        m = ReduceMax <keepdims: int=0> (v) big = Greater (m, lim) v1, c1, q1 = If (big) <
        then_branch = t () => (float[?] a1, bool a2, int64 a3) { a1 = Neg (v) nb = Not (big)
        a2 = Identity (nb) a3 = Identity (i) }, else_branch = e () => (float[?] b1, bool b2, int64 b3) {
        b1 = Add (v, v) b2 = Not (big) b3 = Identity (q) }> }>
        """,
        [{"x": np.ones(3, np.float32)}, {"x": np.full(2, 9.0, np.float32)},
        {"x": -np.ones(1, np.float32)}],
    ),
    "script: x[i] = v by ScatterND": Flow(
        "float[a, b] x", "float[] y",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        m1 = Constant <value_ints: ints = [-1]> () s = Shape (x) n = Gather <axis: int=0> (s, zero)
        y = Loop (n, true, x) < body = b (int64 i, bool c, float[?,?] v) => (bool c1, float[?,?] v1) {
        c1 = Identity (c) r = Gather <axis: int=0> (v, i) sq = Mul (r, r)
        ax = Constant <value_ints: ints=[0]> () u = Unsqueeze (sq, ax) ii = Reshape (i, m1)
        i2 = Unsqueeze (ii, ax) v1 = ScatterND (v, i2, u) }>
        """,
        [{"x": floats(*s)} for s in ((3, 2), (1, 4), (5, 1))],
    ),
    "script: variable first set inside": Flow(
        "float[a] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () dummy = Constant <value_float: float = 0> ()
        y0, y = Loop (n, true, x, dummy) <
        body = b (int64 i, bool c, float[?] v, float[?] u) => (bool c1, float[?] v1, float[?] u1) {
        c1 = Identity (c) v1 = Add (v, x) u1 = Mul (v1, v1) }>
        """,
        [{"x": floats(3), "n": whole(n)} for n in (1, 4)],
    ),
    "script: SequenceAt from the end": Flow(
        "float[a, b] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () m1 = Constant <value_int: int = -1> ()
        two = Constant <value_int: int = 2> () l0 = SequenceConstruct (x) l = Loop (n, true, l0) <
        body = b (int64 i, bool c, seq(float[?,?]) q) => (bool c1, seq(float[?,?]) q1) { c1 = Identity (c)
        r = SequenceAt (q, m1) r1 = Add (r, x) q1 = SequenceInsert (q, r1) }> y = SequenceAt (l, m1)
        """,
        [{"x": floats(*s), "n": whole(n)} for s, n in (((3, 2), 0), ((1, 4), 3))],
    ),
    "script: SequenceLength as trip count": Flow(
        "float[a, b] x", "float[] y",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        z = Constant <value_float: float = 0> () l = SplitToSequence <axis: int=0> (x)
        n = SequenceLength (l) y = Loop (n, true, z) <
        body = b (int64 i, bool c, float v) => (bool c1, float v1) { c1 = Identity (c) r = SequenceAt (l, i)
        s = ReduceSum <keepdims: int=0> (r) v1 = Add (v, s) }>
        """,
        [{"x": floats(*s)} for s in ((3, 2), (1, 4))],
    ),
    "script: grows on both axes": Flow(
        "float[a, b] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?,?] v) => (bool c1, float[?,?] v1) { c1 = Identity (c)
        t = Concat <axis: int=0> (v, v) v1 = Concat <axis: int=1> (t, t) }>
        """,
        [{"x": floats(*s), "n": whole(n)} for s, n in (((3, 2), 0), ((1, 4), 2), ((2, 1), 3))],
    ),
    "script: grows by turns": Flow(
        "float[a, a] x, int64 n", "float[] y",
        """
        true = Constant <value = bool {1}> () two = Constant <value_int: int = 2> ()
        zero = Constant <value_int: int = 0> () y = Loop (n, true, x) <
        body = b (int64 i, bool c, float[?,?] v) => (bool c1, float[?,?] v1) { c1 = Identity (c)
        m = Mod (i, two) e = Equal (m, zero) v1 = If (e) < then_branch = t () => (float[?,?] p) {
        p = Concat <axis: int=0> (v, v) }, else_branch = q () => (float[?,?] r) {
        r = Concat <axis: int=1> (v, v) }> }>
        """,
        [{"x": floats(*s), "n": whole(n)} for s, n in (((2, 2), 0), ((1, 1), 2), ((2, 2), 3))],
    ),
    "script: shrinks until one is left": Flow(
        "float[a] x", "float[] y",
        """
        many = Constant <value_int: int = 9223372036854775807> () one = Constant <value_ints: ints = [1]> ()
        big = Constant <value_ints: ints = [9223372036854775807]> () i1 = Constant <value_int: int = 1> ()
        n0 = Size (x) c0 = Greater (n0, i1) y = Loop (many, c0, x) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1) { v0 = Slice (v, one, big)
        f0 = Constant <value_ints: ints=[0]> () h = Gather <axis: int=0> (v, f0) v1 = Add (v0, h)
        n = Size (v1) c1 = Greater (n, i1) }>
        """,
        [{"x": floats(n)} for n in (1, 2, 5)],
    ),
    "script: loop-carried bool and float flags": Flow(
        "float[a] x", "float[] y",
        """
        true = Constant <value = bool {1}> () five = Constant <value_int: int = 5> ()
        h = Constant <value_float: float = 0.5> () no = Constant <value = bool {0}> ()
        y, d = Loop (five, true, x, no) <
        body = b (int64 i, bool c, float[?] v, bool done) => (bool c1, float[?] v1, bool d1) {
        w = Mul (v, h) v1 = Where (done, v, w) m = ReduceMax <keepdims: int=0> (v1) l = Less (m, h)
        d1 = Or (done, l) c1 = Identity (c) }>
        """,
        [{"x": floats(n)} for n in (1, 4)],
    ),
    "script: acc = 0., acc += x[i]": Flow(
        "float[a, b] x", "float[] y",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        z = Constant <value_float: float = 0> () s = Shape (x) n = Gather <axis: int=0> (s, zero)
        acc = Loop (n, true, z) < body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1) {
        c1 = Identity (c) r = Gather <axis: int=0> (x, i) v1 = Add (v, r) }>
        y = ReduceSum <keepdims: int=0> (acc)
        """,
        [{"x": floats(*s)} for s in ((3, 2), (1, 4), (6, 1), (0, 3))],
    ),
    "script: acc with stack and round number": Flow(
        "float[a, b] x", "float[] y, float[] q",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        z = Constant <value_float: float = 0> () s = Shape (x) n = Gather <axis: int=0> (s, zero)
        acc, st = Loop (n, true, z) <
        body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1, float[?] o) { c1 = Identity (c)
        r = Gather <axis: int=0> (x, i) fi = Cast <to: int=1> (i) m = Mul (r, fi) v1 = Add (v, m)
        o = Neg (v1) }> y = ReduceSum <keepdims: int=0> (acc) q = ReduceSum <keepdims: int=0> (st)
        """,
        [{"x": floats(*s)} for s in ((3, 2), (1, 4), (6, 1))],
    ),
    "script: acc is the output": Flow(
        "float[a, b] x", "float[] y",
        """
        true = Constant <value = bool {1}> () zero = Constant <value_int: int = 0> ()
        z = Constant <value_float: float = 0> () s = Shape (x) n = Gather <axis: int=0> (s, zero)
        y = Loop (n, true, z) < body = b (int64 i, bool c, float[?] v) => (bool c1, float[?] v1) {
        c1 = Identity (c) r = Gather <axis: int=0> (x, i) v1 = Add (v, r) }>
        """,
        [{"x": floats(*s)} for s in ((3, 2), (1, 4), (6, 1))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOWS)
def test_flow(name: str, tmp_path: Path) -> None:
    agree_flow(FLOWS[name], tmp_path)
