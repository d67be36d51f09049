//! Whole networks as people use them, with made-up weights: perceptron, residual networks, MobileNet V2, encoder and
//! decoder transformers. Depths and kinds of layers are those of the originals; images are small, the transformers
//! narrow, so that emulators are through with them in seconds.

use super::models::{graph, weights};
use symshape::Dim;
use symshape_compiler::{
    Result,
    graph::{Graph, Value, axis},
    scalar::{CompareOp, ReduceOp, Scalar},
    tensor::Tensor,
};
use symshape_runtime::DType;

/// Every network by name.
pub(crate) const NETWORKS: &[(&str, super::models::Make)] = &[
    ("mlp", mlp),
    ("resnet18", || resnet("resnet18", &[2, 2, 2, 2], false)),
    ("resnet50", || resnet("resnet50", &[3, 4, 6, 3], true)),
    ("mobilenet_v2", mobilenet_v2),
    ("minilm", minilm),
    ("gpt2", gpt2),
];

fn sym(name: &str) -> Dim {
    Dim::symbol(name)
}

/// A graph under construction, whose constants differ from one another.
struct Net {
    g: Graph,
    seed: u32,
}

impl Net {
    fn new(name: &str, symbols: &[(&str, i64, i64)]) -> Net {
        Net { g: graph(name, symbols), seed: 0 }
    }

    /// Elements such that sums of `depth` products stay about as large as the operands.
    fn constant(&mut self, shape: &[usize], summed: usize) -> Result<Value> {
        self.seed += 1;
        let scale = (3.0 / summed as f32).sqrt();
        let base = weights(shape, self.seed);
        let scaled: Vec<f32> = (0..base.elems()).map(|idx| base.get(idx).as_f64() as f32 * scale).collect();
        self.g.constant(Tensor::from_f32(shape.to_vec(), &scaled).expect("as many as the shape"))
    }

    fn dense(&mut self, x: Value, inputs: usize, outputs: usize) -> Result<Value> {
        let (w, b) = (self.constant(&[inputs, outputs], inputs)?, self.constant(&[outputs], 100)?);
        let y = self.g.matmul(x, w)?;
        self.g.add(y, b)
    }

    /// A convolution with a bias; `groups` is 1 or the number of channels.
    fn conv(
        &mut self,
        x: Value,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: i64,
        depthwise: bool,
    ) -> Result<Value> {
        let pad = Dim::from((kernel as i64 - 1) / 2);
        let side = [Dim::zero(), Dim::zero(), pad.clone(), pad];
        let x = self.g.pad(x, &side, &side, Scalar::f32(0.0))?;
        let k = kernel as i64;
        let x = self.g.window(x, &[2, 3], &[k, k], &[stride, stride], &[1, 1])?;
        let y = if depthwise {
            let w = self.constant(&[outputs, kernel, kernel], kernel * kernel)?;
            self.g.contract(x, b"nchwyx", w, b"cyx", b"nchw")?
        } else {
            let w = self.constant(&[outputs, inputs, kernel, kernel], inputs * kernel * kernel)?;
            self.g.contract(x, b"nchwyx", w, b"ocyx", b"nohw")?
        };
        let b = self.constant(&[outputs, 1, 1], 100)?;
        self.g.add(y, b)
    }

    fn layer_norm(&mut self, x: Value, axis: usize, width: usize) -> Result<Value> {
        let g = &mut self.g;
        let mean = g.mean(x, &[axis], true)?;
        let centred = g.sub(x, mean)?;
        let squares = g.mul(centred, centred)?;
        let variance = g.mean(squares, &[axis], true)?;
        let epsilon = g.number(DType::F32, 1e-5)?;
        let variance = g.add(variance, epsilon)?;
        let deviation = g.sqrt(variance)?;
        let y = g.div(centred, deviation)?;
        let shift = self.constant(&[width], 100)?;
        self.g.add(y, shift)
    }

    fn gelu(&mut self, x: Value) -> Result<Value> {
        let g = &mut self.g;
        let (root, half, one) =
            (g.number(DType::F32, 0.5_f64.sqrt())?, g.number(DType::F32, 0.5)?, g.number(DType::F32, 1.0)?);
        let scaled = g.mul(x, root)?;
        let erf = g.erf(scaled)?;
        let above = g.add(erf, one)?;
        let y = g.mul(x, above)?;
        g.mul(y, half)
    }

