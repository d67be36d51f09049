//! Elements that each row of a strip loads and stores, in registers for all rows.

use crate::codegen::{
    microkernel::{body_value::BodyValue, memory, op::Ty},
    vector::{Builder, vcode::Vector},
};
use std::cell::RefCell;

/// The elements of a stream in registers, which are variables.
#[derive(Clone, Copy)]
pub(super) struct Accumulator {
    pub(super) stream: u32,
    pub(super) elements: BodyValue,
}

/// The elements of all such streams for one vector of columns.
///
/// Stores of a row take effect at its end, so that code after a store still reads the elements that it loaded before.
pub(super) struct Accumulators {
    all: Vec<Accumulator>,
    stored: RefCell<Vec<Accumulator>>,
}

impl Accumulators {
    /// Sets variables to these elements.
    pub(super) fn start(b: &mut Builder, elements: impl Iterator<Item = Accumulator>) -> Accumulators {
        let all =
            elements.map(|loaded| Accumulator { elements: copied(b, loaded.elements), ..loaded }).collect();
        Accumulators { all, stored: RefCell::default() }
    }

    /// The elements of a stream, if registers have them.
    pub(super) fn load(&self, stream: u32) -> Option<BodyValue> {
        let stored = self.stored.borrow();
        let mut known = stored.iter().rev().chain(&self.all);
        known.find(|known| known.stream == stream).map(|known| known.elements)
    }

    /// Stores elements of a stream. Returns false if they are in memory.
    pub(super) fn store(&self, b: &mut Builder, stream: u32, ty: Ty, elements: BodyValue) -> bool {
        if self.all.iter().all(|known| known.stream != stream) {
            return false;
        }
        let elements = match elements {
            BodyValue::Lanes(lanes) => BodyValue::Lanes(memory::clamped(b, ty, lanes)),
            other => other,
        };
        // Another accumulator may change before this one takes its value.
        let is_variable = self
            .all
            .iter()
            .any(|known| vectors(known.elements).any(|own| vectors(elements).any(|x| x == own)));
        let elements = if is_variable { copied(b, elements) } else { elements };
        self.stored.borrow_mut().push(Accumulator { stream, elements });
        true
    }

    /// Ends a row.
    pub(super) fn update(&self, b: &mut Builder) {
        let stored = self.stored.take();
        for accumulator in &self.all {
            let last = stored.iter().rev().find(|stored| stored.stream == accumulator.stream);
            if let Some(last) = last {
                vectors(accumulator.elements)
                    .zip(vectors(last.elements))
                    .for_each(|(register, value)| b.set(register, value));
            }
        }
    }

    /// All elements.
    pub(super) fn all(&self) -> &[Accumulator] {
        &self.all
    }
}

fn vectors(elements: BodyValue) -> impl Iterator<Item = Vector> {
    match elements {
        BodyValue::Lanes(lanes) => [Some(lanes), None],
        BodyValue::Wide(wide) => wide.map(Some),
        BodyValue::Truth(_) | BodyValue::None => unreachable!("elements in memory are numbers"),
    }
    .into_iter()
    .flatten()
}

fn copied(b: &mut Builder, elements: BodyValue) -> BodyValue {
    match elements {
        BodyValue::Lanes(lanes) => BodyValue::Lanes(b.variable(lanes)),
        BodyValue::Wide(wide) => BodyValue::Wide(wide.map(|half| b.variable(half))),
        BodyValue::Truth(_) | BodyValue::None => unreachable!("elements in memory are numbers"),
    }
}
