"""Time series, tables and recommendations, and graphs."""

from case import floats, ids
from export import Case, Entry

SERIES = {"N": "1..8", "T": "16..96"}


def recurrent(kind):
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = getattr(nn, kind)(8, 96, 2, batch_first=True)
            self.head = nn.Linear(96, 4)

        def forward(self, x):
            return self.head(self.rnn(x)[0])

    torch.manual_seed(0)
    return Case(Recurrent(), {"series": floats("N", "T", 8)}, ["forecast"], SERIES)


def lstm_state():
    """One step of an LSTM whose state is input and output."""
    import torch
    from torch import nn

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(16, 128, 2)

        def forward(self, x, h, c):
            y, (h, c) = self.rnn(x, (h, c))
            return y, h, c

    torch.manual_seed(0)
    inputs = {"x": floats("T", "N", 16), "h": floats(2, "N", 128), "c": floats(2, "N", 128)}
    return Case(Step(), inputs, ["y", "h_out", "c_out"], {"N": "1..8", "T": "1..16"})


def patch_model(kind):
    import torch
    import transformers

    torch.manual_seed(0)
    fields = {"context_length": 96, "prediction_length": 24, "patch_length": 8, "stride": 8, "patch_stride": 8,
              "num_input_channels": 4, "d_model": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128,
              "num_layers": 2}
    model = getattr(transformers, f"{kind}ForPrediction")(getattr(transformers, f"{kind}Config")(**fields))
    return Case(
        model, {"series": floats("N", 96, 4)}, ["forecast"], {"N": "1..16"},
        lambda m, x: m(past_values=x).prediction_outputs,
    )


def informer():
    """Attention of the queries with the largest spread, over an encoder that halves the length."""
    import torch
    from torch import nn

    class Sparse(nn.Module):
        def __init__(self, size=64, heads=4, kept=8):
            super().__init__()
            self.heads, self.kept = heads, kept
            self.project, self.leave = nn.Linear(size, 3 * size), nn.Linear(size, size)
            self.norm, self.conv = nn.LayerNorm(size), nn.Conv1d(size, size, 3, padding=1)

        def forward(self, x):
            n, t, size = x.shape
            parts = self.project(x).view(n, t, 3, self.heads, size // self.heads).permute(2, 0, 3, 1, 4)
            query, key, value = parts[0], parts[1], parts[2]
            scores = query @ key.transpose(-1, -2) / (size // self.heads) ** 0.5
            spread = scores.amax(-1) - scores.mean(-1)
            best = spread.topk(self.kept, dim=-1).indices.unsqueeze(-1)
            chosen = scores.gather(2, best.expand(-1, -1, -1, t)).softmax(-1) @ value
            mixed = value.mean(2, keepdim=True).expand_as(value)
            mixed = mixed.scatter(2, best.expand_as(chosen), chosen)
            x = self.norm(x + self.leave(mixed.transpose(1, 2).reshape(n, t, size)))
            x = nn.functional.elu(self.conv(x.transpose(1, 2)))
            return nn.functional.max_pool1d(x, 3, 2, 1).transpose(1, 2)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), Sparse(), Sparse(kept=4), nn.Linear(64, 4))
    return Case(model, {"series": floats("N", "T", 8)}, ["forecast"], SERIES)


def n_beats():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, back=96, ahead=24, width=128, terms=8):
            super().__init__()
            self.body = nn.Sequential(*(layer for k in range(3) for layer in
                                        (nn.Linear(back if k == 0 else width, width), nn.ReLU())))
            self.past, self.future = nn.Linear(width, terms), nn.Linear(width, terms)
            powers = torch.arange(terms).view(-1, 1)
            self.register_buffer("before", (torch.arange(back) / back) ** powers)
            self.register_buffer("after", (torch.arange(ahead) / ahead) ** powers)

        def forward(self, x):
            x = self.body(x)
            return self.past(x) @ self.before, self.future(x) @ self.after

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x):
            forecast = 0
            for block in self.blocks:
                back, ahead = block(x)
                x, forecast = x - back, forecast + ahead
            return forecast

    torch.manual_seed(0)
    return Case(Stack(), {"series": floats("N", 96)}, ["forecast"], {"N": "1..64"})


