"""Padded encoders in the forms that users export: other inputs, other types, other ways to mask and to pool."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "models"))

from case import Input, floats, ids, mask, positions  # noqa: E402
from export import Case, Entry  # noqa: E402
from families.encoders import COMMON, T5, VOCAB, encoder  # noqa: E402

RANGES = {"N": "1..8", "S": "1..64"}
FEATURES = 20


def typed(item, dtype):
    return Input(item.dims, dtype, item.fill, item.limit)


def transformer(config, model="AutoModel", **fields):
    import torch
    import transformers

    torch.manual_seed(0)
    kind, common = config
    return getattr(transformers, model).from_config(getattr(transformers, kind)(**{**common, **fields}))


def t5(config="T5Config", model="T5EncoderModel", **fields):
    import torch
    import transformers

    torch.manual_seed(0)
    module = getattr(transformers, model)(getattr(transformers, config)(**{**T5, **fields}))
    inputs = {"input_ids": ids(VOCAB, "N", "S"), "attention_mask": mask("N", "S")}
    return Case(module, inputs, ["output"], RANGES, lambda m, tokens, mask: m(tokens, attention_mask=mask)[0])


def bert(shared_positions=False, dtype="int64", mask_dtype=None):
    module = transformer(("BertConfig", COMMON))
    inputs = {
        "input_ids": typed(ids(VOCAB, "N", "S"), dtype),
        "attention_mask": typed(mask("N", "S"), mask_dtype or dtype),
        "token_type_ids": typed(ids(2, "N", "S"), dtype),
        "position_ids": typed(positions(0, 1 if shared_positions else "N", "S"), dtype),
    }

    def call(model, tokens, mask, kinds, places):
        kinds, places, mask = kinds.long(), places.long(), mask.long()
        return model(tokens.long(), attention_mask=mask, token_type_ids=kinds, position_ids=places)[0]

    return Case(module, inputs, ["output"], RANGES, call)


def pooled(kind):
    import torch

    module = transformer(("BertConfig", COMMON))

    def call(model, tokens, mask):
        hidden = model(tokens, attention_mask=mask)[0]
        kept = mask.unsqueeze(-1).to(hidden.dtype)
        if kind == "mean":
            vector = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        elif kind == "max":
            vector = torch.where(kept > 0, hidden, torch.tensor(-1e9)).max(1).values
        elif kind == "first":
            vector = hidden[:, 0]
        else:
            vector = hidden[torch.arange(hidden.shape[0]), mask.sum(1) - 1]
        return torch.nn.functional.normalize(vector, dim=-1)

    inputs = {"input_ids": ids(VOCAB, "N", "S"), "attention_mask": mask("N", "S")}
    return Case(module, inputs, ["output"], RANGES, call)


def layers():
    import torch

    torch.manual_seed(0)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (torch.nn.Linear(64, 64) for _ in range(4))
            self.norm = torch.nn.LayerNorm(64)

        def forward(self, x, is_token):
            scores = self.q(x) @ self.k(x).transpose(1, 2) / 8
            scores = scores.masked_fill(~is_token[:, None, :], float("-inf"))
            return self.norm(x + self.o(torch.softmax(scores, -1) @ self.v(x)))

    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), Layer(), Layer())


def audio(kind):
    """Frames of features with the length of each sequence, as audio encoders take them."""
    import torch

    module = layers()
    if kind == "convolution":
        module.append(torch.nn.Conv1d(64, 64, 3, padding=1))

    def call(model, frames, lengths):
        places = torch.arange(frames.shape[1])
        is_token = places[None, :] < lengths[:, None]
        x = model[0](frames)
        for layer in (model[1], model[2]):
            x = layer(x, is_token)
        if kind == "convolution":
            x = model[3]((x * is_token[..., None]).transpose(1, 2)).transpose(1, 2)
        return x

    inputs = {"frames": floats("N", "S", FEATURES), "lengths": Input(["N"], "int64", "ids", 2)}
    return Case(module, inputs, ["output"], RANGES, call)


def convolution(is_causal=False, is_masked=True):
    """Two convolutions along the sequence, which read rows of neighbours. A mask is before each, or before the first."""
    import torch

    torch.manual_seed(0)
    module = torch.nn.ModuleList([
        torch.nn.Conv1d(FEATURES, FEATURES, 3),
        torch.nn.Conv1d(FEATURES, FEATURES, 5, padding=4, dilation=2, groups=FEATURES),
    ])

    def call(model, frames, mask):
        kept = (frames * mask[..., None]).transpose(1, 2)
        x = model[0](torch.nn.functional.pad(kept, (2, 0) if is_causal else (1, 1)))
        x = torch.nn.functional.gelu(x) * (mask[:, None] if is_masked else 1)
        return model[1](x).transpose(1, 2)

    inputs = {"frames": floats("N", "S", FEATURES), "attention_mask": typed(mask("N", "S"), "float32")}
    return Case(module, inputs, ["output"], RANGES, call)


# The input that has the tokens of a padded call where it is not `attention_mask`.
LENGTHS = {"audio-lengths": "lengths", "audio-convolution": "lengths"}
# Models whose results do not depend on where a sequence begins, or that take the positions of tokens.
LEFT = ("t5-encoder", "umt5-encoder", "t5-gated", "bert-inputs", "deberta-v3-relative")
# The token of padding that some models look for.
PAD = {"roberta": 1, "xlm-roberta": 1, "camembert": 1, "mpnet": 1, "esm": 1}
REFUSED = {"pooled-last", "convolution-unmasked", "mobilebert", "convbert"}


def entries():
    own = {
        "t5-encoder": t5,
        "t5-gated": lambda: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        "umt5-encoder": lambda: t5("UMT5Config", "UMT5EncoderModel"),
        "bert-inputs": bert,
        "bert-shared-positions": lambda: bert(shared_positions=True),
        "bert-int32": lambda: bert(dtype="int32"),
        "bert-bool-mask": lambda: bert(mask_dtype="bool"),
        "bert-float-mask": lambda: bert(mask_dtype="float32"),
        **{f"pooled-{kind}": lambda kind=kind: pooled(kind) for kind in ("mean", "max", "first", "last")},
        # As published: without absolute positions.
        "deberta-v3-relative": lambda: encoder("deberta-v3", position_biased_input=False),
        "audio-lengths": lambda: audio("plain"),
        "audio-convolution": lambda: audio("convolution"),
        "convolution": convolution,
        "convolution-causal": lambda: convolution(is_causal=True),
        "convolution-unmasked": lambda: convolution(is_masked=False),
    }
    found = [Entry(name, "forms", make) for name, make in own.items()]
    found += [Entry(f"{name}-dynamo", "forms", own[name], "dynamo") for name in ("t5-encoder", "pooled-mean")]
    return found
