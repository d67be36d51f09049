"""Prints the perplexity of `perplexity.txt` for SmolLM2 with weights of different types, next to llama.cpp.

    python benches/generation/perplexity.py target/smollm2

The folder is that of examples/generate/export.py and of prepare.py. The text is about 1,900 tokens, all in one context.
symshape rounds the weights of `model.onnx`; its artefacts stay in the folder. The files of llama.cpp are rounded from
`f32.gguf` by the package gguf. As llama-quantize does, Q4_0 keeps the table of the vocabulary in Q8_0. llama.cpp also
rounds the activations to 8 bits; symshape does not.

The perplexity is exp of the mean of -ln p over all tokens after the first. llama.cpp takes about half a second for
each; with `--every 8`, all rows are about every eighth token. `--peers` names some of the rows."""

import argparse
import json
import math
import pathlib
import sys

import numpy as np
from peers import Missing, existing, imported

TEXT = pathlib.Path(__file__).with_name("perplexity.txt")
CHUNK = 256
# Candidates in the first reply of llama.cpp; a token that is not among them needs the whole vocabulary.
CANDIDATES = 100


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--every", type=int, default=1, help="measure every Nth token only", metavar="N")
    arguments = parser.parse_args()

    tokenizer = imported("tokenizers").Tokenizer.from_file(str(existing(arguments.folder / "tokenizer.json")))
    tokens = tokenizer.encode(TEXT.read_text()).ids
    counted = range(1, len(tokens), arguments.every)
    print(f"| {len(counted)} of {len(tokens)} tokens | bytes | perplexity |\n|---|---|---|")
    for name in arguments.peers:
        kind, weights = PEERS[name]
        try:
            size, losses = kind(arguments.folder, weights, tokens, counted)
        except Missing as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
            continue
        assert len(losses) == len(counted)
        print(f"| {name} | {size / 1e6:.1f} MB | {math.exp(np.mean(losses)):.4f} |", flush=True)


def symshape(folder, weights, tokens, counted):
    """The size of the artefact, and the losses of the tokens at the positions `counted`."""
    package = imported("symshape")
    artefact = folder / f"weights-{weights}.so"
    if not artefact.exists():
        dims = dict(text.split("=") for text in json.loads((folder / "settings.json").read_text())["dims"])
        source = existing(folder / "model.onnx")
        chosen = None if weights == "f32" else weights
        package.compile(source, dims, stateful=True, weights=chosen).save(artefact)
    model = package.load(artefact)
    names = [tensor.name for tensor in model.contract.inputs]
    vocabulary = int(model.contract.outputs[0].dims[-1])
    state = model.new_state(len(tokens), {"batch_size": 1})

    losses = []
    for start in range(0, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK]
        end = start + len(chunk)
        inputs = {
            "input_ids": np.array([chunk], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(start, end, dtype=np.int64)[None],
        }
        logits = np.zeros((1, len(chunk), vocabulary), np.float32)
        model.run({name: inputs[name] for name in names}, {"logits": logits}, state=state)
        following = tokens[start + 1 : end + 1]
        for row, token in zip(logits[0].astype(np.float64), following):
            largest = row.max()
            losses.append(math.log(np.exp(row - largest).sum()) + largest - row[token])
    return artefact.stat().st_size, [losses[position - 1] for position in counted]


def llama_cpp(folder, weights, tokens, counted):
    """As `symshape`, for a file of llama.cpp. A request reads the tokens up to one position."""
    bindings = imported("xllamacpp")
    path = folder / f"{weights}.gguf"
    if not path.exists():
        quantise(existing(folder / "f32.gguf"), path, weights)
    params = bindings.CommonParams()
    params.model.path = str(path)
    params.n_ctx = len(tokens) + 8
    params.n_parallel = 1
    params.cache_type_k = params.cache_type_v = bindings.ggml_type.GGML_TYPE_F32
    params.verbosity = -1
    server = bindings.Server(params)
    return path.stat().st_size, [loss(server, tokens[:end], tokens[end]) for end in counted]


def loss(server, prompt, token):
    for count in (CANDIDATES, 1 << 20):
        request = {"prompt": prompt, "max_tokens": 1, "logprobs": count, "cache_prompt": True, "temperature": 0}
        reply = server.handle_completions(request)
        candidates = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        for candidate in candidates:
            if candidate["id"] == token:
                return -candidate["logprob"]
    sys.exit(f"llama.cpp has no probability for token {token}")


def quantise(source, target, name):
    """Copies a GGUF file of f32 with matrices of another type."""
    import gguf

    types = gguf.GGMLQuantizationType
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        # The writer writes these itself.
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        is_matrix = len(tensor.shape) > 1
        wanted = types.Q8_0 if tensor.name == "token_embd.weight" else types[name.upper()]
        if is_matrix:
            writer.add_tensor(tensor.name, gguf.quants.quantize(tensor.data, wanted), raw_dtype=wanted)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


PEERS = {
    "symshape f32": (symshape, "f32"),
    "symshape int8": (symshape, "int8"),
    "llama.cpp Q8_0": (llama_cpp, "q8_0"),
    "symshape int4": (symshape, "int4"),
    "llama.cpp Q4_0": (llama_cpp, "q4_0"),
}


if __name__ == "__main__":
    main()
