//! The textual form of a plan: one line per buffer, from the bottom of the arena to its top, and one per copy.
//!
//! ```text
//! arena_max BYTES lower_bound BYTES
//! device NAME max BYTES of CAPACITY lower_bound BYTES
//! @ID DTYPE[ELEMS] in arena above [@ID, …]  ; NAME
//! copies BYTES at most
//! copy @ID to @ID BYTES  ; KERNEL
//! ```
//!
//! The copies are in the order of their kernels. A plan without copies has none of these lines.

use super::Plan;
use crate::kernel::{self, Program};
use std::fmt::Write;

/// The text of `plan`, without a line break at its end.
pub fn text(program: &Program, plan: &Plan) -> String {
    let mut text = format!("arena_max {} lower_bound {}\n", plan.arena_max, plan.lower_bound);
    for (device, usage) in program.devices.iter().zip(&plan.devices) {
        let max = usage.max;
        let lower_bound = usage.lower_bound;
        _ = writeln!(
            text,
            "device {} max {max} of {} lower_bound {lower_bound}",
            device.target, device.bytes
        );
    }

    for placement in &plan.placements {
        let id = placement.buffer;
        let buffer = &program.buffers[id];
        let device = buffer.space.device().map_or("arena", |number| &program.devices[number as usize].target);
        let below: Vec<String> = placement.below.iter().map(ToString::to_string).collect();
        let below = below.join(", ");
        _ = writeln!(
            text,
            "{id} {}[{}] in {device} above [{below}]  ; {}",
            buffer.dtype, buffer.elems, buffer.name
        );
    }
    copies(program, &mut text);
    text.truncate(text.trim_end().len());
    text
}

/// Appends the elements that kernels move without a computation, and their bytes.
fn copies(program: &Program, text: &mut String) {
    let copies = kernel::copies(program);
    if copies.is_empty() {
        return;
    }

    let bytes = kernel::copied_bytes(program, &copies);
    match program.facts.bounds(&bytes).hi {
        Some(hi) => _ = writeln!(text, "copies {hi} at most"),
        None => _ = writeln!(text, "copies {bytes}"),
    }

    for kernel::Copy { kernel, from, to, bytes } in &copies {
        let kernel = &program.kernels[*kernel].name;
        _ = writeln!(text, "copy {from} to {to} {bytes}  ; {kernel}");
    }
}
