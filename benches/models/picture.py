"""Draws docs/models.svg from the tables of docs/models.md: the ratios to ONNX Runtime of every model, by family."""

import math
import re
from html import escape
from pathlib import Path

LEFT, RIGHT, TOP, ROW, WIDTH = 210, 30, 58, 26, 760
# The axis is logarithmic; ratios beyond its ends are drawn at the ends.
LO, HI = 0.5, 16
TICKS = (0.5, 1, 2, 4, 8, 16)

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.small { font-size: 11px }
.grid { stroke: #d0d7de } .one { stroke: #57606a; stroke-width: 1.5 }
.smallest { fill: none; stroke: #0969da; stroke-width: 1.3 } .largest { fill: #cf5c00; fill-opacity: .75 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .grid { stroke: #30363d } .one { stroke: #8b949e }
  .smallest { stroke: #58a6ff } .largest { fill: #f0883e }
}
"""


def families(text):
    """The pairs of ratios (smallest size, largest size) of each table, by its heading."""
    found = {}
    family = None
    for line in text.splitlines():
        if line.startswith("### "):
            family = line[4:].strip()
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if family and len(cells) == 9 and re.fullmatch(r"[\d.]+, [\d.]+", cells[4]):
            found.setdefault(family, []).append(tuple(map(float, cells[4].split(", "))))
    return found


def place(ratio):
    """The horizontal coordinate of a ratio."""
    share = math.log(min(max(ratio, LO), HI) / LO) / math.log(HI / LO)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def draw(ratios):
    height = TOP + ROW * len(ratios) + 14
    n_models = sum(map(len, ratios.values()))
    title = f"Time of ONNX Runtime divided by that of symshape: {n_models} models, one core"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{title}</title><style>{STYLE}</style>",
        f'<text x="10" y="18">{title}</text>',
        '<circle class="smallest" cx="16" cy="34" r="3.5"/><text class="small" x="25" y="38">smallest size</text>',
        '<circle class="largest" cx="112" cy="34" r="3.5"/><text class="small" x="121" y="38">largest size</text>',
    ]
    for tick in TICKS:
        x = place(tick)
        kind = "one" if tick == 1 else "grid"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 10}"/>')
        parts.append(f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{TOP - 10}">{tick:g}×</text>')
    for row, (family, pairs) in enumerate(ratios.items()):
        y = TOP + ROW * row + ROW / 2
        parts.append(f'<text x="10" y="{y + 4:g}">{escape(family)}</text>')
        for smallest, largest in pairs:
            parts.append(f'<circle class="smallest" cx="{place(smallest):.1f}" cy="{y - 4:g}" r="3.2"/>')
            parts.append(f'<circle class="largest" cx="{place(largest):.1f}" cy="{y + 4:g}" r="3.2"/>')
    return "\n".join([*parts, "</svg>", ""])


def write(page):
    """Draws the picture of a page next to it."""
    page = Path(page)
    page.with_suffix(".svg").write_text(draw(families(page.read_text(encoding="utf-8"))), encoding="utf-8")
