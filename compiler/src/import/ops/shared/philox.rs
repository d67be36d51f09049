//! A counter-based random number generator: Philox 4x32 with 10 rounds.
//!
//! J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A block
//! of four words is a function of a key of two words and a counter of four words, so an element needs no state. The
//! function consists of integer arithmetic, which has the same bits everywhere.

use crate::{
    error::Result,
    graph::{Graph, Value},
    scalar::{BinaryOp, Body, Reg, Scalar, Step},
};
use symshape_runtime::DType;

const ROUNDS: i64 = 10;
/// The factors of the first and third word of the counter.
const FACTORS: [i64; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// The increments of the key from round to round.
const INCREMENTS: [i64; 2] = [0x9E37_79B9, 0xBB67_AE85];
const LOW_WORD: i64 = 0xFFFF_FFFF;

/// Word `k` of the block for this key and counter, as `u64` below `2^32`. The words of key and counter are `u64` below
/// `2^32` as well; their shapes are broadcast.
pub(crate) fn philox(g: &mut Graph, key: [Value; 2], counter: [Value; 4], k: usize) -> Result<Value> {
    let mut block = Block { steps: Vec::new() };
    let mut words = [Reg(2), Reg(3), Reg(4), Reg(5)];
    for round in 0..ROUNDS {
        words = block.round(words, round);
    }

    let operands = [&key[..], &counter].concat();
    let body = Body { params: vec![DType::U64; PARAMS as usize], steps: block.steps, result: words[k] };
    g.map(body, &operands)
}

/// The registers of key and counter.
const PARAMS: u32 = 6;

/// The steps of a block.
struct Block {
    steps: Vec<Step>,
}

impl Block {
    fn push(&mut self, step: Step) -> Reg {
        self.steps.push(step);
        Reg(PARAMS + self.steps.len() as u32 - 1)
    }

    fn with(&mut self, op: BinaryOp, x: Reg, value: i64) -> Reg {
        let value = self.push(Step::Const(Scalar::from_i64(DType::U64, value)));
        self.push(Step::Binary(op, x, value))
    }

    fn xor(&mut self, a: Reg, b: Reg) -> Reg {
        self.push(Step::Binary(BinaryOp::Xor, a, b))
    }

    /// The counter after a round. The key is in registers 0 and 1.
    fn round(&mut self, [a, b, c, d]: [Reg; 4], round: i64) -> [Reg; 4] {
        let [first, third] = [(a, FACTORS[0]), (c, FACTORS[1])].map(|(word, factor)| {
            let product = self.with(BinaryOp::Mul, word, factor);
            let high = self.with(BinaryOp::Shr, product, 32);
            let low = self.with(BinaryOp::And, product, LOW_WORD);
            [high, low]
        });
        let [key0, key1] = [0, 1].map(|k| {
            let sum = self.with(BinaryOp::Add, Reg(k as u32), (round * INCREMENTS[k]) & LOW_WORD);
            self.with(BinaryOp::And, sum, LOW_WORD)
        });

        let mixed = self.xor(third[0], b);
        let new_first = self.xor(mixed, key0);
        let mixed = self.xor(first[0], d);
        let new_third = self.xor(mixed, key1);
        [new_first, third[1], new_third, first[1]]
    }
}

/// The low and the high word of an `i64` or `u64`.
pub(crate) fn words(g: &mut Graph, x: Value) -> Result<[Value; 2]> {
    let x = g.cast(DType::U64, x)?;
    let mask = g.scalar(Scalar::from_i64(DType::U64, LOW_WORD))?;
    let distance = g.scalar(Scalar::from_i64(DType::U64, 32))?;
    Ok([g.and(x, mask)?, g.binary(BinaryOp::Shr, x, distance)?])
}

/// A constant word.
pub(crate) fn word(g: &mut Graph, value: u32) -> Result<Value> {
    g.scalar(Scalar::from_i64(DType::U64, value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::eval::eval;

    /// The first words of the blocks that the authors of Philox publish for all zeros, all ones and digits of pi.
    #[test]
    fn philox_gives_the_published_blocks() {
        let cases: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, wanted) in cases {
            let mut g = Graph::default();
            let mut constant = |value| word(&mut g, value).expect("a constant");
            let key = key.map(&mut constant);
            let counter = counter.map(&mut constant);
            for k in 0..4 {
                let found = philox(&mut g, key, counter, k).expect("words of u64");
                g.output(&format!("y{k}"), found).expect("a new name");
            }
            let found = eval(&g, &[]).expect("the graph has no inputs");
            let found: Vec<i64> = found.iter().map(|word| word.get(0).as_i64()).collect();
            assert_eq!(found, wanted.map(i64::from));
        }
    }
}
