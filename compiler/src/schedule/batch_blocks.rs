//! Batches of a constant size as blocks of a few images, as [`kernel::batch_strides`] describes for symbols.
//!
//! A batch size that is a constant appears only as a factor of extents, and other sizes may be equal to it. So each
//! statement gets a *head*, a loop whose extent is a multiple of the batch size `n`, and its extent becomes the same
//! multiple of a symbol. With `n` as the value of the symbol, the program is the same as before. If images are
//! independent in the program with the symbol, it may run for any number of images, and the symbol becomes the size of
//! a block.
//!
//! [`kernel::batch_strides`]: crate::kernel::batch_strides

use super::fresh_symbols::FreshSymbols;
use crate::kernel::{
    Axis, BatchBlocks, BufferId, Contraction, Kernel, MemorySpace, Program, Stmt,
    batch_strides::{self, BLOCK_BYTES, BatchStrides, ImageTraffic},
    walk,
};
use std::collections::BTreeSet;
use symshape::{Declaration, Dim, Symbol};

/// Bytes whose time is about that of starting the kernels of a block.
const START_BYTES: i64 = 256 << 10;

/// The most images that the best size of a block is searched for.
const MAX_BLOCK: i64 = 256;

/// Divides the batch of the program if its size is a constant, images are independent, and blocks pay.
pub(crate) fn divide(program: &mut Program) {
    if !may_be_divided(program) {
        return;
    }
    let sizes: Vec<i64> =
        batch_sizes(program).into_iter().filter(|images| may_pay(program, *images)).collect();
    if sizes.is_empty() {
        return;
    }
    let with_values = with_values(program);
    if let Some(divided) = sizes.into_iter().find_map(|images| divided(&with_values, images)) {
        *program = divided;
    }
}

/// Whether all sizes are constants, and each kernel runs once in a call.
fn may_be_divided(program: &Program) -> bool {
    let has_control = program.kernels.iter().any(|kernel| kernel.control.is_some());
    let is_constant = program.data_dependent.is_empty() && program.has_constant_sizes();
    !has_control && is_constant && program.state.is_none() && program.batch_blocks.is_none()
}

/// The program with the values of its symbols, each of which has only one.
fn with_values(program: &Program) -> Program {
    let mut with_values = program.clone();
    if program.symbols.is_empty() {
        return with_values;
    }
    let value = |symbol: &Symbol| {
        let is_own = program.symbols.contains(symbol);
        if is_own { program.only_value(&Dim::from(symbol)).map(Dim::from) } else { None }
    };
    let dim = |dim: &Dim| dim.substitute(&value);
    with_values.kernels = program.kernels.iter().map(|kernel| with_dims(kernel, &dim)).collect();
    with_values.buffers.values_mut().for_each(|buffer| buffer.elems = dim(&buffer.elems));
    with_values
}

/// The outermost sizes of the outputs and inputs: one of them may be the batch size.
fn batch_sizes(program: &Program) -> Vec<i64> {
    let mut sizes = Vec::new();
    for port in program.outputs.iter().chain(&program.inputs) {
        if let Some(size) = port.shape.first().and_then(|dim| program.only_value(dim))
            && size > 1
            && !sizes.contains(&size)
        {
            sizes.push(size);
        }
    }
    sizes
}

/// Whether blocks pay if all tensors have images. It takes no proof.
fn may_pay(program: &Program, images: i64) -> bool {
    let mut traffic = 0_i64;
    let mut largest = 0_i64;
    for kernel in &program.kernels {
        let bytes = accessed(kernel).into_iter().filter_map(|id| {
            let buffer = &program.buffers[id];
            let is_private = matches!(buffer.space, MemorySpace::Const(_) | MemorySpace::Scratch);
            if is_private { None } else { program.only_value(&buffer.bytes()) }
        });
        let bytes = bytes.fold(0, i64::saturating_add);
        traffic = traffic.saturating_add(bytes);
        largest = largest.max(bytes);
    }
    traffic / images >= batch_strides::min_image_bytes(program) && largest > BLOCK_BYTES / 4
}

