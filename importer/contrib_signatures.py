"""The name of a com.microsoft operator in; its signature, as ONNX Runtime defines it, with the ranks of its
inputs, out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from onnx import AttributeProto

from smelt.importer.domains import MS
from smelt.importer.signature import RANGES, Parameter, Signature

SIGNATURES = """
Attention 2
    input:T@3 weights:T@2 bias:T?@1 mask_index:M? past:T?@5 attention_bias:T?@4 past_sequence_length:M?
    | do_rotary:INT mask_filter_value:FLOAT num_heads:INT! past_present_share_buffer:INT
    qkv_hidden_sizes:INTS rotary_embedding_dim:INT scale:FLOAT unidirectional:INT |
    T=bfloat16/float/float16 M=int32

BiasAdd 1
    X:T bias:T skip:T | | T=float/float16

BiasDropout 2
    data:T bias:T residual:T? ratio:T1? training_mode:T2? | seed:INT | T=bfloat16/double/float/float16
    T1=bfloat16/double/float/float16 T2=bool

BiasGelu 1
    A:T B:T | | T=bfloat16/double/float/float16

BiasSoftmax 1
    data:T bias:T | axis:INT is_inner_broadcast:INT! | T=double/float/float16

BiasSplitGelu 1
    X:T bias:T | | T=float/float16

BifurcationDetector 2
    src_tokens:T cur_tokens:T prev_suffix_match_idx:T pred_tokens:T? | max_ngram_size:INT
    min_ngram_size:INT | T=int64

BranchwiseRMSNorm 1
    X:T scale:M? | epsilon:FLOAT num_branches:INT | T=bfloat16/float/float16 M=bfloat16/float/float16

CDist 1
    A:T@2 B:T@2 | metric:STRING | T=double/float

CausalConvWithState 2
    input:T weight:T bias:T?@1 past_state:T? | activation:STRING channels_last:INT dilation:INT ndim:INT
    state_window:INT | T=bfloat16/float/float16

ConvTransposeWithDynamicPads 1
    X:T W:T Pads:int64? B:T? | auto_pad:STRING dilations:INTS group:INT kernel_shape:INTS
    output_padding:INTS strides:INTS | T=double/float/float16

CropAndResize 1
    X:T1@4 rois:T1@2 batch_indices:T2@1 crop_size:T2@1 | extrapolation_value:FLOAT mode:STRING |
    T1=double/float/float16 T2=int32

DecoderMaskedMultiHeadAttention 4
    query:T@3 key:T?@3,4 value:T?@3,4 mask_index:M? attention_bias:T?@4 past_key:T?@4 past_value:T?@4
    past_sequence_length:M? beam_width:M? cache_indirection:M? bias:T?@1 | mask_filter_value:FLOAT
    num_heads:INT! output_qk:INT past_present_share_buffer:INT scale:FLOAT | T=float/float16 M=int32

DequantizeLinear 1
    x:T1 x_scale:T2 x_zero_point:T1? | axis:INT | T1=int16/int32/int4/int8/uint16/uint4/uint8
    T2=float/float16

DynamicQuantizeLSTM 3
    X:T@3 W:T2@3 R:T2@3 B:T?@2 sequence_lens:T1?@1 initial_h:T?@3 initial_c:T?@3 P:T?@2 W_scale:T@1,2
    W_zero_point:T2@1,2 R_scale:T@1,2 R_zero_point:T2@1,2 | activation_alpha:FLOATS
    activation_beta:FLOATS activations:STRINGS clip:FLOAT direction:STRING hidden_size:INT
    input_forget:INT | T=float T1=int32 T2=int8/uint8

DynamicQuantizeMatMul 1
    A:T1 B:T2 b_scale:T1 b_zero_point:T2? bias:T1? | | T1=float T2=int8/uint8

DynamicTimeWarping 1
    input:F | | F=float

EmbedLayerNormalization 3
    input_ids:T1@2 segment_ids:T1?@2 word_embedding:T@2 position_embedding:T@2 segment_embedding:T?@2
    gamma:T@1 beta:T@1 mask:T1?@2 position_ids:T1?@2 | epsilon:FLOAT mask_index_type:INT | T1=int32
    T=float/float16

EngramGate 2
    key:T query:T value:T key_norm_scale:T query_norm_scale:T conv_norm_scale:T? | epsilon:FLOAT |
    T=bfloat16/float/float16