def tcn():
    """Causal convolutions with growing dilation."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inside, outside, dilation):
            super().__init__()
            self.pad = 2 * dilation
            self.conv = nn.Conv1d(inside, outside, 3, dilation=dilation)
            self.skip = nn.Conv1d(inside, outside, 1)

        def forward(self, x):
            return torch.relu(self.conv(nn.functional.pad(x, (self.pad, 0))) + self.skip(x))

    torch.manual_seed(0)
    model = nn.Sequential(*(Block(8 if k == 0 else 32, 32, 2**k) for k in range(4)), nn.Conv1d(32, 4, 1))
    return Case(model, {"series": floats("N", 8, "T")}, ["forecast"], SERIES)


def decomposition():
    """A linear forecast of the trend and of the rest."""
    import torch
    from torch import nn

    class Decomposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.trend, self.rest = nn.Linear(96, 24), nn.Linear(96, 24)

        def forward(self, x):
            x = x.transpose(1, 2)
            trend = nn.functional.avg_pool1d(nn.functional.pad(x, (12, 12), mode="replicate"), 25, 1)
            return (self.trend(trend) + self.rest(x - trend)).transpose(1, 2)

    torch.manual_seed(0)
    return Case(Decomposed(), {"series": floats("N", 96, 8)}, ["forecast"], {"N": "1..32"})


GRAPH = {"V": "2..256", "E": "1..1024"}


def graph(kind):
    """Messages along edges, summed by scatter."""
    import torch
    from torch import nn

    class Convolution(nn.Module):
        def __init__(self, inside, outside):
            super().__init__()
            self.map = nn.Linear(inside, outside)

        def forward(self, x, source, target):
            degree = torch.ones(x.shape[0]).index_add(0, target, torch.ones(target.shape[0]))
            weight = (degree[source] * degree[target]).rsqrt().unsqueeze(-1)
            x = self.map(x)
            return torch.zeros_like(x).index_add(0, target, x[source] * weight) + x / degree.unsqueeze(-1)

    class Attention(nn.Module):
        def __init__(self, inside, outside, heads=4):
            super().__init__()
            self.heads, self.size = heads, outside // heads
            self.map = nn.Linear(inside, outside)
            self.from_, self.to_ = (nn.Parameter(torch.randn(heads, self.size) / 4) for _ in range(2))

        def forward(self, x, source, target):
            x = self.map(x).view(-1, self.heads, self.size)
            score = (x * self.from_).sum(-1)[source] + (x * self.to_).sum(-1)[target]
            score = nn.functional.leaky_relu(score, 0.2)
            place = target.unsqueeze(-1).expand_as(score)
            top = torch.zeros(x.shape[0], self.heads).scatter_reduce(0, place, score, "amax")
            weight = torch.exp(score - top[target])
            total = torch.zeros(x.shape[0], self.heads).scatter_add(0, place, weight) + 1e-9
            weight = (weight / total[target]).unsqueeze(-1)
            mixed = torch.zeros_like(x).index_add(0, target, x[source] * weight)
            return mixed.flatten(1)

    class Sage(nn.Module):
        def __init__(self, inside, outside):
            super().__init__()
            self.own, self.near = nn.Linear(inside, outside), nn.Linear(inside, outside)

        def forward(self, x, source, target):
            place = target.unsqueeze(-1).expand(-1, x.shape[1])
            total = torch.zeros_like(x).scatter_add(0, place, x[source])
            count = torch.zeros(x.shape[0]).scatter_add(0, target, torch.ones_like(target, dtype=x.dtype))
            return self.own(x) + self.near(total / count.clamp(min=1).unsqueeze(-1))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            layer = {"gcn": Convolution, "gat": Attention, "sage": Sage}[kind]
            self.first, self.second, self.head = layer(32, 64), layer(64, 64), nn.Linear(64, 7)

        def forward(self, x, edges):
            x = torch.relu(self.first(x, edges[0], edges[1]))
            return self.head(torch.relu(self.second(x, edges[0], edges[1])))

    torch.manual_seed(0)
    return Case(Network(), {"x": floats("V", 32), "edges": ids("V", 2, "E")}, ["classes"], GRAPH)


def dlrm():
    """Embeddings of categories, their products in pairs, and dense features."""
    import torch
    from torch import nn

    class Recommender(nn.Module):
        def __init__(self, tables=8, size=32):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(1000, size) for _ in range(tables))
            self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, size), nn.ReLU())
            rows, columns = torch.tril_indices(tables + 1, tables + 1, -1)
            self.register_buffer("rows", rows)
            self.register_buffer("columns", columns)
            self.top = nn.Sequential(nn.Linear(size + len(rows), 128), nn.ReLU(), nn.Linear(128, 1))

        def forward(self, dense, categories):
            dense = self.bottom(dense)
            all_ = torch.stack([dense, *(table(categories[:, k]) for k, table in enumerate(self.tables))], 1)
            pairs = (all_ @ all_.transpose(1, 2))[:, self.rows, self.columns]
            return torch.sigmoid(self.top(torch.cat([dense, pairs], 1)))

    torch.manual_seed(0)
    inputs = {"dense": floats("N", 13), "categories": ids(1000, "N", 8)}
    return Case(Recommender(), inputs, ["click"], {"N": "1..256"})


def perceptron():
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(),
                          nn.Linear(256, 10), nn.Softmax(-1))
    return Case(model, {"x": floats("N", 64)}, ["classes"], {"N": "1..256"})


def entries():
    series = {
        "lstm": lambda: recurrent("LSTM"), "gru": lambda: recurrent("GRU"), "lstm-state": lstm_state,
        "patchtst": lambda: patch_model("PatchTST"), "patchtsmixer": lambda: patch_model("PatchTSMixer"),
        "informer": informer, "n-beats": n_beats, "tcn": tcn, "dlinear": decomposition,
    }
    others = {"gcn": lambda: graph("gcn"), "gat": lambda: graph("gat"), "graphsage": lambda: graph("sage")}
    tables = {"dlrm": dlrm, "mlp": perceptron}
    found = []
    for family, makes in (("time series", series), ("graphs", others), ("tables", tables)):
        # The older exporter fixes the number of patches.
        found += [Entry(name, family, make) for name, make in makes.items() if not name.startswith("patch")]
        for name in ("lstm", "tcn", "patchtst", "patchtsmixer", "gcn", "gat", "dlrm"):
            if name in makes:
                found.append(Entry(f"{name}-dynamo", family, makes[name], "dynamo"))
    return found
