"""A streaming speech encoder of several rates, in the manner of Zipformer, with random weights.

The encoder reads a chunk of log-mel frames and keeps its left context between chunks: keys and values of attention, the
last columns of every causal convolution, and the number of frames that each stream has read. All of it are inputs and
outputs of the forward pass, as exporters of such encoders write it: `cached_key_0` becomes `new_cached_key_0`.

Shapes: N streams, T frames of 20 ms in a chunk, L frames of left context, C channels.
"""

import dataclasses
import math

import torch
from torch import nn

MELS = 80
# Frames of 10 ms that a chunk has. The first convolutions need 13 more than they give: 16 frames of 20 ms.
CHUNK_FRAMES = 45
CHUNK = 16
LEFT_CONTEXT = 64


@dataclasses.dataclass(frozen=True)
class Stack:
    """Layers at one rate: every `rate` frames are one."""

    rate: int
    layers: int
    channels: int
    feedforward: int
    kernel: int
    heads: int = 4
    key_width: int = 8
    position_width: int = 4
    value_width: int = 6

    @property
    def chunk(self):
        return CHUNK // self.rate

    @property
    def left(self):
        return LEFT_CONTEXT // self.rate


STACKS = (
    Stack(rate=1, layers=2, channels=48, feedforward=96, kernel=15),
    Stack(rate=2, layers=2, channels=64, feedforward=128, kernel=15),
    Stack(rate=4, layers=1, channels=96, feedforward=160, kernel=7),
    Stack(rate=2, layers=1, channels=64, feedforward=128, kernel=15),
)


def swoosh(x, offset):
    """A smooth activation that is slightly negative on the left: log(1 + exp(x - offset)) - x / 12 - constant."""
    return nn.functional.softplus(x - offset) - 0.08 * x - math.log1p(math.exp(-offset))


class BiasNorm(nn.Module):
    """Divides by the root mean square of the channels around a bias."""

    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(0.1 * torch.randn(channels))
        self.log_scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return x * (x - self.bias).square().mean(-1, keepdim=True).rsqrt() * self.log_scale.exp()


class Subsampling(nn.Module):
    """`[N, 45, MELS]` to `[N, 16, C]` by convolutions. The last one is depthwise, and keeps 3 columns."""

    WIDTH = 16
    MEL_BANDS = 19

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=(0, 1))
        self.second = nn.Conv2d(8, 12, 3, stride=2)
        self.third = nn.Conv2d(12, self.WIDTH, 3, stride=(1, 2))
        self.depthwise = nn.Conv2d(self.WIDTH, self.WIDTH, 7, groups=self.WIDTH, padding=(0, 3))
        self.wider = nn.Conv2d(self.WIDTH, 3 * self.WIDTH, 1)
        self.narrower = nn.Conv2d(3 * self.WIDTH, self.WIDTH, 1)
        self.out = nn.Linear(self.WIDTH * self.MEL_BANDS, channels)
        self.norm = BiasNorm(channels)

    def forward(self, x, cache):
        x = swoosh(self.first(x.unsqueeze(1)), 1.0)
        x = swoosh(self.second(x), 1.0)
        x = swoosh(self.third(x), 1.0)
        # Three of the columns are the right context of the depthwise convolution: the next chunk has them again.
        joined = torch.cat([cache, x], dim=2)
        cache = x[:, :, CHUNK - 3 : CHUNK]
        x = x[:, :, :CHUNK] + self.narrower(swoosh(self.wider(self.depthwise(joined)), 4.0))
        x = x.transpose(1, 2).flatten(2)
        return self.norm(self.out(x)), cache


