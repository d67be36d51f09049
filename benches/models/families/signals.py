"""Networks of single tasks on sounds, signals, points and tables, at the widths at which they are deployed."""

from case import floats
from export import Case, Entry, seeded
from families.images import conv_bn


def conv1d_bn(inputs, outputs, length, stride=1, groups=1, dilation=1):
    from torch import nn

    padding = dilation * (length // 2)
    conv = nn.Conv1d(inputs, outputs, length, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm1d(outputs), nn.ReLU())


def keyword():
    """Spoken commands (DS-CNN)."""
    from torch import nn

    layers = [nn.Conv2d(1, 64, (10, 4), (2, 2), (5, 1)), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(4):
        layers += [conv_bn(64, 64, 3, groups=64), conv_bn(64, 64, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12)]
    return Case(nn.Sequential(*layers), {"mfcc": floats("N", 1, 49, 10)}, ["scores"], {"N": "1..8"})


def keyword_1d():
    """Spoken commands by convolutions along time (TC-ResNet)."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.body = nn.Sequential(conv1d_bn(inputs, outputs, 9, 2), nn.Conv1d(outputs, outputs, 9, 1, 4))
            self.skip = conv1d_bn(inputs, outputs, 1, 2)

        def forward(self, x):
            return nn.functional.relu(self.body(x) + self.skip(x))

    model = nn.Sequential(nn.Conv1d(40, 16, 3, 1, 1), Block(16, 24), Block(24, 32), Block(32, 48),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(48, 12))
    return Case(model, {"mfcc": floats("N", 40, "T")}, ["scores"], {"N": "1..8", "T": "16..128/8"})


def separation():
    """Two speakers of one recording (Conv-TasNet)."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, dilation):
            super().__init__()
            self.first, self.last = nn.Conv1d(128, 256, 1), nn.Conv1d(256, 128, 1)
            self.norm1, self.norm2 = nn.GroupNorm(1, 256), nn.GroupNorm(1, 256)
            self.act1, self.act2 = nn.PReLU(), nn.PReLU()
            self.depth = nn.Conv1d(256, 256, 3, 1, dilation, dilation, 256)

        def forward(self, x):
            y = self.norm1(self.act1(self.first(x)))
            return x + self.last(self.norm2(self.act2(self.depth(y))))

    class Separation(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Conv1d(1, 256, 16, 8, bias=False), nn.ConvTranspose1d(256, 1, 16, 8)
            self.bottleneck, self.masks = nn.Conv1d(256, 128, 1), nn.Conv1d(128, 512, 1)
            self.norm = nn.GroupNorm(1, 256)
            self.body = nn.Sequential(*[Block(2**k) for k in range(6)])

        def forward(self, wave):
            mix = torch.relu(self.encoder(wave))
            masks = torch.sigmoid(self.masks(self.body(self.bottleneck(self.norm(mix)))))
            parts = masks.reshape(wave.shape[0], 2, 256, -1) * mix.unsqueeze(1)
            return self.decoder(parts.flatten(0, 1))

    return Case(Separation(), {"wave": floats("N", 1, "L")}, ["parts"], {"N": "1..2", "L": "800..8000/80"})


def wavenet():
    """Gated convolutions with dilations along time."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, dilation):
            super().__init__()
            self.conv, self.out = nn.Conv1d(64, 128, 3, 1, dilation, dilation), nn.Conv1d(64, 128, 1)

        def forward(self, x):
            a, b = self.conv(x).chunk(2, 1)
            residual, skip = self.out(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            return x + residual, skip

    class Wavenet(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.blocks = nn.Conv1d(80, 64, 1), nn.ModuleList([Block(2 ** (k % 4)) for k in range(8)])
            self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(64, 64, 1), nn.ReLU(), nn.Conv1d(64, 80, 1))

        def forward(self, x):
            x, total = self.first(x), 0
            for block in self.blocks:
                x, skip = block(x)
                total = total + skip
            return self.last(total)

    return Case(Wavenet(), {"mel": floats("N", 80, "T")}, ["y"], {"N": "1..2", "T": "16..1024/16"})


def denoiser():
    """A mask of a spectrum, frame by frame, by recurrent layers."""
    import torch
    from torch import nn

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(257, 256), nn.Linear(256, 257)
            self.rnn = nn.GRU(256, 256, 2, batch_first=True)

        def forward(self, x):
            return x * torch.sigmoid(self.last(self.rnn(torch.relu(self.first(x)))[0]))

    return Case(Denoiser(), {"x": floats("N", "T", 257)}, ["y"], {"N": "1..4", "T": "1..100"})


def points():
    """Classes of point clouds (PointNet)."""
    import torch
    from torch import nn

    class Points(nn.Module):
        def __init__(self):
            super().__init__()
            self.local = nn.Sequential(conv1d_bn(3, 64, 1), conv1d_bn(64, 64, 1), conv1d_bn(64, 128, 1),
                                       conv1d_bn(128, 1024, 1))
            self.head = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
                                      nn.Linear(256, 40))

        def forward(self, x):
            return self.head(self.local(x).max(2).values)

    return Case(Points(), {"points": floats("N", 3, "P")}, ["scores"], {"N": "1..4", "P": "128..2048/128"})


def radiance():
    """Colours of points seen from directions (NeRF)."""
    import torch
    from torch import nn

    class Radiance(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = [63, 256, 256, 256, 256, 319, 256, 256]
            self.layers = nn.ModuleList([nn.Linear(size, 256) for size in sizes])
            self.density, self.feature = nn.Linear(256, 1), nn.Linear(256, 256)
            self.view, self.colour = nn.Linear(256 + 27, 128), nn.Linear(128, 3)

        def encode(self, x, count):
            parts = [x]
            for k in range(count):
                parts += [torch.sin(x * 2.0**k), torch.cos(x * 2.0**k)]
            return torch.cat(parts, -1)

        def forward(self, places, directions):
            start = self.encode(places, 10)
            x = start
            for k, layer in enumerate(self.layers):
                x = torch.relu(layer(torch.cat([start, x], -1) if k == 5 else x))
            y = torch.relu(self.view(torch.cat([self.feature(x), self.encode(directions, 4)], -1)))
            return torch.cat([torch.sigmoid(self.colour(y)), torch.relu(self.density(x))], -1)

    inputs = {"places": floats("P", 3), "directions": floats("P", 3)}
    return Case(Radiance(), inputs, ["colours"], {"P": "1..2048"})


def heart():
    """Rhythms of a heart (a residual network along time)."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.body = nn.Sequential(conv1d_bn(inputs, outputs, 15, 2), nn.Conv1d(outputs, outputs, 15, 1, 7))
            self.skip = nn.Sequential(nn.MaxPool1d(2, 2), nn.Conv1d(inputs, outputs, 1))

        def forward(self, x):
            return nn.functional.relu(self.body(x) + self.skip(x))

    model = nn.Sequential(conv1d_bn(12, 64, 15), Block(64, 64), Block(64, 128), Block(128, 128), Block(128, 256),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(256, 5))
    return Case(model, {"leads": floats("N", 12, "T")}, ["scores"], {"N": "1..4", "T": "128..1024/32"})


def brain():
    """Signals of electrodes (EEGNet)."""
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(1, 8, (1, 64), padding=(0, 32), bias=False), nn.BatchNorm2d(8),
        nn.Conv2d(8, 16, (22, 1), groups=8, bias=False), nn.BatchNorm2d(16), nn.ELU(), nn.AvgPool2d((1, 4)),
        nn.Conv2d(16, 16, (1, 16), padding=(0, 8), groups=16, bias=False), nn.Conv2d(16, 16, 1, bias=False),
        nn.BatchNorm2d(16), nn.ELU(), nn.AvgPool2d((1, 8)), nn.Flatten(), nn.Linear(16 * 8, 4),
    )
    return Case(model, {"x": floats("N", 1, 22, 256)}, ["scores"], {"N": "1..8"})


def table():
    """Rows of a table, a token for each column (FT-Transformer)."""
    import torch
    from torch import nn

    # The other path of the layer is an operator that exporters don't know.
    torch.backends.mha.set_fastpath_enabled(False)

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(32, 192) * 0.1), nn.Parameter(torch.randn(32, 192) * 0.1)
            self.first = nn.Parameter(torch.randn(1, 1, 192) * 0.1)
            layer = nn.TransformerEncoderLayer(192, 8, 256, 0.0, "relu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = nn.Linear(192, 2)

        def forward(self, x):
            tokens = x.unsqueeze(-1) * self.weight + self.bias
            tokens = torch.cat([self.first.expand(x.shape[0], -1, -1), tokens], 1)
            return self.head(self.encoder(tokens)[:, 0])

    return Case(Table(), {"x": floats("N", 32)}, ["y"], {"N": "1..64"})


def segments_1d():
    """Music without a voice (a small Demucs)."""
    import torch
    from torch import nn

    class Demucs(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = [2, 48, 96, 192]
            self.down = nn.ModuleList([
                nn.Sequential(nn.Conv1d(a, b, 8, 4, 2), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(1))
                for a, b in zip(sizes, sizes[1:])
            ])
            self.rnn = nn.LSTM(192, 192, 1, bidirectional=True)
            self.mix = nn.Linear(384, 192)
            self.up = nn.ModuleList([
                nn.Sequential(nn.Conv1d(b, 2 * b, 3, 1, 1), nn.GLU(1), nn.ConvTranspose1d(b, a, 8, 4, 2),
                              nn.ReLU() if a > 2 else nn.Identity())
                for a, b in reversed(list(zip(sizes, sizes[1:])))
            ])

        def forward(self, x):
            skips = []
            for down in self.down:
                x = down(x)
                skips.append(x)
            x = self.mix(self.rnn(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
            for up in self.up:
                x = up(x + skips.pop())
            return x

    return Case(Demucs(), {"wave": floats("N", 2, "L")}, ["y"], {"N": "1..2", "L": "256..8192/64"})


def entries():
    makes = {
        "ds-cnn": keyword, "tc-resnet": keyword_1d, "conv-tasnet": separation, "wavenet": wavenet, "denoiser": denoiser,
        "pointnet": points, "nerf": radiance, "ecg-resnet": heart, "eegnet": brain, "ft-transformer": table,
        "demucs": segments_1d,
    }
    return [Entry(name, "signals", seeded(make)) for name, make in makes.items()]
