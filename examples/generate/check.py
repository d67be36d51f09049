"""Compares greedy text of the program with ONNX Runtime on the same ONNX file, token by token.

    python check.py models/smollm2
    python check.py models/gemma3 --program target/release/generate --tokens 200

Exits with 1 if a token differs. Needs the packages of `requirements.txt`, and a folder that `export.py` wrote."""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np
import onnxruntime
import tokenizers

PROMPT = "Tell me a long story about a lighthouse keeper who finds a map."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="target/release/generate")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--prompt", default=PROMPT)
    arguments = parser.parse_args()

    expected, margins = greedy(arguments.folder, arguments.prompt, arguments.tokens)
    found = program(arguments.program, arguments.folder, arguments.prompt, arguments.tokens)
    wrong = next((k for k, pair in enumerate(zip(expected, found)) if pair[0] != pair[1]), None)
    if wrong is None and len(expected) == len(found):
        print(f"{arguments.folder}: {len(found)} tokens are equal; the closest choice had a margin of {min(margins):.2g}")
        return
    if wrong is None:
        sys.exit(f"{arguments.folder}: {len(found)} tokens, expected {len(expected)}")
    sys.exit(
        f"{arguments.folder}: token {wrong} is {found[wrong]}, expected {expected[wrong]}; "
        f"the margin of its logit is {margins[wrong]:.2g}"
    )


def greedy(folder, prompt, count):
    """The most probable tokens by ONNX Runtime, and how far the logit of each is above the second largest one."""
    settings = json.loads((folder / "settings.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = settings["start"] + settings["before"] + prompt + settings["after"]
    tokens = tokenizer.encode(text, add_special_tokens=False).ids

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    names = {value.name: value for value in session.get_inputs()}
    outputs = [value.name for value in session.get_outputs()]
    past = {}
    for name, value in names.items():
        if name.startswith("past_key_values."):
            _, heads, _, width = value.shape
            past[name] = np.zeros((1, heads, 0, width), np.float32)

    chosen, margins = [], []
    length = 0
    while len(chosen) < count:
        positions = np.arange(length, length + len(tokens), dtype=np.int64)[None]
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, length + len(tokens)), np.int64),
            "position_ids": positions,
        }
        results = session.run(outputs, {**{k: v for k, v in inputs.items() if k in names}, **past})
        results = dict(zip(outputs, results))
        past = {name: results[name.replace("past_key_values", "present")] for name in past}
        length += len(tokens)
        logits = results["logits"][0, -1]
        token = int(np.argmax(logits))
        second, first = np.partition(logits, -2)[-2:]
        chosen.append(token)
        margins.append(float(first - second))
        tokens = [token]
    return chosen, margins


def program(path, folder, prompt, count):
    """The tokens of the program."""
    command = [path, folder, prompt, "--tokens", str(count), "--ignore-end", "--print-tokens"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"{path} failed with {result.returncode}")
    line = next(line for line in reversed(result.stdout.splitlines()) if line.startswith("tokens: "))
    return json.loads(line.removeprefix("tokens: "))


if __name__ == "__main__":
    main()
