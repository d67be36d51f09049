"""Writes models as ONNX files, by torch's two exporters or from graphs made without torch."""

import dataclasses
import os
import shutil
import warnings

import onnx

import convert
from case import Contract, Input, listed

# The operator set that tools for exports of the older exporter choose.
SCRIPT_OPSET = 17


@dataclasses.dataclass
class Case:
    """A module, or an ONNX model, and the contract of its inputs.

    `call(module, *tensors)` runs the module on the inputs in their order and returns a tensor or a tuple."""

    module: object
    inputs: dict
    outputs: list
    ranges: dict
    call: object = None

    def contract(self):
        return Contract(self.inputs, self.ranges)


@dataclasses.dataclass
class Entry:
    """A model of the table. `make` returns a `Case`; `exporter` is `script`, `dynamo` or `none`. `convert` names a
    function of convert.py that changes the exported file."""

    name: str
    family: str
    make: object
    exporter: str = "script"
    convert: str = ""
    opset: int = 0


def seeded(make):
    """`make` with the same random weights in every call."""

    def build():
        import torch

        torch.manual_seed(0)
        return make()

    return build


def export(entry, folder):
    """Writes `model.onnx`, `contract.json` and, where ONNX Runtime needs another file, `reference.onnx`."""
    warnings.filterwarnings("ignore")
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/model.onnx"
    case = entry.make()
    contract = case.contract()
    if entry.exporter == "none":
        onnx.save(case.module, path)
    else:
        export_module(case, path, entry)
    if entry.convert:
        shutil.move(path, f"{folder}/source.onnx")
        getattr(convert, entry.convert)(folder, contract)
        os.remove(f"{folder}/source.onnx")
    adapt(contract, path)
    contract.save(f"{folder}/contract.json")


def export_module(case, path, entry):
    import torch

    class Module(torch.nn.Module):
        """The module with its inputs as positional tensors."""

        def __init__(self):
            super().__init__()
            self.inner = case.module

        def forward(self, *tensors):
            return case.call(self.inner, *tensors) if case.call else self.inner(*tensors)

    module = Module().eval().requires_grad_(False)
    contract = case.contract()
    values = contract.values(contract.example(), seed=0)
    tensors = tuple(torch.from_numpy(array) for array in values.values())
    dynamic = [{k: d for k, d in enumerate(item.dims) if isinstance(d, str)} for item in case.inputs.values()]
    names = {"input_names": list(case.inputs), "output_names": case.outputs}
    with torch.no_grad():
        if entry.exporter == "script":
            axes = {name: item for name, item in zip(case.inputs, dynamic) if item}
            options = {"dynamic_axes": axes, "opset_version": entry.opset or SCRIPT_OPSET, "dynamo": False}
        else:
            options = {"dynamic_shapes": (tuple(dynamic),), "dynamo": True, "external_data": False, "verbose": False}
            if entry.opset:
                options["opset_version"] = entry.opset
        torch.onnx.export(module, tensors, path, **names, **options)


def adapt(contract, path):
    """Makes the contract that of the file: exporters drop unused inputs and may fix a size."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {}
    for value in graph.input:
        if value.name in constants:
            continue
        item = contract.inputs[value.name]
        dims = [
            d.dim_value if isinstance(wanted, str) and d.HasField("dim_value") else wanted
            for d, wanted in zip(value.type.tensor_type.shape.dim, item.dims)
        ]
        for d, wanted in zip(dims, item.dims):
            if d != wanted:
                print(f"note: input {value.name}: the exporter fixed {wanted} to {d}")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
        inputs[value.name] = Input(dims, dtype, item.fill, item.limit)
    contract.inputs = inputs


def flags(contract, path, expressions):
    """The flags that declare the sizes: those of the ranges, and those for inputs whose dims the file names
    otherwise. `expressions` includes symbols that are expressions over others."""
    graph = onnx.load(path, load_external_data=False).graph
    shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    found = []
    for name, item in contract.inputs.items():
        named = [d.dim_param or d.dim_value for d in shapes[name]]
        if named != item.dims:
            found += ["--input", f"{name}={','.join(str(d) for d in item.dims)}"]
    used = {d for item in contract.inputs.values() for d in item.dims if isinstance(d, str)}
    for name, text in contract.ranges.items():
        if name in used and (expressions or listed(text)):
            found += ["--dim", f"{name}={text}"]
    return found
