"""What the evaluator is trusted with: ops of which it was compared with onnxruntime.

tests/importers/test_allow_list.py draws calls of each, operands and attributes, and compares. An op
that is new to ONNX, or of which the evaluator gives something else, is refused where no rule
expresses it: an error is better than wrong numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import FunctionProto, NodeProto

from .ai_onnx_ml import COUPLING, ML
from .ai_onnx_ml import OPS as CLASSICAL
from .contrib_cpu import HOST_OPS
from .functions import canonical_domain
from .names import subgraphs
from .schemas import MICROSOFT

_PLAIN = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention BatchNormalization BitCast
BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast CastLike Ceil Celu
CenterCropPad Clip Col2Im Compress Concat ConcatFromSequence Constant ConstantOfShape Conv
ConvInteger Cos Cosh CumSum DFT DepthToSpace DequantizeLinear Det Div Dropout Einsum Elu Equal Erf
Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gemm GlobalAveragePool GlobalMaxPool
Greater GreaterOrEqual GridSample HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity
InstanceNormalization IsInf IsNaN LRN LeakyRelu Less LessOrEqual Log MatMul MatMulInteger Max
MaxRoiPool MaxUnpool Mean MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul Neg
NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QLinearMatMul QuantizeLinear RMSNormalization
Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
ReduceProd ReduceSum RegexFullMatch Relu Reshape ReverseSequence RoiAlign RotaryEmbedding Round
Scatter ScatterElements ScatterND Selu SequenceAt SequenceErase SequenceInsert Shape Shrink Sigmoid
Sign Sin Sinh Size Slice Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split
SplitToSequence Sqrt Squeeze StringConcat StringNormalizer StringSplit Sub Sum Swish Tan Tanh
TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Upsample Where Xor
"""
COMPARED: dict[str, frozenset[str]] = {
    "": frozenset(_PLAIN.split()),
    ML: frozenset(op.__name__ for op in CLASSICAL if op.op_domain == ML),
    MICROSOFT: frozenset(op.__name__ for op in HOST_OPS),
}
"""Ops, by domain, of which calls were drawn and compared with onnxruntime."""
BY_DATA: dict[str, frozenset[str]] = {
    "": frozenset(("ImageDecoder",)),
    "ai.onnx.preview.training": frozenset(("Adagrad", "Adam", "Momentum")),
}
"""Ops that onnxruntime does not have, compared with the data of the onnx package's own tests."""
DOUBTED: dict[str, frozenset[str]] = {
    "": frozenset(
        (
            "AveragePool",  # ceil_mode that counts padding
            "ConvTranspose",  # groups, auto_pad
            "DynamicQuantizeLinear",  # nothing but zeros
            "GRU",  # lengths, clip, backward
            "LSTM",  # lengths, clip, backward
            "LayerNormalization",  # the element type of the statistics
            "LogSoftmax",  # many elements of float16
            "LpNormalization",  # p = 1
            "LpPool",  # ceil_mode, dilations
            "MaxPool",  # auto_pad, what has no two axes
            "NegativeLogLikelihoodLoss",  # ignore_index -1
            "QLinearConv",  # groups, one axis
            "RNN",  # lengths, clip, backward
            "ReduceSumSquare",  # gives int64 for int32
            "Resize",  # linear with regions and scales below 1
            "RoiAlign",  # before opset 16
        )
    ),
    ML: frozenset(
        (
            "FeatureVectorizer",
            "LinearClassifier",
            "LinearRegressor",
            "Normalizer",
            "SVMClassifier",
            "SVMRegressor",
            "Scaler",
            "TreeEnsemble",
            "TreeEnsembleClassifier",
            "TreeEnsembleRegressor",
        )
    ),
}
"""Ops, by domain, that the evaluator computes wrongly in some of their forms."""


OF_RULES = frozenset(((COUPLING.op_domain, COUPLING.__name__), ("", "RandomUniform")))
"""Ops of nodes that rules make: a step of probabilities, the seed of what is drawn at random."""


def is_compared(node: NodeProto) -> bool:
    """Return whether the evaluator was compared for a node's op."""
    domain = canonical_domain(node.domain)
    own = (domain, node.op_type) in OF_RULES
    return own or any(node.op_type in table.get(domain, ()) for table in (COMPARED, BY_DATA))


def find_uncompared(
    nodes: Iterable[NodeProto], functions: Sequence[FunctionProto] = ()
) -> NodeProto | None:
    """Return the first node that the evaluator is not to compute, of functions and subgraphs too;
    None where there is none such.
    """
    bodies = {(canonical_domain(f.domain), f.name): f.node for f in functions}
    todo, seen = list(nodes), set[tuple[str, str]]()
    while todo:
        node = todo.pop()
        key = canonical_domain(node.domain), node.op_type
        if key in bodies:
            todo += [] if key in seen else bodies[key]
            seen.add(key)
        elif not is_compared(node):
            return node
        todo += [inner for graph in subgraphs(node) for inner in graph.node]
    return None


def is_doubted(node: NodeProto) -> bool:
    """Return whether the evaluator may compute a node wrongly."""
    return node.op_type in DOUBTED.get(canonical_domain(node.domain), ())
