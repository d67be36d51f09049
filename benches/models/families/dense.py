"""Detection, segmentation, depth, and other models whose results are images."""

from case import image
from export import Case, Entry

SIDES = {"N": "1..2", "H": "64..256/32", "W": "64..256/32"}
PIXELS = {"image": image("N", 3, "H", "W")}


def transformer(config, model, outputs, ranges=None, inputs=None, **fields):
    """A vision model of transformers; `outputs` are fields of its result."""
    import torch
    import transformers

    torch.manual_seed(0)
    module = getattr(transformers, model)(getattr(transformers, config)(**fields))

    def call(module, pixels):
        result = module(pixel_values=pixels)
        return tuple(getattr(result, name) for name in outputs)

    return Case(module, inputs or PIXELS, list(outputs), ranges or SIDES, call)


def resnet_backbone():
    import transformers

    return transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )


def detr(kind="Detr"):
    backbone = resnet_backbone()
    backbone.out_features = ["stage4"]
    return transformer(
        f"{kind}Config", f"{kind}ForObjectDetection", ("logits", "pred_boxes"), backbone_config=backbone,
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, d_model=64, num_queries=20,
        encoder_layers=2, decoder_layers=2, encoder_ffn_dim=128, decoder_ffn_dim=128, encoder_attention_heads=4,
        decoder_attention_heads=4, num_labels=10,
    )


def rt_detr():
    import transformers

    backbone = transformers.RTDetrResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    return transformer(
        "RTDetrConfig", "RTDetrForObjectDetection", ("logits", "pred_boxes"), backbone_config=backbone,
        encoder_in_channels=[32, 64, 128], encoder_hidden_dim=64, encoder_ffn_dim=128, encoder_attention_heads=4,
        decoder_in_channels=[64, 64, 64], d_model=64, num_queries=60, decoder_layers=2, decoder_ffn_dim=128,
        decoder_attention_heads=4, num_labels=10, anchor_image_size=None, eval_size=None, num_denoising=0,
        ranges={"N": "1..2", "H": "128..320/32", "W": "128..320/32"},
    )


def yolos():
    return transformer(
        "YolosConfig", "YolosForObjectDetection", ("logits", "pred_boxes"), hidden_size=96, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=192, image_size=[128, 128], num_detection_tokens=20, num_labels=10,
        use_mid_position_embeddings=False,
    )


def segformer():
    return transformer(
        "SegformerConfig", "SegformerForSemanticSegmentation", ("logits",), hidden_sizes=[16, 32, 64, 128],
        depths=[1, 1, 1, 1], decoder_hidden_size=64, num_labels=10,
    )


def mask2former():
    import transformers

    backbone = transformers.SwinConfig(
        image_size=128, embed_dim=24, depths=[1, 1, 1, 1], num_heads=[1, 2, 2, 4], window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    return transformer(
        "Mask2FormerConfig", "Mask2FormerForUniversalSegmentation",
        ("class_queries_logits", "masks_queries_logits"), backbone_config=backbone, feature_size=32, mask_feature_size=32,
        hidden_dim=32, encoder_feedforward_dim=64, encoder_layers=1, decoder_layers=2, num_attention_heads=4,
        dim_feedforward=64, num_queries=10, num_labels=5, inputs={"image": image("N", 3, 128, 128)},
        ranges={"N": "1..2"},
    )


def depth_anything():
    import transformers

    backbone = transformers.Dinov2Config(
        hidden_size=96, num_hidden_layers=4, num_attention_heads=3, image_size=224, patch_size=14,
        out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False, apply_layernorm=True,
    )
    return transformer(
        "DepthAnythingConfig", "DepthAnythingForDepthEstimation", ("predicted_depth",), backbone_config=backbone,
        reassemble_hidden_size=96, neck_hidden_sizes=[16, 32, 64, 64], fusion_hidden_size=32, head_hidden_size=16,
        ranges={"N": "1..2", "H": "56..224/14", "W": "56..224/14"},
    )


def dpt():
    return transformer(
        "DPTConfig", "DPTForDepthEstimation", ("predicted_depth",), hidden_size=96, num_hidden_layers=4,
        num_attention_heads=3, intermediate_size=192, image_size=128, patch_size=16, backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 32, 64, 64], fusion_hidden_size=32, is_hybrid=False,
        inputs={"image": image("N", 3, 128, 128)}, ranges={"N": "1..4"},
    )


def swin2sr():
    return transformer(
        "Swin2SRConfig", "Swin2SRForImageSuperResolution", ("reconstruction",), embed_dim=30, depths=[2, 2],
        num_heads=[3, 3], window_size=8, image_size=64, ranges={"N": "1..2", "H": "32..96/8", "W": "32..96/8"},
    )


def superpoint():
    return transformer("SuperPointConfig", "SuperPointForKeypointDetection", ("keypoints", "scores"))


def convolution(inside, outside, kernel=3, stride=1):
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outside), nn.SiLU()
    )


