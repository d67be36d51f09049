//! Strips, and rows of them, as calls of strip microkernels.

use super::{
    args::Args,
    body_builder::{BodyBuilder, ScalarArg, Stream, reads},
};
use crate::{
    codegen::{
        function::FuncCtx,
        microkernel::{
            self, MicrokernelKey,
            op::{Op, StreamStep},
            strip::{Phase, StripKey},
        },
    },
    error::Result,
    kernel::{Axis, Inst, InstSeq, Kernel, Local, MemorySpace, Program, Stmt},
};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};
use std::collections::BTreeSet;
use symshape::{Dim, Facts};

/// Bytes that streams may be apart and still share a pointer.
const MOST_DISTANCE: i32 = 1 << 28;

/// Bytes of one stream of constants that are gathered.
const MOST_GATHERED: i64 = 1 << 20;

/// Where a pointer of a microkernel starts.
enum Pointer {
    /// At a stream's origin.
    Stream(Stream),
    /// At constants that were gathered for the microkernel: their bytes.
    Packed(Vec<u8>),
}

/// A microkernel and what its arguments are.
struct Strip {
    key: StripKey,
    extents: Vec<Dim>,
    pointers: Vec<Pointer>,
    scalars: Vec<ScalarArg>,
    results: Vec<Local>,
}

/// Emits a strip, or its iterations in `range`, as one call; false where microkernels can't do it, and nothing was emitted.
pub(crate) fn strip(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    range: Option<(Value, Value)>,
    code: &InstSeq,
) -> Result<bool> {
    let mut facts = f.facts().clone();
    facts.declare_index(&axis.var, &axis.extent);
    let stmt = Stmt::Strip { axis: axis.clone(), code: code.clone() };
    let Some(strip) = recognise(f, kernel, &facts, None, std::slice::from_ref(&stmt)) else {
        return Ok(false);
    };
    let mut args = arguments(f, &strip)?;
    let one = f.int(1);
    args.set(StripKey::ROWS, one);
    if let Some((begin, end)) = range {
        let count = f.builder.ins().isub(end, begin);
        args.set(strip.key.extent(0), count);
        for (idx, pointer) in strip.pointers.iter().enumerate() {
            let slot = strip.key.pointer(idx as u32);
            let step = match pointer {
                // What is gathered has the width of a lane.
                Pointer::Packed(_) => Some(f.int(4)),
                Pointer::Stream(_) => args.get(slot + 2),
            };
            if let (Some(address), Some(step)) = (args.get(slot), step) {
                let skipped = f.builder.ins().imul(begin, step);
                let first = f.builder.ins().iadd(address, skipped);
                args.set(slot, first);
            }
        }
    }
    call(f, kernel, strip, &args)?;
    Ok(true)
}

/// Emits rows `begin..end` of a loop over strips and scalar code as one call; false where microkernels can't do it, and
/// nothing was emitted.
pub(crate) fn rows(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    (begin, end): (Value, Value),
    body: &[Stmt],
) -> Result<bool> {
    let mut facts = f.facts().clone();
    facts.declare_index(&axis.var, &axis.extent);
    for stmt in body {
        if let Stmt::Strip { axis, .. } = stmt {
            facts.declare_index(&axis.var, &axis.extent);
        }
    }
    let Some(strip) = recognise(f, kernel, &facts, Some(axis), body) else { return Ok(false) };
    let mut args = arguments(f, &strip)?;
    for pointer in 0..strip.pointers.len() as u32 {
        let slot = strip.key.pointer(pointer);
        if let (Some(address), Some(step)) = (args.get(slot), args.get(slot + 1)) {
            let skipped = f.builder.ins().imul(begin, step);
            let first = f.builder.ins().iadd(address, skipped);
            args.set(slot, first);
        }
    }
    let count = f.builder.ins().isub(end, begin);
    args.set(StripKey::ROWS, count);
    call(f, kernel, strip, &args)?;
    Ok(true)
}

