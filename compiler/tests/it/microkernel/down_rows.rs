//! Strips whose rows are combined into one row, and reductions of 64-bit elements: each against its definition.

use super::{
    bytes::dtype,
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
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar, eval},
};

/// Elements of a tensor, and a few that nothing may change.
struct Memory {
    ty: Ty,
    bytes: Vec<u8>,
}

const GUARD: [u8; 32] = [0xa5; 32];

impl Memory {
    fn of(ty: Ty, count: usize, value: impl Fn(usize) -> Scalar) -> Memory {
        let size = dtype(ty).size_bytes();
        let elements = (0..count).flat_map(|idx| value(idx).bits().to_le_bytes()[..size].to_vec());
        Memory { ty, bytes: elements.chain(GUARD).collect() }
    }

    fn filled(ty: Ty, count: usize, seed: i64) -> Memory {
        let value = |idx: usize| (idx as i64 * 37 + seed * 11) % 101 - 50;
        Memory::of(ty, count, |idx| match ty {
            Ty::F32 | Ty::F64 => Scalar::from_f64(dtype(ty), value(idx) as f64 * 0.37),
            Ty::U8 => Scalar::from_i64(dtype(ty), value(idx) + 50),
            _ => Scalar::from_i64(dtype(ty), value(idx)),
        })
    }

    fn get(&self, idx: usize) -> Scalar {
        let size = dtype(self.ty).size_bytes();
        let mut word = [0; 8];
        word[..size].copy_from_slice(&self.bytes[idx * size..(idx + 1) * size]);
        Scalar::from_bits(dtype(self.ty), u64::from_le_bytes(word))
    }

    fn assert_guard(&self) {
        assert!(self.bytes.ends_with(&GUARD), "wrote after the last element");
    }
}

/// Runs `rows` rows of `columns` columns of a strip that accumulates the streams in `key`, on memory for each stream.
fn run(
    (isa, fma): (&dyn VectorIsa, bool),
    key: &StripKey,
    [rows, columns]: [usize; 2],
    memory: &mut [Memory],
) {
    let mut args = vec![0; key.slots()];
    args[StripKey::ROWS] = rows as i64;
    args[key.extent(0)] = columns as i64;
    for (stream, memory) in memory.iter_mut().enumerate() {
        let element = dtype(memory.ty).size_bytes();
        let row = match key.row_steps[stream] {
            StreamStep::Fixed => 0,
            _ if key.pointers[stream] == StreamStep::Fixed => element,
            _ => element * columns,
        };
        set(&mut args, key, stream as u32, address_mut(&mut memory.bytes), row, element);
    }
    Compiled::new(&MicrokernelKey::Strip(key.clone()), isa, fma).call(&mut args);
    memory.iter().for_each(Memory::assert_guard);
}

fn key(body: Body, steps: &[[StreamStep; 2]], accumulators: Vec<u32>) -> StripKey {
    let pointers = steps.iter().map(|[_, column]| *column).collect();
    let key = strip(vec![Phase::Loop { extent: 0, body }], pointers);
    StripKey { rows: true, row_steps: steps.iter().map(|[row, _]| *row).collect(), accumulators, ..key }
}

/// The numbers of columns around those of one vector, of the last block and of several blocks.
fn widths(isa: &dyn VectorIsa) -> Vec<usize> {
    let lanes = isa.shape().lanes;
    [0, 1, 2, 3, 4, 5, 8, 9, 17]
        .into_iter()
        .flat_map(|vectors| [(vectors * lanes).saturating_sub(1), vectors * lanes, vectors * lanes + 1])
        .filter(|columns| *columns > 0)
        .collect()
}

const UNIT: [StreamStep; 2] = [StreamStep::Stride, StreamStep::Unit];
const ACCUMULATED: [StreamStep; 2] = [StreamStep::Fixed, StreamStep::Unit];

#[test]
fn rows_are_combined_in_order() {
    use ReduceOp::{Max, Min, Prod, Sum};
    let floats = [Sum, Prod, Max].map(|op| (op, Ty::F32)).into_iter().chain([(Prod, Ty::F64)]);
    let ints = [(Sum, Ty::I32), (Max, Ty::U8), (Min, Ty::I16), (Sum, Ty::I64)];
    for (isa, fma) in isas() {
        for (op, ty) in floats.clone().chain(ints) {
            let mut body = Body::default();
            let x = body.push(Op::Load(0), ty).expect("supported");
            let old = body.push(Op::Load(1), ty).expect("supported");
            let new = body.push(Op::Binary(op.binary(), old, x), ty).expect("supported");
            body.push(Op::Store(1, new), ty).expect("supported");
            let key = key(body, &[UNIT, ACCUMULATED], vec![1]);
            for (columns, rows) in widths(&*isa).into_iter().flat_map(|n| [0, 1, 2, 7].map(|rows| (n, rows)))
            {
                let sources = Memory::filled(ty, rows * columns, 1);
                let first = Memory::filled(ty, columns, 2);
                let expected = |column: usize| {
                    let elements = (0..rows).map(|row| sources.get(row * columns + column));
                    elements.fold(first.get(column), |all, x| eval::combine(op, all, x))
                };
                let expected: Vec<Scalar> = (0..columns).map(expected).collect();
                let mut memory = [sources, first];
                run((&*isa, fma), &key, [rows, columns], &mut memory);
                for (column, expected) in expected.into_iter().enumerate() {
                    let got = memory[1].get(column);
                    assert_eq!(got, expected, "{}: {op:?} of {ty:?}, {rows}x{columns}", isa.name());
                }
            }
        }
    }
}

