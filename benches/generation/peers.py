"""Decoders behind one interface.

`start(count, rows)` forgets all and reads prompts of `count` tokens, one for each row; `feed(count)` reads more of them
unless the peer `reads_long_prompts`; and `step()` decodes one token of each row. All return nanoseconds. A constructor
raises `Missing` if its package or its file is not there."""

import concurrent.futures
import json
import pathlib
import sys
from functools import partial

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from peer import Missing, existing, imported, timed  # noqa: E402

# The token of all prompts: the time does not depend on it.
TOKEN = 1
# The largest number of rows, and of tokens of a row.
ROWS = 8
CONTEXT = 1536
# Steps that are timed after each prompt; their mean counts. The past grows by one in each.
STEPS = 4


# Types of weights, as options of `symshape.compile`. The last two are the types of llama.cpp's files.
WEIGHTS = {
    "f32": {},
    "int8": {"weights": "int8"},
    "int4": {"weights": "int4"},
    "int8-like-q8_0": {"weights": "int8", "weight_error": float("inf")},
    "int4-like-q4_0": {
        "weights": "int4",
        "named_weights": {"model.embed_tokens.weight": "int8"},
        "weight_error": float("inf"),
    },
}


def arrays(rows, past, count):
    """The inputs of an export with past keys and values."""
    end = past + count
    return {
        "input_ids": np.full((rows, count), TOKEN, np.int64),
        "attention_mask": np.ones((rows, end), np.int64),
        "position_ids": np.tile(np.arange(past, end, dtype=np.int64), (rows, 1)),
    }


class Fed:
    """A peer that reads any number of tokens by one method, `read(inputs)`, with the inputs of an export."""

    def begin(self, count, rows):
        """Reads the first tokens of each row."""
        self.rows, self.length = rows, 0
        return self.feed(count)

    def feed(self, count):
        inputs = arrays(self.rows, self.length, count)
        self.length += count
        inputs = {name: inputs[name] for name in self.names}
        return timed(lambda: self.read(inputs))

    def step(self):
        return self.feed(1)


def compiled(folder, weights, activations):
    """The artefact of `model.onnx` with these of `WEIGHTS` and this type of activations, with keys and values as state.
    One that is older than the model or the package is made again."""
    symshape = imported("symshape")
    source = existing(folder / "model.onnx")
    artefact = folder / f"benchmark-{weights}-{activations}.so"
    natives = pathlib.Path(symshape.__file__).parent.glob("_native*")
    newest = max(path.stat().st_mtime for path in (source, *natives))
    if not artefact.exists() or artefact.stat().st_mtime < newest:
        dims = dict(text.split("=") for text in json.loads((folder / "settings.json").read_text())["dims"])
        # Scratch memory for as many threads as the largest number that is measured.
        options = {"stateful": True, "threads": 2, "activations": activations, **WEIGHTS[weights]}
        symshape.compile(source, dims, **options).save(artefact)
    return artefact


class Symshape(Fed):
    """The compiled model, with keys and values as state."""

    def __init__(self, folder, threads, weights="f32", activations="f32"):
        self.model = imported("symshape").load(compiled(folder, weights, activations))
        self.model.threads = threads
        self.names = [tensor.name for tensor in self.model.contract.inputs]
        self.vocabulary = int(self.model.contract.outputs[0].dims[-1])
        self.states = {}
        self.outputs = {}

    def start(self, count, rows):
        if rows not in self.states:
            self.states[rows] = self.model.new_state(CONTEXT, {"batch_size": rows})
        self.state = self.states[rows]
        self.state.reset()
        return self.begin(count, rows)

    def read(self, inputs):
        shape = (*inputs["input_ids"].shape, self.vocabulary)
        if shape not in self.outputs:
            self.outputs[shape] = {"logits": np.zeros(shape, np.float32)}
        self.model.run(inputs, self.outputs[shape], state=self.state)


class OnnxRuntime(Fed):
    """ONNX Runtime with growing keys and values, which stay in its memory."""

    def __init__(self, folder, threads):
        self.runtime = imported("onnxruntime")
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        path = existing(folder / "model.onnx")
        self.session = self.runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = self.session.get_inputs()
        self.caches = [value for value in inputs if value.name.startswith("past_key_values.")]
        self.names = {value.name for value in inputs} - {value.name for value in self.caches}
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.binding = self.session.io_binding()

    def start(self, count, rows):
        self.past = {}
        for value in self.caches:
            _, heads, _, width = value.shape
            empty = np.zeros((rows, heads, 0, width), np.float32)
            self.past[value.name] = self.runtime.OrtValue.ortvalue_from_numpy(empty)
        return self.begin(count, rows)

    def read(self, inputs):
        for name, array in inputs.items():
            self.binding.bind_cpu_input(name, array)
        for name, value in self.past.items():
            self.binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            self.binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(self.binding)
        results = dict(zip(self.outputs, self.binding.get_outputs()))
        self.past = {name: results[name.replace("past_key_values", "present")] for name in self.past}


