"""Decoders: whole prompts, with past keys and values, merged, with experts, and state-space models."""

from case import floats, ids, ones, positions
from export import Case, Entry

VOCAB = 1000
HEADS, KV_HEADS, HEAD_SIZE, LAYERS = 4, 2, 64, 2
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HEADS * HEAD_SIZE,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_GROUPS = {**COMMON, "num_key_value_heads": HEADS}
GPT = {"vocab_size": VOCAB, "n_embd": 256, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 512,
       "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# By model: the configuration class, its fields, and the number of key and value heads.
CONFIGS = {
    "llama": ("LlamaConfig", COMMON, KV_HEADS),
    "qwen2": ("Qwen2Config", COMMON, KV_HEADS),
    "qwen3": ("Qwen3Config", {**COMMON, "head_dim": HEAD_SIZE}, KV_HEADS),
    "mistral": ("MistralConfig", {**COMMON, "sliding_window": None}, KV_HEADS),
    "phi": ("PhiConfig", NO_GROUPS, HEADS),
    "phi3": ("Phi3Config", COMMON, KV_HEADS),
    "gemma": ("GemmaConfig", {**COMMON, "head_dim": HEAD_SIZE}, KV_HEADS),
    "gemma2": ("Gemma2Config", {**COMMON, "head_dim": HEAD_SIZE, "sliding_window": 32}, KV_HEADS),
    "gemma3": ("Gemma3TextConfig", {**COMMON, "head_dim": HEAD_SIZE, "sliding_window": 32}, KV_HEADS),
    "olmo": ("OlmoConfig", COMMON, KV_HEADS),
    "olmo2": ("Olmo2Config", COMMON, KV_HEADS),
    "gpt2": ("GPT2Config", GPT, HEADS),
    "gptj": ("GPTJConfig", {**GPT, "rotary_dim": 32}, HEADS),
    "gpt-neo": ("GPTNeoConfig", {**COMMON, "num_layers": LAYERS, "num_heads": HEADS,
                                 "attention_types": [[["global", "local"], 1]], "window_size": 32}, HEADS),
    "gpt-neox": ("GPTNeoXConfig", COMMON, HEADS),
    "falcon": ("FalconConfig", {**COMMON, "alibi": False, "multi_query": True, "new_decoder_architecture": False}, 1),
    "bloom": ("BloomConfig", {"vocab_size": VOCAB, "hidden_size": 256, "n_layer": LAYERS, "n_head": HEADS,
                              "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, HEADS),
    "opt": ("OPTConfig", {**COMMON, "ffn_dim": 512, "word_embed_proj_dim": 256}, HEADS),
    "stablelm": ("StableLmConfig", COMMON, KV_HEADS),
    "granite": ("GraniteConfig", COMMON, KV_HEADS),
    "smollm3": ("SmolLM3Config", COMMON, KV_HEADS),
    "starcoder2": ("Starcoder2Config", {**COMMON, "sliding_window": None}, KV_HEADS),
}
NO_POSITIONS = {"bloom"}
BATCH = {"N": "1..4"}


def language_model(kind, **fields):
    import torch
    import transformers

    name, common, _ = CONFIGS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**common, **fields})
    return transformers.AutoModelForCausalLM.from_config(config)


def prompt(kind):
    """Logits of whole prompts."""

    def call(model, tokens, mask):
        return model(input_ids=tokens, attention_mask=mask, use_cache=False).logits

    return Case(
        language_model(kind),
        {"input_ids": ids(VOCAB, "N", "S"), "attention_mask": ones("N", "S")},
        ["logits"],
        {**BATCH, "S": "1..128"},
        call,
    )


def filled_cache(tensors):
    """A cache of keys and values in turn, layer by layer."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache()
    for key, value in zip(tensors[::2], tensors[1::2]):
        layer = DynamicLayer()
        layer.keys, layer.values = key, value
        layer.dtype, layer.device, layer.is_initialized = key.dtype, key.device, True
        cache.layers.append(layer)
    return cache


def with_past(kind, past="1..128", tokens="1..16", layers=LAYERS, heads=None, size=HEAD_SIZE, **fields):
    """Logits and the grown keys and values of new tokens after `P` earlier ones."""
    heads = heads or CONFIGS[kind][2]
    takes_positions = kind not in NO_POSITIONS

    def call(model, tokens, mask, *rest):
        places = {"position_ids": rest[0]} if takes_positions else {}
        cache = filled_cache(rest[1:] if takes_positions else rest)
        result = model(input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True, **places)
        grown = [t for layer in result.past_key_values.layers for t in (layer.keys, layer.values)]
        return (result.logits, *grown)

    inputs = {"input_ids": ids(fields.get("vocab_size", VOCAB), "N", "S"), "attention_mask": ones("N", "T")}
    if takes_positions:
        inputs["position_ids"] = positions("P", "N", "S")
    outputs = ["logits"]
    for layer in range(layers):
        for part in ("key", "value"):
            inputs[f"past_key_values.{layer}.{part}"] = floats("N", heads, "P", size)
            outputs.append(f"present.{layer}.{part}")
    return Case(language_model(kind, **fields), inputs, outputs, {**BATCH, "S": tokens, "P": past, "T": "P+S"}, call)


def experts():
    """A decoder layer with four experts of which two are used, in dense form: every expert computes every token."""
    import torch
    from torch import nn

    class Experts(nn.Module):
        def __init__(self, size=256, inner=256, count=4, used=2):
            super().__init__()
            self.used = used
            self.router = nn.Linear(size, count, bias=False)
            self.up = nn.Parameter(torch.randn(count, size, inner) / 16)
            self.gate = nn.Parameter(torch.randn(count, size, inner) / 16)
            self.down = nn.Parameter(torch.randn(count, inner, size) / 16)

        def forward(self, x):
            scores = self.router(x).softmax(-1)
            best, places = scores.topk(self.used, dim=-1)
            weights = torch.zeros_like(scores).scatter(-1, places, best / best.sum(-1, keepdim=True))
            rows = x.flatten(0, 1)
            each = (nn.functional.silu(rows @ self.gate) * (rows @ self.up)) @ self.down
            mixed = (each * weights.flatten(0, 1).t().unsqueeze(-1)).sum(0)
            return mixed.view_as(x)

    model = language_model("llama")
    for layer in model.model.layers:
        layer.mlp = Experts()
    case = prompt("llama")
    case.module = model
    return case


def mamba(scan):
    """A Mamba block; `scan(decay, update, read)` runs the recurrence."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, size=128, inner=256, states=16, rank=8):
            super().__init__()
            self.states, self.rank = states, rank
            self.norm = nn.LayerNorm(size)
            self.enter = nn.Linear(size, 2 * inner, bias=False)
            self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
            self.project = nn.Linear(inner, rank + 2 * states, bias=False)
            self.step = nn.Linear(rank, inner)
            self.log_decay = nn.Parameter(torch.log(torch.arange(1.0, states + 1).repeat(inner, 1)))
            self.skip = nn.Parameter(torch.ones(inner))
            self.leave = nn.Linear(inner, size, bias=False)

        def forward(self, x):
            hidden, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
            hidden = self.conv(hidden.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
            hidden = nn.functional.silu(hidden)
            step, write, read = self.project(hidden).split([self.rank, self.states, self.states], dim=-1)
            step = nn.functional.softplus(self.step(step))
            decay = torch.exp(step.unsqueeze(-1) * -torch.exp(self.log_decay))
            update = (step * hidden).unsqueeze(-1) * write.unsqueeze(2)
            result = scan(decay, update, read) + hidden * self.skip
            return x + self.leave(result * nn.functional.silu(gate))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCAB, 128), Block(), Block(), nn.LayerNorm(128), nn.Linear(128, VOCAB))
    return Case(model, {"input_ids": ids(VOCAB, "N", "S")}, ["logits"], {**BATCH, "S": "1..128"})


