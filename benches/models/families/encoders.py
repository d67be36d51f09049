"""Encoders of text, encoder-decoders, and models of text and images."""

from case import floats, ids, image, mask, ones
from export import Case, Entry

VOCAB = 1000
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 320,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
ROBERTA = {**COMMON, "pad_token_id": 1, "bos_token_id": 0}
DEBERTA = {**COMMON, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16}
CONFIGS = {
    "bert": ("BertConfig", COMMON),
    "distilbert": ("DistilBertConfig", {**COMMON, "dim": 256, "hidden_dim": 512, "n_layers": 2, "n_heads": 4}),
    "roberta": ("RobertaConfig", ROBERTA),
    "xlm-roberta": ("XLMRobertaConfig", ROBERTA),
    "camembert": ("CamembertConfig", ROBERTA),
    "deberta": ("DebertaConfig", DEBERTA),
    "deberta-v3": ("DebertaV2Config", {**DEBERTA, "position_buckets": 32, "share_att_key": True,
                                       "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"]}),
    "modernbert": ("ModernBertConfig", {**COMMON, "local_attention": 32, "global_attn_every_n_layers": 2}),
    "albert": ("AlbertConfig", {**COMMON, "embedding_size": 64}),
    "electra": ("ElectraConfig", {**COMMON, "embedding_size": 64}),
    "mpnet": ("MPNetConfig", ROBERTA),
    "ernie": ("ErnieConfig", COMMON),
    "mobilebert": ("MobileBertConfig", {**COMMON, "embedding_size": 64, "intra_bottleneck_size": 64}),
    "squeezebert": ("SqueezeBertConfig", {**COMMON, "embedding_size": 256}),
    "roformer": ("RoFormerConfig", COMMON),
    "convbert": ("ConvBertConfig", {**COMMON, "embedding_size": 256}),
    "rembert": ("RemBertConfig", {**COMMON, "input_embedding_size": 64}),
    "esm": ("EsmConfig", {**ROBERTA, "position_embedding_type": "rotary", "mask_token_id": 3}),
    "nomic-bert": ("NomicBertConfig", COMMON),
    "eurobert": ("EuroBertConfig", COMMON),
    "longformer": ("LongformerConfig", {**ROBERTA, "attention_window": [8, 8]}),
}


def encoder(kind, head="AutoModel", **fields):
    import torch
    import transformers

    name, common = CONFIGS[kind]
    torch.manual_seed(0)
    model = getattr(transformers, head).from_config(getattr(transformers, name)(**{**common, **fields}))
    inputs = {"input_ids": ids(fields.get("vocab_size", VOCAB), "N", "S"), "attention_mask": mask("N", "S")}

    def call(model, tokens, mask):
        return model(input_ids=tokens, attention_mask=mask)[0]

    # Longformer pads to whole windows, and the exporter fixes the size of DeBERTa's table of distances.
    lengths = {"longformer": "16..128/16", "deberta": "16..128"}.get(kind, "1..128")
    return Case(model, inputs, ["output"], {"N": "1..8", "S": lengths}, call)


SEQUENCE = {
    "vocab_size": VOCAB, "d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "max_position_embeddings": 320,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
}
T5 = {"vocab_size": VOCAB, "d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 4,
      "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
SEQUENCES = {
    "t5": ("T5Config", T5),
    "flan-t5": ("T5Config", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5Config", {**T5, "feed_forward_proj": "gated-gelu"}),
    "bart": ("BartConfig", SEQUENCE),
    "mbart": ("MBartConfig", SEQUENCE),
    "marian": ("MarianConfig", SEQUENCE),
    "pegasus": ("PegasusConfig", SEQUENCE),
    "m2m100": ("M2M100Config", SEQUENCE),
    "blenderbot": ("BlenderbotConfig", SEQUENCE),
}


def sequence(kind, **fields):
    """Logits of a decoder over the states of its encoder."""
    import torch
    import transformers

    name, common = SEQUENCES[kind]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**common, **fields})
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)

    def call(model, tokens, mask, decoded):
        return model(input_ids=tokens, attention_mask=mask, decoder_input_ids=decoded, use_cache=False).logits

    inputs = {
        "input_ids": ids(fields.get("vocab_size", VOCAB), "N", "S"),
        "attention_mask": mask("N", "S"),
        "decoder_input_ids": ids(fields.get("vocab_size", VOCAB), "N", "D"),
    }
    return Case(model, inputs, ["logits"], {"N": "1..4", "S": "1..128", "D": "1..64"}, call)


