"""How a model looks in a notebook."""

from __future__ import annotations

import html

from .contract import Contract


def page(name: str, contract: Contract, report: str | None) -> str:
    """A table of the contract and, if there is one, the report page below it."""
    symbols = [("symbol", symbol.name, symbol.declaration) for symbol in contract.symbols]
    if contract.ragged is not None:
        length = contract.ragged.length
        symbols.append(("length", length.name, f"{length.declaration}, of each sequence in {contract.ragged.offsets}"))
    inputs = [("input", tensor.name, _type(tensor)) for tensor in contract.inputs]
    outputs = [("output", tensor.name, _type(tensor)) for tensor in contract.outputs]
    state = [("state", tensor.input, _type(tensor)) for tensor in contract.state]
    arena = [("arena", f"at most {contract.arena_max} bytes", contract.arena_formula)]
    rows = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in [*symbols, *inputs, *outputs, *state, *arena]
    )
    table = f"<table><caption>{html.escape(name)}</caption>{rows}</table>"
    if report is None:
        return table
    frame = f"<iframe srcdoc='{html.escape(report, quote=True)}' style='width:100%;height:640px;border:0'></iframe>"
    return f"{table}<details><summary>plan</summary>{frame}</details>"


def _type(tensor) -> str:
    return f"{tensor.dtype}[{', '.join(tensor.dims)}]"