def mamba_loop():
    """The recurrence as a loop, by TorchScript."""
    import torch

    @torch.jit.script
    def scan(decay: torch.Tensor, update: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(update[:, 0])
        rows = torch.zeros_like(update[:, :, :, 0])
        for t in range(decay.shape[1]):
            state = decay[:, t] * state + update[:, t]
            rows[:, t] = (state * read[:, t].unsqueeze(1)).sum(-1)
        return rows

    return mamba(scan)


def mamba_scan():
    """The recurrence as a Scan."""
    import torch
    from torch._higher_order_ops.scan import scan as scan_operator

    def scan(decay, update, read):
        def step(state, row):
            state = row[0] * state + row[1]
            return state, (state * row[2].unsqueeze(1)).sum(-1)

        first = torch.zeros_like(update[:, 0])
        _, rows = scan_operator(step, first, (decay, update, read), dim=1)
        return rows.transpose(0, 1)

    return mamba(scan)


def mamba_parallel():
    """The recurrence as cumulative sums of logarithms."""
    import torch

    def scan(decay, update, read):
        total = torch.cumsum(torch.log(decay), dim=1)
        # A short horizon keeps the exponents small.
        state = torch.exp(total.clamp(min=-20)) * torch.cumsum(update * torch.exp(-total.clamp(min=-20)), dim=1)
        return (state * read.unsqueeze(2)).sum(-1)

    return mamba(scan)


def entries():
    found = [Entry(f"{kind}-prompt", "decoders", lambda kind=kind: prompt(kind)) for kind in CONFIGS]
    found += [Entry(f"{kind}-past", "decoders", lambda kind=kind: with_past(kind)) for kind in CONFIGS]
    for kind in ("llama", "qwen3", "gpt2", "gemma3", "bloom"):
        found.append(Entry(f"{kind}-prompt-dynamo", "decoders", lambda kind=kind: prompt(kind), "dynamo"))
    for kind in ("llama", "qwen3", "gpt2", "phi"):
        found.append(Entry(f"{kind}-past-dynamo", "decoders", lambda kind=kind: with_past(kind), "dynamo"))
    found += [
        # Merged: without past keys, the first call is a prompt.
        Entry("llama-merged", "decoders", lambda: with_past("llama", past="0..128", tokens="1..64")),
        Entry("qwen2-merged", "decoders", lambda: with_past("qwen2", past="0..128", tokens="1..64")),
        Entry("moe-dense", "decoders", experts),
        Entry("moe-dense-dynamo", "decoders", experts, "dynamo"),
        Entry("mamba-loop", "decoders", mamba_loop),
        Entry("mamba-scan-dynamo", "decoders", mamba_scan, "dynamo"),
        Entry("mamba-cumsum", "decoders", mamba_parallel),
    ]
    return found
