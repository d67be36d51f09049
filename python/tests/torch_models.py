"""Modules of torch. It needs torch and onnxscript, so `pytest python/tests` does not collect this file: name it."""

import numpy as np
import pytest
import torch

import symshape


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)).sum(dim=1)


def dynamic():
    return {"x": {0: torch.export.Dim("batch", min=1, max=16), 1: torch.export.Dim("length", min=1, max=32)}}


def check(model, module):
    for batch, length in [(1, 1), (2, 2), (7, 15), (16, 31), (16, 32)]:
        x = torch.randn(batch, length, 8)
        y = torch.from_dlpack(model(x))
        torch.testing.assert_close(y, module(x), rtol=1e-5, atol=1e-5)


def test_module_with_dynamic_shapes():
    module = Block().eval()
    model = symshape.compile(module, example_inputs=(torch.randn(3, 5, 8),), dynamic_shapes=dynamic())
    assert sorted(symbol.hi for symbol in model.contract.symbols) == [16, 32]
    with torch.no_grad():
        check(model, module)


def test_exported_program():
    module = Block().eval()
    program = torch.export.export(module, (torch.randn(3, 5, 8),), dynamic_shapes=dynamic())
    with torch.no_grad():
        check(symshape.compile(program), module)


def test_tensor_with_gradient_is_refused():
    model = symshape.compile(Block(), example_inputs=(torch.randn(3, 5, 8),), dynamic_shapes=dynamic())
    with pytest.raises(symshape.CallError, match="Tensor can't be read"):
        model(torch.randn(2, 2, 8, requires_grad=True))


def test_module_without_inputs_is_refused():
    with pytest.raises(symshape.UsageError, match="example_inputs"):
        symshape.compile(Block())


def test_bfloat16_tensors_are_read_in_place():
    module = torch.nn.Identity()
    x = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    from symshape import arrays

    view = arrays.as_numpy(x)
    assert str(view.dtype) == "bfloat16" and view.ctypes.data == x.data_ptr()
    np.testing.assert_array_equal(view.astype(np.float32), module(x).float().numpy())
