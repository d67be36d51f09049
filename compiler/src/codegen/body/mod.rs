//! The bodies of kernels: loops, strips and contractions as code of one function.

mod args;
pub(crate) mod body_builder;
pub(crate) mod loops;
pub(crate) mod split;
pub(crate) mod strips;
pub(crate) mod tiles;
