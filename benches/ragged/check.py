"""Compares ragged calls with one call for each sequence and with ONNX Runtime on padded inputs.

    python benches/ragged/check.py --scratch target/ragged-check --only 'bert|t5' --seeds 5

The models are exports with random weights: the encoders of benches/models, and those of forms.py. A sequence must have the
same bits in a batch, alone, and on two threads; its tokens must have the values of ONNX Runtime within rounding. Lengths
are random: short ones, one long among many short, all equal, the smallest and the largest. A model that is refused is
printed with the reason, and fails the run unless forms.py lists it."""

import argparse
import pathlib
import re
import sys

import forms
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "models"))

from case import Contract, listed  # noqa: E402
from export import export  # noqa: E402
from families import encoders  # noqa: E402

ENCODERS = [
    "bert", "distilbert", "roberta", "xlm-roberta", "camembert", "deberta", "deberta-v3", "modernbert", "albert", "electra",
    "mpnet", "ernie", "mobilebert", "squeezebert", "rembert", "convbert", "esm", "eurobert", "bert-dynamo",
    "roberta-dynamo", "deberta-v3-dynamo", "modernbert-dynamo", "albert-dynamo", "roberta-tokens",
]
# Relative to the largest magnitude of an output.
TOLERANCE = 2e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("target/ragged-check"))
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()

    entries = forms.entries() + [entry for entry in encoders.entries() if entry.name in ENCODERS]
    failures = 0
    for entry in [entry for entry in entries if re.search(arguments.only, entry.name)]:
        folder = arguments.scratch / entry.name
        if not (folder / "contract.json").exists():
            export(entry, str(folder))
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        verdict, detail = check(entry.name, folder, seeds)
        is_wrong = verdict == "WRONG" or (verdict == "refused" and entry.name not in forms.REFUSED)
        failures += is_wrong
        print(f"{verdict:8} {entry.name}: {detail}", flush=True)
    sys.exit(1 if failures else 0)


def check(name, folder, seeds):
    """A word and its reason: `same`, `refused` or `WRONG`."""
    import onnxruntime
    import symshape

    contract = Contract.load(folder / "contract.json")
    lengths = listed(contract.ranges["S"])
    dims = {"N": (1, listed(contract.ranges["N"])[-1]), "S": (lengths[0], lengths[-1])}
    try:
        model = symshape.compile(str(folder / "model.onnx"), dims, ragged="S", threads=2)
    except symshape.SymshapeError as error:
        return "refused", str(error).splitlines()[0]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])

    largest, count = 0.0, 0
    for seed in seeds:
        for sizes in batches(dims, np.random.default_rng(seed)):
            for is_left in (False, True) if name in forms.LEFT else (False,):
                inputs, tokens = padded(name, contract, sizes, is_left, seed)
                outputs = called(model, inputs, sizes)
                expected = dict(zip([port.name for port in session.get_outputs()], session.run(None, inputs)))
                difference = differ(outputs, expected, tokens)
                if difference > TOLERANCE:
                    return "WRONG", f"lengths {sizes}: the largest difference to ONNX Runtime is {difference:.1e}"
                largest = max(largest, difference)
                reason = differs_alone(model, inputs, tokens, sizes, outputs)
                if reason:
                    return "WRONG", f"lengths {sizes}: {reason}"
                count += 1
    return "same", f"{count} batches, largest difference {largest:.1e}"


def batches(dims, random):
    """Lengths of the sequences of some batches."""
    most, (least, longest) = dims["N"][1], dims["S"]
    short = min(least + 6, longest)
    yield [least]
    yield [longest]
    yield [int(random.integers(least, longest + 1))] * most
    yield [longest] + [int(random.integers(least, short + 1)) for _ in range(most - 1)]
    count = int(random.integers(2, most + 1))
    yield [int(random.integers(least, longest + 1)) for _ in range(count)]
    yield [int(random.integers(least, short + 1)) for _ in range(count)]


def padded(name, contract, sizes, is_left, seed):
    """The inputs of the padded model, and the places of tokens. Padding has tokens that must not matter."""
    longest = max(sizes)
    inputs = contract.values({"N": len(sizes), "S": longest}, seed)
    tokens = np.arange(longest) < np.array(sizes)[:, None]
    tokens = tokens[:, ::-1] if is_left else tokens
    if name in forms.LENGTHS:
        inputs[forms.LENGTHS[name]] = np.array(sizes, inputs[forms.LENGTHS[name]].dtype)
    elif "attention_mask" in inputs:
        inputs["attention_mask"] = tokens.astype(inputs["attention_mask"].dtype)
    if is_left and "position_ids" in inputs:
        places = np.maximum(np.cumsum(tokens, axis=1) - 1, 0)
        inputs["position_ids"] = places.astype(inputs["position_ids"].dtype)
    family = name.split("-dynamo")[0].split("-tokens")[0]
    if family in forms.PAD:
        ids = np.where(inputs["input_ids"] == forms.PAD[family], 5, inputs["input_ids"])
        inputs["input_ids"] = np.where(tokens, ids, forms.PAD[family]).astype(ids.dtype)
    return inputs, tokens


def called(model, inputs, sizes):
    return model.run_padded(inputs, lengths=given_lengths(model, inputs, sizes))


def given_lengths(model, inputs, sizes):
    """The lengths, unless a mask or lengths are among the inputs."""
    ragged = model.contract.ragged
    return None if {ragged.mask, ragged.lengths} & inputs.keys() else sizes


def differ(outputs, expected, tokens):
    """The largest difference of tokens, relative to the largest magnitude."""
    largest = 0.0
    for name, array in expected.items():
        got, want = outputs[name], array
        if got.shape != want.shape:
            return float("inf")
        if want.ndim > 1 and want.shape[:2] == tokens.shape:
            got, want = got[tokens], want[tokens]
        if not np.isfinite(got).all():
            return float("inf")
        largest = max(largest, float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-9)))
    return largest


def differs_alone(model, inputs, tokens, sizes, outputs):
    """How a sequence of a batch differs from a call with it alone, or an empty text."""
    ragged = model.contract.ragged
    packed = model.pack(inputs, given_lengths(model, inputs, sizes))
    rows = model.run(packed)
    offsets = packed[ragged.offsets]
    for k in range(len(sizes)):
        own = {}
        for port in model.contract.inputs:
            array = packed[port.name]
            if port.name == ragged.offsets:
                own[port.name] = np.array([0, sizes[k]], array.dtype)
            elif ragged.rows.name in port.dims:
                own[port.name] = np.take(array, range(offsets[k], offsets[k + 1]), port.dims.index(ragged.rows.name))
            elif ragged.sequences.name in port.dims:
                own[port.name] = np.take(array, [k], port.dims.index(ragged.sequences.name))
            else:
                own[port.name] = array
        alone = model.run(own)
        for port in model.contract.outputs:
            together = rows[port.name]
            part = range(offsets[k], offsets[k + 1]) if ragged.rows.name in port.dims else [k]
            if not np.array_equal(together[list(part)].view(np.uint32), alone[port.name].view(np.uint32)):
                return f"sequence {k} has other bits in `{port.name}` when it is alone"
        for name, array in outputs.items():
            if array.shape[:2] == tokens.shape and not np.array_equal(array[k][tokens[k]], alone[name]):
                return f"sequence {k} has other bits in the padded `{name}`"
    return ""


if __name__ == "__main__":
    main()
