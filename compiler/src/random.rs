//! A pseudorandom generator that returns the same values on every machine.

/// SplitMix64: the next 64 bits of the sequence whose state is `state` (Steele, Lea and Flood, "Fast Splittable
/// Pseudorandom Number Generators", 2014).
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// Mixes the bits of `x`: inputs that differ in one bit give outputs that differ in about half of theirs.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
