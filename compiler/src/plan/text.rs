//! The textual form of a plan: one line per buffer, from the bottom of the arena to its top.
//!
//! ```text
//! arena_max BYTES lower_bound BYTES
//! device NAME max BYTES of CAPACITY lower_bound BYTES
//! @ID DTYPE[ELEMS] in arena above [@ID, …]  ; NAME
//! ```

use super::Plan;
use crate::kernel::Program;
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
    text.truncate(text.trim_end().len());
    text
}
