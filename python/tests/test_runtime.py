"""Saved models: opened by the package, and by its one file that needs no compiler."""

import os
import pathlib
import shutil
import subprocess
import sys

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import symshape
from symshape import runtime

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "pair.so"
    symshape.compile(models.sum_and_difference(), {"N": (1, 8)}).save(path)
    return path


def test_saved_model_is_loaded(saved):
    model = symshape.load(saved)
    a = np.ones((8, 3), np.float32)
    np.testing.assert_array_equal(model(a, a)[0], a + a)
    assert "<iframe" not in model._repr_html_() and "1..=8" in model._repr_html_()


def test_files_that_are_no_models_are_refused(tmp_path, saved):
    broken = tmp_path / "broken.so"
    broken.write_bytes(saved.read_bytes()[:4096])
    text = tmp_path / "text.so"
    text.write_text("no model")
    for path in (tmp_path / "missing.so", text, broken):
        with pytest.raises(symshape.ArtefactError):
            symshape.load(path)
        with pytest.raises(OSError):
            runtime.Model(path)


def test_saving_to_a_missing_folder_is_refused(saved, tmp_path):
    with pytest.raises(symshape.FileError):
        symshape.load(saved).save(tmp_path / "missing" / "pair.so")


def test_runtime_gives_the_same_bits(tmp_path):
    path = tmp_path / "product.so"
    compiled = symshape.compile(models.product(), {"N": (1, 9), "K": (1, 33)})
    compiled.save(path)
    model = runtime.Model(path)
    assert model.symbols == {"N": (1, 9), "K": (1, 33)}
    assert model.inputs == {"a": ("float32", ("N", "K")), "b": ("float32", ("K", "5"))}
    rng = np.random.default_rng(0)
    for n, k in [(1, 1), (2, 2), (5, 17), (8, 32), (9, 33)]:
        a = rng.standard_normal((n, k)).astype(np.float32)
        b = rng.standard_normal((k, 5)).astype(np.float32)
        np.testing.assert_array_equal(model(a, b), compiled(a, b))
        np.testing.assert_array_equal(model.run({"b": b, "a": a})["y"], compiled(a, b))
        assert model.arena_bytes(N=n, K=k) == compiled.arena_bytes(N=n, K=k)


def test_runtime_returns_data_dependent_sizes(tmp_path):
    path = tmp_path / "places.so"
    symshape.compile(models.non_zero(), {"N": (1, 16)}).save(path)
    model = runtime.Model(path)
    np.testing.assert_array_equal(model(np.array([0, 1, 0, 2], np.float32)), [[1, 3]])


def test_runtime_refuses_wrong_arrays(saved):
    model = runtime.Model(saved)
    a = np.ones((2, 3), np.float32)
    cases = [
        ((a, a.astype(np.int64)), "`b` has elements of type float32"),
        ((a, a[0]), "`b` has 2 axes"),
        ((a, np.ones((3, 2), np.float32).T), "row-major"),
        ((a, np.ones((3, 3), np.float32)), "N"),
        ((np.ones((9, 3), np.float32),) * 2, "N = 9, allowed 1..8"),
        ((a,), "got 1 inputs"),
    ]
    for inputs, message in cases:
        with pytest.raises(runtime.CallError, match=message):
            model(*inputs)
    with pytest.raises(runtime.CallError, match="no input `z`"):
        model.run({"a": a, "b": a, "z": a})
    with pytest.raises(runtime.CallError, match="`b`, which is missing"):
        model.run({"a": a})


