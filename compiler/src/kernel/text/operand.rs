//! Parses the operands that statements and instructions share: buffers, elements, scalar variables and loop variables.

use crate::{
    error::Result,
    kernel::{Access, Axis, Buffer, BufferId, Local},
    text::Cursor,
};
use cranelift_entity::{EntityRef, PrimaryMap};
use symshape_runtime::DType;

/// `@N[INDEX]`
pub(super) fn access(cursor: &mut Cursor<'_>, buffers: &PrimaryMap<BufferId, Buffer>) -> Result<Access> {
    let buffer = buffer_id(cursor, buffers)?;
    cursor.expect("[")?;
    let index = cursor.dim(&["]"])?;
    cursor.expect("]")?;
    Ok(Access { buffer, index })
}

/// `@N`
pub(super) fn buffer_id(cursor: &mut Cursor<'_>, buffers: &PrimaryMap<BufferId, Buffer>) -> Result<BufferId> {
    cursor.expect("@")?;
    cursor.parsed("the number of a buffer declared above", |word| {
        word.parse().ok().filter(|idx| *idx < buffers.len()).map(BufferId::new)
    })
}

/// `localN`
pub(super) fn local(cursor: &mut Cursor<'_>, locals: &PrimaryMap<Local, DType>) -> Result<Local> {
    cursor.parsed("a variable declared above", |word| {
        let idx = word.strip_prefix("local")?.parse().ok()?;
        (idx < locals.len()).then(|| Local::new(idx))
    })
}

/// `VAR in 0..EXTENT`, where the extent ends at one of `stops` or at the end of the line.
pub(super) fn axis(cursor: &mut Cursor<'_>, stops: &[&str]) -> Result<Axis> {
    let var = cursor.symbol(&[" in "])?;
    cursor.expect("in")?;
    cursor.expect("0..")?;
    let extent = cursor.dim(stops)?;
    Ok(Axis { var, extent })
}
