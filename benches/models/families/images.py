"""Networks of single tasks on images, at the widths at which they are deployed."""

from case import image
from export import Case, Entry, seeded

IMAGES = {"N": "1..4"}
SIDES = {"N": "1..2", "H": "32..160/8", "W": "32..160/8"}


def conv_bn(inputs, outputs, side, stride=1, groups=1, act=True, dilation=1):
    """A convolution, a normalisation and a rectifier."""
    from torch import nn

    padding = dilation * (side // 2)
    layers = [nn.Conv2d(inputs, outputs, side, stride, padding, dilation, groups, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


def text_line():
    """Letters of a line of text, by convolutions and recurrent layers (CRNN)."""
    import torch
    from torch import nn

    class Lines(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 64, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Conv2d(64, 128, 3, 1, 1), nn.ReLU(),
                nn.MaxPool2d(2, 2), conv_bn(128, 256, 3), nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(),
                nn.MaxPool2d((2, 2), (2, 1), (0, 1)), conv_bn(256, 512, 3), nn.Conv2d(512, 512, 3, 1, 1), nn.ReLU(),
                nn.MaxPool2d((2, 2), (2, 1), (0, 1)), nn.Conv2d(512, 512, 2), nn.BatchNorm2d(512), nn.ReLU(),
            )
            self.first = nn.LSTM(512, 256, bidirectional=True, batch_first=True)
            self.second = nn.LSTM(512, 256, bidirectional=True, batch_first=True)
            self.head = nn.Linear(512, 97)

        def forward(self, line):
            x = self.features(line).squeeze(2).transpose(1, 2)
            x = self.second(self.first(x)[0])[0]
            return self.head(x).log_softmax(-1)

    return Case(Lines(), {"line": image("N", 1, 32, "W")}, ["scores"], {"N": "1..4", "W": "32..320/4"})


def face():
    """A vector of a face (IResNet-18)."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
                nn.PReLU(outputs), nn.Conv2d(outputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs),
            )
            self.skip = conv_bn(inputs, outputs, 1, stride, act=False) if stride > 1 else nn.Identity()

        def forward(self, x):
            return self.body(x) + self.skip(x)

    layers, width = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64)], 64
    for outputs in (64, 128, 256, 512):
        layers += [Block(width, outputs, 2), Block(outputs, outputs, 1)]
        width = outputs
    layers += [nn.BatchNorm2d(512), nn.Flatten(), nn.Linear(512 * 49, 512), nn.BatchNorm1d(512)]
    return Case(nn.Sequential(*layers), {"face": image("N", 3, 112, 112)}, ["vector"], IMAGES)


def dense_upscaler():
    """Larger images (ESRGAN with three blocks)."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(64 + 32 * k, 32 if k < 4 else 64, 3, 1, 1) for k in range(5)])

        def forward(self, x):
            parts = [x]
            for conv in self.convs[:-1]:
                parts.append(F.leaky_relu(conv(torch.cat(parts, 1)), 0.2))
            return self.convs[-1](torch.cat(parts, 1)) * 0.2 + x

    class Upscaler(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 64, 3, 1, 1)
            self.body = nn.Sequential(Dense(), Dense(), Dense())
            self.up = nn.Conv2d(64, 64, 3, 1, 1)
            self.last = nn.Conv2d(64, 3, 3, 1, 1)

        def forward(self, x):
            x = self.first(x)
            x = self.body(x) * 0.2 + x
            x = F.leaky_relu(self.up(F.interpolate(x, scale_factor=2, mode="nearest")), 0.2)
            return self.last(x)

    return Case(Upscaler(), {"x": image("N", 3, "H", "W")}, ["y"], {"N": "1..1", "H": "16..64", "W": "16..64"})


def style():
    """An image in another style (Johnson)."""
    from torch import nn

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            half = lambda: [nn.ReflectionPad2d(1), nn.Conv2d(128, 128, 3), nn.InstanceNorm2d(128, affine=True)]
            self.body = nn.Sequential(*half(), nn.ReLU(), *half())

        def forward(self, x):
            return self.body(x) + x

    def layer(inputs, outputs, side, stride):
        return [nn.ReflectionPad2d(side // 2), nn.Conv2d(inputs, outputs, side, stride),
                nn.InstanceNorm2d(outputs, affine=True), nn.ReLU()]

    up = lambda: [nn.Upsample(scale_factor=2, mode="nearest")]
    model = nn.Sequential(
        *layer(3, 32, 9, 1), *layer(32, 64, 3, 2), *layer(64, 128, 3, 2), Residual(), Residual(), Residual(),
        *up(), *layer(128, 64, 3, 1), *up(), *layer(64, 32, 3, 1), nn.ReflectionPad2d(4), nn.Conv2d(32, 3, 9),
    )
    return Case(model, {"x": image("N", 3, "H", "W")}, ["y"], {"N": "1..1", "H": "32..160/4", "W": "32..160/4"})


def two_branches():
    """Classes of pixels, by a branch of details and a branch of the scene (BiSeNet)."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.detail = nn.Sequential(conv_bn(3, 64, 3, 2), conv_bn(64, 64, 3), conv_bn(64, 64, 3, 2),
                                        conv_bn(64, 64, 3), conv_bn(64, 128, 3, 2), conv_bn(128, 128, 3))
            gather = lambda a, b, s: nn.Sequential(conv_bn(a, a, 3), conv_bn(a, 6 * a, 3, s, a, act=False),
                                                   conv_bn(6 * a, b, 1))
            self.scene = nn.Sequential(conv_bn(3, 16, 3, 2), conv_bn(16, 16, 3, 2), gather(16, 32, 2),
                                       gather(32, 64, 2), gather(64, 128, 2))
            self.head = nn.Sequential(conv_bn(128, 128, 3), nn.Conv2d(128, 19, 1))

        def forward(self, x):
            detail, scene = self.detail(x), self.scene(x)
            scene = F.interpolate(scene, scale_factor=4.0, mode="bilinear", align_corners=False)
            y = self.head(detail * torch.sigmoid(scene))
            return F.interpolate(y, scale_factor=8.0, mode="bilinear", align_corners=False)

    sides = {"N": "1..2", "H": "64..256/32", "W": "64..256/32"}
    return Case(Segmenter(), {"x": image("N", 3, "H", "W")}, ["y"], sides)


def pyramid():
    """Features of several sizes that are added with weights (EfficientDet)."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Separable(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.depth, self.point = nn.Conv2d(width, width, 3, 1, 1, groups=width), conv_bn(width, width, 1, act=False)

        def forward(self, x):
            return F.silu(self.point(self.depth(x)))

    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(conv_bn(3, 32, 3, 2), conv_bn(32, 64, 3, 2), conv_bn(64, 64, 3, 2))
            self.down = nn.ModuleList([conv_bn(64, 64, 3, 2) for _ in range(3)])
            self.mix = nn.ModuleList([Separable(64) for _ in range(6)])
            self.weights = nn.Parameter(torch.rand(6, 2))
            self.heads = nn.Sequential(Separable(64), Separable(64), nn.Conv2d(64, 9 * 4, 3, 1, 1))

        def forward(self, x):
            levels = [self.stem(x)]
            for down in self.down:
                levels.append(down(levels[-1]))
            weights = F.relu(self.weights)
            weights = weights / (weights.sum(1, keepdim=True) + 1e-4)
            for k in range(3):
                low = F.interpolate(levels[3 - k], scale_factor=2.0, mode="nearest")
                levels[2 - k] = self.mix[k](weights[k, 0] * levels[2 - k] + weights[k, 1] * low)
            for k in range(3):
                high = F.max_pool2d(levels[k], 3, 2, 1)
                levels[k + 1] = self.mix[3 + k](weights[3 + k, 0] * levels[k + 1] + weights[3 + k, 1] * high)
            flat = [self.heads(level).permute(0, 2, 3, 1).flatten(1).reshape(x.shape[0], -1, 4) for level in levels]
            return torch.cat(flat, 1)

    sides = {"N": "1..2", "H": "128..320/64", "W": "128..320/64"}
    return Case(Pyramid(), {"x": image("N", 3, "H", "W")}, ["boxes"], sides)


def restorer():
    """A clean image (NAFNet)."""
    import torch
    from torch import nn

    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)

        def forward(self, x):
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm1, self.norm2 = Norm(width), Norm(width)
            self.conv1, self.conv2 = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, 2 * width, 3, 1, 1,
                                                                                groups=2 * width)
            self.conv3, self.attend = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
            self.conv4, self.conv5 = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)

        def forward(self, x):
            a, b = self.conv2(self.conv1(self.norm1(x))).chunk(2, 1)
            y = a * b
            x = x + self.conv3(y * self.attend(y.mean((2, 3), keepdim=True)))
            a, b = self.conv4(self.norm2(x)).chunk(2, 1)
            return x + self.conv5(a * b)

    class Restorer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 32, 3, 1, 1), nn.Conv2d(32, 3, 3, 1, 1)
            self.fine, self.coarse = nn.Sequential(Block(32), Block(32)), nn.Sequential(Block(64), Block(64))
            self.down, self.up = nn.Conv2d(32, 64, 2, 2), nn.Sequential(nn.Conv2d(64, 128, 1, bias=False),
                                                                        nn.PixelShuffle(2))
            self.end = Block(32)

        def forward(self, x):
            fine = self.fine(self.first(x))
            y = self.end(self.up(self.coarse(self.down(fine))) + fine)
            return self.last(y) + x

    return Case(Restorer(), {"x": image("N", 3, "H", "W")}, ["y"], SIDES)


def video():
    """Actions in short videos (R3D)."""
    from torch import nn

    def layer(inputs, outputs, stride):
        return [nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm3d(outputs), nn.ReLU()]

    model = nn.Sequential(*layer(3, 32, (1, 2, 2)), *layer(32, 64, 1), *layer(64, 128, 2), *layer(128, 128, 1),
                          *layer(128, 256, 2), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, 101))
    return Case(model, {"x": image("N", 3, "T", 64, 64)}, ["scores"], {"N": "1..2", "T": "4..16/4"})


def entries():
    makes = {
        "crnn": text_line, "iresnet18": face, "esrgan": dense_upscaler, "style-transfer": style,
        "bisenet": two_branches, "bifpn": pyramid, "nafnet": restorer, "r3d": video,
    }
    return [Entry(name, "images", seeded(make)) for name, make in makes.items()]
