"""Encoders behind one interface: `prepare(batch)` makes the inputs of a call, `call()` runs it, and `hidden()` returns the
last hidden values of all tokens, `[T, channels]`. A constructor raises `Missing` if its package or file is missing."""

import pathlib
import sys

import numpy as np
from lengths import LONGEST, even

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from peer import Missing, imported, timed  # noqa: E402

MAX_SEQUENCES = 64
# Numbers of groups of sequences that are tried; the fastest counts.
BUCKETS = (1, 2, 4, 8)


class Symshape:
    """The compiled encoder: its artefact is ragged or dense."""

    is_ragged = True

    def __init__(self, folder, threads):
        symshape = imported("symshape")
        kind = "ragged" if self.is_ragged else "dense"
        artefact = folder / f"{kind}-{threads}.so"
        if not artefact.exists():
            options = {"ragged": "S"} if self.is_ragged else {}
            dims = {"N": (1, MAX_SEQUENCES), "S": (1, LONGEST)}
            symshape.compile(str(folder / "model.onnx"), dims, threads=threads, **options).save(str(artefact))
        self.model = symshape.load(str(artefact))
        self.model.threads = threads


class Ragged(Symshape):
    """All sequences in one call without padding."""

    def prepare(self, batch):
        self.inputs = {"input_ids": batch.rows, "offsets": batch.offsets}
        self.dims = {"N": len(batch), "T": len(batch.rows)}

    def call(self):
        self.outputs = self.model.run(self.inputs)

    def hidden(self):
        return self.outputs["hidden"]

    def arena_bytes(self):
        return self.model.arena_bytes(**self.dims)


class Ideal(Ragged):
    """The same number of tokens in sequences of equal length."""

    def prepare(self, batch):
        super().prepare(type(batch)(even(batch.lengths), 1))

    def hidden(self):
        return None


class Dense(Symshape):
    """One padded call."""

    is_ragged = False

    def prepare(self, batch):
        self.inputs = batch.padded()
        self.dims = dict(zip("NS", self.inputs["input_ids"].shape))

    def call(self):
        self.outputs = self.model.run(self.inputs)

    def hidden(self):
        return self.outputs["hidden"][self.inputs["attention_mask"] == 1]

    def arena_bytes(self):
        return self.model.arena_bytes(**self.dims)


class OnnxRuntime:
    """One padded call."""

    def __init__(self, folder, threads):
        onnxruntime = imported("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=providers)

    def prepare(self, batch):
        self.batch = batch
        self.groups = [np.arange(len(batch))]
        self.inputs = [batch.padded(group) for group in self.groups]

    def call(self):
        self.outputs = [self.session.run(None, inputs)[0] for inputs in self.inputs]

    def hidden(self):
        rows = np.empty((len(self.batch.rows), self.outputs[0].shape[-1]), np.float32)
        for group, output in zip(self.groups, self.outputs):
            for row, k in enumerate(group):
                begin, end = self.batch.offsets[k : k + 2]
                rows[begin:end] = output[row, : end - begin]
        return rows


class Buckets(OnnxRuntime):
    """Padded calls of sequences that are sorted by length, in the number of groups that is fastest."""

    def prepare(self, batch):
        self.batch = batch
        times = {}
        for count in [count for count in BUCKETS if count <= len(batch)]:
            self.groups = batch.buckets(count)
            self.inputs = [batch.padded(group) for group in self.groups]
            self.call()
            times[count] = timed(self.call)
        self.groups = batch.buckets(min(times, key=times.get))
        self.inputs = [batch.padded(group) for group in self.groups]


class CTranslate2:
    """One call, without padding in its linear layers."""

    def __init__(self, folder, threads):
        ctranslate2 = imported("ctranslate2")
        if not (folder / "ct2").exists():
            raise Missing(f"{folder / 'ct2'} is missing: see prepare.py")
        options = {"device": "cpu", "inter_threads": 1, "intra_threads": threads, "compute_type": "float32"}
        self.encoder = ctranslate2.Encoder(str(folder / "ct2"), **options)

    def prepare(self, batch):
        self.batch = batch
        self.groups = [np.arange(len(batch))]
        self.tokens = [batch.sequences()]

    def call(self):
        self.outputs = [self.encoder.forward_batch(tokens) for tokens in self.tokens]

    def hidden(self):
        outputs = [np.array(output.last_hidden_state) for output in self.outputs]
        rows = np.empty((len(self.batch.rows), outputs[0].shape[-1]), np.float32)
        for group, output in zip(self.groups, outputs):
            for row, k in enumerate(group):
                begin, end = self.batch.offsets[k : k + 2]
                rows[begin:end] = output[row, : end - begin]
        return rows


class CTranslate2Buckets(CTranslate2):
    """The same in groups of sequences that are sorted by length, in the number of groups that is fastest."""

    def prepare(self, batch):
        self.batch = batch
        sequences = batch.sequences()
        times = {}

        def use(count):
            self.groups = batch.buckets(count)
            self.tokens = [[sequences[k] for k in group] for group in self.groups]

        for count in [count for count in BUCKETS if count <= len(batch)]:
            use(count)
            self.call()
            times[count] = timed(self.call)
        use(min(times, key=times.get))


PEERS = {
    "ragged": Ragged,
    "ideal": Ideal,
    "padded": Dense,
    "ORT padded": OnnxRuntime,
    "ORT buckets": Buckets,
    "CT2": CTranslate2,
    "CT2 buckets": CTranslate2Buckets,
}
