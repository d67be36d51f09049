//! Dead-store elimination: drops kernels whose stores no kernel reads.
//!
//! A padded tensor has a border on all sides, and windows with a stride may end before its last rows. The parts of a
//! buffer that are read are known only when all kernels exist. A kernel is dropped if it is proven that no other
//! kernel reads an address that it writes.

use crate::kernel::{BufferId, Inst, InstSeq, MemorySpace, Program, Stmt, dependences::Footprint, walk};
use std::collections::BTreeMap;

/// Drops kernels whose results are never read. The program's outputs stay the same.
pub fn eliminate_dead_stores(program: &mut Program) {
    let writers = writers(program);
    let candidates: Vec<usize> =
        (0..program.kernels.len()).filter(|kernel| may_be_unread(program, *kernel, &writers)).collect();
    if candidates.is_empty() {
        return;
    }

    let uses: Vec<Footprint> =
        (0..program.kernels.len()).map(|idx| Footprint::of(program, idx..idx + 1)).collect();

    let is_read = |kernel: usize| {
        let mut others = uses.iter().enumerate().filter(|(other, _)| *other != kernel);
        others.any(|(_, other)| uses[kernel].flows_into(other, program))
    };

    let unread: Vec<usize> = candidates.into_iter().filter(|kernel| !is_read(*kernel)).collect();
    let mut idx = 0;
    program.kernels.retain(|_| {
        idx += 1;
        unread.binary_search(&(idx - 1)).is_err()
    });
}

/// The number of kernels that write each buffer.
fn writers(program: &Program) -> BTreeMap<BufferId, usize> {
    let mut writers = BTreeMap::new();
    for kernel in &program.kernels {
        stored(&kernel.body).into_iter().for_each(|buffer| *writers.entry(buffer).or_insert(0) += 1);
    }
    writers
}

/// The buffers that statements store to, each once.
fn stored(body: &[Stmt]) -> Vec<BufferId> {
    let mut buffers = Vec::new();
    walk::accesses(body, &mut |site| {
        if site.is_store && !buffers.contains(&site.access.buffer) {
            buffers.push(site.access.buffer);
        }
    });
    buffers
}

/// Whether a kernel only writes parts of arena buffers of which other kernels write parts too. The only writer of a
/// buffer is there because the buffer is read.
fn may_be_unread(program: &Program, kernel: usize, writers: &BTreeMap<BufferId, usize>) -> bool {
    let kernel = &program.kernels[kernel];
    let stored = stored(&kernel.body);
    let is_part = |buffer: &BufferId| {
        matches!(program.buffers[*buffer].space, MemorySpace::Arena) && writers[buffer] > 1
    };
    kernel.control.is_none() && !stored.is_empty() && stored.iter().all(is_part) && !checks(&kernel.body)
}

/// Whether statements can end the call.
fn checks(body: &[Stmt]) -> bool {
    let in_code = |code: &InstSeq| code.insts.iter().any(|inst| matches!(inst, Inst::Check(_)));
    body.iter().any(|stmt| match stmt {
        Stmt::For { body, .. } | Stmt::While { body, .. } => checks(body),
        Stmt::Block(code) | Stmt::Strip { code, .. } => in_code(code),
        Stmt::Contraction(contraction) => in_code(&contraction.epilogue),
        Stmt::If { then, otherwise, .. } => checks(then) || checks(otherwise),
    })
}
