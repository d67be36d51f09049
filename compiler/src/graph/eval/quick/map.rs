//! Elementwise operators in blocks, and values that are read in blocks.

use super::{
    offsets::Rows,
    source::{LazyMap, Source},
    steps::{Column, column},
    threads::run_jobs,
};
use crate::{
    error::{Error, Result},
    graph::eval::writer::{TensorBuilder, from_floats},
    scalar::Body,
    tensor::Tensor,
};
use std::borrow::Cow;
use symshape_runtime::DType;

/// Elements of a block: its registers stay in the first two levels of cache.
const BLOCK: usize = 1024;

/// Elements of a job, a multiple of blocks.
const JOB: usize = 16 * BLOCK;

/// Multiplications that take as long as a step of a body for one element.
const STEP_WORK: usize = 16;

/// Whether something of the body is `f32`, so that [`maps`] is faster than the definition.
pub(super) fn has_floats(body: &Body) -> bool {
    body.types().contains(&DType::F32)
}

/// The results of elementwise operators.
pub(super) fn maps(list: &[&LazyMap<'_>]) -> Result<Vec<Tensor>> {
    let programs: Vec<Program> = list.iter().map(|map| Program::of(map)).collect();
    let elems = |map: &LazyMap| map.shape.iter().product::<usize>();
    let mut floats: Vec<Vec<f32>> = Vec::new();
    for map in list {
        floats.push(if map.body.dtype() == DType::F32 { vec![0.0; elems(map)] } else { Vec::new() });
    }
    let mut jobs = Vec::new();
    let mut work = 0;
    for (program, out) in programs.iter().zip(&mut floats) {
        work += STEP_WORK * program.steps() * out.len();
        jobs.extend(out.chunks_mut(JOB).enumerate().map(|(idx, out)| (program, idx * JOB, out)));
    }
    run_jobs(work, jobs, |(program, start, out)| {
        for (idx, out) in out.chunks_mut(BLOCK).enumerate() {
            match program.block(start + idx * BLOCK, out.len())? {
                Column::Floats(block) => out.copy_from_slice(&block),
                other => out.copy_from_slice(&other.floats(out.len())),
            }
        }
        Ok(())
    })?;
    let tensor = |((map, program), floats): ((&&LazyMap, &Program), Vec<f32>)| match map.body.dtype() {
        DType::F32 => from_floats(&map.shape, floats),
        _ => others(program, map, elems(map)),
    };
    list.iter().zip(&programs).zip(floats).map(tensor).collect()
}

/// A result that is not `f32`.
fn others(program: &Program<'_>, map: &LazyMap<'_>, elems: usize) -> Result<Tensor> {
    let mut out = TensorBuilder::new(map.body.dtype(), &map.shape);
    for start in (0..elems).step_by(BLOCK) {
        let len = BLOCK.min(elems - start);
        let column = program.block(start, len)?;
        (0..len).for_each(|idx| out.push(column.get(idx)));
    }
    out.finish(&map.shape)
}

/// The elements of a value that may not be stored.
pub(super) fn tensor(source: &Source<'_>) -> Result<Tensor> {
    match source {
        Source::Tensor(tensor) => Ok(tensor.clone()),
        Source::View(view) => view.offsets.gather(&view.tensor, &view.shape),
        Source::Map(map) => {
            maps(&[map])?.pop().ok_or_else(|| Error::internal("an elementwise operator has one result"))
        }
    }
}

/// A value that is read in blocks.
pub(super) enum Reader<'s> {
    Floats(Cow<'s, [f32]>),
    Other(&'s Tensor),
    View(Box<Reader<'s>>, Rows<'s>),
    Map(Box<Program<'s>>),
}

impl<'s> Reader<'s> {
    pub(super) fn of(source: &'s Source<'_>) -> Reader<'s> {
        let of_tensor = |tensor: &'s Tensor| match tensor.dtype() {
            DType::F32 => Reader::Floats(tensor.f32s()),
            _ => Reader::Other(tensor),
        };
        match source {
            Source::Tensor(tensor) => of_tensor(tensor),
            Source::View(view) => Reader::View(Box::new(of_tensor(&view.tensor)), view.offsets.rows()),
            Source::Map(map) => Reader::Map(Box::new(Program::of(map))),
        }
    }

    /// The elements from `start` on, as many as `len`.
    pub(super) fn column(&self, start: usize, len: usize) -> Result<Column<'_>> {
        let scalars = |tensor: &Tensor, places: &mut dyn Iterator<Item = usize>| match tensor.dtype() {
            DType::Bool => Column::Bools(places.map(|place| tensor.get(place).is_true()).collect()),
            _ => Column::Scalars(places.map(|place| tensor.get(place)).collect()),
        };
        Ok(match self {
            Reader::Floats(elems) => Column::Floats(Cow::Borrowed(&elems[start..start + len])),
            Reader::Other(tensor) => scalars(tensor, &mut (start..start + len)),
            Reader::View(from, rows) => match &**from {
                Reader::Floats(elems) => {
                    let mut block = Vec::with_capacity(len);
                    rows.gather(elems, start, len, &mut block);
                    Column::Floats(block.into())
                }
                Reader::Other(tensor) => scalars(tensor, &mut rows.places(start, len).into_iter()),
                Reader::View(..) | Reader::Map(_) => {
                    return Err(Error::internal("a view of a value that is not stored"));
                }
            },
            Reader::Map(program) => program.block(start, len)?,
        })
    }
}

/// A body, and where its operands are read.
pub(super) struct Program<'s> {
    body: &'s Body,
    types: Vec<DType>,
    operands: Vec<Reader<'s>>,
}

impl<'s> Program<'s> {
    pub(super) fn of(map: &'s LazyMap<'_>) -> Program<'s> {
        Program {
            body: map.body,
            types: map.body.types(),
            operands: map.operands.iter().map(Reader::of).collect(),
        }
    }

    /// The steps, with those of operands that are computed where they are read.
    fn steps(&self) -> usize {
        let inner = self.operands.iter().map(|operand| match operand {
            Reader::Map(program) => program.steps(),
            _ => 1,
        });
        self.body.steps.len() + inner.sum::<usize>()
    }

    /// The results for the elements from `start` on, as many as `len`.
    pub(super) fn block(&self, start: usize, len: usize) -> Result<Column<'_>> {
        let mut columns: Vec<Column> =
            self.operands.iter().map(|operand| operand.column(start, len)).collect::<Result<_>>()?;
        for (step, dtype) in self.body.steps.iter().zip(&self.types[self.body.params.len()..]) {
            let column = column(step, *dtype, &columns, len);
            columns.push(column);
        }
        let result = self.body.result.0 as usize;
        let missing = || Error::internal("a body without its result");
        if result < columns.len() { Ok(columns.swap_remove(result)) } else { Err(missing()) }
    }
}
