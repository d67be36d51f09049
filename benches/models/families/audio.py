"""Speech in and out, and codecs of audio."""

from case import floats, ids, mask
from export import Case, Entry

WAVE = {"N": "1..2", "L": "1600..16000/80"}
WAV2VEC = {
    "vocab_size": 40, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192,
    "conv_dim": (32,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "apply_spec_augment": False,
}


def from_waves(config, model, fields, output=0):
    """A model that takes samples."""
    import torch
    import transformers

    torch.manual_seed(0)
    module = getattr(transformers, model)(getattr(transformers, config)(**fields))
    return Case(module, {"wave": floats("N", "L")}, ["output"], WAVE, lambda m, x: m(input_values=x)[output])


WHISPER = {
    "vocab_size": 500, "num_mel_bins": 80, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
    "max_source_positions": 100, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def whisper(part, **fields):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.WhisperConfig(**{**WHISPER, **fields})
    model = transformers.WhisperForConditionalGeneration(config)
    frames = config.max_source_positions
    if part == "encoder":
        inputs = {"features": floats("N", 80, 2 * frames)}
        return Case(model.model.encoder, inputs, ["states"], {"N": "1..2"}, lambda m, x: m(x)[0])
    inputs = {"tokens": ids(config.vocab_size, "N", "S"), "states": floats("N", frames, config.d_model)}
    call = lambda m, tokens, states: m.proj_out(
        m.model.decoder(input_ids=tokens, encoder_hidden_states=states, use_cache=False)[0]
    )
    return Case(model, inputs, ["logits"], {"N": "1..2", "S": "1..64"}, call)


def vits():
    """Speech from phonemes. Its noise is scaled by zero, so that the result can be compared."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.VitsConfig(
        vocab_size=40, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, ffn_dim=128, flow_size=64,
        spectrogram_bins=65, upsample_initial_channel=64, wavenet_dilation_rate=1, prior_encoder_num_flows=2,
        posterior_encoder_num_wavenet_layers=2, prior_encoder_num_wavenet_layers=2, duration_predictor_num_flows=2,
        depth_separable_num_layers=2, use_stochastic_duration_prediction=False,
    )
    model = transformers.VitsModel(config)
    model.noise_scale = model.noise_scale_duration = 0.0
    inputs = {"input_ids": ids(40, "N", "S"), "attention_mask": mask("N", "S")}
    call = lambda m, tokens, mask: m(input_ids=tokens, attention_mask=mask).waveform
    return Case(model, inputs, ["wave"], {"N": "1..2", "S": "4..40"}, call)


def hifigan():
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.SpeechT5HifiGan(transformers.SpeechT5HifiGanConfig(upsample_initial_channel=64))
    model.mean.normal_(0, 0.1)
    return Case(model, {"mel": floats("N", "T", 80)}, ["wave"], {"N": "1..2", "T": "2..64"})


SPEECHT5 = {
    "vocab_size": 81, "hidden_size": 96, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 192, "decoder_ffn_dim": 192,
}


def speecht5(part):
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.SpeechT5ForTextToSpeech(transformers.SpeechT5Config(**SPEECHT5))
    if part == "encoder":
        inputs = {"input_ids": ids(81, "N", "S"), "attention_mask": mask("N", "S")}
        call = lambda m, tokens, mask: m.speecht5.encoder(input_values=tokens, attention_mask=mask)[0]
        return Case(model, inputs, ["states"], {"N": "1..2", "S": "1..96"}, call)
    inputs = {"mel": floats("N", "T", 80), "states": floats("N", "S", 96), "speaker": floats("N", 512)}
    call = lambda m, mel, states, speaker: m.speecht5.decoder(
        input_values=mel, encoder_hidden_states=states, speaker_embeddings=speaker, use_cache=False
    )[0]
    return Case(model, inputs, ["hidden"], {"N": "1..2", "S": "1..96", "T": "1..64"}, call)


def encodec(part):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.EncodecConfig(num_filters=8, hidden_size=32, codebook_size=64, codebook_dim=32,
                                        num_lstm_layers=1, upsampling_ratios=[4, 2], use_causal_conv=True)
    model = transformers.EncodecModel(config)
    if part == "encoder":
        inputs = {"wave": floats("N", 1, "L")}
        return Case(model.encoder, inputs, ["codes"], {"N": "1..2", "L": "64..2048/8"})
    return Case(model.decoder, {"codes": floats("N", 32, "T")}, ["wave"], {"N": "1..2", "T": "8..256"})


def spectrogram_transformer():
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.ASTConfig(hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192,
                                    max_length=128, num_mel_bins=64)
    model = transformers.ASTForAudioClassification(config)
    return Case(model, {"mel": floats("N", 128, 64)}, ["logits"], {"N": "1..4"}, lambda m, x: m(input_values=x).logits)


def speech_to_text():
    """A recogniser with convolutions, recurrent layers and connectionist outputs, as DeepSpeech."""
    import torch
    from torch import nn

    class Recogniser(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(
                nn.Conv2d(1, 8, (11, 11), (2, 2), (5, 5)), nn.BatchNorm2d(8), nn.Hardtanh(0, 20),
                nn.Conv2d(8, 8, (11, 11), (2, 1), (5, 5)), nn.BatchNorm2d(8), nn.Hardtanh(0, 20),
            )
            self.rnn = nn.GRU(8 * 20, 96, 2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(192, 29)

        def forward(self, mel):
            x = self.conv(mel.unsqueeze(1))
            x = x.flatten(1, 2).transpose(1, 2)
            return self.head(self.rnn(x)[0]).log_softmax(-1)

    torch.manual_seed(0)
    return Case(Recogniser(), {"mel": floats("N", 80, "T")}, ["scores"], {"N": "1..2", "T": "16..128"})


def dac(part):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.DacConfig(encoder_hidden_size=16, downsampling_ratios=[2, 4], decoder_hidden_size=64,
                                    upsampling_ratios=[4, 2], n_codebooks=2, codebook_size=32)
    model = transformers.DacModel(config)
    if part == "encoder":
        return Case(model.encoder, {"wave": floats("N", 1, "L")}, ["codes"], {"N": "1..2", "L": "64..2048/8"})
    size = config.hidden_size
    return Case(model.decoder, {"codes": floats("N", size, "T")}, ["wave"], {"N": "1..2", "T": "8..256"})


def entries():
    makes = {
        "wav2vec2": lambda: from_waves("Wav2Vec2Config", "Wav2Vec2ForCTC", WAV2VEC),
        "hubert": lambda: from_waves("HubertConfig", "HubertModel", WAV2VEC),
        "wavlm": lambda: from_waves("WavLMConfig", "WavLMModel", WAV2VEC),
        "data2vec-audio": lambda: from_waves("Data2VecAudioConfig", "Data2VecAudioModel", WAV2VEC),
        "sew": lambda: from_waves("SEWConfig", "SEWModel", {**WAV2VEC, "conv_dim": (32,) * 13}),
        "whisper-encoder": lambda: whisper("encoder"),
        "whisper-decoder": lambda: whisper("decoder"), "vits": vits, "hifigan": hifigan,
        "speecht5-encoder": lambda: speecht5("encoder"), "speecht5-decoder": lambda: speecht5("decoder"),
        "encodec-encoder": lambda: encodec("encoder"), "encodec-decoder": lambda: encodec("decoder"),
        "ast": spectrogram_transformer, "deepspeech": speech_to_text, "dac-encoder": lambda: dac("encoder"),
        "dac-decoder": lambda: dac("decoder"),
    }
    # The older exporter lacks an operator of Whisper's decoder.
    found = [Entry(name, "audio", make) for name, make in makes.items() if name != "whisper-decoder"]
    for name in ("wav2vec2", "whisper-encoder", "whisper-decoder", "hifigan"):
        found.append(Entry(f"{name}-dynamo", "audio", makes[name], "dynamo"))
    return found