    /// Attention over `[N, S, width]`; a causal one looks at earlier places only.
    fn attention(&mut self, x: Value, width: usize, heads: usize, causal: bool) -> Result<Value> {
        let depth = width / heads;
        let split = vec![sym("N"), sym("S"), heads.into(), depth.into()];
        let mut parts = Vec::new();
        for _ in 0..3 {
            let y = self.dense(x, width, width)?;
            let y = self.g.reshape(y, split.clone())?;
            parts.push(self.g.transpose(y, &[0, 2, 1, 3])?);
        }
        let g = &mut self.g;
        let keys = g.transpose(parts[1], &[0, 1, 3, 2])?;
        let scores = g.matmul(parts[0], keys)?;
        let scale = g.number(DType::F32, 1.0 / (depth as f64).sqrt())?;
        let mut scores = g.mul(scores, scale)?;
        if causal {
            let square = vec![sym("S"), sym("S")];
            let row = g.index(DType::I64, square.clone(), Dim::from(axis(0)))?;
            let column = g.index(DType::I64, square, Dim::from(axis(1)))?;
            let later = g.compare(CompareOp::Lt, row, column)?;
            let never = g.number(DType::F32, -1e9)?;
            let shape = g.shape(scores).to_vec();
            let (later, never) = (g.broadcast_to(later, &shape)?, g.broadcast_to(never, &shape)?);
            scores = g.select(later, never, scores)?;
        }
        let probs = g.softmax(scores, 3)?;
        let y = g.matmul(probs, parts[2])?;
        let y = g.transpose(y, &[0, 2, 1, 3])?;
        let y = g.reshape(y, vec![sym("N"), sym("S"), width.into()])?;
        self.dense(y, width, width)
    }

    /// Embeddings of words and places.
    fn embedding(&mut self, words: usize, places: usize, width: usize) -> Result<Value> {
        let ids = self.g.input("ids", DType::I64, vec![sym("N"), sym("S")])?;
        let table = self.constant(&[words, width], 3)?;
        let x = self.g.gather(table, ids, 0)?;
        let positions = self.g.index(DType::I64, vec![sym("S")], Dim::from(axis(0)))?;
        let table = self.constant(&[places, width], 3)?;
        let at = self.g.gather(table, positions, 0)?;
        self.g.add(x, at)
    }
}

fn mlp() -> Result<Graph> {
    let mut net = Net::new("mlp", &[("N", 1, 4)]);
    let mut x = net.g.input("x", DType::F32, vec![sym("N"), 784.into()])?;
    for (inputs, outputs) in [(784, 512), (512, 512)] {
        x = net.dense(x, inputs, outputs)?;
        x = net.g.relu(x)?;
    }
    let y = net.dense(x, 512, 10)?;
    net.g.output("y", y)?;
    Ok(net.g)
}

fn image(net: &mut Net) -> Result<Value> {
    net.g.input("x", DType::F32, vec![sym("N"), 3.into(), 64.into(), 64.into()])
}

fn head(mut net: Net, x: Value, channels: usize) -> Result<Graph> {
    let x = net.g.mean(x, &[2, 3], false)?;
    let y = net.dense(x, channels, 100)?;
    net.g.output("y", y)?;
    Ok(net.g)
}

