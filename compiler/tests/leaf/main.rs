//! Leaves on every vector ISA that this machine runs, against loops that are too simple to be wrong.

mod bytes;
mod encode;
mod factors;
mod halves;
mod jit;
mod rounded;
mod strips;
mod tiles;
