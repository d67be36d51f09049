"""Parts of diffusion models."""

from case import Input, floats, ids, image
from export import Case, Entry

SIDES = {"N": "1..2", "H": "8..32/8", "W": "8..32/8"}


def steps(*dims):
    return Input(list(dims), fill="positions", limit=7)


def unet_with_text():
    import diffusers
    import torch

    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=1, sample_size=32, in_channels=4, out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64, attention_head_dim=8, norm_num_groups=16,
    )
    inputs = {"sample": floats("N", 4, "H", "W"), "timestep": steps("N"), "text": floats("N", 77, 64)}
    return Case(model, inputs, ["noise"], SIDES, lambda m, x, t, text: m(x, t, text, return_dict=False)[0])


def unet():
    import diffusers
    import torch

    torch.manual_seed(0)
    model = diffusers.UNet2DModel(
        sample_size=32, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=16, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    inputs = {"sample": floats("N", 3, "H", "W"), "timestep": steps("N")}
    return Case(model, inputs, ["noise"], SIDES, lambda m, x, t: m(x, t, return_dict=False)[0])


def vae(part):
    import diffusers
    import torch

    torch.manual_seed(0)
    model = diffusers.AutoencoderKL(
        block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=16, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )
    if part == "decoder":
        inputs = {"latent": floats("N", 4, "H", "W")}
        return Case(model, inputs, ["image"], SIDES, lambda m, z: m.decode(z, return_dict=False)[0])
    ranges = {"N": "1..2", "H": "32..96/32", "W": "32..96/32"}
    call = lambda m, x: m.encode(x, return_dict=False)[0].parameters
    return Case(model, {"image": image("N", 3, "H", "W")}, ["moments"], ranges, call)


def tiny_vae():
    import diffusers
    import torch

    torch.manual_seed(0)
    model = diffusers.AutoencoderTiny(
        encoder_block_out_channels=(32, 32), decoder_block_out_channels=(32, 32), num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
    )
    return Case(model, {"latent": floats("N", 4, "H", "W")}, ["image"], SIDES,
                lambda m, z: m.decode(z, return_dict=False)[0])


def dit():
    import diffusers
    import torch

    torch.manual_seed(0)
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=32, in_channels=4, out_channels=8, num_layers=2, sample_size=16,
        patch_size=2, num_embeds_ada_norm=100, norm_num_groups=16,
    )
    inputs = {"latent": floats("N", 4, 16, 16), "timestep": ids(100, "N"), "label": ids(10, "N")}
    call = lambda m, x, t, y: m(x, timestep=t, class_labels=y, return_dict=False)[0]
    return Case(model, inputs, ["noise"], {"N": "1..8"}, call)


def pixart():
    import diffusers
    import torch

    torch.manual_seed(0)
    model = diffusers.PixArtTransformer2DModel(
        num_attention_heads=4, attention_head_dim=32, in_channels=4, out_channels=8, num_layers=2, sample_size=16,
        patch_size=2, cross_attention_dim=128, caption_channels=64, norm_num_groups=16, use_additional_conditions=False,
    )
    inputs = {"latent": floats("N", 4, 16, 16), "text": floats("N", "S", 64), "timestep": ids(100, "N")}
    call = lambda m, x, text, t: m(
        x, encoder_hidden_states=text, timestep=t, added_cond_kwargs={"resolution": None, "aspect_ratio": None},
        return_dict=False,
    )[0]
    return Case(model, inputs, ["noise"], {"N": "1..4", "S": "1..77"}, call)


def sd3():
    import diffusers
    import torch

    torch.manual_seed(0)
    model = diffusers.SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=64, caption_projection_dim=128, pooled_projection_dim=64, out_channels=4,
        pos_embed_max_size=32,
    )
    inputs = {"latent": floats("N", 4, "H", "W"), "text": floats("N", "S", 64), "pooled": floats("N", 64),
              "timestep": steps("N")}
    call = lambda m, x, text, pooled, t: m(
        x, encoder_hidden_states=text, pooled_projections=pooled, timestep=t, return_dict=False
    )[0]
    return Case(model, inputs, ["noise"], {**SIDES, "S": "1..77"}, call)


def flux():
    import diffusers
    import torch

    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=64, pooled_projection_dim=64, axes_dims_rope=(8, 12, 12),
    )
    inputs = {"latent": floats("N", "L", 16), "text": floats("N", "S", 64), "pooled": floats("N", 64),
              "timestep": steps("N"), "image_ids": floats("L", 3), "text_ids": floats("S", 3)}
    call = lambda m, x, text, pooled, t, xi, ti: m(
        x, encoder_hidden_states=text, pooled_projections=pooled, timestep=t, img_ids=xi, txt_ids=ti, return_dict=False
    )[0]
    return Case(model, inputs, ["noise"], {"N": "1..2", "L": "16..256", "S": "1..77"}, call)


def entries():
    makes = {
        "sd-unet": unet_with_text, "ddpm-unet": unet, "vae-decoder": lambda: vae("decoder"),
        "vae-encoder": lambda: vae("encoder"), "taesd-decoder": tiny_vae, "dit": dit, "pixart": pixart, "sd3": sd3,
        "flux": flux,
    }
    # The older exporter has no RMS normalisation, and writes a wrong branch into PixArt.
    found = [Entry(name, "diffusion", make) for name, make in makes.items() if name not in ("flux", "pixart")]
    for name in ("sd-unet", "vae-decoder", "dit", "flux", "pixart"):
        found.append(Entry(f"{name}-dynamo", "diffusion", makes[name], "dynamo"))
    return found