fn accessed(kernel: &Kernel) -> BTreeSet<BufferId> {
    let mut accessed = BTreeSet::new();
    walk::accesses(&kernel.body, &mut |site| _ = accessed.insert(site.access.buffer));
    accessed
}

/// The program as blocks, if batches of this size can be divided and it pays.
fn divided(program: &Program, images: i64) -> Option<Program> {
    let count = FreshSymbols::new(program).fresh();
    let mut with_symbol = program.clone();
    with_symbol.symbols.push(count.clone());
    with_symbol.facts.declare(&count, Declaration::range(1, images)).ok()?;

    let mut strides = BatchStrides::new(&with_symbol, &count);
    let mut kernels = Vec::with_capacity(program.kernels.len());
    for kernel in &program.kernels {
        kernels.push(with_heads(program, &mut strides, kernel, images, &count)?);
    }
    let shared = shared_inputs(program, &strides, images)?;

    let ImageTraffic { total, of_kernels } = strides.traffic();
    let largest_kernel = of_kernels.iter().filter_map(Dim::as_i64).max()?;
    let image_bytes = total.as_i64()?;
    if image_bytes < batch_strides::min_image_bytes(program) {
        return None;
    }
    let block = block_images(program, images, image_bytes, largest_kernel)?;
    let mut divided = program.clone();
    for (id, elements) in strides.elements() {
        let buffer = &mut divided.buffers[*id];
        if matches!(buffer.space, MemorySpace::Arena) {
            let elems = program.only_value(&buffer.elems)?;
            buffer.elems = Dim::from(elems - (images - block) * elements.as_i64()?);
        }
    }
    divided.kernels = kernels.iter().map(|kernel| at_block(kernel, &count, block)).collect();
    let mut blocks = BatchBlocks { images, block, slices: 1, shared };
    blocks.slices = program.workers.clamp(1, u32::try_from(images / block).unwrap_or(u32::MAX));
    divided.batch_blocks = Some(blocks);
    Some(divided)
}

/// The kernel with a loop over `count` images around each statement, if the images are independent.
fn with_heads(
    program: &Program,
    strides: &mut BatchStrides<'_>,
    kernel: &Kernel,
    images: i64,
    count: &Symbol,
) -> Option<Kernel> {
    let mut body = Vec::with_capacity(kernel.body.len());
    for stmt in &kernel.body {
        let mut candidates = heads(stmt, images, count).into_iter();
        let found = candidates.find(|stmt| {
            let one = Kernel { body: vec![stmt.clone()], ..kernel.clone() };
            strides.add_kernel(&one).is_some()
        });
        body.push(found?);
    }
    let kernel = Kernel { body, ..kernel.clone() };
    // Images must not depend on each other through buffers of other sizes.
    let fits = accessed(&kernel).into_iter().all(|id| has_images(program, strides, id, images));
    fits.then_some(kernel)
}

/// Whether a buffer has a place for each image at its distance. An input may be shared by all images.
fn has_images(program: &Program, strides: &BatchStrides<'_>, id: BufferId, images: i64) -> bool {
    let Some(distance) = strides.elements().get(&id) else { return true };
    let buffer = &program.buffers[id];
    let (Some(elems), Some(distance)) = (program.only_value(&buffer.elems), distance.as_i64()) else {
        return false;
    };
    let all = distance.checked_mul(images);
    match buffer.space {
        MemorySpace::Input(_) => distance == 0 || all == Some(elems),
        MemorySpace::Output(_) => all == Some(elems),
        MemorySpace::Arena => distance > 0 && all.is_some_and(|all| all <= elems),
        MemorySpace::Const(_) | MemorySpace::Scratch => true,
        MemorySpace::State(_) | MemorySpace::Device(_) => false,
    }
}