/// The largest element of each column and the one that was largest before, next to the weights of rows and columns and
/// to a result of each row.
#[test]
fn accumulators_of_a_row_change_at_its_end() {
    for (isa, fma) in isas() {
        let mut body = Body::default();
        let mut push = |op, ty| body.push(op, ty).expect("supported");
        let [x, by_row, by_column, best] = [0, 1, 2, 3].map(|stream| push(Op::Load(stream), Ty::I32));
        let product = push(Op::Binary(BinaryOp::Mul, x, by_row), Ty::I32);
        let sum = push(Op::Binary(BinaryOp::Add, product, by_column), Ty::I32);
        let is_better = push(Op::Compare(CompareOp::Gt, sum, best), Ty::Bool);
        let second = push(Op::Load(4), Ty::I32);
        let new_best = push(Op::Select(is_better, sum, best), Ty::I32);
        push(Op::Store(3, new_best), Ty::I32);
        let new_second = push(Op::Select(is_better, best, second), Ty::I32);
        push(Op::Store(4, new_second), Ty::I32);
        // What is loaded now is what was stored.
        let stored = push(Op::Load(3), Ty::I32);
        push(Op::Store(5, stored), Ty::I32);
        // The third accumulator is the second one of the row before.
        push(Op::Load(6), Ty::I32);
        push(Op::Store(6, second), Ty::I32);

        let weights_of_rows = [StreamStep::Stride, StreamStep::Fixed];
        let weights_of_columns = [StreamStep::Fixed, StreamStep::Unit];
        let steps = [UNIT, weights_of_rows, weights_of_columns, ACCUMULATED, ACCUMULATED, UNIT, ACCUMULATED];
        let key = key(body, &steps, vec![3, 4, 6]);
        for (columns, rows) in widths(&*isa).into_iter().flat_map(|n| [1, 2, 7].map(|rows| (n, rows))) {
            let sizes = [rows * columns, rows, columns, columns, columns, rows * columns, columns];
            let mut memory: Vec<Memory> =
                (0..).zip(sizes).map(|(seed, size)| Memory::filled(Ty::I32, size, seed)).collect();
            let value = |stream: usize, idx: usize| memory[stream].get(idx).as_f64() as i64;
            let mut expected = [vec![], vec![], vec![]];
            for column in 0..columns {
                let [mut best, mut second, mut before] = [3, 4, 6].map(|stream| value(stream, column));
                for row in 0..rows {
                    let x = value(0, row * columns + column) * value(1, row) + value(2, column);
                    before = second;
                    if x > best {
                        (best, second) = (x, best);
                    }
                }
                expected.iter_mut().zip([best, second, before]).for_each(|(all, value)| all.push(value));
            }
            run((&*isa, fma), &key, [rows, columns], &mut memory);
            for (stream, expected) in [3, 4, 6].into_iter().zip(expected) {
                let got: Vec<i64> =
                    (0..columns).map(|column| memory[stream].get(column).as_f64() as i64).collect();
                assert_eq!(got, expected, "{}: stream {stream}, {rows}x{columns}", isa.name());
            }
            let last: Vec<Scalar> =
                (0..columns).map(|column| memory[5].get((rows - 1) * columns + column)).collect();
            let best: Vec<Scalar> = (0..columns).map(|column| memory[3].get(column)).collect();
            assert_eq!(last, best, "{}: {rows}x{columns}", isa.name());
        }
    }
}

#[test]
fn reductions_of_wide_elements_of_every_length() {
    use ReduceOp::{Max, Min, Prod, Sum};
    for (isa, fma) in isas() {
        for (ty, ops) in [(Ty::F64, &[Sum, Prod, Min, Max][..]), (Ty::I64, &[Sum, Min, Max])] {
            for n in 0..70 {
                let memory = Memory::of(ty, n, |idx| match ty {
                    Ty::F64 => Scalar::from_f64(dtype(ty), ((idx * 7 % 13) as f64 - 6.5) * 0.25),
                    _ => Scalar::from_i64(dtype(ty), (idx as i64 * 7 % 13 - 6) << 40),
                });
                let mut body = Body::default();
                let value = body.push(Op::Load(0), ty).expect("supported");
                for (var, op) in (0..).zip(ops) {
                    body.push(Op::Reduce(*op, value, var), ty).expect("supported");
                }
                let variables = ops.len() as u32;
                let results = (0..variables).collect();
                let phases = vec![Phase::Loop { extent: 0, body }];
                let key = StripKey { variables, results, ..strip(phases, vec![StreamStep::Unit]) };
                let mut args = vec![0; key.slots()];
                args[key.extent(0)] = n as i64;
                set(&mut args, &key, 0, address(&memory.bytes), 0, 8);
                let slots: Vec<usize> = (0..ops.len()).map(|result| key.result(result)).collect();
                Compiled::new(&MicrokernelKey::Strip(key), &*isa, fma).call(&mut args);

                for (op, slot) in ops.iter().zip(slots) {
                    let got = Scalar::from_bits(dtype(ty), args[slot] as u64);
                    let neutral = eval::neutral(*op, dtype(ty));
                    let expected = (0..n).fold(neutral, |all, idx| eval::combine(*op, all, memory.get(idx)));
                    let is_near = match (ty, *op) {
                        (Ty::F64, Sum | Prod) => {
                            (got.as_f64() - expected.as_f64()).abs()
                                <= 1e-13 * expected.as_f64().abs().max(1.0)
                        }
                        _ => got == expected,
                    };
                    assert!(is_near, "{}: {op:?} of {n} {ty:?}: {got:?}, not {expected:?}", isa.name());
                }
            }
        }
    }
}