class OnnxRuntimeGenAi:
    """onnxruntime-genai with the model of its builder: keys and values are in one buffer that all calls share."""

    reads_long_prompts = True

    def __init__(self, folder, threads):
        self.genai = imported("onnxruntime_genai")
        folder = existing(folder / "genai")
        config = self.genai.Config(str(folder))
        overlay = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
        config.overlay(json.dumps(overlay))
        self.model = self.genai.Model(config)

    def start(self, count, rows):
        params = self.genai.GeneratorParams(self.model)
        params.set_search_options(
            max_length=CONTEXT, min_length=CONTEXT, batch_size=rows, do_sample=False, past_present_share_buffer=True
        )
        self.generator = self.genai.Generator(self.model, params)
        tokens = np.full((rows, count), TOKEN, np.int32)
        time_ns = timed(lambda: self.generator.append_tokens(tokens))
        # The first token comes from the logits of the prompt; each later one needs a step.
        self.generator.generate_next_token()
        return time_ns

    def step(self):
        return timed(self.generator.generate_next_token)


class OpenVino(Fed):
    """OpenVINO, the engine of openvino-genai, with keys and values as its state."""

    def __init__(self, folder, threads):
        openvino = imported("openvino")
        transformations = imported("openvino._offline_transformations")
        core = openvino.Core()
        model = core.read_model(existing(folder / "model.onnx"))
        names = [value.get_any_name() for value in model.inputs]
        pairs = {
            name: name.replace("past_key_values", "present") for name in names if name.startswith("past_key_values.")
        }
        transformations.apply_make_stateful_transformation(model, pairs)
        # Without the hints, OpenVINO computes in bf16 and keeps keys and values in 8 bits on some machines.
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "ENABLE_CPU_PINNING": False,
        }
        self.request = core.compile_model(model, "CPU", options).create_infer_request()
        self.names = set(names) - set(pairs)
        self.tensor = openvino.Tensor

    def start(self, count, rows):
        self.request.reset_state()
        for variable in self.request.query_state():
            shape = list(variable.state.shape)
            variable.state = self.tensor(np.zeros((rows, shape[1], 0, shape[3]), np.float32))
        return self.begin(count, rows)

    def read(self, inputs):
        self.request.infer(inputs, share_inputs=True, share_outputs=True)


class LlamaCpp:
    """llama.cpp with keys and values in f32, by the server in its bindings. A request reads a prompt and decodes
    `STEPS` tokens; its reply has the time of the prompt and the mean time of a step. The server computes the logits of
    the last token of a prompt only."""

    # A prompt of any length is one request.
    reads_long_prompts = True

    def __init__(self, folder, threads, weights="f32"):
        bindings = imported("xllamacpp")
        params = bindings.CommonParams()
        params.model.path = str(existing(folder / f"{weights}.gguf"))
        params.n_ctx = ROWS * CONTEXT
        params.n_batch = params.n_ubatch = CONTEXT
        params.n_parallel = ROWS
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_type_k = params.cache_type_v = bindings.ggml_type.GGML_TYPE_F32
        params.cache_prompt = False
        params.verbosity = -1
        self.server = bindings.Server(params)
        self.pool = concurrent.futures.ThreadPoolExecutor(ROWS)

    def start(self, count, rows):
        request = {
            "prompt": [TOKEN] * count,
            # The prompt gives the first token.
            "n_predict": STEPS + 1,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        replies = list(self.pool.map(lambda _: self.server.handle_completions(request), range(rows)))
        timings = [reply["timings"] for reply in replies]
        self.step_ns = max(timing["predicted_ms"] / (timing["predicted_n"] - 1) for timing in timings) * 1e6
        return max(timing["prompt_ms"] for timing in timings) * 1e6

    def step(self):
        return self.step_ns


# Peers with weights of few bits have the same types of weights. Their names end with that of activations in products.
PEERS = {
    "symshape": Symshape,
    "onnxruntime": OnnxRuntime,
    "onnxruntime-genai": OnnxRuntimeGenAi,
    "openvino": OpenVino,
    "llama.cpp f32": LlamaCpp,
    "llama.cpp f16": partial(LlamaCpp, weights="f16"),
    "symshape int8, f32": partial(Symshape, weights="int8-like-q8_0"),
    "symshape int8, int8": partial(Symshape, weights="int8-like-q8_0", activations="int8"),
    "llama.cpp Q8_0, int8": partial(LlamaCpp, weights="q8_0"),
    "symshape int4, f32": partial(Symshape, weights="int4-like-q4_0"),
    "symshape int4, int8": partial(Symshape, weights="int4-like-q4_0", activations="int8"),
    "llama.cpp Q4_0, int8": partial(LlamaCpp, weights="q4_0"),
}
