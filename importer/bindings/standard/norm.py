"""Bindings of normalisations."""

from __future__ import annotations

from smelt.core.dim import to_dim
from smelt.core.dtype import DType
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.wide import wide, widened
from smelt.importer.call import Build, Call, OnnxOp
from smelt.importer.weights import dtype_of


def _batch_norm(c: Call) -> Ref | tuple[Ref, ...]:
    if c.flag("training_mode"):
        return _batch_norm_training(c)
    if any(c.wants(k) for k in range(1, 5)):
        raise c.unsupported("further outputs without training_mode", try_="exporting in eval mode")
    if not c.flag("spatial", 1):
        return _batch_norm_of_each(c)
    dtype = c.type(0).dtype
    parts = [c.cast(c.x(i), wide(dtype)) for i in range(5)]
    return c.cast(c.emit("batch_norm", *parts, epsilon=c.number("epsilon", 1e-5)), dtype)


def _batch_norm_of_each(c: Call) -> Ref:
    """By numbers of its own for each element of the batch's entries: x [N, C, ..], the others [C, ..]."""
    dtype = c.type(0).dtype
    x, scale, bias, mean, variance = (c.cast(c.x(i), wide(dtype)) for i in range(5))
    for i in range(1, 5):
        if c.type(i).rank != c.type(0).rank - 1:
            raise c.fail(f"input {i} has rank {c.type(i).rank}, wanted {c.type(0).rank - 1}")
        for a, (d, e) in enumerate(zip(c.shape(0)[1:], c.shape(i), strict=True)):
            c.engine.same(f"axis {a} of input {i} and of an entry", d, e)
    root = c.emit("sqrt", c.emit("add", variance, c.scalar(c.number("epsilon", 1e-5), variance)))
    y = c.emit("mul", c.emit("sub", x, mean), c.emit("div", scale, root))
    return c.cast(c.emit("add", y, bias), dtype)


def _batch_norm_training(c: Call) -> tuple[Ref, ...]:
    """By the batch's own mean and variance; the running ones move towards those by 1 - momentum."""
    x, rank, dtype = c.x(0), c.type(0).rank, c.type(0).dtype
    axes = tuple(a for a in range(rank) if a != 1)
    exact = c.cast(x, wide(dtype))
    mean = c.emit("reduce_mean", exact, axes=axes, keepdims=True)
    away = c.emit("sub", exact, mean)
    variance = c.emit("reduce_mean", c.emit("mul", away, away), axes=axes, keepdims=True)
    own = [c.builder.reshape(v, (c.shape(0)[1],)) for v in (mean, variance)]
    parts = [*(c.cast(c.x(i), wide(dtype)) for i in (1, 2)), *own]
    y = c.cast(c.emit("batch_norm", exact, *parts, epsilon=c.number("epsilon", 1e-5)), dtype)
    keep = c.number("momentum", 0.9)
    running = []
    for i, v in zip((3, 4), own, strict=True):
        old, new = c.x(i), c.cast(v, c.type(i).dtype)
        moved = c.emit("mul", new, c.scalar(1.0 - keep, new))
        running.append(c.emit("add", c.emit("mul", old, c.scalar(keep, old)), moved))
    return (y, *running)


def _instance_norm(c: Call) -> Ref:
    return c.emit("instance_norm", c.x(0), c.x(1), c.x(2), epsilon=c.number("epsilon", 1e-5))


def _group_norm(per_group: bool) -> Build:
    def build(c: Call) -> Ref:
        if c.type(0).rank < 3:
            raise c.fail(f"input has rank {c.type(0).rank}, wanted [batch, channels, *spatial]")
        groups, channels = c.integer("num_groups"), c.shape(0)[1]
        if groups < 1:
            raise c.fail(f"num_groups is {groups}, wanted at least 1")
        c.engine.divides("num_groups", to_dim(groups), channels)
        scale, bias = c.x(1), c.x(2)
        if per_group:  # opset 18 has one scale per group
            each = channels // groups
            scale, bias = (
                c.builder.reshape(
                    c.builder.broadcast_to(c.builder.reshape(p, (groups, 1)), (groups, each)), (channels,)
                )
                for p in (scale, bias)
            )
        return c.emit("group_norm", c.x(0), scale, bias, groups=groups, epsilon=c.number("epsilon", 1e-5))

    return build


def _wide(c: Call) -> DType:
    """The type that statistics are computed in (stash_type)."""
    dtype = c.type(0).dtype
    return wide(dtype) if c.integer("stash_type", 1) == 1 else dtype


