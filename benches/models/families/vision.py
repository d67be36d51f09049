"""Image classifiers and backbones."""

from case import image
from export import Case, Entry

# Sizes of images: symbolic height and width, in steps of 32.
SIDES = {"H": "64..224/32", "W": "64..224/32"}
BATCH = {"N": "1..4"}
# Models of timm that take any height and width.
ANY_SIDE = [
    "resnet18", "seresnext26t_32x4d", "mobilenetv2_035", "mobilenetv3_small_050", "mobilenetv4_conv_small_050",
    "efficientnet_b0", "convnext_atto", "densenet121", "regnetx_002", "regnety_002", "ghostnet_050", "mnasnet_small",
    "repvgg_a0", "hrnet_w18_small", "darknet17", "mobileone_s0", "hgnetv2_b0", "nf_resnet26",
    "poolformer_s12", "pvt_v2_b0", "edgenext_xx_small", "fastvit_t8",
    "efficientvit_b0",
]
# Models of timm for one size of image.
FIXED_SIDE = [
    "vit_tiny_patch16_224", "deit_tiny_patch16_224", "mixer_s32_224", "levit_128s", "efficientformer_l1",
    "beit_base_patch16_224", "cait_xxs24_224", "convit_tiny", "gmlp_ti16_224", "xcit_nano_12_p16_224",
    "maxvit_rmlp_pico_rw_256", "eva02_tiny_patch14_224", "repvit_m0_9", "davit_tiny", "tiny_vit_5m_224",
]
SMALL = {
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 192, "num_heads": 3},
    "cait_xxs24_224": {"depth": 2},
    "vit_tiny_patch16_224": {"depth": 4},
    "deit_tiny_patch16_224": {"depth": 4},
    "densenet121": {"growth_rate": 8},
    "eva02_tiny_patch14_224": {"depth": 2},
}


def timm_model(name, side=None, **fields):
    """A model of timm with random weights, also in its batch normalisations."""
    import timm
    import torch

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=100, exportable=True, **SMALL.get(name, {}), **fields)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    side = side or model.default_cfg["input_size"][-1]
    dims, ranges = (("H", "W"), {**BATCH, **SIDES}) if side == "any" else ((side, side), BATCH)
    return Case(model, {"image": image("N", 3, *dims)}, ["logits"], ranges)


def torchvision_model(name, **fields):
    import torch
    import torchvision

    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None, num_classes=100, **fields)
    return Case(model, {"image": image("N", 3, "H", "W")}, ["logits"], {**BATCH, **SIDES})


def vgg():
    """VGG with few channels."""
    import torch
    from torchvision.models import vgg

    torch.manual_seed(0)
    plan = [16, "M", 32, "M", 64, 64, "M", 128, 128, "M", 128, 128, "M"]
    model = vgg.VGG(vgg.make_layers(plan, batch_norm=True), num_classes=100, init_weights=True)
    model.classifier = torch.nn.Sequential(torch.nn.Linear(128 * 49, 256), torch.nn.ReLU(), torch.nn.Linear(256, 100))
    return Case(model, {"image": image("N", 3, 224, 224)}, ["logits"], BATCH)


def swin(kind):
    """A small Swin with symbolic height and width."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        image_size=224, patch_size=4, embed_dim=48, depths=[2, 2], num_heads=[3, 6], window_size=7
    )
    model = getattr(transformers, f"{kind}Model")(config)
    return Case(
        model,
        {"image": image("N", 3, "H", "W")},
        ["features"],
        {**BATCH, **SIDES},
        lambda model, pixels: model(pixel_values=pixels).last_hidden_state,
    )


def dinov2():
    """DINOv2 whose position embeddings are resized for each height and width."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=192, num_hidden_layers=2, num_attention_heads=3, image_size=224, patch_size=14
    )
    return Case(
        transformers.Dinov2Model(config),
        {"image": image("N", 3, "H", "W")},
        ["features"],
        {**BATCH, "H": "56..224/14", "W": "56..224/14"},
        lambda model, pixels: model(pixel_values=pixels).last_hidden_state,
    )


def vit_any_side():
    return timm_model("vit_tiny_patch16_224", "any", dynamic_img_size=True)


def entries():
    found = [Entry(name, "vision", lambda name=name: timm_model(name, "any")) for name in ANY_SIDE]
    found += [Entry(name, "vision", lambda name=name: timm_model(name)) for name in FIXED_SIDE]
    for name in ("resnet18", "mobilenetv3_small_050", "efficientnet_b0", "convnext_atto", "mobilevit_xxs"):
        found.append(Entry(f"{name}-dynamo", "vision", lambda name=name: timm_model(name, "any"), "dynamo"))
    for name in ("vit_tiny_patch16_224", "deit_tiny_patch16_224"):
        found.append(Entry(f"{name}-dynamo", "vision", lambda name=name: timm_model(name), "dynamo"))
    for name in ("squeezenet1_1", "shufflenet_v2_x0_5"):
        found.append(Entry(name, "vision", lambda name=name: torchvision_model(name)))
    found += [
        Entry("vgg-small", "vision", vgg),
        Entry("inception_v3", "vision", lambda: timm_model("inception_v3")),
        Entry("swin", "vision", lambda: swin("Swin")),
        Entry("swinv2", "vision", lambda: swin("Swinv2")),
        Entry("dinov2", "vision", dinov2),
        Entry("vit-any-side-dynamo", "vision", vit_any_side, "dynamo"),
    ]
    return found
