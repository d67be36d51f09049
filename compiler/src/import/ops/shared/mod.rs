//! Parts that several families of operators share.

pub(crate) mod arithmetic;
pub(crate) mod branches;
pub(crate) mod dynamic;
pub(crate) mod gates;
pub(crate) mod loop_body;
pub(crate) mod philox;
pub(crate) mod piecewise;
pub(crate) mod standardised;
pub(crate) mod zero_dims;