fn resnet(name: &str, depths: &[usize], bottleneck: bool) -> Result<Graph> {
    let mut net = Net::new(name, &[("N", 1, 2)]);
    let x = image(&mut net)?;
    let x = net.conv(x, [3, 64], 7, 2, false)?;
    let x = net.g.relu(x)?;
    let side = [Dim::zero(), Dim::zero(), Dim::one(), Dim::one()];
    let x = net.g.pad(x, &side, &side, Scalar::f32(f32::NEG_INFINITY))?;
    let x = net.g.window(x, &[2, 3], &[3, 3], &[2, 2], &[1, 1])?;
    let mut x = net.g.reduce(ReduceOp::Max, x, &[4, 5], false)?;
    let mut channels = 64;
    for (stage, depth) in depths.iter().enumerate() {
        let width = 64 << stage;
        let outputs = if bottleneck { 4 * width } else { width };
        for block in 0..*depth {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let mut y = x;
            let layers: &[([usize; 2], usize, i64)] = match bottleneck {
                true => &[([channels, width], 1, 1), ([width, width], 3, stride), ([width, outputs], 1, 1)],
                false => &[([channels, width], 3, stride), ([width, width], 3, 1)],
            };
            for (number, (sizes, kernel, stride)) in layers.iter().enumerate() {
                y = if number == 0 { y } else { net.g.relu(y)? };
                y = net.conv(y, *sizes, *kernel, *stride, false)?;
            }
            if channels != outputs || stride != 1 {
                x = net.conv(x, [channels, outputs], 1, stride, false)?;
            }
            let sum = net.g.add(x, y)?;
            let half = net.g.number(DType::F32, 0.5)?;
            let sum = net.g.mul(sum, half)?;
            x = net.g.relu(sum)?;
            channels = outputs;
        }
    }
    head(net, x, channels)
}

fn mobilenet_v2() -> Result<Graph> {
    let mut net = Net::new("mobilenet_v2", &[("N", 1, 2)]);
    let relu6 = |net: &mut Net, x: Value| -> Result<Value> {
        let x = net.g.relu(x)?;
        let six = net.g.number(DType::F32, 6.0)?;
        net.g.min(x, six)
    };
    let x = image(&mut net)?;
    let x = net.conv(x, [3, 32], 3, 2, false)?;
    let mut x = relu6(&mut net, x)?;
    let mut channels = 32;
    let rows = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ];
    for (factor, outputs, repeats, stride) in rows {
        for repeat in 0..repeats {
            let stride = if repeat == 0 { stride } else { 1 };
            let (wide, mut y) = (channels * factor, x);
            if factor > 1 {
                y = net.conv(y, [channels, wide], 1, 1, false)?;
                y = relu6(&mut net, y)?;
            }
            y = net.conv(y, [wide, wide], 3, stride, true)?;
            y = relu6(&mut net, y)?;
            y = net.conv(y, [wide, outputs], 1, 1, false)?;
            x = if stride == 1 && channels == outputs { net.g.add(x, y)? } else { y };
            channels = outputs;
        }
    }
    let x = net.conv(x, [channels, 1280], 1, 1, false)?;
    let x = relu6(&mut net, x)?;
    head(net, x, 1280)
}

fn minilm() -> Result<Graph> {
    let (width, heads) = (96, 12);
    let mut net = Net::new("minilm", &[("N", 1, 2), ("S", 1, 9)]);
    let x = net.embedding(300, 9, width)?;
    let mut x = net.layer_norm(x, 2, width)?;
    for _ in 0..6 {
        let y = net.attention(x, width, heads, false)?;
        let sum = net.g.add(x, y)?;
        x = net.layer_norm(sum, 2, width)?;
        let y = net.dense(x, width, 4 * width)?;
        let y = net.gelu(y)?;
        let y = net.dense(y, 4 * width, width)?;
        let sum = net.g.add(x, y)?;
        x = net.layer_norm(sum, 2, width)?;
    }
    let y = net.g.mean(x, &[1], false)?;
    net.g.output("y", y)?;
    Ok(net.g)
}

fn gpt2() -> Result<Graph> {
    let (width, heads) = (96, 12);
    let mut net = Net::new("gpt2", &[("N", 1, 2), ("S", 1, 9)]);
    let mut x = net.embedding(300, 9, width)?;
    for _ in 0..12 {
        let y = net.layer_norm(x, 2, width)?;
        let y = net.attention(y, width, heads, true)?;
        x = net.g.add(x, y)?;
        let y = net.layer_norm(x, 2, width)?;
        let y = net.dense(y, width, 4 * width)?;
        let y = net.gelu(y)?;
        let y = net.dense(y, 4 * width, width)?;
        x = net.g.add(x, y)?;
    }
    let x = net.layer_norm(x, 2, width)?;
    let y = net.dense(x, width, 300)?;
    net.g.output("logits", y)?;
    Ok(net.g)
}
