//! The vector instructions of modules.

/// The vector instructions of a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WasmLevel {
    /// Vectors of 128 bits, which all current engines have.
    #[default]
    Simd128,
    /// Multiplications and additions in one step too, if the machine has them.
    RelaxedSimd,
}

impl WasmLevel {
    /// All levels, the lowest first.
    pub const ALL: [WasmLevel; 2] = [WasmLevel::Simd128, WasmLevel::RelaxedSimd];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            WasmLevel::Simd128 => "simd128",
            WasmLevel::RelaxedSimd => "relaxed-simd",
        }
    }
}
