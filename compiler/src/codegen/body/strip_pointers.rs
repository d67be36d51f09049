//! The pointers of a strip microkernel: streams at a fixed distance from each other share one.
//!
//! Fewer pointers need fewer registers. Constants that a stream reads with a stride are *gathered*: copied to a
//! contiguous data object, so that vectors load them with one instruction. All gathered streams share a pointer.

use super::body_builder::Stream;
use crate::{
    codegen::microkernel::{
        self,
        op::{Body, GROUP_BYTES, GROUP_STREAMS, Op, StreamStep, Ty},
        strip::Phase,
    },
    kernel::{MemorySpace, Program, lanes::builder::lane_type},
};
use num_traits::ToPrimitive;
use symshape::{Dim, Facts, NormalForms};

/// Largest distance in bytes between streams that share a pointer; offsets of instructions have 32 bits.
const MAX_DISTANCE: i32 = 1 << 28;

/// Largest number of bytes of a stream whose constants are gathered.
const MAX_GATHERED: i64 = 1 << 20;

/// The start of a pointer.
pub(super) enum Pointer {
    /// The origin of a stream.
    Stream(Stream),
    /// Constants gathered for the microkernel: their bytes.
    Gathered(Vec<u8>),
}

impl Pointer {
    /// The step from row to row, as far as microkernels distinguish steps.
    pub(super) fn row_step(&self, program: &Program) -> StreamStep {
        let stream = match self {
            Pointer::Gathered(_) => return StreamStep::Fixed,
            Pointer::Stream(stream) => stream,
        };

        // Microkernels distinguish a unit step only for elements that have squares with a stride from column to column:
        // they can load a vector of rows. Other streams count as strided, so that their strips share a key.
        let dtype = program.buffers[stream.origin.buffer].dtype;
        let has_squares = lane_type(dtype).is_some_and(Ty::has_squares);
        match step(&stream.row) {
            StreamStep::Unit if !has_squares || step(&stream.column) != StreamStep::Stride => {
                StreamStep::Stride
            }
            other => other,
        }
    }

    /// The step from element to element. Microkernels know a distance of two elements only for words.
    pub(super) fn column_step(&self, program: &Program) -> StreamStep {
        match self {
            Pointer::Gathered(_) => StreamStep::Unit,
            Pointer::Stream(stream) => {
                let are_words = program.buffers[stream.origin.buffer].dtype.size_bytes() == 4;
                let is_alternate = are_words && stream.column.as_i64() == Some(2);
                if is_alternate { StreamStep::Alternate } else { step(&stream.column) }
            }
        }
    }
}

/// The kind of a stride in elements.
fn step(stride: &Dim) -> StreamStep {
    match stride.as_i64() {
        Some(0) => StreamStep::Fixed,
        Some(1) => StreamStep::Unit,
        _ => StreamStep::Stride,
    }
}

/// The pointers of a strip, and its streams relative to them.
pub(super) struct StripPointers {
    pub(super) pointers: Vec<Pointer>,
    pub(super) streams: Vec<microkernel::strip::Stream>,
}

impl StripPointers {
    /// The pointers for these streams, in a strip whose loops have these extents.
    pub(super) fn of(program: &Program, facts: &Facts, streams: &[Stream], extents: &[Dim]) -> StripPointers {
        let mut forms = facts.normal_forms();
        let mut pointers: Vec<Pointer> = Vec::new();
        let mut gathered: Option<Gathered> = None;
        let mut placed = Vec::new();
        for stream in streams {
            if let Some(bytes) = gather(program, stream, extents) {
                let gathered = gathered.get_or_insert_with(|| {
                    pointers.push(Pointer::Gathered(Vec::new()));
                    Gathered { pointer: pointers.len() as u32 - 1, bytes: Vec::new() }
                });
                let offset = gathered.bytes.len() as i32;
                placed.push(microkernel::strip::Stream { pointer: gathered.pointer, offset });
                gathered.bytes.extend(bytes);
                continue;
            }

            let shared = pointers.iter().enumerate().find_map(|(idx, pointer)| match pointer {
                Pointer::Stream(other) => {
                    let offset = distance(program, &mut forms, other, stream)?;
                    Some(microkernel::strip::Stream { pointer: idx as u32, offset })
                }
                Pointer::Gathered(_) => None,
            });
            placed.push(shared.unwrap_or_else(|| {
                pointers.push(Pointer::Stream(stream.clone()));
                microkernel::strip::Stream { pointer: pointers.len() as u32 - 1, offset: 0 }
            }));
        }

        if let Some(gathered) = gathered {
            pointers[gathered.pointer as usize] = Pointer::Gathered(gathered.bytes);
        }
        StripPointers { pointers, streams: placed }
    }

