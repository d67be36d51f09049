"""Prints the perplexity of `perplexity.txt` for SmolLM2 with weights of different types, next to llama.cpp.

    python benches/generation/perplexity.py target/smollm2

The folder is that of examples/generate/export.py and of prepare.py. The text is about 1,900 tokens, all in one context.
symshape rounds the weights of `model.onnx`; its artefacts stay in the folder. llama.cpp also rounds the activations to
8 bits; symshape does so in the rows with two types.

The perplexity is exp of the mean of -ln p over all tokens after the first. llama.cpp takes a request for each; with
`--every 8`, all rows are about every eighth token. `--peers` names some of the rows."""

import argparse
import math
import pathlib
import sys

import numpy as np
from peers import Missing, compiled, existing, imported

TEXT = pathlib.Path(__file__).with_name("perplexity.txt")
CHUNK = 256


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
        kind, *types = PEERS[name]
        try:
            size, losses = kind(arguments.folder, *types, tokens, counted)
        except Missing as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
            continue
        assert len(losses) == len(counted)
        print(f"| {name} | {size / 1e6:.1f} MB | {math.exp(np.mean(losses)):.4f} |", flush=True)


def symshape(folder, weights, activations, tokens, counted):
    """The size of the artefact, and the losses of the tokens at the positions `counted`."""
    artefact = compiled(folder, weights, activations)
    model = imported("symshape").load(artefact)
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
    path = existing(folder / f"{weights}.gguf")
    params = bindings.CommonParams()
    params.model.path = str(path)
    params.n_ctx = len(tokens) + 8
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    # Copies of the keys and values for other conversations.
    params.cache_ram_mib = 0
    params.cache_type_k = params.cache_type_v = bindings.ggml_type.GGML_TYPE_F32
    params.verbosity = -1
    server = bindings.Server(params)
    return path.stat().st_size, [loss(server, tokens[:end], tokens[end]) for end in counted]


def loss(server, prompt, token):
    """-ln p of the token. The bias makes it the one that is sampled; the probability is that of the logits."""
    request = {
        "prompt": prompt,
        "max_tokens": 1,
        "logprobs": 1,
        "logit_bias": [[token, 1e9]],
        "cache_prompt": True,
        "temperature": 0,
    }
    reply = server.handle_completions(request)
    sampled = reply["choices"][0]["logprobs"]["content"][0]
    if sampled["id"] != token:
        sys.exit(f"llama.cpp sampled {sampled['id']}, not {token}")
    return -sampled["logprob"]


PEERS = {
    "symshape f32": (symshape, "f32", "f32"),
    "symshape int8": (symshape, "int8", "f32"),
    "symshape int8, int8": (symshape, "int8", "int8"),
    "llama.cpp Q8_0": (llama_cpp, "q8_0"),
    "symshape int4": (symshape, "int4", "f32"),
    "symshape int4, int8": (symshape, "int4", "int8"),
    "symshape int4 like Q4_0": (symshape, "int4-like-q4_0", "f32"),
    "symshape int4 like Q4_0, int8": (symshape, "int4-like-q4_0", "int8"),
    "llama.cpp Q4_0": (llama_cpp, "q4_0"),
}


if __name__ == "__main__":
    main()
