//! Loads and stores of f16 against the crate `half`: all values, and floats around all midpoints of neighbours.

use super::{
    bytes::convert,
    jit::{Compiled, address, address_mut, isas},
};
use half::f16;
use symshape_compiler::codegen::microkernel::{
    MicrokernelKey,
    op::{StreamStep, Ty},
    strip::StripKey,
};

/// Converts elements that are `step` apart, on each ISA, and passes the results to `check`. The gaps between results stay.
fn converted<X: Copy + Default, Y: Copy + Default>(
    types: [Ty; 2],
    elems: &[X],
    step: usize,
    check: &dyn Fn(&str, usize, Y),
) {
    let along = if step == 1 { StreamStep::Unit } else { StreamStep::Stride };
    let key = convert(types[0], types[1], along);
    for (isa, fma) in isas() {
        let compiled = Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma);
        let mut x = vec![X::default(); elems.len() * step];
        elems.iter().enumerate().for_each(|(idx, elem)| x[idx * step] = *elem);
        let mut y = vec![Y::default(); elems.len() * step];

        let mut args = vec![0; key.slots()];
        args[StripKey::ROWS] = 1;
        args[key.extent(0)] = elems.len() as i64;
        let pointers = [(address(&x), size_of::<X>()), (address_mut(&mut y), size_of::<Y>())];
        for (pointer, (start, size)) in pointers.into_iter().enumerate() {
            let slot = key.pointer(pointer as u32);
            args[slot..slot + 3].copy_from_slice(&[start, 0, (step * size) as i64]);
        }
        compiled.call(&mut args);
        y.iter().step_by(step).enumerate().for_each(|(idx, result)| check(isa.name(), idx, *result));
    }
}

#[test]
fn all_f16_are_read_as_the_equal_floats() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for (step, count) in [(1, all.len()), (3, 1000), (1, 1), (1, 7), (1, 31)] {
        let elems = &all[all.len() - count..];
        converted([Ty::F16, Ty::F32], elems, step, &|isa, idx, result: f32| {
            let expected = f16::from_bits(elems[idx]).to_f32();
            let equal = result.to_bits() == expected.to_bits() || result.is_nan() && expected.is_nan();
            assert!(equal, "{isa}: {:#06x} as {result}, not {expected}", elems[idx]);
        });
    }
}

#[test]
fn floats_are_stored_as_the_nearest_f16() {
    // Each f16, the midpoint above it, and the neighbours of both.
    let around = |bits: u16| {
        let elem = f16::from_bits(bits).to_f32();
        let next = f16::from_bits(bits + 1).to_f32();
        let middle = if next.is_finite() { elem + (next - elem) / 2.0 } else { elem.signum() * 65520.0 };
        [elem, middle].into_iter().flat_map(|value: f32| {
            [-1, 0, 1].map(|by| f32::from_bits(value.to_bits().wrapping_add_signed(by)))
        })
    };
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45, -0.0];
    let finite = (0..0x7c00).chain(0x8000..0xfc00);
    let all: Vec<f32> = finite.flat_map(around).chain(special).collect();
    for (step, count) in [(1, all.len()), (3, 1000), (1, 1), (1, 7), (1, 31)] {
        let elems = &all[all.len() - count..];
        converted([Ty::F32, Ty::F16], elems, step, &|isa, idx, result: u16| {
            let expected = f16::from_f32(elems[idx]);
            let result = f16::from_bits(result);
            let equal = result.to_bits() == expected.to_bits() || result.is_nan() && expected.is_nan();
            assert!(equal, "{isa}: {} as {result}, not {expected}", elems[idx]);
        });
    }
}
