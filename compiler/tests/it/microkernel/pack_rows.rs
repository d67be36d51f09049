//! Packed rows of floats: unchanged, and as bf16 for tile registers, bit by bit as defined, in planes padded with
//! zeros.

use super::jit::{Compiled, address, address_mut, elements, isas, isas_of_tiles};
use symshape_compiler::{
    codegen::microkernel::{
        MicrokernelKey,
        op::Ty,
        pack_rows::{PackRowsKey, RowForm},
    },
    scalar::precision,
};

/// The content of memory after a row, which must not change.
const CANARY: u16 = 0x5a5a;

/// Floats of all kinds, among them some for each way of rounding.
fn values(count: usize) -> Vec<f32> {
    let bits = [
        0x0000_0000,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7f80_0001,
        0xffc0_0000,
        0x7f7f_ffff,
        0xff7f_8000,
        0x0000_0001,
        0x0080_0000,
        0x0080_7fff,
        0x807f_ffff,
        0x3f80_8000,
        0x3f81_8000,
        0x3f80_7fff,
        0xbf80_8001,
        0x3fff_ffff,
        0x4b7f_ffff,
        0x3f80_8080,
    ];
    let special = bits.into_iter().map(f32::from_bits);
    special.chain(elements(count, 5)).cycle().take(count).collect()
}

fn bits(x: f32) -> u16 {
    (x.to_bits() >> 16) as u16
}

/// The arguments that pack all rows of `from`: the elements between rows on either side, and the counts and steps of
/// the two loops that read a row.
fn arguments<F, T>(
    from: &[F],
    from_row: usize,
    to: &mut [T],
    to_row: usize,
    levels: [(usize, usize); 2],
) -> Vec<i64> {
    let mut args = vec![0; PackRowsKey::level(2)];
    args[PackRowsKey::FROM] = address(from);
    let bytes = size_of::<F>();
    args[PackRowsKey::FROM_ROW] = (bytes * from_row) as i64;
    args[PackRowsKey::TO] = address_mut(to);
    args[PackRowsKey::TO_ROW] = (size_of::<T>() * to_row) as i64;
    args[PackRowsKey::ROWS] = (from.len() / from_row) as i64;
    for (level, (count, step)) in levels.into_iter().enumerate() {
        let slot = PackRowsKey::level(level as u8);
        args[slot..slot + 2].copy_from_slice(&[count as i64, (bytes * step) as i64]);
    }
    args
}

/// One shape of a row: `outer` runs of `inner` elements, contiguous or three apart.
fn check(compiled: &Compiled, parts: u8, dense: bool, (inner, outer): (usize, usize)) {
    let (step, rows) = (if dense { 1 } else { 3 }, 3);
    let (run, depth) = (inner * step + 5, inner * outer);
    let from_row = run * outer + 2;
    let from = values(from_row * rows);
    let plane = depth.div_ceil(32) * 32;
    let row = plane * usize::from(parts) + 32;
    let mut to = vec![CANARY; row * rows];
    let mut args = arguments(&from, from_row, &mut to, row, [(inner, step), (outer, run)]);
    args[PackRowsKey::PLANE] = 2 * plane as i64;
    compiled.call(&mut args);
    let parts_of = |x: f32| match parts {
        3 => precision::split_in_three(x).to_vec(),
        _ => vec![precision::high(x), precision::low(x)],
    };
    for (number, got) in to.chunks(row).enumerate() {
        let x = |k: usize| from[number * from_row + k / inner * run + k % inner * step];
        for (part, got) in got.chunks(plane).take(parts.into()).enumerate() {
            for (k, got) in got.iter().enumerate() {
                let want = if k < depth { bits(parts_of(x(k))[part]) } else { 0 };
                let is_nan = |bits: u16| bits & 0x7fff > 0x7f80;
                assert!(
                    *got == want || is_nan(*got) && is_nan(want),
                    "row {number}, {k} of {inner} times {outer}, dense: {dense}, part {part}: {got:#x}, not {want:#x}"
                );
            }
        }
        assert!(got[plane * usize::from(parts)..].iter().all(|word| *word == CANARY), "after row {number}");
    }
}

