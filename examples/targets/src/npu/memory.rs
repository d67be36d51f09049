//! Places in the device's memory: a pass over kernels.
//!
//! What passes between steps of the device lies in one block, which is the device's; nothing but its steps touches it.
//! Tensors stand one behind the other there, each at a multiple of 64 bytes whatever the sizes are, so that steps of
//! several parts never meet. A model that needs more than there is is refused.

use std::collections::{BTreeMap, BTreeSet};
use symshape::Dim;
use symshape_compiler::{
    Error, Result,
    kernel::{Access, Buffer, BufferId, Control, Program, Space, walk},
};
use symshape_runtime::DType;

/// Elements that a tensor's place is a multiple of.
const ALIGN_ELEMS: i64 = 16;

pub(super) fn place(program: &mut Program, target: &str, most: u64) -> Result<()> {
    let tensors = on_device(program, target);
    if tensors.is_empty() {
        return Ok(());
    }
    let mut places: BTreeMap<BufferId, Dim> = BTreeMap::new();
    let mut end = Dim::zero();
    for id in tensors {
        places.insert(id, end.clone());
        let elems = program.buffers[id].elems.ceil_div(ALIGN_ELEMS) * ALIGN_ELEMS;
        end = program.facts.simplify(&(end + elems));
    }
    let bytes = program.facts.bounds(&(&end * 4)).hi;
    if bytes.is_none_or(|bytes| bytes > most.into()) {
        let what = format!("its tensors take {} bytes, its memory has {most}", &end * 4);
        return Err(Error::unsupported(what));
    }
    let buffer =
        Buffer { name: format!("{target} memory"), dtype: DType::F32, elems: end, space: Space::Arena };
    let memory = program.buffers.push(buffer);
    for kernel in &mut program.kernels {
        let Some(Control::Call(call)) = &mut kernel.control else { continue };
        for argument in call.operands.iter_mut().chain(&mut call.results) {
            if let Some(place) = places.get(&argument.first.buffer) {
                argument.first = Access { buffer: memory, at: place + &argument.first.at };
            }
        }
    }
    Ok(())
}

/// The buffers in the arena that only steps of the device touch.
fn on_device(program: &Program, target: &str) -> BTreeSet<BufferId> {
    let (mut own, mut others) = (BTreeSet::new(), BTreeSet::new());
    for kernel in &program.kernels {
        walk::accesses(&kernel.body, &mut |site| _ = others.insert(site.access.buffer));
        let Some(control) = &kernel.control else { continue };
        let (read, written) = control.touched();
        match control {
            Control::Call(call) if call.callee.target == target => {
                own.extend(call.operands.iter().chain(&call.results).map(|argument| argument.first.buffer));
            }
            _ => others.extend(read.into_iter().chain(written)),
        }
    }
    own.retain(|id| !others.contains(id) && matches!(program.buffers[*id].space, Space::Arena));
    own
}
