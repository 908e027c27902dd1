"""A model with a part that need not wait for what crosses to the host, as text."""

ASIDE = """
<ir_version: 8, opset_import: ["" : 17]>
aside (float[n, 8] x, float[n, 8] k) => (float[n, 8] y, float[n, 8] z) <float[8, 8] v>
{
  [mix] a = MatMul (x, v)
  [far] c = MatMul (k, v)
  [near] b = LpNormalization <axis = -1> (a)
  [next] y = MatMul (b, v)
  [last] z = Softmax (c)
}
"""
