"""Writes the encoders of the benchmark with random weights, for all peers.

    python benches/ragged/prepare.py target/ragged

Each model gets a folder with `model.onnx`, an export with a mask, and `ct2`, the same weights for CTranslate2. `--small`
writes one model of two layers of 64 channels instead, for `run.py --smoke`."""

import argparse
import pathlib
import shutil
import sys
import warnings

from lengths import LONGEST, VOCABULARY

# Hidden channels, layers, heads and channels of the feed-forward layers.
MODELS = {"minilm": (384, 6, 12, 1536), "bert-base": (768, 12, 12, 3072)}
SMALL = {"small": (64, 2, 4, 128)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    for name, sizes in (SMALL if arguments.small else MODELS).items():
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        model = encoder(*sizes)
        export(model, folder / "model.onnx")
        convert(model, folder / "ct2")
        print(folder)


def encoder(hidden, layers, heads, feed_forward):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=feed_forward, max_position_embeddings=LONGEST, attn_implementation="eager",
    )
    return transformers.BertModel(config).eval().requires_grad_(False)


def export(model, path):
    import torch

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

    warnings.filterwarnings("ignore")
    ids = torch.ones((2, 8), dtype=torch.int64)
    axes = {name: {0: "N", 1: "S"} for name in ("input_ids", "attention_mask", "hidden")}
    names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["hidden"]}
    torch.onnx.export(Hidden(), (ids, ids), str(path), **names, dynamic_axes=axes, opset_version=17, dynamo=False)


def convert(model, folder):
    try:
        from ctranslate2.converters.transformers import BertLoader
    except ImportError as error:
        print(f"CTranslate2 is left out: {error}", file=sys.stderr)
        return
    # The converter asks for a field that newer versions of transformers do not write.
    model.config.position_embedding_type = "absolute"
    spec = BertLoader().get_model_spec(model)
    spec.register_vocabulary([f"token{k}" for k in range(VOCABULARY)])
    spec.config.layer_norm_epsilon = model.config.layer_norm_eps
    spec.config.unk_token = "token0"
    spec.validate()
    spec.optimize(quantization=None)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    spec.save(str(folder))


if __name__ == "__main__":
    main()
