//! The run-time pieces: transfers, and the device itself, which executes instructions. `c/npu.c` has the same for
//! objects.

use super::{TILE, code};
use symshape_runtime::external::{Call, Function, Input, scratch_elems};

/// The function of a symbol.
pub(super) fn of(symbol: &str) -> Option<Function> {
    match symbol {
        "npu_load" | "npu_store" => Some(Function::new(copy)),
        "npu_run" => Some(Function::new(run)),
        _ => None,
    }
}

/// A transfer moves bytes as they are.
fn copy(call: Call<'_>) -> Result<(), i32> {
    let (from, to) = (call.inputs[0].bytes(), call.outputs[0].bytes_mut());
    if from.len() != to.len() {
        return Err(1);
    }
    to.copy_from_slice(from);
    Ok(())
}

fn word(code: &[u8], at: usize) -> Result<u32, i32> {
    let bytes = code.get(at..at + 4).ok_or(2)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Executes the code. Its registers are in the scratch memory, one after another.
fn run(call: Call<'_>) -> Result<(), i32> {
    let code = call.attribute("code").and_then(|code| code.bytes()).ok_or(3)?;
    let (loads, count) = (word(code, 0)? as usize, word(code, 4)? as usize);
    // The reference evaluator has no device.
    let is_inside = |at: *const u8| call.memory.is_null() || at as usize >= call.memory as usize;
    let inside = call.inputs.iter().all(|input| is_inside(input.bytes().as_ptr()));
    if !inside || !call.outputs.iter_mut().all(|output| is_inside(output.bytes_mut().as_ptr())) {
        return Err(10);
    }
    let rows = *call.outputs[0].shape().get(1).ok_or(4)? as usize;
    let memory = scratch_elems::<f32>(call.scratch).ok_or(5)?;
    let mut places: Vec<(usize, usize)> = Vec::with_capacity(count);
    let mut end = 0;
    for idx in 0..count {
        let at = 8 + idx * code::INSTRUCTION;
        let (op, tiles) = (word(code, at)?, word(code, at + 4)? as usize);
        let len = tiles * rows * TILE as usize;
        let (before, rest) = memory.split_at_mut(end);
        let to = rest.get_mut(..len).ok_or(6)?;
        let read =
            |offset: usize| register(call.inputs, before, &places, loads, word(code, at + offset)? as usize);
        match op {
            0 => gemm(to, read(8)?, read(12)?, rows, tiles),
            1 => each(to, read(8)?, read(12)?, |x, y| x + y),
            2 => each(to, read(8)?, read(12)?, |x, y| x * y),
            3 => each(to, read(8)?, read(12)?, |x, y| if x > y { x } else { y }),
            4 => to.fill(f32::from_bits(word(code, at + 16)?)),
            _ => return Err(7),
        }
        places.push((end, len));
        end += len;
    }
    for (idx, output) in call.outputs.iter_mut().enumerate() {
        let result = word(code, 8 + count * code::INSTRUCTION + 4 * idx)? as usize;
        let from = register(call.inputs, memory, &places, loads, result)?;
        output.elems_mut::<f32>().map_err(|_| 8)?.copy_from_slice(from);
    }
    Ok(())
}

fn register<'m>(
    inputs: &'m [Input<'m>],
    memory: &'m [f32],
    places: &[(usize, usize)],
    loads: usize,
    number: usize,
) -> Result<&'m [f32], i32> {
    match number.checked_sub(loads) {
        None => inputs[number].elems::<f32>().map_err(|_| 9),
        Some(idx) => {
            let (at, len) = *places.get(idx).ok_or(9)?;
            memory.get(at..at + len).ok_or(9)
        }
    }
}

fn each(to: &mut [f32], x: &[f32], y: &[f32], op: impl Fn(f32, f32) -> f32) {
    to.iter_mut().zip(x.iter().zip(y)).for_each(|(to, (x, y))| *to = op(*x, *y));
}

/// `to[t][r][c] = Σ over k of a[k / 8][r][k % 8] * b[t][k][c]`, one `k` after the other.
fn gemm(to: &mut [f32], a: &[f32], b: &[f32], rows: usize, tiles: usize) {
    let lanes = TILE as usize;
    let depth = b.len() / (tiles * lanes).max(1);
    for (t, to) in to.chunks_mut((rows * lanes).max(1)).enumerate() {
        for (r, to) in to.chunks_mut(lanes).enumerate() {
            to.fill(0.0);
            for k in 0..depth {
                let a = a[(k / lanes * rows + r) * lanes + k % lanes];
                let b = &b[(t * depth + k) * lanes..][..lanes];
                to.iter_mut().zip(b).for_each(|(to, b)| *to += a * b);
            }
        }
    }
}
