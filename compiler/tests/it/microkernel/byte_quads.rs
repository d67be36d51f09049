//! Sums of products of bytes whose weights are the same, as those of neighbours in a depthwise convolution. With VNNI,
//! one instruction multiplies four pairs of bytes.

use super::{
    jit::{Compiled, address, address_mut, isas},
    strips::{set, strip},
};
use symshape_compiler::{
    codegen::{
        microkernel::{
            MicrokernelKey,
            op::{Body, Op, StreamStep, Ty},
            strip::{Phase, StripKey},
        },
        vector::VectorIsa,
    },
    scalar::BinaryOp,
};

/// Elements of a row: two long vectors and a rest.
const CHANNELS: usize = 37;

/// Rows of a row loop, which hold the weights in registers.
const ROWS: usize = 3;

/// Sums of windows that are neighbours in a row.
#[derive(Clone, Copy, Debug)]
struct Windows {
    rows: usize,
    columns: usize,
    /// Columns from window to window.
    step: usize,
    sums: usize,
    inputs: Ty,
    weights: Ty,
    /// Each sum begins with a loaded integer instead of a product.
    has_base: bool,
    /// The inputs are the first operands of the products.
    inputs_first: bool,
    /// A store comes before the last loads, as the stores of neighbours do.
    stores_early: bool,
}

impl Windows {
    fn taps(self) -> usize {
        self.rows * self.columns
    }

    fn width(self) -> usize {
        self.columns + (self.sums - 1) * self.step
    }

    /// The number of the input of a tap.
    fn input(self, sum: usize, tap: usize) -> usize {
        tap / self.columns * self.width() + sum * self.step + tap % self.columns
    }

    /// The streams of inputs, weights, bases and sums, in this order: the first of each kind, and their number.
    fn streams(self) -> [usize; 5] {
        let inputs = self.rows * self.width();
        let bases = inputs + self.taps();
        let sums = bases + if self.has_base { self.sums } else { 0 };
        [0, inputs, bases, sums, sums + self.sums]
    }

    fn body(self) -> Body {
        let mut body = Body { stores_elsewhere: true, ..Body::default() };
        let mut push = |op, ty| body.push(op, ty).expect("supported");
        let [_, weights, bases, sums, _] = self.streams().map(|stream| stream as u32);
        let mut loads = vec![None; bases as usize];
        let mut load = |push: &mut dyn FnMut(Op, Ty) -> u32, stream: usize, ty| {
            *loads[stream].get_or_insert_with(|| push(Op::Load(stream as u32), ty))
        };
        let mut totals = Vec::new();
        for sum in 0..self.sums {
            let mut total = self.has_base.then(|| push(Op::Load(bases + sum as u32), Ty::I32));
            for tap in 0..self.taps() {
                let input = load(&mut push, self.input(sum, tap), self.inputs);
                let weight = load(&mut push, weights as usize + tap, self.weights);
                let [input, weight] = [input, weight].map(|load| push(Op::Cast(load), Ty::I32));
                let [x, y] = if self.inputs_first { [input, weight] } else { [weight, input] };
                let product = push(Op::Binary(BinaryOp::Mul, x, y), Ty::I32);
                total = Some(match total {
                    Some(total) => push(Op::Binary(BinaryOp::Add, total, product), Ty::I32),
                    None => product,
                });
            }
            let total = total.expect("there are taps");
            if self.stores_early {
                push(Op::Store(sums + sum as u32, total), Ty::I32);
            }
            totals.push(total);
        }
        if !self.stores_early {
            for (sum, total) in totals.into_iter().enumerate() {
                push(Op::Store(sums + sum as u32, total), Ty::I32);
            }
        }
        body
    }

    fn key(self, has_rows: bool) -> StripKey {
        let [_, weights, bases, _, end] = self.streams();
        let mut key = strip(vec![Phase::Loop { extent: 0, body: self.body() }], vec![StreamStep::Unit; end]);
        if has_rows {
            key.rows = true;
            key.row_steps[weights..bases].fill(StreamStep::Fixed);
        }
        key
    }

    /// Compares the sums with those of plain loops.
    fn check(self, isa: &dyn VectorIsa, fma: bool, has_rows: bool) {
        let [_, weights, bases, sums, end] = self.streams();
        let key = self.key(has_rows);
        let rows = if has_rows { ROWS } else { 1 };
        let mut state = 7u64;
        let mut byte = |ty: Ty| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = (state >> 40) as i64 % 256;
            // Many bytes are the ends of the range.
            let value = if state >> 60 < 4 { value % 2 * 255 } else { value };
            if ty == Ty::U8 { value } else { value - 128 }
        };
        let mut operand = |ty: Ty, rows: usize| (0..rows * CHANNELS).map(|_| byte(ty)).collect::<Vec<i64>>();
        let values: Vec<Vec<i64>> = (0..sums)
            .map(|stream| match stream {
                _ if stream < weights => operand(self.inputs, rows),
                _ if stream < bases => operand(self.weights, 1),
                _ => operand(Ty::I8, rows).iter().map(|value| value * 1_000_003).collect(),
            })
            .collect();
        let memory: Vec<Vec<u8>> = values
            .iter()
            .enumerate()
            .map(|(stream, values)| {
                let size = if stream < bases { 1 } else { 4 };
                values.iter().flat_map(|value| value.to_le_bytes()[..size].to_vec()).collect()
            })
            .collect();