def t5_decoder_past():
    """One step of T5's decoder with the keys and values of both attentions."""
    import torch
    import transformers
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    from .decoders import filled_cache

    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))

    def call(model, tokens, mask, *past):
        own, crossed = filled_cache(past[:4]), filled_cache(past[4:])
        cache = EncoderDecoderCache(own, crossed)
        cache.is_updated = {0: True, 1: True}
        states = torch.zeros(1, 1, 256).expand(tokens.shape[0], mask.shape[1], 256)
        result = model.decoder(
            input_ids=tokens, encoder_hidden_states=states, encoder_attention_mask=mask, past_key_values=cache,
            use_cache=True,
        )
        logits = model.lm_head(result.last_hidden_state)
        grown = [t for layer in result.past_key_values.self_attention_cache.layers for t in (layer.keys, layer.values)]
        return (logits, *grown)

    inputs = {"input_ids": ids(VOCAB, "N", 1), "encoder_attention_mask": mask("N", "S")}
    outputs = ["logits"]
    for part, length in (("decoder", "P"), ("encoder", "S")):
        for layer in range(2):
            for each in ("key", "value"):
                inputs[f"past.{layer}.{part}.{each}"] = floats("N", 4, length, 64)
                if part == "decoder":
                    outputs.append(f"present.{layer}.{each}")
    return Case(model, inputs, outputs, {"N": "1..4", "S": "1..128", "P": "1..128"}, call)


CLIP_TEXT = {"vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
             "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
             "eos_token_id": 2}
CLIP_IMAGE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
              "image_size": 64, "patch_size": 16}


def clip(kind, text_length):
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(text_config=CLIP_TEXT, vision_config=CLIP_IMAGE)
    model = getattr(transformers, f"{kind}Model")(config)

    def call(model, tokens, pixels, *mask):
        result = model(input_ids=tokens, pixel_values=pixels, **({"attention_mask": mask[0]} if mask else {}))
        return result.logits_per_image, result.text_embeds, result.image_embeds

    inputs = {"input_ids": ids(VOCAB, "T", text_length), "pixel_values": image("N", 3, 64, 64)}
    ranges = {"N": "1..8", "T": "1..8"}
    if kind == "CLIP":
        inputs["attention_mask"] = mask("T", text_length)
        ranges["S"] = "1..64"
    return Case(model, inputs, ["logits", "text", "image"], ranges, call)


def layoutlm():
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.LayoutLMModel(transformers.LayoutLMConfig(**COMMON, max_2d_position_embeddings=128))

    def call(model, tokens, boxes, mask):
        boxes = torch.cat([boxes[..., :2], boxes[..., 2:] + 63], dim=-1)
        return model(input_ids=tokens, bbox=boxes, attention_mask=mask)[0]

    inputs = {"input_ids": ids(VOCAB, "N", "S"), "bbox": ids(64, "N", "S", 4), "attention_mask": mask("N", "S")}
    return Case(model, inputs, ["output"], {"N": "1..8", "S": "1..128"}, call)


def entries():
    found = [Entry(kind, "encoders", lambda kind=kind: encoder(kind)) for kind in CONFIGS]
    for kind in ("bert", "roberta", "deberta-v3", "modernbert", "albert"):
        found.append(Entry(f"{kind}-dynamo", "encoders", lambda kind=kind: encoder(kind), "dynamo"))
    heads = {
        "bert-classify": ("bert", "AutoModelForSequenceClassification"),
        "distilbert-answer": ("distilbert", "AutoModelForQuestionAnswering"),
        "roberta-tokens": ("roberta", "AutoModelForTokenClassification"),
        "electra-masked": ("electra", "AutoModelForMaskedLM"),
    }
    for name, (kind, head) in heads.items():
        found.append(Entry(name, "encoders", lambda kind=kind, head=head: encoder(kind, head)))
    found += [Entry(kind, "encoder-decoders", lambda kind=kind: sequence(kind)) for kind in SEQUENCES]
    found += [
        Entry("t5-dynamo", "encoder-decoders", lambda: sequence("t5"), "dynamo"),
        Entry("bart-dynamo", "encoder-decoders", lambda: sequence("bart"), "dynamo"),
        Entry("t5-past", "encoder-decoders", t5_decoder_past),
        Entry("clip", "encoders", lambda: clip("CLIP", "S")),
        Entry("clip-dynamo", "encoders", lambda: clip("CLIP", "S"), "dynamo"),
        Entry("siglip", "encoders", lambda: clip("Siglip", 64)),
        Entry("layoutlm", "encoders", layoutlm),
    ]
    return found
