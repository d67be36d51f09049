//! How an axis is resampled.

use crate::{
    error::Result,
    graph::{Graph, Value},
};
use symshape::Dim;
use symshape_runtime::DType;

/// How one axis is resampled.
pub(super) struct ResizedAxis {
    /// Index of the axis.
    pub(super) k: usize,
    /// Old size.
    pub(super) from: Dim,
    pub(super) to: Dim,
    pub(super) scale: Scale,
    /// Start and end of the sampled region for `tf_crop_and_resize`, doubles relative to the axis.
    pub(super) roi: Option<[Value; 2]>,
}

/// The ratio of the new size to the old one, before rounding.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    /// The ratio of the rounded sizes.
    Sizes,
    Number(f64),
    /// A double of rank 0, known only at run time.
    Found(Value),
}

impl Scale {
    pub(super) fn number(self) -> Option<f64> {
        match self {
            Scale::Number(scale) => Some(scale),
            Scale::Sizes | Scale::Found(_) => None,
        }
    }
}

impl ResizedAxis {
    /// The scale, a double of rank 0.
    pub(super) fn scale(&self, g: &mut Graph) -> Result<Value> {
        match self.scale {
            Scale::Number(scale) => g.number(DType::F64, scale),
            Scale::Found(scale) => Ok(scale),
            Scale::Sizes => {
                let from = g.dim(DType::F64, self.from.clone())?;
                let to = g.dim(DType::F64, self.to.clone())?;
                g.div(to, from)
            }
        }
    }
}

/// The attributes of a resampling node.
pub(super) struct Sampling<'a> {
    pub(super) mode: &'a str,
    pub(super) coordinates: &'a str,
    pub(super) nearest: &'a str,
    pub(super) cubic: f64,
    pub(super) exclude_outside: bool,
    pub(super) antialias: bool,
    pub(super) extrapolation: f64,
}
