"""Refuses a SavedModel that could do more than compute. A SavedModel is a program, and it may come from a stranger."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert4rec_tf.foundation.errors import UserError

TRUST = "load a model whose graph could do more than compute, such as write files; only if you trust its author"

COMPUTING = frozenset(
    """
    Abs Acos AddN AddV2 All Any ArgMax ArgMin Asin Assert Atan Atan2 BatchMatMulV2 BiasAdd BroadcastTo
    Cast Ceil ClipByValue ConcatV2 Const Conv2D Cos Cosh Cumprod Cumsum CumulativeLogsumexp DisableCopyOnRead DivNoNan
    DynamicStitch Einsum Elu EnsureShape Equal Erf Erfc Erfinv Exp ExpandDims Expm1 Fill Floor FloorDiv FloorMod
    GatherNd GatherV2 Greater GreaterEqual HashTableV2 Identity IdentityN If IsFinite IsInf IsNan LeakyRelu Less
    LessEqual LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr LookupTableFindV2 LowerBound MatMul
    MatrixBandPart Max Maximum Mean Minimum Mul Neg NoOp NotEqual OneHot OnesLike Pack Pad PadV2 PartitionedCall
    Placeholder PlaceholderWithDefault Pow Prod RaggedTensorToTensor Range Rank ReadVariableOp RealDiv Relu Relu6
    Reshape ReverseV2 Rint Roll Round Rsqrt ScatterNd SegmentSum Select SelectV2 Selu Shape Sigmoid Sign Sin Sinh Size
    Slice Softmax Softplus Softsign SparseMatrixMatMul SparseTensorToCSRSparseMatrix Split SplitV Sqrt Square
    SquaredDifference Squeeze StatefulPartitionedCall StatelessIf StatelessRandomGetKeyCounter StatelessRandomNormalV2
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessWhile StaticRegexFullMatch StopGradient StridedSlice
    StringJoin Sub Sum Tan Tanh TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem
    TensorListStack TensorScatterAdd TensorScatterUpdate Tile TopKV2 Transpose Unpack UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentSum UpperBound VarHandleOp VarIsInitializedOp Where While Xdivy Xlog1py Xlogy
    ZerosLike
    """.split()  # noqa: SIM905
)
"""The ops with which exports compute, and others that models of one's own need. None changes a variable: what one
caller sends must not reach another. A list of forbidden ones would miss some of TensorFlow's 1,900 ops: `DebugIdentity`
and `PrintV2` write files too, `ImmutableConst` reads one, and a constant of `DatasetFromGraph` holds a graph of its
own. If a new model needs another op, add it here."""

SAVING = frozenset({"AssignVariableOp", "MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"})
"""Ops that every SavedModel has in two functions, which only TensorFlow 1 calls. Nothing else may call these two."""

READING = "InitializeTableFromTextFileV2"
"""The op that fills a table from a file. The file must be one of the model's assets."""


def check_only_computes(folder: Path, content: Any) -> None:
    """Raises UserError if a SavedModel could touch files or processes.

    That is, if it has an op that is not in COMPUTING, or reads files that are not in its folder. Call it before
    TensorFlow loads the model. `content`: what its `saved_model.pb` holds, a `SavedModel` message.
    """
    reason = next(_find_reasons(folder, content), None)
    if reason is not None:
        raise UserError(
            f"{folder}: could do more than compute: {reason}. If you trust its author, load it with --trust_model, in "
            "Python with trust_model=True"
        )


def _find_reasons(folder: Path, content: Any) -> Iterator[str]:
    place = folder.resolve()
    for path in folder.rglob("*"):
        if not Path(os.path.realpath(path)).is_relative_to(place):
            yield f"{path.relative_to(folder)} is a link to elsewhere"
    if len(content.meta_graphs) != 1 or not content.meta_graphs[0].HasField("object_graph_def"):
        yield "it is of TensorFlow 1, or has several graphs"
    for graph in content.meta_graphs:
        for asset in graph.asset_file_def:
            if Path(asset.filename).name != asset.filename:
                yield f"its asset {asset.filename!r} is not in its folder"
        yield from (
            f"it has the op {op}, which is not among those that only compute" for op in _find_forbidden_ops(graph)
        )


def _find_forbidden_ops(graph: Any) -> Iterator[str]:
    """Yields the ops of a graph and its functions that are not allowed in their place."""
    objects, library = (part.SerializeToString() for part in (graph.object_graph_def, graph.graph_def.library))
    yield from (node.op for node in graph.graph_def.node if node.op not in COMPUTING | SAVING)
    for function in graph.graph_def.library.function:
        name = function.signature.name.encode()
        # Names are compared in the messages' bytes, so that no kind of reference is forgotten.
        is_called_by_functions = library.count(name) != 1
        is_called = is_called_by_functions or name in objects
        assets = set() if is_called_by_functions else _find_asset_arguments(function.signature, graph.object_graph_def)
        for node in function.node_def:
            reads_an_asset = node.op == READING and len(node.input) > 1 and node.input[1] in assets
            if not (node.op in COMPUTING or reads_an_asset or (node.op in SAVING and not is_called)):
                yield node.op


def _find_asset_arguments(signature: Any, objects: Any) -> set[str]:
    """Returns a function's arguments that TensorFlow sets to paths of the model's assets when it loads the model."""
    names, functions = [argument.name for argument in signature.input_arg], objects.concrete_functions
    bound_inputs = functions[signature.name].bound_inputs if signature.name in functions else ()
    pairs = zip(reversed(names), reversed(bound_inputs))  # the last arguments are the bound ones
    return {name for name, number in pairs if objects.nodes[number].WhichOneof("kind") == "asset"}