class AttentionWeights(nn.Module):
    """Shares of attention for a chunk over its left context and itself, `[heads, N, T, L + T]`."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack
        width = stack.heads * (2 * stack.key_width + stack.position_width)
        self.project = nn.Linear(stack.channels, width)
        self.position = nn.Linear(2 * stack.position_width, stack.heads * stack.position_width, bias=False)
        # Row t, column k: how far frame k is behind frame t of the chunk.
        frames = torch.arange(stack.left + stack.chunk)
        distance = frames[stack.left :, None] - frames[None]
        angles = distance[..., None] / (2.0 ** torch.arange(stack.position_width))
        self.register_buffer("angles", torch.cat([angles.sin(), angles.cos()], -1))

    def forward(self, x, cached_key, hidden):
        stack = self.stack
        T, N, _ = x.shape
        heads, width = stack.heads, stack.key_width
        parts = [heads * width, heads * width, heads * stack.position_width]
        query, key, place = self.project(x).split(parts, dim=-1)
        key = torch.cat([cached_key, key], dim=0)
        cached_key = key[T:]

        query = query.reshape(T, N, heads, width).permute(2, 1, 0, 3)
        key = key.reshape(stack.left + T, N, heads, width).permute(2, 1, 3, 0)
        place = place.reshape(T, N, heads, stack.position_width).permute(2, 1, 0, 3)
        position = self.position(self.angles).reshape(T, stack.left + T, heads, stack.position_width)
        scores = query @ key + (place.unsqueeze(3) * position.permute(2, 0, 1, 3).unsqueeze(1)).sum(-1)
        # Frames before the beginning of a stream are hidden.
        scores = scores.masked_fill(hidden[None, :, None, :], -1000.0)
        return scores.softmax(-1), cached_key


class Attention(nn.Module):
    """Weighted sums of values, by shares that another module has computed."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack
        self.value = nn.Linear(stack.channels, stack.heads * stack.value_width)
        self.out = nn.Linear(stack.heads * stack.value_width, stack.channels)

    def forward(self, x, shares, cache):
        stack = self.stack
        T, N, _ = x.shape
        values = torch.cat([cache, self.value(x)], dim=0)
        cache = values[T:]
        values = values.reshape(stack.left + T, N, stack.heads, stack.value_width).permute(2, 1, 0, 3)
        sums = (shares @ values).permute(2, 1, 0, 3).reshape(T, N, -1)
        return self.out(sums), cache


class GatedAttention(nn.Module):
    """Attention of one head between two gates."""

    def __init__(self, stack):
        super().__init__()
        self.width = 3 * stack.channels // 4
        self.project = nn.Linear(stack.channels, 3 * self.width)
        self.out = nn.Linear(self.width, stack.channels)

    def forward(self, x, shares, cache):
        T = x.shape[0]
        gate, values, last_gate = self.project(x).chunk(3, dim=-1)
        values = torch.cat([cache, values * gate.tanh()], dim=0)
        cache = values[T:]
        sums = (shares[0] @ values.transpose(0, 1)).transpose(0, 1)
        return self.out(sums * last_gate), cache


