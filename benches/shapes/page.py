"""Writes docs/shapes.md and its heat maps from the points of run.py."""

import collections
import math
import statistics
from html import escape

from side_by_side import PEERS, conditions

# The borders of cells: rows, and elements of the weights, each four times the one before.
ROWS = [4**k for k in range(7)]
WEIGHTS = [4**k for k in range(3, 13)]
KINDS = {
    "product": "Products",
    "convolution": "Convolutions",
    "depthwise": "Depthwise convolutions",
}

HEAD = """# Random shapes

Products and convolutions of shapes that are drawn at random, each compiled once for all of its sizes, next to ONNX Runtime and OpenVINO.

```sh
python3 -m venv /tmp/models && /tmp/models/bin/pip install -r benches/models/requirements.txt   # needs the network
cargo build --release -p symshape-compiler
/tmp/models/bin/python benches/shapes/run.py                          # writes this page
/tmp/models/bin/python benches/shapes/run.py --seed 7 --no-page       # other shapes
```

- The reduction and the columns of a product are between 16 and 4,096, its rows between 1 and 4,096.
- Images have 7 to 112 rows and columns, filters 1, 3, 5 or 7. A third of the convolutions have groups, and another part is depthwise.
- Sizes are drawn uniformly on a logarithmic scale, and not rounded to multiples.
- Times are processor time of one thread, the median over rounds of the fastest calls. The runtimes take turns.
- Each call includes its way through Python: 1 to 2 µs for symshape, 5 to 15 µs for the others.
- The bound is the longer one of the arithmetic, at the measured peak of multiply-adds, and of reading and writing each byte once.
- All results are equal to those of ONNX Runtime within 1e-4 of the largest magnitude.

"""

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 13px } .small { font-size: 11px } .cell { text-anchor: middle; fill: #1f2328 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .cell { fill: #1f2328 } }
"""
LEFT, TOP, WIDTH, HEIGHT, GAP = 60, 62, 46, 24, 80


def ratio(point):
    """The time of the faster peer, divided by that of symshape."""
    return min(point["ns"][peer] for peer in PEERS) / point["ns"]["symc"]


def share(point):
    return point["bound_ns"] / point["ns"]["symc"]


def label(point):
    sizes = " ".join(f"{name}={value}" for name, value in point["sizes"].items())
    if point["kind"] == "product":
        return f"{point['matrix'][0]} × {point['matrix'][1]}, {sizes}"
    filters, groups = point["attributes"]["filters"], point["attributes"]["group"]
    stride = point["attributes"]["strides"][0]
    return f"filters {'×'.join(map(str, filters))}, groups {groups}, stride {stride}, {sizes}"


def line(point):
    """A point as one line."""
    ratios = ", ".join(f"{peer} {point['ns'][peer] / point['ns']['symc']:.2f}" for peer in PEERS)
    time = f"{point['ns']['symc'] / 1e3:.1f} us, {share(point):.0%} of the bound"
    return f"{point['name']}: {label(point)}: {time}, {ratios}"


def summary(points):
    """The means, the worst points, and how many are below 1 and 1.15."""
    lines = []
    for kind, title in KINDS.items():
        chosen = [point for point in points if point["kind"] == kind]
        if not chosen:
            continue
        ratios = sorted(map(ratio, chosen))
        means = ", ".join(
            f"{name} {statistics.geometric_mean(p['ns'][peer] / p['ns']['symc'] for p in chosen):.2f}"
            for peer, name in PEERS.items()
        )
        below = ", ".join(f"{sum(r < limit for r in ratios)} below {limit}" for limit in (1, 1.15))
        lines.append(
            f"{title}: {len(chosen)} points. Geometric means of the ratios: {means}. "
            f"Ratios to the better peer: {below}; smallest {ratios[0]:.2f} at {label(min(chosen, key=ratio))}. "
            f"Median share of the bound {statistics.median(map(share, chosen)):.0%}."
        )
    return "\n".join(lines)


def cell(value, borders):
    """The index of the last border that is not above the value."""
    return max(k for k, border in enumerate(borders) if border <= max(value, borders[0]))


def colour(value, low, middle, high):
    """From red at `low` over white at `middle` to green at `high`, on a logarithmic scale."""
    if value < middle:
        t = min(1, math.log(middle / value) / math.log(middle / low))
        ends = (255, 255, 255), (244, 120, 96)
    else:
        t = min(1, math.log(value / middle) / math.log(high / middle))
        ends = (255, 255, 255), (92, 184, 120)
    return "#" + "".join(f"{round(a + (b - a) * t):02x}" for a, b in zip(*ends))


def heat_map(points, kind, value, title, scale, form, x, parts):
    """One map: the smallest value of each cell."""
    cells = collections.defaultdict(list)
    for point in points:
        if point["kind"] == kind:
            weights = point["matrix"][0] * point["matrix"][1] * point["attributes"].get("group", 1)
            cells[cell(point["rows"], ROWS), cell(weights, WEIGHTS)].append(value(point))
    parts.append(f'<text class="title" x="{x}" y="20">{escape(title)}</text>')
    parts.append(f'<text class="small" x="{x}" y="38">rows from … on; lines: elements of the weights from … on</text>')
    for column, border in enumerate(ROWS):
        parts.append(f'<text class="small" x="{x + column * WIDTH}" y="{TOP - 6}">{border}</text>')
    for row, border in enumerate(WEIGHTS):
        y = TOP + row * HEIGHT
        name = f"{border >> 20} Mi" if border >= 1 << 20 else f"{border >> 10} Ki" if border >= 1 << 10 else border
        parts.append(f'<text class="small" text-anchor="end" x="{x - 6}" y="{y + 16}">{name}</text>')
        for column in range(len(ROWS)):
            if values := cells.get((column, row)):
                worst = min(values)
                at = f'x="{x + column * WIDTH}" y="{y}" width="{WIDTH - 2}" height="{HEIGHT - 2}"'
                parts.append(f'<rect {at} fill="{colour(worst, *scale)}"/>')
                middle = x + column * WIDTH + (WIDTH - 2) / 2
                parts.append(f'<text class="cell" x="{middle}" y="{y + 15}">{form.format(worst)}</text>')


def picture(points, kind):
    width = LEFT + 2 * len(ROWS) * WIDTH + GAP + 10
    height = TOP + len(WEIGHTS) * HEIGHT + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{KINDS[kind]}: smallest ratio to the better peer, and share of the bound</title>",
        f"<style>{STYLE}</style>",
    ]
    title = f"{KINDS[kind]}: smallest ratio to the better peer"
    heat_map(points, kind, ratio, title, (0.5, 1, 2), "{:.2f}", LEFT, parts)
    second = LEFT + len(ROWS) * WIDTH + GAP
    heat_map(points, kind, share, "Smallest share of the bound", (0.2, 0.6, 1), "{:.0%}", second, parts)
    return "\n".join([*parts, "</svg>", ""])


def write(path, points, args):
    """Writes the page and a picture for each kind next to it."""
    text = [HEAD, f"{conditions(args)}; seed {args.seed}. {args.note}".rstrip(), ""]
    for kind, title in KINDS.items():
        chosen = sorted((point for point in points if point["kind"] == kind), key=ratio)
        if not chosen:
            continue
        name = f"{path.stem}-{kind}.svg"
        path.with_name(name).write_text(picture(points, kind))
        text += [f"## {title}", "", summary(chosen), "", f"![{title}]({name})", "", "The smallest ratios:", ""]
        text += ["| shape | µs | share of the bound | ONNX Runtime | OpenVINO |", "|---|---|---|---|---|"]
        for point in chosen[:15]:
            own = point["ns"]["symc"]
            ratios = " | ".join(f"{point['ns'][peer] / own:.2f}" for peer in PEERS)
            text.append(f"| {label(point)} | {own / 1e3:,.1f} | {share(point):.0%} | {ratios} |")
        text.append("")
    path.write_text("\n".join(text))