def yolo():
    """A detector with three strides, boxes from distances, and suppression of overlapping boxes after it."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.first, self.second = convolution(size // 2, size // 2), convolution(size // 2, size // 2)
            self.merge = convolution(size + size // 2, size, 1)

        def forward(self, x):
            left, right = x.chunk(2, 1)
            return self.merge(torch.cat([left, right, right + self.second(self.first(right))], 1))

    class Detector(nn.Module):
        def __init__(self, classes=10, bins=8):
            super().__init__()
            self.classes, self.bins = classes, bins
            self.stem = nn.Sequential(convolution(3, 16, stride=2), convolution(16, 32, stride=2), Block(32))
            self.down = nn.ModuleList(
                nn.Sequential(convolution(a, b, stride=2), Block(b)) for a, b in ((32, 64), (64, 128), (128, 128))
            )
            self.pool = nn.MaxPool2d(5, 1, 2)
            self.spread = convolution(256, 128, 1)
            self.up = nn.ModuleList([convolution(256, 64, 1), convolution(128, 64, 1)])
            self.heads = nn.ModuleList(nn.Conv2d(c, 4 * bins + classes, 1) for c in (64, 64, 128))

        def forward(self, x):
            x = self.stem(x)
            levels = []
            for stage in self.down:
                x = stage(x)
                levels.append(x)
            top = self.spread(torch.cat([levels[2], self.pool(levels[2])], 1))
            middle = self.up[0](torch.cat([nn.functional.interpolate(top, scale_factor=2), levels[1]], 1))
            low = self.up[1](torch.cat([nn.functional.interpolate(middle, scale_factor=2), levels[0]], 1))
            rows = []
            for stride, head, level in zip((8, 16, 32), self.heads, (low, middle, top)):
                height, width = level.shape[2:]
                found = head(level).flatten(2)
                distance, score = found.split([4 * self.bins, self.classes], 1)
                distance = distance.unflatten(1, (4, self.bins)).softmax(2)
                distance = (distance * torch.arange(self.bins).view(1, 1, -1, 1)).sum(2)
                y = (torch.arange(height) + 0.5).view(-1, 1).expand(height, width).flatten()
                x = (torch.arange(width) + 0.5).view(1, -1).expand(height, width).flatten()
                centre = torch.stack([x, y])
                corners = torch.cat([centre - distance[:, :2], centre + distance[:, 2:]], 1) * stride
                rows.append(torch.cat([corners, score.sigmoid()], 1))
            return torch.cat(rows, 2)

    torch.manual_seed(0)
    return Case(Detector(), PIXELS, ["boxes"], {**SIDES, "H": "64..320/32", "W": "64..320/32"})


def u_net():
    """The classical U-Net with transposed convolutions."""
    import torch
    from torch import nn

    class UNet(nn.Module):
        def __init__(self, sizes=(16, 32, 64, 128)):
            super().__init__()
            pairs = list(zip((3, *sizes), sizes))
            self.down = nn.ModuleList(nn.Sequential(convolution(a, b), convolution(b, b)) for a, b in pairs)
            back = list(zip(sizes[:0:-1], sizes[-2::-1]))
            self.rise = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in back)
            self.up = nn.ModuleList(nn.Sequential(convolution(2 * b, b), convolution(b, b)) for _, b in back)
            self.head = nn.Conv2d(sizes[0], 4, 1)

        def forward(self, x):
            kept = []
            for k, stage in enumerate(self.down):
                x = stage(x if k == 0 else nn.functional.max_pool2d(x, 2))
                kept.append(x)
            for rise, stage, skip in zip(self.rise, self.up, kept[-2::-1]):
                x = stage(torch.cat([skip, rise(x)], 1))
            return self.head(x)

    torch.manual_seed(0)
    return Case(UNet(), PIXELS, ["classes"], SIDES)


def torchvision_segmentation(name):
    import torch
    import torchvision

    torch.manual_seed(0)
    model = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=10)
    return Case(model, PIXELS, ["classes"], SIDES, lambda model, x: model(x)["out"])


def upscaler():
    """Sub-pixel convolutions."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 32, 3, padding=1), nn.Tanh(),
        nn.Conv2d(32, 12, 3, padding=1), nn.PixelShuffle(2),
    )
    return Case(model, PIXELS, ["large"], SIDES)


def entries():
    makes = {
        "detr": detr, "conditional-detr": lambda: detr("ConditionalDetr"), "rt-detr": rt_detr, "yolos": yolos,
        "yolo": yolo, "segformer": segformer, "mask2former": mask2former, "depth-anything": depth_anything, "dpt": dpt,
        "swin2sr": swin2sr, "superpoint": superpoint, "u-net": u_net, "upscaler": upscaler,
        "deeplabv3-mobilenet": lambda: torchvision_segmentation("deeplabv3_mobilenet_v3_large"),
        "lraspp-mobilenet": lambda: torchvision_segmentation("lraspp_mobilenet_v3_large"),
    }
    found = [Entry(name, "detection and segmentation", make) for name, make in makes.items()]
    for name in ("yolo", "segformer", "u-net", "rt-detr", "depth-anything"):
        found.append(Entry(f"{name}-dynamo", "detection and segmentation", makes[name], "dynamo"))
    return found