def _layer_norm(c: Call) -> tuple[Ref, ...]:
    rank = c.type(0).rank
    axis, epsilon = c.axis(c.integer("axis", -1), rank), c.number("epsilon", 1e-5)
    dtype, wide = c.type(0).dtype, _wide(c)
    x = c.cast(c.x(0), wide)
    scale, bias = (_full(c, c.optional(i), axis, wide) for i in (1, 2))
    outputs = [c.cast(c.emit("layer_norm", x, scale, bias, axis=axis, epsilon=epsilon), dtype)]
    if c.wants(1) or c.wants(2):
        axes = tuple(range(axis, rank))
        mean = c.emit("reduce_mean", x, axes=axes, keepdims=True)
        away = c.emit("sub", x, mean)
        variance = c.emit("reduce_mean", c.emit("mul", away, away), axes=axes, keepdims=True)
        deviation = c.emit("sqrt", c.emit("add", variance, c.scalar(epsilon, variance)))
        stash = dtype_of(c.integer("stash_type", 1), "attribute 'stash_type'", c.engine.node)
        outputs += [c.cast(v, stash) for v in (mean, c.emit("reciprocal", deviation))]
    return tuple(outputs)


def _full(c: Call, ref: Ref, axis: int, dtype: DType) -> Ref:
    """A scale or bias over exactly the normalised axes (the file may leave some to broadcasting)."""
    if not ref:
        return ""
    wanted = c.shape(0)[axis:]
    ref = c.cast(ref, dtype)
    shape = c.builder.type_of(ref).shape
    if len(shape) > len(wanted) and all(d.const_or_none == 1 for d in shape[: len(shape) - len(wanted)]):
        shape = shape[len(shape) - len(wanted) :]
        ref = c.builder.reshape(ref, shape)
    if len(shape) == len(wanted) and not any(d.const_or_none == 1 for d in shape):
        return ref
    return c.builder.broadcast_to(ref, wanted)


def _rms_norm(c: Call) -> Ref:
    axis = c.axis(c.integer("axis", -1), c.type(0).rank)
    wide = _wide(c)
    y = c.emit("rms_norm", c.cast(c.x(0), wide), axis=axis, epsilon=c.number("epsilon", 1e-5))
    return c.emit("mul", c.cast(y, c.type(1).dtype), c.x(1))


def _rms_norm_fused(c: Call) -> Ref:
    axis = c.axis(c.integer("axis", -1), c.type(0).rank)
    if c.type(0).dtype != _wide(c) or c.type(0).dtype != c.type(1).dtype:
        return _rms_norm(c)
    return c.emit(
        "rms_norm",
        c.x(0),
        _full(c, c.x(1), axis, c.type(0).dtype),
        axis=axis,
        epsilon=c.number("epsilon", 1e-5),
    )


def _lp_norm(c: Call) -> Ref:
    p = c.integer("p", 2)
    if p not in (1, 2):
        raise c.fail(f"p is {p}, expected 1 or 2")
    return c.emit("lp_norm", c.x(), axis=c.axis(c.integer("axis", -1), c.type().rank), p=p)


def _lrn(c: Call) -> Ref:
    if c.type().rank < 2:
        raise c.fail(f"input has rank {c.type().rank}, wanted [batch, channels, *spatial]")
    size = c.integer("size")
    if size < 1:
        raise c.fail(f"size is {size}, wanted at least 1")
    return c.emit(
        "lrn",
        c.x(),
        size=size,
        alpha=c.number("alpha", 1e-4),
        beta=c.number("beta", 0.75),
        bias=c.number("bias", 1.0),
    )


def _mean_variance(c: Call) -> Ref:
    """(x - mean) / (sqrt(variance) + 1e-9) over axes; the 1e-9 is in the operator's own definition."""
    return _standard_score(c, c.axes(c.ints("axes", (0, 2, 3)), c.type().rank), True)


def _mean_variance_1(c: Call) -> Ref:
    """As an experiment before opset 9: of the whole batch, and of each channel unless across_channels."""
    rank = c.type().rank
    if rank != 4:
        raise c.fail(f"input has rank {rank}, wanted 4")
    axes = (0, 1, 2, 3) if c.flag("across_channels") else (0, 2, 3)
    return _standard_score(c, axes, c.flag("normalize_variance", 1))


def _standard_score(c: Call, axes: tuple[int, ...], scaled: bool) -> Ref:
    x = c.x()
    away = c.emit("sub", x, c.emit("reduce_mean", x, axes=axes, keepdims=True))
    if not scaled:
        return away
    variance = c.emit("reduce_mean", c.emit("mul", away, away), axes=axes, keepdims=True)
    deviation = c.emit("sqrt", variance)
    return c.emit("div", away, c.emit("add", deviation, c.scalar(1e-9, x)))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("BatchNormalization", 1, _batch_norm),
    OnnxOp("InstanceNormalization", 1, widened(_instance_norm)),
    OnnxOp("GroupNormalization", 18, widened(_group_norm(True))),
    OnnxOp("GroupNormalization", 21, widened(_group_norm(False))),
    OnnxOp("LayerNormalization", 1, _layer_norm),  # ONNX Runtime writes it into older opsets too
    OnnxOp("RMSNormalization", 23, _rms_norm_fused),
    OnnxOp("LpNormalization", 1, widened(_lp_norm)),
    OnnxOp("LRN", 1, widened(_lrn)),
    OnnxOp("MeanVarianceNormalization", 1, widened(_mean_variance_1)),
    OnnxOp("MeanVarianceNormalization", 9, widened(_mean_variance)),
)
