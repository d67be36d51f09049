//! Gathers: elements at checked addresses, along contiguous and strided indices, and the report of failures.

use super::{
    jit::{Compiled, address, address_mut, isas},
    strips::{set, strip},
};
use symshape_compiler::codegen::microkernel::{
    MicrokernelKey,
    op::{Body, Op, StreamStep, Ty},
    strip::{Phase, StripKey},
};

/// Elements of the table.
const LEN: i64 = 7;

/// `y[i] = table[index[i]]`, where an index is checked to be below a scalar argument.
fn key(index: Ty, along: StreamStep) -> StripKey {
    let mut body = Body::default();
    let at = body.push(Op::Load(0), index).expect("supported");
    let end = body.push(Op::Splat(0), index).expect("supported");
    let at = body.push(Op::Checked(at, end), Ty::I32).expect("supported");
    let element = body.push(Op::Gather(1, at), Ty::F32).expect("supported");
    body.push(Op::Store(2, element), Ty::F32).expect("supported");
    let phases = vec![Phase::Loop { extent: 0, body }];
    let pointers = vec![along, StreamStep::Fixed, StreamStep::Unit];
    StripKey { scalars: 1, may_fail: true, ..strip(phases, pointers) }
}

/// The gathered elements, and whether a check failed.
fn gathered(compiled: &Compiled, key: &StripKey, index: Ty, step: usize, at: &[i64]) -> (Vec<f32>, bool) {
    let size = if index == Ty::I64 { 8 } else { 4 };
    // Between the indices are invalid ones, which no check may see.
    let mut indices = vec![0xa5_u8; at.len() * step * size];
    for (idx, at) in at.iter().enumerate() {
        indices[idx * step * size..][..size].copy_from_slice(&at.to_le_bytes()[..size]);
    }
    let table: Vec<f32> = (0..LEN).map(|i| i as f32 + 0.5).collect();
    let mut results = vec![-1.0f32; at.len() + 1];
    let mut args = vec![0; key.slots()];
    args[StripKey::ROWS] = 1;
    args[key.extent(0)] = at.len() as i64;
    args[key.scalar(0)] = LEN;
    args[key.failed()] = -1;
    set(&mut args, key, 0, address(&indices), 0, step * size);
    set(&mut args, key, 1, address(&table), 0, 0);
    set(&mut args, key, 2, address_mut(&mut results), 0, 4);
    compiled.call(&mut args);
    assert_eq!(results.pop(), Some(-1.0), "the element after the last one");
    (results, args[key.failed()] != 0)
}

#[test]
fn gathers_read_checked_addresses_and_report_failures() {
    for (isa, fma) in isas() {
        for index in [Ty::I32, Ty::I64] {
            for (along, step) in [(StreamStep::Unit, 1), (StreamStep::Stride, 3)] {
                let key = key(index, along);
                let compiled = Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma);
                for count in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 40] {
                    let at: Vec<i64> = (0..count).map(|i| (5 * i + 3) % LEN).collect();
                    let expected: Vec<f32> = at.iter().map(|at| *at as f32 + 0.5).collect();
                    let got = gathered(&compiled, &key, index, step, &at);
                    assert_eq!(got, (expected.clone(), false), "{index:?}, {along:?}, {count}");

                    let wide = [LEN + (1 << 32), -(1 << 32), i64::MAX, i64::MIN, 1 << 31];
                    let narrow = [-1, LEN, i64::from(i32::MAX), i64::from(i32::MIN)];
                    for invalid in narrow.into_iter().chain(wide.into_iter().filter(|_| index == Ty::I64)) {
                        for place in [0, count / 2, count - 1] {
                            let mut at = at.clone();
                            at[place as usize] = invalid;
                            let (results, failed) = gathered(&compiled, &key, index, step, &at);
                            assert!(failed, "{index:?}, {along:?}, {invalid} at {place} of {count}");
                            let mut expected = expected.clone();
                            expected[place as usize] = 0.5;
                            assert_eq!(results, expected, "{invalid} at {place} of {count}");
                        }
                    }
                }
            }
        }
    }
}