class Convolution(nn.Module):
    """A gated depthwise convolution: one that looks back into the chunks before, and one inside of the chunk."""

    def __init__(self, stack):
        super().__init__()
        channels, kernel = stack.channels, stack.kernel
        self.project = nn.Linear(channels, 2 * channels)
        self.causal = nn.Conv1d(channels, channels, kernel // 2 + 1, groups=channels)
        self.inside = nn.Conv1d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.edge = nn.Parameter(1.0 + 0.1 * torch.randn(channels, stack.chunk))
        self.out = nn.Linear(channels, channels)

    def forward(self, x, cache):
        values, gate = self.project(x).chunk(2, dim=-1)
        values = (values * gate.sigmoid()).permute(1, 2, 0)
        joined = torch.cat([cache, values], dim=2)
        cache = joined[:, :, values.shape[2] :]
        sums = self.causal(joined) + self.inside(values) * self.edge
        return self.out(swoosh(sums.permute(2, 0, 1), 1.0)), cache


class Feedforward(nn.Sequential):
    def __init__(self, stack, width):
        super().__init__()
        self.wider = nn.Linear(stack.channels, width)
        self.narrower = nn.Linear(width, stack.channels)

    def forward(self, x):
        return self.narrower(swoosh(self.wider(x), 4.0))


class Layer(nn.Module):
    """One layer; its six caches come and go in the order of `CACHES`."""

    CACHES = ("cached_key", "cached_nonlin_attn", "cached_val1", "cached_val2", "cached_conv1", "cached_conv2")

    def __init__(self, stack):
        super().__init__()
        self.weights = AttentionWeights(stack)
        self.gated = GatedAttention(stack)
        self.attention1 = Attention(stack)
        self.attention2 = Attention(stack)
        self.convolution1 = Convolution(stack)
        self.convolution2 = Convolution(stack)
        width = stack.feedforward
        self.feedforward1 = Feedforward(stack, 3 * width // 4)
        self.feedforward2 = Feedforward(stack, width)
        self.feedforward3 = Feedforward(stack, 5 * width // 4)
        self.norm = BiasNorm(stack.channels)
        self.middle = nn.Parameter(torch.rand(stack.channels))
        self.bypass = nn.Parameter(torch.rand(stack.channels))

    @staticmethod
    def cache_shapes(stack, streams):
        """The shape of each cache."""
        values = (stack.left, streams, stack.heads * stack.value_width)
        columns = (streams, stack.channels, stack.kernel // 2)
        return [
            (stack.left, streams, stack.heads * stack.key_width),
            (stack.left, streams, 3 * stack.channels // 4),
            values,
            values,
            columns,
            columns,
        ]

    def forward(self, x, caches, hidden):
        original = x
        key, gated, value1, value2, columns1, columns2 = caches
        shares, key = self.weights(x, key, hidden)
        x = x + self.feedforward1(x)
        change, gated = self.gated(x, shares, gated)
        x = x + change
        change, value1 = self.attention1(x, shares, value1)
        x = x + change
        change, columns1 = self.convolution1(x, columns1)
        x = x + change
        x = x + self.feedforward2(x)
        x = original + (x - original) * self.middle
        change, value2 = self.attention2(x, shares, value2)
        x = x + change
        change, columns2 = self.convolution2(x, columns2)
        x = x + change
        x = self.norm(x + self.feedforward3(x))
        return original + (x - original) * self.bypass, [key, gated, value1, value2, columns1, columns2]


class Resampled(nn.Module):
    """The layers of a stack at its own rate."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack
        self.layers = nn.ModuleList(Layer(stack) for _ in range(stack.layers))
        self.mix = nn.Parameter(torch.randn(stack.rate))
        self.bypass = nn.Parameter(torch.rand(stack.channels))

    def forward(self, x, caches, hidden):
        rate = self.stack.rate
        T, N, C = x.shape
        slow = (x.reshape(T // rate, rate, N, C) * self.mix.softmax(0)[:, None, None]).sum(1)
        new = []
        for k, layer in enumerate(self.layers):
            slow, own = layer(slow, caches[6 * k : 6 * k + 6], hidden[:, ::rate])
            new += own
        fast = slow.unsqueeze(1).expand(T // rate, rate, N, C).reshape(T, N, C)
        return x + (fast - x) * self.bypass, new


class Encoder(nn.Module):
    """`x: [N, 45, MELS]`, caches, `embed_states` and `processed_lens: [N]` to `[N, 8, C]` and the new caches."""

    def __init__(self):
        super().__init__()
        self.subsampling = Subsampling(STACKS[0].channels)
        self.stacks = nn.ModuleList(Resampled(stack) for stack in STACKS)
        self.mix = nn.Parameter(torch.randn(2))

    @staticmethod
    def states(streams):
        """The names and shapes of all inputs and outputs that are state; the last one counts frames."""
        found = []
        for stack in STACKS:
            for _ in range(stack.layers):
                names = [f"{name}_{len(found) // 6}" for name in Layer.CACHES]
                found += zip(names, Layer.cache_shapes(stack, streams))
        found.append(("embed_states", (streams, Subsampling.WIDTH, 3, Subsampling.MEL_BANDS)))
        found.append(("processed_lens", (streams,)))
        return found

    def forward(self, x, *states):
        *caches, embed, processed = states
        x, embed = self.subsampling(x, embed)
        x = x.transpose(0, 1)
        # The oldest frames of the left context are hidden until a stream has read them.
        oldest_first = torch.arange(LEFT_CONTEXT - 1, -1, -1)
        hidden = oldest_first[None] >= processed[:, None]
        hidden = torch.cat([hidden, torch.zeros(x.shape[1], CHUNK, dtype=torch.bool)], dim=1)

        new, outputs = [], []
        for stack, layers in zip(STACKS, self.stacks):
            x = with_channels(x, stack.channels)
            own = 6 * stack.layers
            x, changed = layers(x, caches[len(new) : len(new) + own], hidden)
            new += changed
            outputs.append(x)
        # Each channel comes from the last stack that has it.
        widest = max(stack.channels for stack in STACKS)
        parts = [outputs[-1]]
        for x in reversed(outputs[:-1]):
            width = sum(part.shape[-1] for part in parts)
            if x.shape[-1] > width:
                parts.append(x[..., width:])
        x = torch.cat(parts, dim=-1)
        x = (x.reshape(CHUNK // 2, 2, -1, widest) * self.mix.softmax(0)[:, None, None]).sum(1)
        return x.transpose(0, 1), *new, embed, processed + CHUNK


def with_channels(x, channels):
    """The first channels, or zeros after all of them."""
    if x.shape[-1] >= channels:
        return x[..., :channels]
    return nn.functional.pad(x, (0, channels - x.shape[-1]))