/// The microkernel for these statements, if all of them are strips or scalar code that microkernels can do.
fn recognise(
    f: &FuncCtx,
    kernel: &Kernel,
    facts: &Facts,
    row: Option<&Axis>,
    body: &[Stmt],
) -> Option<Strip> {
    if !body.iter().any(|stmt| matches!(stmt, Stmt::Strip { .. })) {
        return None;
    }
    let code = |stmt: &'_ Stmt| match stmt {
        Stmt::Block(code) | Stmt::Strip { code, .. } => Some(code.clone()),
        _ => None,
    };
    let codes: Vec<InstSeq> = body.iter().map(code).collect::<Option<_>>()?;
    let inner = set_inside(&codes);
    // What a row loop leaves in a local stays inside the leaf.
    if row.is_some() {
        let (all, here) =
            (reads(all_insts(&kernel.body).into_iter()), reads(codes.iter().flat_map(|code| &code.insts)));
        if inner.iter().any(|local| all.get(local) != here.get(local)) {
            return None;
        }
    }
    let row_var = row.map(|axis| &axis.var);
    let mut binding = BodyBuilder {
        program: f.unit.program,
        kernel,
        facts,
        row: row_var,
        streams: Vec::new(),
        scalars: Vec::new(),
        variables: Vec::new(),
        inner,
        wide: Vec::new(),
        sum: None,
    };
    let (mut phases, mut extents) = (Vec::new(), Vec::new());
    for stmt in body {
        match stmt {
            Stmt::Strip { axis, code } => {
                if row_var.is_some_and(|var| axis.extent.contains(var)) {
                    return None;
                }
                let body = binding.body(code, Some(&axis.var))?;
                let known = extents.iter().position(|extent| *extent == axis.extent);
                let extent = known.unwrap_or_else(|| {
                    extents.push(axis.extent.clone());
                    extents.len() - 1
                });
                phases.push(Phase::Loop { extent: extent as u32, body });
            }
            Stmt::Block(code) => phases.push(Phase::Scalar(binding.body(code, None)?)),
            _ => return None,
        }
    }
    let (pointers, streams) = pointers(f.unit.program, facts, &binding.streams, &extents);
    let apart = reads_apart(&phases, &binding.streams);
    let results = if row.is_none() { binding.variables.clone() } else { Vec::new() };
    let key = StripKey {
        rows: row.is_some(),
        phases,
        pointers: pointers.iter().map(Pointer::along).collect(),
        row_steps: pointers
            .iter()
            .map(|pointer| if apart { pointer.down(f.unit.program) } else { StreamStep::Stride })
            .collect(),
        streams,
        extents: extents.len() as u32,
        scalars: binding.scalars.len() as u32,
        variables: binding.variables.len() as u32,
        results: (0..results.len() as u32).collect(),
    };
    Some(Strip { key, extents, pointers, scalars: binding.scalars, results })
}

/// Whether nothing that is read is written here too: rows then may as well run in any order.
fn reads_apart(phases: &[Phase], streams: &[Stream]) -> bool {
    let buffer = |stream: &u32| streams[*stream as usize].origin.buffer;
    let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
    for phase in phases {
        let (Phase::Scalar(body) | Phase::Loop { body, .. }) = phase;
        for (op, _) in &body.insts {
            match op {
                Op::Load(stream) => _ = read.insert(buffer(stream)),
                Op::Store(stream, _) => _ = written.insert(buffer(stream)),
                _ => {}
            }
        }
    }
    read.is_disjoint(&written)
}

impl Pointer {
    /// How it moves from row to row, as far as microkernels distinguish.
    fn down(&self, program: &Program) -> StreamStep {
        match self {
            Pointer::Packed(_) => StreamStep::Fixed,
            Pointer::Stream(stream) => {
                let is_word = program.buffers[stream.origin.buffer].dtype.size_bytes() == 4;
                match along(&stream.row) {
                    StreamStep::Unit if !is_word || along(&stream.column) != StreamStep::Stride => {
                        StreamStep::Stride
                    }
                    other => other,
                }
            }
        }
    }

    fn along(&self) -> StreamStep {
        match self {
            Pointer::Packed(_) => StreamStep::Unit,
            Pointer::Stream(stream) => along(&stream.column),
        }
    }
}

/// The pointers behind the streams: constants that lie apart are gathered behind one, and streams at a fixed distance
/// share one.
fn pointers(
    program: &Program,
    facts: &Facts,
    streams: &[Stream],
    extents: &[Dim],
) -> (Vec<Pointer>, Vec<microkernel::strip::Stream>) {
    let mut pointers: Vec<Pointer> = Vec::new();
    let mut packed: Option<(u32, Vec<u8>)> = None;
    let mut places = Vec::new();
    for stream in streams {
        if let Some(bytes) = gathered(program, stream, extents) {
            let (pointer, all) = packed.get_or_insert_with(|| {
                pointers.push(Pointer::Packed(Vec::new()));
                (pointers.len() as u32 - 1, Vec::new())
            });
            places.push(microkernel::strip::Stream { pointer: *pointer, offset: all.len() as i32 });
            all.extend(bytes);
            continue;
        }
        let near = pointers.iter().enumerate().find_map(|(idx, pointer)| match pointer {
            Pointer::Stream(other) => Some((idx as u32, distance(program, facts, other, stream)?)),
            Pointer::Packed(_) => None,
        });
        let (pointer, offset) = near.unwrap_or_else(|| {
            pointers.push(Pointer::Stream(stream.clone()));
            (pointers.len() as u32 - 1, 0)
        });
        places.push(microkernel::strip::Stream { pointer, offset });
    }
    if let Some((pointer, bytes)) = packed {
        pointers[pointer as usize] = Pointer::Packed(bytes);
    }
    (pointers, places)
}