/// The statement with each of its loops that can be over the images as its head, outer loops first.
fn heads(stmt: &Stmt, images: i64, count: &Symbol) -> Vec<Stmt> {
    let head = |axis: &Axis| {
        let extent = axis.extent.as_i64().filter(|extent| extent % images == 0)?;
        Some(Axis { extent: Dim::from(count) * (extent / images), ..axis.clone() })
    };
    match stmt {
        Stmt::For { axis, parallel, body } => {
            let outer = head(axis).map(|axis| Stmt::For { axis, parallel: *parallel, body: body.clone() });
            let inner: Vec<Vec<Stmt>> = body.iter().map(|stmt| heads(stmt, images, count)).collect();
            let choices = inner.iter().map(Vec::len).min().unwrap_or(0);
            let inner = (0..choices).map(|choice| Stmt::For {
                axis: axis.clone(),
                parallel: *parallel,
                body: inner.iter().map(|stmts| stmts[choice].clone()).collect(),
            });
            outer.into_iter().chain(inner).collect()
        }
        Stmt::Strip { axis, code } => {
            head(axis).map(|axis| Stmt::Strip { axis, code: code.clone() }).into_iter().collect()
        }
        Stmt::Contraction(contraction) => {
            let Some((first, others)) = contraction.m.split_first() else { return Vec::new() };
            let with_head = head(first).map(|first| {
                let m = std::iter::once(first).chain(others.iter().cloned()).collect();
                Stmt::Contraction(Box::new(Contraction { m, ..(**contraction).clone() }))
            });
            with_head.into_iter().collect()
        }
        Stmt::Block(_) | Stmt::If { .. } | Stmt::While { .. } => Vec::new(),
    }
}

/// The inputs that all images share, if all outputs have images.
fn shared_inputs(program: &Program, strides: &BatchStrides<'_>, images: i64) -> Option<BTreeSet<u32>> {
    let has_distance = |id: BufferId| strides.elements().contains_key(&id);
    let mut outputs = program.outputs.iter();
    if !outputs.all(|port| has_distance(port.buffer) && has_images(program, strides, port.buffer, images)) {
        return None;
    }
    let is_shared = |id: BufferId| strides.elements().get(&id).and_then(Dim::as_i64).unwrap_or(0) == 0;
    let inputs = program.inputs.iter().zip(0..);
    Some(inputs.filter(|(port, _)| is_shared(port.buffer)).map(|(_, idx)| idx).collect())
}

/// Images of a block, if blocks pay: the tensors of a kernel fit in a part of the caches, and the blocks divide the
/// batch with little work for images that are computed again. Threads get a block each where these are still large.
fn block_images(program: &Program, images: i64, image_bytes: i64, largest_kernel: i64) -> Option<i64> {
    let most = (BLOCK_BYTES / largest_kernel.max(1)).max(1);
    let for_each_thread = images / i64::from(program.workers.max(1));
    let most = for_each_thread.clamp((most / 4).max(1), most).min(MAX_BLOCK);
    if most >= images {
        return None;
    }
    let overhead = batch_strides::weight_bytes(program).saturating_add(START_BYTES);
    let bytes = |block: &i64| {
        let of_block = image_bytes.saturating_mul(*block).saturating_add(overhead);
        ((images + block - 1) / block).saturating_mul(of_block)
    };
    (1..=most).min_by_key(bytes)
}

/// The kernel for a block of images.
fn at_block(kernel: &Kernel, count: &Symbol, block: i64) -> Kernel {
    with_dims(kernel, &|dim| dim.substitute(&|symbol| (symbol == count).then(|| Dim::from(block))))
}

/// The kernel with other extents and addresses.
fn with_dims(kernel: &Kernel, dim: &dyn Fn(&Dim) -> Dim) -> Kernel {
    Kernel { body: walk::rewrite(&kernel.body, &walk::Rewrite::dims(dim)), ..kernel.clone() }
}