    /// How each pointer moves from element to element, in a strip of these phases that reads nothing that it writes.
    pub(super) fn column_steps(&self, program: &Program, phases: &[Phase]) -> Vec<StreamStep> {
        let mut steps: Vec<_> = self.pointers.iter().map(|pointer| pointer.column_step(program)).collect();
        if let [Phase::Loop { body, .. }] = phases
            && let Some((pointer, streams)) = self.stored_group(program, body)
        {
            steps[pointer] = StreamStep::Group(streams);
        }
        steps
    }

    /// The pointer of all stores and their number, if they are a group: see [`StreamStep::Group`].
    fn stored_group(&self, program: &Program, body: &Body) -> Option<(usize, u8)> {
        let stores = body.insts.iter().filter_map(|(op, _)| match op {
            Op::Store(stream, _) => Some(self.streams[*stream as usize]),
            _ => None,
        });
        let mut stores: Vec<microkernel::strip::Stream> = stores.collect();
        let first = stores.iter().map(|stream| stream.offset).min()?;
        let Pointer::Stream(stream) = &self.pointers[stores[0].pointer as usize] else { return None };

        stores.sort_unstable_by_key(|stream| stream.offset);
        let size = program.buffers[stream.origin.buffer].dtype.size_bytes();
        let fills_distance = stores
            .iter()
            .zip((first..).step_by(size))
            .all(|(store, offset)| store.pointer == stores[0].pointer && store.offset == offset);
        let is_distance = stream.column.as_i64() == Some(stores.len() as i64);
        let is_group = GROUP_STREAMS.contains(&stores.len())
            && GROUP_BYTES.contains(&size)
            && is_distance
            && fills_distance;
        is_group.then_some((stores[0].pointer as usize, stores.len() as u8))
    }
}

/// The gathered constants of all streams so far, and the index of their pointer.
struct Gathered {
    pointer: u32,
    bytes: Vec<u8>,
}

/// The constant number of bytes from one stream to another that has the same strides.
fn distance(program: &Program, forms: &mut NormalForms, from: &Stream, to: &Stream) -> Option<i32> {
    let is_parallel =
        from.origin.buffer == to.origin.buffer && from.row == to.row && from.column == to.column;
    if !is_parallel {
        return None;
    }
    let elements = forms.difference(&to.origin.index, &from.origin.index)?.to_i64()?;
    let size = program.buffers[to.origin.buffer].dtype.size_bytes() as i64;
    let bytes = i32::try_from(elements.checked_mul(size)?).ok()?;
    (bytes.abs() < MAX_DISTANCE).then_some(bytes)
}

/// The elements of a stream that reads constants with a stride. All loops must have the same constant extent, because
/// the elements of all rows and loops share one copy.
fn gather(program: &Program, stream: &Stream, extents: &[Dim]) -> Option<Vec<u8>> {
    let [extent] = extents else { return None };
    let extent = extent.as_i64()?;
    let stride = stream.column.as_i64()?;
    let first = stream.origin.index.as_i64()?;
    let MemorySpace::Const(tensor) = &program.buffers[stream.origin.buffer].space else { return None };

    let size = tensor.dtype().size_bytes();
    let is_strided = stride != 0 && stride != 1;
    let is_same_for_rows = stream.row.as_i64() == Some(0);
    if size != 4 || !is_strided || !is_same_for_rows || extent * size as i64 > MAX_GATHERED {
        return None;
    }

    let element = |idx: i64| {
        let from = usize::try_from(first + idx * stride).ok()? * size;
        tensor.bytes().get(from..from + size)
    };
    let elements: Vec<&[u8]> = (0..extent).map(element).collect::<Option<_>>()?;
    Some(elements.concat())
}
