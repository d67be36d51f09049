"""Makes the tokenizer of a GGUF file for the library `tokenizers`."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

# Kinds of tokens in GGUF files.
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6


def tokenizer(reader):
    """The tokenizer that a `gguf.GGUFReader` describes."""
    field = lambda name: reader.fields[f"tokenizer.ggml.{name}"].contents()
    tokens, kinds = field("tokens"), field("token_type")
    ids = {token: k for k, token in enumerate(tokens)}
    kind = field("model")
    if kind == "gpt2":
        result = byte_level(ids, field("merges"), field("pre"))
    elif kind == "llama":
        result = sentence_piece(ids, field("scores"), kinds)
    else:
        raise ValueError(f"unknown tokenizer `{kind}`")

    named = [(token, kind) for token, kind in zip(tokens, kinds) if kind in (CONTROL, USER_DEFINED)]
    result.add_special_tokens([plain(token) for token, kind in named if kind == CONTROL])
    result.add_tokens([plain(token) for token, kind in named if kind == USER_DEFINED])
    if result.get_vocab_size() != len(tokens):
        raise ValueError(f"the tokenizer has {result.get_vocab_size()} tokens, its file has {len(tokens)}")
    return result


def plain(token):
    """A token that is found before all others, in the text as it is."""
    return AddedToken(token, normalized=False)


def byte_level(ids, merges, pre):
    """Merges of bytes, as GPT-2 has them."""
    if pre != "smollm":
        raise ValueError(f"unknown division into words `{pre}`")
    result = Tokenizer(models.BPE(vocab=ids, merges=[tuple(merge.split(" ")) for merge in merges]))
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    result.decoder = decoders.ByteLevel()
    return result


def sentence_piece(ids, scores, kinds):
    """Merges of characters, best score first; characters that the vocabulary lacks are bytes."""
    merges = []
    for token, k in ids.items():
        if kinds[k] != NORMAL:
            continue
        for at in range(1, len(token)):
            left, right = ids.get(token[:at]), ids.get(token[at:])
            if left is not None and right is not None:
                merges.append((-scores[k], left, right, token[:at], token[at:]))
    merges.sort()
    model = models.BPE(
        vocab=ids,
        merges=[(left, right) for *_, left, right in merges],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    result = Tokenizer(model)
    result.normalizer = normalizers.Replace(" ", "▁")
    result.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return result