ExpandDims 1
    X:T axis:int32 | |
    T=bool/complex128/complex64/double/float/float16/int16/int32/int64/int8/string/uint16/uint32/uint64/uint8

FastGelu 1
    X:T bias:T? | | T=bfloat16/double/float/float16

FusedConv 1
    X:T W:T B:T? Z:T? | activation:STRING activation_params:FLOATS auto_pad:STRING dilations:INTS
    group:INT kernel_shape:INTS pads:INTS strides:INTS | T=double/float/float16

FusedGemm 1
    A:T B:T C:T? | activation:STRING activation_alpha:FLOAT activation_beta:FLOAT activation_gamma:FLOAT
    alpha:FLOAT beta:FLOAT transA:INT transB:INT | T=double/float/float16/int32/int64/uint32/uint64

FusedMatMul 1
    A:T B:T | alpha:FLOAT transA:INT transB:INT transBatchA:INT transBatchB:INT |
    T=bfloat16/double/float/float16

FusedMatMulActivation 1
    A:T B:T | activation:STRING! activation_alpha:FLOAT activation_axis:INT activation_beta:FLOAT
    activation_gamma:FLOAT alpha:FLOAT transA:INT transB:INT transBatchA:INT transBatchB:INT |
    T=bfloat16/double/float/float16

GatedAdd 1
    X:T Y:T gate:T | | T=bfloat16/float/float16

GatedRMSNorm 1
    X:T scale:T@1 gate:T | activation:STRING epsilon:FLOAT | T=bfloat16/float/float16

GatherBlockQuantized 1
    data:T1 indices:Tind scales:T2 zero_points:T1? | bits:INT block_size:INT gather_axis:INT
    quantize_axis:INT |
    T1=float4e2m1/float8e4m3fn/float8e4m3fnuz/float8e5m2/float8e5m2fnuz/int4/uint4/uint8
    T2=bfloat16/float/float16 Tind=int32/int64

GatherND 1
    data:T indices:Tind | |
    T=bool/complex128/complex64/double/float/float16/int16/int32/int64/int8/string/uint16/uint32/uint64/uint8
    Tind=int32/int64

Gelu 1
    X:T | | T=bfloat16/double/float/float16

GemmFastGelu 1
    X:T W:T bias:T? | | T=bfloat16/float/float16

GridSample 1
    X:T1 Grid:T1 | align_corners:INT mode:STRING padding_mode:STRING |
    T1=bool/complex128/complex64/double/float/float16/int16/int32/int64/int8/string/uint16/uint32/uint64/uint8

GroupNorm 1
    X:T@4 gamma:M@1 beta:M@1 | activation:INT! channels_last:INT epsilon:FLOAT groups:INT! |
    T=float/float16 M=float/float16

GroupQueryAttention 4
    query:T@3 key:T?@3 value:T?@3 past_key:T_CACHE?@4 past_value:T_CACHE?@4 seqlens_k:M
    total_sequence_length:M@0,1 cos_cache:T?@2 sin_cache:T?@2 position_ids:int64?@2 attention_bias:T?@4
    head_sink:T?@1 k_scale:T_KV_SCALE? v_scale:T_KV_SCALE? q_norm_weight:T?@1 k_norm_weight:T?@1 |
    causal:INT do_rotary:INT k_quant_type:STRING kv_cache_bit_width:INT kv_num_heads:INT!
    local_window_size:INT num_heads:INT! qk_norm_epsilon:FLOAT qk_output:INT rotary_interleaved:INT
    scale:FLOAT sliding_window_cache:INT smooth_softmax:INT softcap:FLOAT v_quant_type:STRING |
    T=bfloat16/float/float16 T_CACHE=bfloat16/float/float16/float8e4m3fn/int8/uint8 T_KV_SCALE=float
    M=int32

HyperConnectionPostMix 1
    streams:T block_output:T post_mix:M stream_mix:M? | num_branches:INT | T=bfloat16/float/float16
    M=bfloat16/float/float16

HyperConnectionPreMix 1
    streams:T pre_mix:M | num_branches:INT reduction_scale:FLOAT | T=bfloat16/float/float16
    M=bfloat16/float/float16

Inverse 1
    X:T | | T=double/float/float16

LinearAttention 2
    query:T key:T value:T past_state:S? decay:T? beta:T? | chunk_size:INT kv_num_heads:INT!
    q_num_heads:INT! scale:FLOAT state_window:INT update_rule:STRING | T=bfloat16/float/float16
    S=bfloat16/float/float16