#[test]
fn floats_become_the_bf16_of_the_definition() {
    for (isa, fma) in isas_of_tiles() {
        for (parts, dense) in [1, 2, 3].into_iter().flat_map(|parts| [(parts, true), (parts, false)]) {
            let key = PackRowsKey { form: RowForm::Bf16 { from: Ty::F32, parts }, dense, levels: 2 };
            let compiled = Compiled::new(&MicrokernelKey::PackRows(key), &*isa, fma);
            for inner in (1..=20).chain([31, 32, 33, 64, 65]) {
                for outer in [1, 2, 3] {
                    check(&compiled, parts, dense, (inner, outer));
                }
            }
        }
    }
}

#[test]
fn floats_stay_as_they_are() {
    for (isa, fma) in isas() {
        for dense in [true, false] {
            let key = PackRowsKey { form: RowForm::Floats { from: Ty::F32 }, dense, levels: 2 };
            let compiled = Compiled::new(&MicrokernelKey::PackRows(key), &*isa, fma);
            for (inner, outer) in (1..=20).chain([31, 32, 33]).flat_map(|inner| [(inner, 1), (inner, 3)]) {
                let (step, rows) = (if dense { 1 } else { 3 }, 3);
                let (run, depth) = (inner * step + 5, inner * outer);
                let from_row = run * outer + 2;
                let (from, row) = (values(from_row * rows), depth + 3);
                let mut to = vec![f32::MAX; row * rows];
                compiled.call(&mut arguments(&from, from_row, &mut to, row, [(inner, step), (outer, run)]));
                for (idx, got) in to.iter().enumerate() {
                    let (number, k) = (idx / row, idx % row);
                    let at = number * from_row + k / inner * run + k % inner * step;
                    let want = if k < depth { from[at] } else { f32::MAX };
                    assert_eq!(got.to_bits(), want.to_bits(), "{inner} times {outer}, dense: {dense}: {idx}");
                }
            }
        }
    }
}

#[test]
fn bf16_stay_such_or_become_floats() {
    let shapes = || (1..=20).chain([31, 32, 33, 64]).flat_map(|inner| [(inner, 1), (inner, 3)]);
    for (isa, fma) in isas().into_iter().chain(isas_of_tiles()) {
        for dense in [true, false] {
            let keys = [RowForm::Floats { from: Ty::Bf16 }, RowForm::Bf16 { from: Ty::Bf16, parts: 1 }];
            let [floats, halves] =
                keys.map(|form| MicrokernelKey::PackRows(PackRowsKey { form, dense, levels: 2 }));
            let halves = isa.shape().tiles.then(|| Compiled::new(&halves, &*isa, fma));
            let floats = Compiled::new(&floats, &*isa, fma);
            for (inner, outer) in shapes() {
                let (step, rows) = (if dense { 1 } else { 3 }, 3);
                let (run, depth) = (inner * step + 5, inner * outer);
                let from_row = run * outer + 2;
                // The memory ends with the last element.
                let from: Vec<u16> =
                    values(from_row * rows).into_iter().map(|x| bits(precision::high(x))).collect();
                let levels = [(inner, step), (outer, run)];
                let at =
                    |number: usize, k: usize| from[number * from_row + k / inner * run + k % inner * step];
                let row = depth + 3;
                let mut to = vec![f32::MAX; row * rows];
                floats.call(&mut arguments(&from, from_row, &mut to, row, levels));
                for (idx, got) in to.iter().enumerate() {
                    let (number, k) = (idx / row, idx % row);
                    let want = if k < depth { u32::from(at(number, k)) << 16 } else { f32::MAX.to_bits() };
                    assert_eq!(got.to_bits(), want, "{} {inner} times {outer}, dense: {dense}", isa.name());
                }
                let Some(halves) = &halves else { continue };
                let plane = depth.div_ceil(32) * 32;
                let mut to = vec![CANARY; (plane + 32) * rows];
                let mut args = arguments(&from, from_row, &mut to, plane + 32, levels);
                args[PackRowsKey::PLANE] = 2 * plane as i64;
                halves.call(&mut args);
                for (idx, got) in to.iter().enumerate() {
                    let (number, k) = (idx / (plane + 32), idx % (plane + 32));
                    let want = match k {
                        _ if k < depth => at(number, k),
                        _ if k < plane => 0,
                        _ => CANARY,
                    };
                    assert_eq!(*got, want, "{} {inner} times {outer}, dense: {dense}", isa.name());
                }
            }
        }
    }
}
