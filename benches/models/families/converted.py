"""Other element types, quantised models, and graphs that ONNX Runtime's optimisers wrote."""

from export import Entry

from . import decoders, encoders, series, vision

SOURCES = {
    "bert": lambda: encoders.encoder("bert"),
    # Its mask has the smallest float where the usual one has infinities, which have no scale.
    "bert-eager": lambda: encoders.encoder("bert", attn_implementation="eager"),
    "distilbert": lambda: encoders.encoder("distilbert"),
    "deberta-v3": lambda: encoders.encoder("deberta-v3"),
    "t5": lambda: encoders.sequence("t5"),
    "clip": lambda: encoders.clip("CLIP", "S"),
    "llama-past": lambda: decoders.with_past("llama"),
    "llama-prompt": lambda: decoders.prompt("llama"),
    "qwen3-past": lambda: decoders.with_past("qwen3"),
    "gpt2-past": lambda: decoders.with_past("gpt2"),
    "gpt2-prompt": lambda: decoders.prompt("gpt2"),
    "vit": lambda: vision.timm_model("vit_tiny_patch16_224"),
    "resnet18": lambda: vision.timm_model("resnet18", "any"),
    "resnet50": lambda: vision.timm_model("resnet50", "any"),
    "mobilenetv2": lambda: vision.timm_model("mobilenetv2_035", "any"),
    "efficientnet": lambda: vision.timm_model("efficientnet_lite0", "any"),
    "convnext": lambda: vision.timm_model("convnext_atto", "any"),
    "lstm": lambda: series.recurrent("LSTM"),
    "mlp": series.perceptron,
}
FORMS = {
    "f16": ["bert", "llama-past", "vit", "resnet18", "gpt2-past", "clip"],
    "f16_keep_io": ["bert", "t5"],
    "bf16": ["bert", "llama-prompt", "vit", "mlp"],
    "dynamic_int8": ["bert", "distilbert", "llama-past", "gpt2-prompt", "t5", "vit", "lstm", "deberta-v3"],
    "qdq": ["resnet18", "resnet50", "mobilenetv2", "efficientnet", "bert-eager", "vit", "convnext", "mlp"],
    "qoperator": ["resnet18", "resnet50", "mobilenetv2", "bert-eager", "vit", "mlp"],
    "int4": ["llama-past", "qwen3-past", "gpt2-past", "bert"],
    "int4_rounded": ["llama-past", "qwen3-past", "gpt2-past", "bert"],
    "ort_extended": ["bert", "gpt2-past", "llama-past", "t5", "vit", "resnet18", "clip", "mobilenetv2", "convnext"],
    "fused_bert": ["bert", "distilbert"],
    "fused_gpt2": ["gpt2-prompt"],
}


def entries():
    return [
        Entry(f"{source}-{form.replace('_', '-')}", "element types and quantisers", SOURCES[source], "script", form)
        for form, sources in FORMS.items()
        for source in sources
    ]