LinearAttentionGate 2
    a:T dt_bias:TF decay_scale:TF b:T? | | T=bfloat16/float/float16 TF=float

MRotaryEmbedding 1
    input:T@3,4 position_ids:M cos_cache:T@2 sin_cache:T@2 | interleaved:INT is_packed_batching:INT
    mrope_layout:INT mrope_section:INTS! num_heads:INT rotary_embedding_dim:INT scale:FLOAT |
    T=bfloat16/float/float16 M=int64

MatMulBnb4 1
    A:T1 B:T2 absmax:T1 | K:INT! N:INT! block_size:INT! quant_type:INT! training_mode:INT transB:INT |
    T1=bfloat16/float/float16 T2=uint8

MatMulInteger16 1
    A:T1 B:T2 | | T1=int16/uint16 T2=int16/uint16

MatMulIntegerToFloat 1
    A:T1 B:T2 a_scale:T3 b_scale:T3 a_zero_point:T1? b_zero_point:T2? bias:T3? | | T1=int8/uint8
    T2=int8/uint8 T3=float/float16

MatMulNBits 1
    A:T1 B:T2 scales:T1 zero_points:T3? g_idx:T4?@1 bias:T1?@1 | K:INT! N:INT! accuracy_level:INT
    bits:INT block_size:INT! weight_prepacked:INT | T1=bfloat16/float/float16 T2=uint8
    T3=bfloat16/float/float16/uint8 T4=int32

MoE 1
    input:T@2,3 router_probs:T@2 fc1_experts_weights:T@3 fc1_experts_bias:T?@2 fc2_experts_weights:T@3
    fc2_experts_bias:T?@2 fc3_experts_weights:T?@3 fc3_experts_bias:T?@2 | activation_alpha:FLOAT
    activation_beta:FLOAT activation_type:STRING k:INT normalize_routing_weights:INT swiglu_fusion:INT
    swiglu_limit:FLOAT use_sparse_mixer:INT | T=bfloat16/float/float16

MultiHeadAttention 4
    query:T@3,5 key:T?@3,4,5 value:T?@3,4 bias:T?@1 key_padding_mask:M? attention_bias:T?@4
    past_key:T?@4 past_value:T?@4 past_sequence_length:M? cache_indirection:M?@3 |
    mask_filter_value:FLOAT num_heads:INT! scale:FLOAT unidirectional:INT | T=bfloat16/float/float16
    M=int32

NGramRepeatBlock 1
    input_ids:Tid scores:T | ngram_size:INT! | Tid=int64 T=float

NhwcConv 1
    X:T W:T B:T? | auto_pad:STRING dilations:INTS group:INT kernel_shape:INTS pads:INTS strides:INTS |
    T=double/float/float16

NhwcMaxPool 1
    x:T | auto_pad:STRING ceil_mode:INT dilations:INTS kernel_shape:INTS! pads:INTS strides:INTS |
    T=int8/uint8

Pad 1
    data:T pads:int64 value:T? | mode:STRING | T=double/float/float16

QAttention 2
    input:T1@3 weight:T2@2 bias:T3@1 input_scale:T3 weight_scale:T3 mask_index:T4? input_zero_point:T1?
    weight_zero_point:T2? past:T3?@5 | do_rotary:INT mask_filter_value:FLOAT num_heads:INT!
    past_present_share_buffer:INT scale:FLOAT unidirectional:INT | T1=int8/uint8 T2=int8/uint8
    T3=float/float16 T4=int32

QEmbedLayerNormalization 2
    input_ids:T1@2 segment_ids:T1?@2 word_embedding_quant:T2@2 position_embedding_quant:T2@2
    segment_embedding:T2?@2 gamma_quant:T2@1 beta_quant:T2@1 mask:T1?@2 word_embedding_scale:T
    position_embedding_scale:T segment_embedding_scale:T? gamma_scale:T beta_scale:T
    word_embedding_zero_point:T2 position_embedding_zero_point:T2 segment_embedding_zero_point:T2?
    gamma_zero_point:T2 beta_zero_point:T2 | epsilon:FLOAT | T1=int32 T2=int8/uint8 T=float

QGemm 1
    A:TA@2 a_scale:T a_zero_point:TA B:TB@2 b_scale:T b_zero_point:TB C:TC? y_scale:T? y_zero_point:TYZ?
    | alpha:FLOAT transA:INT transB:INT | T=float TA=int8/uint8 TB=int8/uint8 TC=int32 TYZ=int8/uint8