        let mut results = vec![vec![0i32; rows * CHANNELS]; self.sums];
        let mut args = vec![0; key.slots()];
        args[key.extent(0)] = CHANNELS as i64;
        args[StripKey::ROWS] = rows as i64;
        for (stream, bytes) in memory.iter().enumerate() {
            let size = if stream < bases { 1 } else { 4 };
            let row = if (weights..bases).contains(&stream) { 0 } else { CHANNELS * size };
            set(&mut args, &key, stream as u32, address(bytes), row, size);
        }
        for (stream, result) in (sums..end).zip(&mut results) {
            set(&mut args, &key, stream as u32, address_mut(result), 4 * CHANNELS, 4);
        }
        Compiled::new(&MicrokernelKey::Strip(key), isa, fma).call(&mut args);

        for (sum, result) in results.iter().enumerate() {
            for (at, got) in result.iter().enumerate() {
                let product =
                    |tap: usize| values[self.input(sum, tap)][at] * values[weights + tap][at % CHANNELS];
                let base = if self.has_base { values[bases + sum][at] } else { 0 };
                let exact = (base + (0..self.taps()).map(product).sum::<i64>()) as i32;
                assert_eq!(*got, exact, "{}: {self:?}, rows {has_rows}, sum {sum}, element {at}", isa.name());
            }
        }
    }

    /// The vector instructions.
    fn text(self, isa: &dyn VectorIsa, has_rows: bool) -> String {
        MicrokernelKey::Strip(self.key(has_rows)).code(isa).to_string()
    }
}

/// Three rows of three taps, whose inputs have a sign.
const SMALL: Windows = Windows {
    rows: 3,
    columns: 3,
    step: 1,
    sums: 4,
    inputs: Ty::I8,
    weights: Ty::I8,
    has_base: false,
    inputs_first: true,
    stores_early: false,
};

#[test]
fn sums_of_windows_are_exact() {
    let windows = [
        SMALL,
        Windows { inputs: Ty::U8, ..SMALL },
        Windows { step: 2, stores_early: true, ..SMALL },
        Windows { sums: 1, ..SMALL },
        Windows { sums: 1, inputs_first: false, ..SMALL },
        Windows { rows: 5, columns: 5, has_base: true, ..SMALL },
        Windows { rows: 5, columns: 5, step: 2, inputs: Ty::U8, inputs_first: false, ..SMALL },
        Windows { rows: 7, columns: 7, sums: 2, stores_early: true, ..SMALL },
        Windows { rows: 1, columns: 9, sums: 2, ..SMALL },
        Windows { rows: 9, columns: 1, ..SMALL },
        Windows { rows: 2, columns: 5, sums: 3, step: 3, inputs_first: false, ..SMALL },
        // No instruction multiplies unsigned weights.
        Windows { inputs: Ty::U8, weights: Ty::U8, ..SMALL },
    ];
    for (isa, fma) in isas() {
        for windows in windows {
            windows.check(&*isa, fma, false);
            windows.check(&*isa, fma, true);
        }
    }
}

#[test]
fn neighbours_share_the_bytes_of_their_windows() {
    for (isa, _) in isas().into_iter().filter(|(isa, _)| isa.shape().byte_quads) {
        // A vector of four sums has six columns of inputs and three of weights.
        let [plain, held] = [false, true].map(|has_rows| SMALL.text(&*isa, has_rows));
        for text in [plain, held] {
            assert_eq!(text.matches("InterleaveBytes").count(), 9, "{text}");
        }
        let unsigned = Windows { inputs: Ty::U8, weights: Ty::U8, ..SMALL };
        assert!(!unsigned.text(&*isa, false).contains("InterleaveBytes"));
    }
}

#[test]
fn loads_stay_behind_stores_to_the_same_buffer() {
    let mut body = Windows { stores_early: true, ..SMALL }.body();
    body.stores_elsewhere = false;
    let streams = SMALL.streams()[4];
    let key = strip(vec![Phase::Loop { extent: 0, body }], vec![StreamStep::Unit; streams]);
    for (isa, _) in isas() {
        let text = MicrokernelKey::Strip(key.clone()).code(&*isa).to_string();
        assert!(!text.contains("InterleaveBytes"), "{text}");
    }
}
