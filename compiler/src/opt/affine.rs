//! Being written.
use crate::{error::Result, graph::Graph};

/// The pass.
///
/// # Errors
/// None.
pub fn affine(_graph: &mut Graph) -> Result<()> {
    Ok(())
}