QLinearAdd 1
    A:T A_scale:float A_zero_point:T? B:T B_scale:float B_zero_point:T? C_scale:float C_zero_point:T? |
    | T=int8/uint8

QLinearAveragePool 1
    X:T x_scale:float x_zero_point:T? y_scale:float y_zero_point:T? | auto_pad:STRING ceil_mode:INT
    channels_last:INT count_include_pad:INT kernel_shape:INTS! pads:INTS strides:INTS | T=int8/uint8

QLinearConcat 1
    Y_scale:TF Y_zero_point:T8 inputs:TV* | axis:INT! | T8=int8/uint8 TF=float TV=float/int8/uint8

QLinearConv 1
    x:T1 x_scale:float x_zero_point:T1 w:T2 w_scale:float w_zero_point:T2 y_scale:float y_zero_point:T3
    B:T4? | auto_pad:STRING channels_last:INT dilations:INTS group:INT kernel_shape:INTS pads:INTS
    strides:INTS | T1=int8/uint8 T2=int8/uint8 T3=int8/uint8 T4=int32

QLinearGlobalAveragePool 1
    X:T x_scale:float x_zero_point:T y_scale:float y_zero_point:T | channels_last:INT | T=int8/uint8

QLinearLeakyRelu 1
    X:T X_scale:float X_zero_point:T? Y_scale:float Y_zero_point:T? | alpha:FLOAT | T=int8/uint8

QLinearMul 1
    A:T A_scale:float A_zero_point:T? B:T B_scale:float B_zero_point:T? C_scale:float C_zero_point:T? |
    | T=int8/uint8

QLinearReduceMean 1
    data:T data_scale:float data_zero_point:T? reduced_scale:float reduced_zero_point:T? | axes:INTS!
    keepdims:INT! | T=int8/uint8

QLinearSigmoid 1
    X:T X_scale:float X_zero_point:T? Y_scale:float Y_zero_point:T? | | T=int8/uint8

QLinearSoftmax 1
    X:T X_scale:float x_zero_point:T? y_scale:float y_zero_point:T | axis:INT opset:INT! | T=int8/uint8

QLinearWhere 1
    condition:B X:T x_scale:TF x_zero_point:T Y:T y_scale:TF y_zero_point:T z_scale:TF z_zero_point:T |
    | B=bool TF=float T=int8/uint8

QMoE 1
    input:T@2,3 router_probs:T@2 fc1_experts_weights:T1@3 fc1_scales:T2?@2,3 fc1_experts_bias:T?@2
    fc2_experts_weights:T1@3 fc2_scales:T2?@2,3 fc2_experts_bias:T?@2 fc3_experts_weights:T1?@3
    fc3_scales:T2?@2,3 fc3_experts_bias:T?@2 fc1_zero_points:T1?@2,3 fc2_zero_points:T1?@2,3
    fc3_zero_points:T1?@2,3 router_weights:T?@2 fc1_global_scale:T4? fc2_global_scale:T4?
    fc1_act_scale:T4? fc2_act_scale:T4? fc1_act_block_scale:T2? fc2_act_block_scale:T2? |
    accuracy_level:INT activation_alpha:FLOAT activation_beta:FLOAT activation_type:STRING
    block_size:INT expert_weight_bits:INT fc1_expert_weight_bits:INT fc2_expert_weight_bits:INT
    fc3_expert_weight_bits:INT k:INT normalize_routing_weights:INT quant_type:STRING swiglu_fusion:INT
    swiglu_limit:FLOAT use_sparse_mixer:INT weights_prepacked:INT | T=bfloat16/float/float16
    T1=float8e4m3fn/uint8 T2=bfloat16/float/float16/float8e4m3fn/float8e8m0 T4=float

QuantizeLinear 1
    x:T1 y_scale:T1 y_zero_point:T2? | axis:INT | T1=float/float16 T2=int16/int4/int8/uint16/uint4/uint8

QuickGelu 1
    X:T | alpha:FLOAT | T=bfloat16/double/float/float16

Range 1
    start:T limit:T delta:T? | | T=double/float/int16/int32/int64

RotaryEmbedding 1
    input:T@3,4 position_ids:M@1,2 cos_cache:T@2 sin_cache:T@2 | interleaved:INT is_packed_batching:INT
    num_heads:INT rotary_embedding_dim:INT scale:FLOAT | T=bfloat16/float/float16 M=int64

