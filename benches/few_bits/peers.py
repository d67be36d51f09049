"""Eight products with weights of 4 bits, behind one interface.

`prepare(x)` takes the rows, `call()` multiplies them and returns nanoseconds, and `result()` is the last product, `None`
if a peer computes more. A constructor raises `Missing` if its package is missing."""

import functools
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from peer import Missing, imported, timed  # noqa: E402

WIDTH, LAYERS, BLOCK = 2048, 8, 32
# Tokens of llama.cpp that are timed after a prompt.
STEPS = 32


@functools.cache
def layers():
    """Codes from 0 to 15, `[columns, blocks, elements]`, and scales, `[columns, blocks]`, of each layer. The value of a
    weight is `(code - 8) * scale`; products keep the size of the rows."""
    random = np.random.default_rng(1)
    shape = (WIDTH, WIDTH // BLOCK)
    made = []
    for _ in range(LAYERS):
        codes = random.integers(0, 16, (*shape, BLOCK), np.uint8)
        scales = random.uniform(0.5, 1.5, shape) / (4.8 * np.sqrt(WIDTH))
        made.append((codes, scales.astype(np.float16).astype(np.float32)))
    return made


def reference(x):
    """The products in f32."""
    for codes, scales in layers():
        weights = (codes.astype(np.float32) - 8) * scales[..., None]
        x = x @ weights.reshape(WIDTH, WIDTH).T
    return x


def model(folder, level):
    """The ONNX file with this `accuracy_level`."""
    path = folder / f"level-{level}.onnx"
    if path.exists():
        return path
    onnx = imported("onnx")
    helper = onnx.helper
    nodes, initializers, value = [], [], "x"
    for k, (codes, scales) in enumerate(layers()):
        packed = codes[..., ::2] | codes[..., 1::2] << 4
        initializers.append(onnx.numpy_helper.from_array(packed, f"codes{k}"))
        initializers.append(onnx.numpy_helper.from_array(scales.reshape(-1), f"scales{k}"))
        following = "y" if k == LAYERS - 1 else f"x{k}"
        attributes = {"K": WIDTH, "N": WIDTH, "bits": 4, "block_size": BLOCK, "accuracy_level": level}
        inputs = [value, f"codes{k}", f"scales{k}"]
        nodes.append(helper.make_node("MatMulNBits", inputs, [following], domain="com.microsoft", **attributes))
        value = following
    rows = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["M", WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "few_bits", rows[:1], rows[1:], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


class Symshape:
    def __init__(self, folder, threads, level, activations):
        symshape = imported("symshape")
        source = model(folder, 0)
        compiled = symshape.compile(source, {"M": (1, 128)}, cpu=level, activations=activations, threads=2)
        self.model = compiled
        self.model.threads = threads

    def prepare(self, x):
        self.inputs, self.outputs = {"x": x}, {"y": np.empty_like(x)}

    def call(self):
        return timed(lambda: self.model.run(self.inputs, self.outputs))

    def result(self):
        return self.outputs["y"]


class OnnxRuntime:
    def __init__(self, folder, threads, level):
        runtime = imported("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = runtime.InferenceSession(model(folder, level), options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()

    def prepare(self, x):
        self.output = np.empty_like(x)
        self.binding.bind_cpu_input("x", x)
        self.binding.bind_output("y", "cpu", 0, np.float32, x.shape, self.output.ctypes.data)

    def call(self):
        return timed(lambda: self.session.run_with_iobinding(self.binding))

    def result(self):
        return self.output


class OpenVino:
    """OpenVINO, which keeps the weights compressed. It rounds activations by groups unless their size is 0."""

    def __init__(self, folder, threads, group):
        openvino = imported("openvino")
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
            "ENABLE_CPU_PINNING": False,
        }
        self.request = openvino.Core().compile_model(model(folder, 0), "CPU", options).create_infer_request()

    def prepare(self, x):
        self.inputs = {"x": x}

    def call(self):
        return timed(lambda: self.request.infer(self.inputs, share_inputs=True, share_outputs=True))

    def result(self):
        return self.request.get_output_tensor().data


class LlamaCpp:
    """llama.cpp with a transformer of one layer in Q4_0, which has 0.2 % fewer weights than the eight products: four
    matrices of attention, and three of 2720 channels. It adds attention over the rows, norms and a product with 32
    tokens. One row is a step of decoding, and more are a prompt; the times are those that its server reports."""

    FEED_FORWARD = 2720
    TOKENS = 32

    def __init__(self, folder, threads):
        bindings = imported("xllamacpp")
        path = folder / "layer.gguf"
        if not path.exists():
            self.write(path)
        params = bindings.CommonParams()
        params.model.path = str(path)
        params.n_ctx = params.n_batch = params.n_ubatch = 256
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_prompt = False
        params.warmup = False
        params.verbosity = -1
        self.server = bindings.Server(params)

    def write(self, path):
        gguf = imported("gguf")
        q4 = gguf.GGMLQuantizationType.Q4_0
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(256)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(1)
        writer.add_feed_forward_length(self.FEED_FORWARD)
        writer.add_head_count(16)
        writer.add_head_count_kv(16)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(self.TOKENS)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([chr(ord("A") + k) for k in range(self.TOKENS)])
        writer.add_token_types([gguf.TokenType.NORMAL] * self.TOKENS)
        writer.add_token_merges(["A B"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)

        random = np.random.default_rng(2)

        def matrix(name, rows, columns):
            values = random.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
            writer.add_tensor(name, gguf.quants.quantize(values, q4), raw_dtype=q4)

        matrix("token_embd.weight", self.TOKENS, WIDTH)
        matrix("output.weight", self.TOKENS, WIDTH)
        for name in ("q", "k", "v", "output"):
            matrix(f"blk.0.attn_{name}.weight", WIDTH, WIDTH)
        for name in ("gate", "up"):
            matrix(f"blk.0.ffn_{name}.weight", self.FEED_FORWARD, WIDTH)
        matrix("blk.0.ffn_down.weight", WIDTH, self.FEED_FORWARD)
        for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
            writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def prepare(self, x):
        self.rows = len(x)

    def call(self):
        steps = STEPS if self.rows == 1 else 0
        request = {
            "prompt": [1] * self.rows,
            "n_predict": steps + 1,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        timings = self.server.handle_completions(request)["timings"]
        if steps:
            return timings["predicted_ms"] / (timings["predicted_n"] - 1) * 1e6
        return timings["prompt_ms"] * 1e6

    def result(self):
        return None


PEERS = {
    "symshape f32": (Symshape, "x86-64-v4-vnni", "f32"),
    "symshape AVX2 f32": (Symshape, "x86-64-v3", "f32"),
    "ONNX Runtime level 0 f32": (OnnxRuntime, 0),
    "OpenVINO f32": (OpenVino, 0),
    "symshape int8": (Symshape, "x86-64-v4-vnni", "int8"),
    "symshape AVX2 int8": (Symshape, "x86-64-v3", "int8"),
    "ONNX Runtime level 4 int8": (OnnxRuntime, 4),
    "OpenVINO int8": (OpenVino, BLOCK),
    "llama.cpp AVX2 int8": (LlamaCpp,),
}
