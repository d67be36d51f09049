//! Models that the benchmarks share.
