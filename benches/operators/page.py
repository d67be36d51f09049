"""Writes docs/operator-speed.md and its picture from the points of run.py."""

import math
import statistics

from side_by_side import PEERS, conditions

HEAD = """# Single operators

Models of one operator each, next to ONNX Runtime and OpenVINO: nothing hides the time of the operator, nor that of the passes that move its operands.

```sh
python3 -m venv /tmp/models && /tmp/models/bin/pip install -r benches/models/requirements.txt   # needs the network
cargo build --release -p symshape-compiler
/tmp/models/bin/python benches/operators/run.py                               # writes this page
/tmp/models/bin/python benches/operators/run.py --only Softmax --no-page      # some of the operators
```

- Each operator is compiled once for ranges of its sizes, and measured at a small and at a large size.
- Times are processor time of one thread, the median over rounds of the fastest calls. The runtimes take turns.
- Each call includes its way through Python: 1 to 2 µs for symshape, 5 to 15 µs for the others. So small sizes say little about the kernels.
- A ratio is the time of the other runtime divided by that of symshape: above 1, symshape is faster. A runtime that can't run the operator has none.
- All results are equal to those of ONNX Runtime within 1e-4 of the largest magnitude.
"""

QUANTISED = """# Single quantised operators

Models of one operator each, on 8-bit integers or on halves, next to ONNX Runtime and OpenVINO. A quantised operator is between its DequantizeLinear and QuantizeLinear nodes, as tools of quantisation write it.

```sh
/tmp/models/bin/python benches/operators/run.py --quantised --page docs/operator-speed-quantised.md
```

The conditions are those of [operator-speed.md](operator-speed.md). Bytes may be off by one from those of ONNX Runtime, because a number between two may round to either, and halves by a step of the largest magnitude.
"""

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } line { stroke: #8c959f } .low { fill: #d1495b } .high { fill: #3a8f5c }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
"""
LEFT, TOP, WIDTH, HEIGHT = 50, 30, 720, 240
# The ends of the vertical axis of the picture.
LOWEST, HIGHEST = 1 / 16, 64


def ratios(point):
    """The ratio to each peer that runs the operator."""
    return {peer: point["ns"][peer] / point["ns"]["symc"] for peer in PEERS if peer in point["ns"]}


def ratio(point):
    """The ratio to the faster peer."""
    return min(ratios(point).values())


def label(point):
    return " ".join(f"{name}={value}" for name, value in point["sizes"].items())


def line(point):
    """A point as one line."""
    found = ", ".join(f"{peer} {value:.2f}" for peer, value in ratios(point).items())
    return f"{point['name']}, {label(point)}: {point['ns']['symc'] / 1e3:.1f} us, {found}"


def summary(points):
    """The means, and how many points are below 1 and 1.15."""
    if not points:
        return "No operator has such a name."
    means = ", ".join(
        f"{name} {statistics.geometric_mean(ratios(p)[peer] for p in points if peer in p['ns']):.2f}"
        for peer, name in PEERS.items()
    )
    below = ", ".join(f"{sum(ratio(p) < limit for p in points)} below {limit}" for limit in (1, 1.15))
    return f"{len(points)} points. Geometric means of the ratios: {means}. Ratios to the faster peer: {below}."


def picture(points):
    """The ratios to the faster peer, from the smallest to the largest."""
    scale = math.log(HIGHEST / LOWEST)
    y_of = lambda value: TOP + HEIGHT * math.log(HIGHEST / min(max(value, LOWEST), HIGHEST)) / scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 10} {TOP + HEIGHT + 30}" role="img">',
        "<title>Ratios to the faster peer, from the smallest to the largest</title>",
        f"<style>{STYLE}</style>",
        f'<text x="{LEFT}" y="16">Ratios to the faster peer, {len(points)} points in order</text>',
    ]
    for value, name in [(1 / 8, "⅛"), (1, "1"), (8, "8"), (64, "64")]:
        y = y_of(value)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text text-anchor="end" x="{LEFT - 8}" y="{y + 4:.1f}">{name}</text>')
    for k, point in enumerate(points):
        value = ratio(point)
        x = LEFT + WIDTH * (k + 0.5) / len(points)
        kind = "low" if value < 1 else "high"
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y_of(value):.1f}" r="2"/>')
    return "\n".join([*parts, "</svg>", ""])


def write(path, points, args):
    """Writes the page and its picture next to it."""
    points = sorted(points, key=ratio)
    image = path.with_suffix(".svg")
    image.write_text(picture(points))
    text = [
        QUANTISED if args.quantised else HEAD, f"{conditions(args)}. {args.note}".rstrip(), "", summary(points), "",
        f"![Ratios in order]({image.name})", "", "All points, the slowest first:", "",
        "| operator | sizes | µs | ONNX Runtime | OpenVINO |", "|---|---|---|---|---|",
    ]
    for point in points:
        found = ratios(point)
        columns = " | ".join(f"{found[peer]:.2f}" if peer in found else "-" for peer in PEERS)
        text.append(f"| {point['name']} | {label(point)} | {point['ns']['symc'] / 1e3:,.1f} | {columns} |")
    path.write_text("\n".join([*text, ""]))
