"""Changes of exported files: other element types, quantisers, and ONNX Runtime's optimisers.

Each function reads `source.onnx` of a folder and writes `model.onnx`."""

import numpy as np
import onnx

# Seeds of the inputs that calibrate static quantisation.
CALIBRATION_SEEDS = range(100, 104)
# The `accuracy_level` of `MatMulNBits` that rounds activations to 8 bits.
ROUNDED_LEVEL = 4


def f16(folder, contract):
    """Weights, inputs and outputs in float16."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.load(f"{folder}/source.onnx")
    onnx.save(convert_float_to_float16(model, keep_io_types=False), f"{folder}/model.onnx")


def f16_keep_io(folder, contract):
    """Weights in float16, inputs and outputs in float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.load(f"{folder}/source.onnx")
    onnx.save(convert_float_to_float16(model, keep_io_types=True), f"{folder}/model.onnx")


def dynamic_int8(folder, contract):
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(f"{folder}/source.onnx", f"{folder}/model.onnx")


def _quantize_static(folder, contract, form, **options):
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self):
            binding = contract.bindings()[2]
            self.rows = iter([contract.values(binding, seed) for seed in CALIBRATION_SEEDS])

        def get_next(self):
            return next(self.rows, None)

    source = f"{folder}/source.onnx"
    quant_pre_process(source, source, skip_symbolic_shape=True)
    quantize_static(source, f"{folder}/model.onnx", Reader(), quant_format=form, **options)


def qdq(folder, contract):
    from onnxruntime.quantization import QuantFormat, QuantType

    _quantize_static(folder, contract, QuantFormat.QDQ, per_channel=True, weight_type=QuantType.QInt8)


def qoperator(folder, contract):
    from onnxruntime.quantization import QuantFormat

    _quantize_static(folder, contract, QuantFormat.QOperator)


def int4(folder, contract, **options):
    """Weights of MatMul in blocks of 4 bits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    source = onnx.load(f"{folder}/source.onnx")
    quantizer = MatMulNBitsQuantizer(source, block_size=32, is_symmetric=True, **options)
    quantizer.process()
    quantizer.model.save_model_to_file(f"{folder}/model.onnx")


def int4_rounded(folder, contract):
    """As `int4`, and the other operands are rounded to 8 bits before they are multiplied."""
    int4(folder, contract, accuracy_level=ROUNDED_LEVEL)


def rounds_activations(model):
    """Whether `MatMulNBits` of a model rounds its operands to 8 bits."""
    levels = [
        attribute.i
        for node in model.graph.node
        if node.op_type == "MatMulNBits"
        for attribute in node.attribute
        if attribute.name == "accuracy_level"
    ]
    return ROUNDED_LEVEL in levels


def ort_extended(folder, contract):
    """The graph that ONNX Runtime's session saves after its optimisations, without layouts of one machine."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = f"{folder}/model.onnx"
    onnxruntime.InferenceSession(f"{folder}/source.onnx", options, providers=["CPUExecutionProvider"])


def _transformers_optimizer(folder, kind):
    from onnxruntime.transformers.optimizer import optimize_model

    model = optimize_model(f"{folder}/source.onnx", model_type=kind, num_heads=0, hidden_size=0, opt_level=0)
    model.save_model_to_file(f"{folder}/model.onnx")


def fused_bert(folder, contract):
    _transformers_optimizer(folder, "bert")


def fused_gpt2(folder, contract):
    _transformers_optimizer(folder, "gpt2")


def bf16(folder, contract):
    """Weights and arithmetic in bfloat16, inputs and outputs in float32. `reference.onnx` has the rounded weights in
    float32, as ONNX Runtime's CPU operators lack bfloat16."""
    import ml_dtypes

    model = onnx.load(f"{folder}/source.onnx")
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            rounded = onnx.numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, tensor.name))
    onnx.save(model, f"{folder}/reference.onnx")
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            narrow = onnx.numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16)
            tensor.CopyFrom(onnx.helper.make_tensor(
                tensor.name, onnx.TensorProto.BFLOAT16, narrow.shape, narrow.tobytes(), raw=True
            ))
    graph = model.graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.BFLOAT16
            if attribute.name == "value" and attribute.t.data_type == onnx.TensorProto.FLOAT:
                narrow = onnx.numpy_helper.to_array(attribute.t).astype(ml_dtypes.bfloat16)
                attribute.t.CopyFrom(onnx.helper.make_tensor(
                    "", onnx.TensorProto.BFLOAT16, narrow.shape, narrow.tobytes(), raw=True
                ))
    first, last = [], []
    for value in graph.input:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            narrow = f"{value.name}_bf16"
            for node in graph.node:
                node.input[:] = [narrow if name == value.name else name for name in node.input]
            first.append(onnx.helper.make_node("Cast", [value.name], [narrow], to=onnx.TensorProto.BFLOAT16))
    for value in graph.output:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            narrow = f"{value.name}_bf16"
            for node in graph.node:
                node.input[:] = [narrow if name == value.name else name for name in node.input]
                node.output[:] = [narrow if name == value.name else name for name in node.output]
            last.append(onnx.helper.make_node("Cast", [narrow], [value.name], to=onnx.TensorProto.FLOAT))
    nodes = first + list(graph.node) + last
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    onnx.save(model, f"{folder}/model.onnx")