def test_runtime_needs_only_numpy(saved):
    program = (
        "import sys, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('runtime', {runtime.__file__!r})\n"
        "runtime = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(runtime)\n"
        f"model = runtime.Model({str(saved)!r})\n"
        "import numpy\n"
        "a = numpy.ones((1, 3), numpy.float32)\n"
        "assert (model(a, a)[0] == 2).all()\n"
        "assert 'symshape' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """A model with a weights file, and `tuned.weights` with other weights. `symc` writes them."""
    symc = os.environ.get("SYMC", ROOT / "target/debug/symc")
    folder = tmp_path_factory.mktemp("split")
    source = ROOT / "compiler/examples/block.onnx"
    flags = ["--dim", "N=1..4", "--dim", "S=1..9", "--weights-file", folder / "block.weights"]
    subprocess.run([symc, "compile", source, *flags, "-o", folder / "block.so"], check=True)
    proto = onnx.load(source)
    for tensor in proto.graph.initializer:
        # Scalars may be a part of the code.
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 0.5, tensor.name))
    onnx.save(proto, folder / "tuned.onnx")
    command = [symc, "weights", folder / "tuned.onnx", "--for", folder / "block.so", "-o", folder / "tuned.weights"]
    subprocess.run(command, check=True)
    return folder / "block.so"


@pytest.fixture
def block(split, tmp_path):
    """A copy of these files, and an input of the model."""
    for name in ("block.so", "block.weights", "tuned.weights"):
        shutil.copy(split.with_name(name), tmp_path)
    return tmp_path / "block.so", np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)


def test_weights_files_are_opened_and_checked(block):
    path, x = block
    weights, other = path.with_name("block.weights"), path.with_name("other.weights")
    expected = symshape.load(path, verify=True)(x)
    np.testing.assert_array_equal(runtime.Model(path)(x), expected)
    weights.rename(other)
    with pytest.raises(symshape.ArtefactError):
        symshape.load(path)
    np.testing.assert_array_equal(symshape.load(path, weights=other)(x), expected)
    np.testing.assert_array_equal(runtime.Model(path, other)(x), expected)
    other.write_bytes(other.read_bytes()[:-1])
    with pytest.raises(symshape.ArtefactError, match=r"other\.weights"):
        symshape.load(path, weights=other)
    with pytest.raises(OSError, match=r"other\.weights"):
        runtime.Model(path, other)
    tuned = path.with_name("tuned.weights")
    np.testing.assert_array_equal(runtime.Model(path, tuned)(x), symshape.load(path, weights=tuned)(x))
    content = tuned.read_bytes()
    for damaged in (content[:-1], content[:40], content + b"\0", content[:24] + b"\xff" * 8 + content[32:]):
        other.write_bytes(damaged)
        with pytest.raises(OSError, match=r"other\.weights"):
            runtime.Model(path, other)


def test_signed_files_are_opened(block):
    path, x = block
    symc = os.environ.get("SYMC", ROOT / "target/debug/symc")
    expected = symshape.load(path)(x)
    secret, public = path.with_name("release.key"), path.with_name("release.pub")
    for command in (["--generate", "--no-password"], [path]):
        subprocess.run([symc, "sign", *command, "--secret-key", secret], check=True)
    text = public.read_text().splitlines()[1]
    other = "RWR49SGUsDF4gKF7DPIJtJ5tsjY8Dd8EnvbTA+y7O5u2TdQUEV1xshxn"
    for key in (public, str(public), text, [other, public]):
        np.testing.assert_array_equal(symshape.load(path, public_key=key)(x), expected)
    with pytest.raises(symshape.ArtefactError, match=r"block\.so.*key that is not trusted"):
        symshape.load(path, public_key=other)
    with pytest.raises(symshape.UsageError, match="neither a public key"):
        symshape.load(path, public_key="nowhere")
    path.with_name("block.weights.minisig").unlink()
    with pytest.raises(symshape.ArtefactError, match=r"block\.weights: it has no signature"):
        symshape.load(path, public_key=public)


@pytest.mark.parametrize("name", [b"../k.weights", b"/k.weights", b"..", b"k\\k.weights"])
def test_weights_of_another_folder_are_refused(block, name):
    path, _ = block
    data = path.read_bytes()
    at = data.index(b"block.weights\0")
    changed = path.with_name("changed.so")
    changed.write_bytes(data[:at] + name.ljust(14, b"\0") + data[at + 14 :])
    with pytest.raises(OSError, match="the name of its weights file is damaged"):
        runtime.Model(changed)


def test_saved_model_has_its_weights_file(block, tmp_path, monkeypatch):
    path, x = block
    monkeypatch.chdir(path.parent)
    loaded = symshape.load(path.name)
    expected = loaded(x)
    monkeypatch.chdir("/")
    (tmp_path / "copy").mkdir()
    loaded.save(tmp_path / "copy" / "renamed.so")
    # The shared object looks for this name.
    assert sorted(file.name for file in (tmp_path / "copy").iterdir()) == ["block.weights", "renamed.so"]
    # Next to itself, the model has its weights file already.
    inode = path.with_name("block.weights").stat().st_ino
    loaded.save(path.with_name("twin.so"))
    assert path.with_name("block.weights").stat().st_ino == inode
    for saved in (tmp_path / "copy" / "renamed.so", path.with_name("twin.so")):
        np.testing.assert_array_equal(symshape.load(saved, verify=True)(x), expected)


def test_saved_model_has_the_weights_that_replaced_others(block, tmp_path):
    path, x = block
    tuned = path.with_name("tuned.weights")
    expected = symshape.load(path, weights=tuned)(x)
    assert not np.array_equal(expected, symshape.load(path)(x))
    (tmp_path / "copy").mkdir()
    saved = tmp_path / "copy" / "block.so"
    symshape.load(path).save(saved)
    symshape.load(path, weights=tuned).save(saved)
    np.testing.assert_array_equal(symshape.load(saved, verify=True)(x), expected)


def test_failed_saving_leaves_no_files(block, tmp_path):
    path, _ = block
    model = symshape.load(path)
    target = tmp_path / "target"
    (target / "block.so").mkdir(parents=True)
    with pytest.raises(symshape.FileError, match=rf"^{target}/block\.so: "):
        model.save(target / "block.so")
    (target / "block.so").rmdir()
    (target / "block.weights").unlink()
    (target / "block.weights").mkdir()
    with pytest.raises(symshape.FileError, match=rf"^{target}/block\.weights: "):
        model.save(target / "block.so")
    assert [file.name for file in target.iterdir()] == ["block.weights"]


def test_saved_files_have_the_usual_permissions(block, tmp_path):
    model = symshape.load(block[0])
    (tmp_path / "copy").mkdir()
    before = os.umask(0o027)
    try:
        model.save(tmp_path / "copy" / "block.so")
    finally:
        os.umask(before)
    for name in ("block.so", "block.weights"):
        assert (tmp_path / "copy" / name).stat().st_mode == block[0].with_name(name).stat().st_mode