ScaledSiLU 1
    X:T scale:M? | alpha:FLOAT | T=bfloat16/float/float16 M=bfloat16/float/float16

SimplifiedLayerNormalization 2
    X:T scale:V | axis:INT epsilon:FLOAT stash_type:INT | T=bfloat16/double/float/float16
    V=bfloat16/double/float/float16

SkipGroupNorm 2
    X:T@4 gamma:M@1 beta:M@1 skip:T@2,4 bias:T?@1 | activation:INT! channels_last:INT epsilon:FLOAT
    groups:INT! | T=float/float16 M=float/float16

SkipLayerNormalization 4
    input:T skip:T gamma:T beta:T? bias:T? | epsilon:FLOAT | T=bfloat16/float/float16

SkipSimplifiedLayerNormalization 4
    input:T skip:T gamma:T bias:T? | epsilon:FLOAT | T=bfloat16/float/float16

SparseAttention 3
    query:T@3 key:T?@3 value:T?@3 past_key:T@4 past_value:T@4 block_row_indices:M@2
    block_col_indices:M@2 total_sequence_length:M@0,1 key_total_sequence_lengths:M@1 cos_cache:T?@2
    sin_cache:T?@2 | do_rotary:INT kv_num_heads:INT! num_heads:INT! rotary_interleaved:INT scale:FLOAT
    sparse_block_size:INT! | T=bfloat16/float/float16 M=int32

Tokenizer 1
    X:T | mark:INT! mincharnum:INT! pad_value:STRING! separators:STRINGS tokenexp:STRING | T=string

TorchEmbedding 1
    weight:T@2 indices:int64 padding_idx:int64? scale_grad_by_freq:bool? | |
    T=bfloat16/double/float/float16/int16/int32/int64/int8/uint16/uint32/uint64/uint8

TransposeMatMul 1
    A:T B:T | alpha:FLOAT transA:INT transB:INT | T=bfloat16/double/float/float16

Trilu 1
    X:T k:int64? | upper:INT |
    T=bfloat16/bool/double/float/float16/int16/int32/int64/int8/uint16/uint32/uint64/uint8

UnfoldTensor 1
    input:T | dim:INT size:INT! step:INT |
    T=bfloat16/bool/complex128/complex64/double/float/float16/int16/int32/int64/int8/string/uint16/uint32/uint64/uint8

Unique 3
    x:T | |
    T=bool/complex128/complex64/double/float/float16/int16/int32/int64/int8/string/uint16/uint32/uint64/uint8
"""
"""A record per operator: its name and how many outputs it has; its inputs as name:type, with ? what may be
absent, * what may be repeated, @ the ranks that its binding can read where it asks for some; after a bar its
attributes as name:kind, with ! what must be there; after another the elements that each type stands for."""


@cache
def contrib(op: str) -> Signature | None:
    """The signature of an operator; None for an unknown one."""
    record = _records().get(op)
    return None if record is None else _signature(record)


@cache
def _records() -> Mapping[str, str]:
    return {found.split(None, 1)[0]: found for found in SIGNATURES.strip().split("\n\n")}


def _signature(record: str) -> Signature:
    first, attributes, kinds = record.split("|")
    op, outputs, *inputs = first.split()
    types = dict(k.split("=") for k in kinds.split())
    parameters = tuple(_parameter(p, types) for p in inputs)
    required = [k for k, p in enumerate(parameters) if p.required]
    return Signature(
        dict(map(_attribute, attributes.split())),
        parameters,
        least=required[-1] + 1,
        most=2**31 if inputs[-1].endswith("*") else len(inputs),
        outputs=int(outputs),
        grows=True,
        ranges=RANGES.get((MS, op), {}),
    )


def _parameter(text: str, types: Mapping[str, str]) -> Parameter:
    """name:type@ranks, with ? or * after the type."""
    (name, _, kind), ranks = text.partition("@")[0].partition(":"), text.partition("@")[2]
    variable = kind.rstrip("?*")
    elements = types.get(variable, variable).split("/")
    return Parameter(
        name,
        not kind.endswith("?"),
        frozenset(f"tensor({e})" for e in elements),
        "" if kind.endswith("*") else variable,
        tuple(map(int, ranks.split(","))) if ranks else (),
    )


def _attribute(text: str) -> tuple[str, tuple[int, bool]]:
    """name:kind, with ! after it."""
    name, kind = text.split(":")
    return name, (int(AttributeProto.AttributeType.Value(kind.rstrip("!"))), kind.endswith("!"))
