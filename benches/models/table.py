"""Writes docs/models.md from the results of run.py."""

import json
import os
import platform
import re

# Titles of the lists of models that are not equal, and the results in each.
MISSING = {
    "Refused or different": ("refused", "wrong", "crashed", "timeout"),
    "Without a comparison": ("not exported", "no reference"),
}
HEAD = """# Models

Exports of today's architectures, compiled once each for all sizes, and compared with ONNX Runtime and OpenVINO.

```sh
python3 -m venv /tmp/models && /tmp/models/bin/pip install -r benches/models/requirements.txt   # needs the network
cargo build --release -p symshape-compiler
/tmp/models/bin/python benches/models/run.py                # writes this page
/tmp/models/bin/python benches/models/run.py --only bert    # some of the models
```

The script exports the models from configurations with random weights, so it downloads no weights.
It keeps exports and results in `target/models`, and goes on there after an interruption.
`--list` prints all names.

## How to read the tables

| column | meaning |
|---|---|
| exporter | `script`: torch's exporter by tracing; `dynamo`: the one by `torch.export`; `none`: a graph made without torch |
| result | `equal`: the outputs are those of ONNX Runtime at five sizes, see below |
| error | largest difference from ONNX Runtime, relative to the largest magnitude of the output |
| ONNX Runtime, OpenVINO | time of the other runtime divided by that of symshape, at the smallest and at the largest size; above 1, symshape is faster |
| compile | seconds of `symc compile` |

- The sizes are the smallest, the second, odd ones, the second largest and the largest of all symbols at once.
- Every call has pages without access around its buffers, and is repeated with other contents of the arena.
- An output may differ by 1e-4 in `f32`, 1e-2 in `f16`, 3e-2 in quantised models and 4e-2 in bf16.
- Where ONNX Runtime with and without its optimisations differ by more than a quarter of that, four times their difference is allowed.
- Times are processor time of one thread. The runtimes take turns; a ratio is the median over the turns, each the fastest calls of a burst.
- OpenVINO computes in `f32` too, also with weights of 4 bits, whose operands it would round to 8 bits by default.
- Models named `int4-rounded` round these operands in all three runtimes: symshape with `--activations int8`, ONNX Runtime with `accuracy_level` 4 and OpenVINO by default.
- ONNX Runtime has no bf16 on CPUs: models in bf16 are compared with the same weights in `f32`.
- Ratios vary by about a tenth from run to run.
- BERT with its usual mask is left out in QDQ form. The mask has infinities, so the calibration gives a scale of infinity. The standard does not define that case, and the results differ.
- `-` means that the other runtime refuses the model, or that its result differs from that of ONNX Runtime by more than a tenth.

"""


def ratio(row, peer):
    """The ratios to a peer at both sizes, or a dash."""
    parts = [row.get("ratios", {}).get(place, {}).get(peer) for place in ("smallest", "largest")]
    if all(part is None for part in parts):
        return "-"
    return ", ".join("-" if part is None else f"{part:.2g}" if part < 10 else f"{part:.0f}" for part in parts)


def code(text):
    return f"`{text}`" if text else ""


def line(row):
    declared = row.get("flags", [])
    declared = " ".join(declared)
    result = row["status"]
    error = f"{row['max_error']:.0e}" if row.get("max_error") is not None else ""
    compile_s = f"{row['compile_s']:.1f}" if "compile_s" in row else ""
    cells = [row["name"], row["exporter"], result, error, ratio(row, "ort"), ratio(row, "openvino"), compile_s]
    return "| " + " | ".join([*cells, code(declared)]) + " |"


def totals(rows):
    """Counts of results, and of ratios to ONNX Runtime below 1."""
    judged = [row for row in rows if row["status"] not in ("not exported", "no reference")]
    equal = [row for row in judged if row["status"] == "equal"]
    ratios = [r["ort"] for row in equal for r in row.get("ratios", {}).values() if "ort" in r]
    ratios.sort()
    text = f"{len(equal)} of {len(judged)} models are equal"
    if ratios:
        text += f"; of {len(ratios)} ratios to ONNX Runtime, {sum(r < 1 for r in ratios)} are below 1"
        text += f", the median is {ratios[len(ratios) // 2]:.2g} and the smallest {ratios[0]:.2g}"
    return text + "."


def slower(rows):
    """The models that are slower than ONNX Runtime at a size."""
    found = []
    for row in rows:
        for place, ratios in row.get("ratios", {}).items():
            if ratios.get("ort", 1) < 1:
                found.append((ratios["ort"], f"{row['name']} ({ratios['ort']:.2f} at the {place} size)"))
    if not found:
        return ""
    return "\nSlower than ONNX Runtime: " + ", ".join(text for _, text in sorted(found)) + ".\n"


def write(path, results, entries, note=""):
    """Writes the page; `note` says under which conditions the times were measured."""
    rows = []
    for entry in entries:
        file = f"{results}/{entry.name}.json"
        if os.path.exists(file):
            with open(file, encoding="utf-8") as source:
                rows.append({**json.load(source), "family": entry.family})
    text = HEAD + "## Results\n\n" + totals(rows) + "\n"
    text += f"The machine is {machine()}.\n"
    text += f"{note}\n" if note else ""
    if len(rows) < len(entries):
        text += f"The script has {len(entries)} models; {len(entries) - len(rows)} of them were not run for this page.\n"
    text += slower(rows)
    for family in dict.fromkeys(row["family"] for row in rows):
        group = [row for row in rows if row["family"] == family and row["status"] not in MISSING["Without a comparison"]]
        if not group:
            continue
        text += f"\n### {family[0].upper()}{family[1:]}\n\n"
        text += "| model | exporter | result | error | ONNX Runtime | OpenVINO | compile, s | flags |\n"
        text += "|---|---|---|---|---|---|---|---|\n"
        text += "".join(line(row) + "\n" for row in group)
    for title, kinds in MISSING.items():
        failed = [row for row in rows if row["status"] in kinds]
        if failed:
            text += f"\n## {title}\n\n| model | result | message |\n|---|---|---|\n"
            text += "".join(f"| {row['name']} | {row['status']} | {message(row)} |\n" for row in failed)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def message(row):
    """The first line of a message, without the folder of the run."""
    text = row.get("detail") or row.get("reference") or ""
    text = re.sub(r"\S*/([^/\s]+/model\.onnx)", r"\1", text.strip().splitlines()[0] if text.strip() else "")
    text = text[:240].replace("|", "\\|")
    return code(text.replace("`", "'"))


def machine():
    """The processor and its vector instructions."""
    name, levels = platform.machine(), ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = file.read().splitlines()
        name = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), name)
        present = next((x for x in lines if x.startswith("flags")), "").split()
        levels = "AVX-512" if "avx512f" in present else "AVX2" if "avx2" in present else ""
        levels += " and AMX" if "amx_tile" in present else ""
    except OSError:
        pass
    return f"one core of {name} with {levels}" if levels else name
