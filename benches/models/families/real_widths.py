"""Ten models at the widths of their published forms, 100 to 500 MB of random weights."""

from export import Entry

from . import audio, decoders, encoders, vision

LLAMA = {"vocab_size": 16384, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 24,
         "num_attention_heads": 9, "num_key_value_heads": 3}
QWEN = {"vocab_size": 16384, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 6,
        "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64}
BERT = {"vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 512}
T5 = {"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
WHISPER = {"vocab_size": 51865, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
           "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "max_source_positions": 1500,
           "max_target_positions": 448}


def entries():
    makes = {
        "smollm2-real": lambda: decoders.with_past("llama", layers=24, heads=3, **LLAMA),
        "qwen3-real": lambda: decoders.with_past("qwen3", layers=6, heads=2, **QWEN),
        "gpt2-real": lambda: decoders.with_past("gpt2", layers=12, heads=12, vocab_size=50257, n_embd=768, n_layer=12,
                                                n_head=12),
        "bert-base-real": lambda: encoders.encoder("bert", **BERT),
        "t5-small-real": lambda: encoders.sequence("t5", **T5),
        "whisper-base-decoder-real": lambda: audio.whisper("decoder", **WHISPER),
        "resnet50-real": lambda: vision.timm_model("resnet50", "any"),
        "vit-base-real": lambda: vision.timm_model("vit_base_patch16_224", depth=12),
        "convnext-tiny-real": lambda: vision.timm_model("convnext_tiny", "any"),
        "swin-tiny-real": lambda: vision.timm_model("swin_tiny_patch4_window7_224"),
    }
    # The older exporter lacks an operator of Whisper's decoder.
    exporters = {"whisper-base-decoder-real": "dynamo"}
    return [Entry(name, "real widths", make, exporters.get(name, "script")) for name, make in makes.items()]
