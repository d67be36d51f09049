//! Values that a row stores, and that stay in registers until it loads them.

use super::key::StripKey;
use crate::codegen::{
    microkernel::op::{Body, Op, StreamStep, Ty},
    vector::vcode::Vector,
};
use std::{cell::RefCell, collections::BTreeMap};

/// A stream whose elements are in a register.
#[derive(Clone, Copy)]
pub(super) struct HeldStream {
    pub(super) stream: u32,
    pub(super) elements: Vector,
}

/// The values of streams by the first element in the row, which is 0 for streams that do not move.
#[derive(Default)]
pub(super) struct KeptValues(RefCell<BTreeMap<(u32, usize), (Ty, Vector)>>);

impl KeptValues {
    /// Keeps a value that is stored, where later code can use its lanes as they are. The register must stay as it is.
    /// `element` is `None` in scalar phases, whose lanes are all equal.
    pub(super) fn store(
        &self,
        key: &StripKey,
        stream: u32,
        element: Option<usize>,
        (ty, value): (Ty, Vector),
    ) {
        let is_moving = match key.step(stream) {
            StreamStep::Unit => true,
            StreamStep::Fixed => false,
            StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_) => return,
        };
        let place = (stream, element.unwrap_or(0));
        let is_word = matches!(ty, Ty::F32 | Ty::I32);
        if key.keeps_stored && is_word && is_moving == element.is_some() {
            self.0.borrow_mut().insert(place, (ty, value));
        } else {
            self.0.borrow_mut().remove(&place);
        }
    }

    /// The value of a stream, if it is kept.
    pub(super) fn load(&self, key: &StripKey, stream: u32, element: Option<usize>, ty: Ty) -> Option<Vector> {
        let element = if key.step(stream) == StreamStep::Fixed { 0 } else { element? };
        let values = self.0.borrow();
        values.get(&(stream, element)).filter(|(kept, _)| *kept == ty).map(|(_, value)| *value)
    }

    /// Forgets the values of streams that `body` stores.
    pub(super) fn forget_stored(&self, body: &Body) {
        self.0.borrow_mut().retain(|(stream, _), _| !stores(body, *stream));
    }

    /// The kept values of streams that do not move, and that `body` loads and does not store.
    pub(super) fn scalars(&self, key: &StripKey, body: &Body) -> Vec<HeldStream> {
        let loads = body.insts.iter().filter_map(|&(op, ty)| match op {
            Op::Load(stream) if !stores(body, stream) => {
                Some(HeldStream { stream, elements: self.load(key, stream, None, ty)? })
            }
            _ => None,
        });
        loads.collect()
    }
}

fn stores(body: &Body, stream: u32) -> bool {
    body.insts.iter().any(|(op, _)| matches!(op, Op::Store(other, _) if *other == stream))
}
