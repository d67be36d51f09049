"""Writes docs/models.md and its picture from the results of run.py."""

import importlib.metadata
import json
import math
import os
import platform
import re

import picture
from levels import ONEDNN_ISAS

# The runtimes of the comparison: name in the results, name in the page, package.
PEERS = (("ort", "ONNX Runtime", "onnxruntime"), ("openvino", "OpenVINO", "openvino"))

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
/tmp/models/bin/python benches/models/run.py --cpu x86-64-v3 --table docs/models-avx2.md
/tmp/models/bin/python benches/models/run.py --table docs/models-intel.md   # on another machine
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
| of bound | share of its bound that symshape reaches, at both sizes; see below |
| compile | seconds of `symc compile` |

- The sizes are the smallest, the second, odd ones, the second largest and the largest of all symbols at once.
- Every call has pages without access around its buffers, and is repeated with other contents of the arena.
- An output may differ by 1e-4 in `f32`, 1e-2 in `f16`, 3e-2 in quantised models and 4e-2 in bf16.
- Where ONNX Runtime with and without its optimisations differ by more than a quarter of that, four times their difference is allowed.
- Times are processor time of one thread. The runtimes take turns; a ratio is the median over the turns, each the fastest calls of a burst.
- OpenVINO computes in `f32` too, also with weights of 4 bits, whose operands it would round to 8 bits by default.
- Models named `int4-rounded` round these operands in all three runtimes: symshape with `--activations int8`, ONNX Runtime with `accuracy_level` 4 and OpenVINO by default.
- ONNX Runtime has no bf16 on CPUs: models in bf16 are compared with the same weights in `f32`.
- The bound of a call is the sum of those of its kernels: arithmetic at the peak that `symc report --profile` measures, or bytes at the measured bandwidth ([profiling.md](profiling.md)).
- The share exceeds 100 % where operands stay in a cache between kernels. It is lower for small sizes, which pay for each kernel, and where work depends on data, which has no bound.
- Ratios vary by about a tenth from run to run.
- BERT with its usual mask is left out in QDQ form. The mask has infinities, so the calibration gives a scale of infinity. The standard does not define that case, and the results differ.
- `-` means that the other runtime refuses the model, or that its result differs from that of ONNX Runtime by more than a tenth.

"""

OTHER_LEVEL = """# Models at {cpu}

The models, the columns and the conditions are those of [models.md](models.md), with artefacts for the level `{cpu}`.

"""

OTHER_MACHINE = """# Models on another machine

The models, the columns and the conditions are those of [models.md](models.md).

"""


def ratio(row, peer):
    """The ratios to a peer at both sizes, or a dash."""
    parts = [row.get("ratios", {}).get(place, {}).get(peer) for place in ("smallest", "largest")]
    if all(part is None for part in parts):
        return "-"
    return ", ".join("-" if part is None else f"{part:.2f}" if part < 10 else f"{part:.0f}" for part in parts)


def bound(row):
    """The shares of the bound at both sizes, in percent."""
    times, bounds = row.get("times_ms", {}), row.get("bounds_ms", {})
    shares = [bounds[place] / times[place]["symc"] for place in ("smallest", "largest") if place in bounds]
    return ", ".join(f"{100 * share:.0f}" for share in shares) + " %" if shares else "-"


def code(text):
    return f"`{text}`" if text else ""


def line(row):
    declared = row.get("flags", [])
    declared = " ".join(declared)
    result = row["status"]
    error = f"{row['max_error']:.0e}" if row.get("max_error") is not None else ""
    compile_s = f"{row['compile_s']:.1f}" if "compile_s" in row else ""
    cells = [row["name"], row["exporter"], result, error]
    cells += [ratio(row, "ort"), ratio(row, "openvino"), bound(row), compile_s]
    return "| " + " | ".join([*cells, code(declared)]) + " |"


def totals(rows):
    """Counts of results, and of ratios to each runtime below 1."""
    judged = [row for row in rows if row["status"] not in ("not exported", "no reference")]
    equal = [row for row in judged if row["status"] == "equal"]
    text = f"{len(equal)} of {len(judged)} models are equal.\n\n"
    text += "| runtime | ratios | below 1 | smallest | median | geometric mean |\n|---|---|---|---|---|---|\n"
    for peer, title, _ in PEERS:
        ratios = sorted(r[peer] for row in equal for r in row.get("ratios", {}).values() if peer in r)
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            below = sum(ratio < 1 for ratio in ratios)
            median = ratios[len(ratios) // 2]
            text += f"| {title} | {len(ratios)} | {below} | {ratios[0]:.2f} | {median:.2f} | {mean:.2f} |\n"
    return text


def slower(rows):
    """The models that are slower than a runtime at a size."""
    text = ""
    for peer, title, _ in PEERS:
        found = [
            (ratios[peer], f"{row['name']} ({ratios[peer]:.2f} at the {place} size)")
            for row in rows
            for place, ratios in row.get("ratios", {}).items()
            if ratios.get(peer, 1) < 1
        ]
        if found:
            text += f"\nSlower than {title}: " + ", ".join(text for _, text in sorted(found)) + ".\n"
    return text


def write(path, results, entries, cpu=None, note=""):
    """Writes the page and its picture; `note` says under which conditions the times were measured."""
    rows = []
    for entry in entries:
        file = f"{results}/{entry.name}.json"
        if os.path.exists(file):
            with open(file, encoding="utf-8") as source:
                rows.append({**json.load(source), "family": entry.family})
    is_first_page = os.path.basename(path) == "models.md"
    text = OTHER_LEVEL.format(cpu=cpu) if cpu else HEAD if is_first_page else OTHER_MACHINE
    text += "## Results\n\n" + totals(rows) + "\n"
    text += f"The machine is {machine()}{f', and symshape has the level {cpu}' if cpu else ''}.\n"
    versions = [f"{title} {importlib.metadata.version(package)}" for _, title, package in PEERS]
    text += f"The other runtimes are {' and '.join(versions)}.\n"
    if cpu in ONEDNN_ISAS:
        text += f"OpenVINO is limited to {ONEDNN_ISAS[cpu]}; ONNX Runtime has no such switch.\n"
    text += f"{note}\n" if note else ""
    if len(rows) < len(entries):
        text += f"The script has {len(entries)} models; {len(entries) - len(rows)} of them were not run for this page.\n"
    text += slower(rows)
    for family in dict.fromkeys(row["family"] for row in rows):
        group = [row for row in rows if row["family"] == family and row["status"] not in MISSING["Without a comparison"]]
        if not group:
            continue
        text += f"\n### {family[0].upper()}{family[1:]}\n\n"
        text += "| model | exporter | result | error | ONNX Runtime | OpenVINO | of bound | compile, s | flags |\n"
        text += "|---|---|---|---|---|---|---|---|---|\n"
        text += "".join(line(row) + "\n" for row in group)
    for title, kinds in MISSING.items():
        failed = [row for row in rows if row["status"] in kinds]
        if failed:
            text += f"\n## {title}\n\n| model | result | message |\n|---|---|---|\n"
            text += "".join(f"| {row['name']} | {row['status']} | {message(row)} |\n" for row in failed)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    picture.write(path)


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