/// Bytes from one stream to another that moves with it, if the code around never changes them.
fn distance(program: &Program, facts: &Facts, from: &Stream, to: &Stream) -> Option<i32> {
    let alike = from.origin.buffer == to.origin.buffer && from.row == to.row && from.column == to.column;
    let elems = alike.then(|| facts.simplify(&(&to.origin.index - &from.origin.index)).as_i64()).flatten()?;
    let size = program.buffers[to.origin.buffer].dtype.size_bytes() as i64;
    i32::try_from(elems.checked_mul(size)?).ok().filter(|bytes| bytes.abs() < MOST_DISTANCE)
}

/// The elements of a stream of constants that lie apart, side by side; all extents must be one number.
fn gathered(program: &Program, stream: &Stream, extents: &[Dim]) -> Option<Vec<u8>> {
    let [extent] = extents else { return None };
    let (extent, step, first) = (extent.as_i64()?, stream.column.as_i64()?, stream.origin.index.as_i64()?);
    let MemorySpace::Const(tensor) = &program.buffers[stream.origin.buffer].space else { return None };
    let size = tensor.dtype().size_bytes();
    if size != 4
        || step == 0
        || step == 1
        || stream.row.as_i64() != Some(0)
        || extent * size as i64 > MOST_GATHERED
    {
        return None;
    }
    let element = |idx: i64| {
        let from = usize::try_from(first + idx * step).ok()? * size;
        tensor.bytes().get(from..from + size)
    };
    let elements: Vec<&[u8]> = (0..extent).map(element).collect::<Option<_>>()?;
    Some(elements.concat())
}

fn along(column: &Dim) -> StreamStep {
    match column.as_i64() {
        Some(0) => StreamStep::Fixed,
        Some(1) => StreamStep::Unit,
        _ => StreamStep::Stride,
    }
}

/// The locals that the code sets.
fn set_inside(codes: &[InstSeq]) -> Vec<Local> {
    let insts = codes.iter().flat_map(|code| &code.insts);
    insts
        .filter_map(|inst| match inst {
            Inst::Set(local, _) | Inst::Reduce(_, _, local) => Some(*local),
            _ => None,
        })
        .collect()
}

/// All straight-line instructions of these statements.
fn all_insts(body: &[Stmt]) -> Vec<&Inst> {
    body.iter()
        .flat_map(|stmt| match stmt {
            Stmt::Block(code) | Stmt::Strip { code, .. } => code.insts.iter().collect(),
            Stmt::Contraction(contraction) => contraction.epilogue.insts.iter().collect(),
            Stmt::For { body, .. } | Stmt::While { body, .. } => all_insts(body),
            Stmt::If { then, otherwise, .. } => [all_insts(then), all_insts(otherwise)].concat(),
        })
        .collect()
}

fn arguments(f: &mut FuncCtx, strip: &Strip) -> Result<Args> {
    let mut args = Args::new(strip.key.slots());
    for (idx, extent) in strip.extents.iter().enumerate() {
        let extent = f.dim(extent)?;
        args.set(strip.key.extent(idx as u32), extent);
    }
    for (idx, pointer) in strip.pointers.iter().enumerate() {
        let slot = strip.key.pointer(idx as u32);
        match pointer {
            Pointer::Stream(stream) => args.set_stream(f, slot, stream)?,
            Pointer::Packed(bytes) => {
                let name = format!("gathered_{}", f.unit.unique_id());
                let data = f.unit.data(&name, bytes.as_slice().into(), 64)?;
                args.set(slot, f.data_address(data));
                let zero = f.int(0);
                args.set(slot + 1, zero);
            }
        }
    }
    for (idx, scalar) in strip.scalars.iter().enumerate() {
        args.set_scalar(f, strip.key.scalar(idx as u32), scalar)?;
    }
    Ok(args)
}

/// Calls the microkernel and sets the locals that it found.
fn call(f: &mut FuncCtx, kernel: &Kernel, strip: Strip, args: &Args) -> Result<()> {
    let block = args.place(f);
    let slots: Vec<usize> = (0..strip.results.len()).map(|result| strip.key.result(result)).collect();
    let microkernel = f.unit.microkernel(MicrokernelKey::Strip(strip.key))?;
    f.call(microkernel, &[block]);
    for (local, slot) in strip.results.into_iter().zip(slots) {
        let ty = FuncCtx::reg_type(kernel.locals[local]);
        let value = f.builder.ins().load(ty, MemFlagsData::trusted(), block, 8 * slot as i32);
        f.set_local(local, value)?;
    }
    Ok(())
}
