//! Signal processing: Fourier transforms, and the mel scale.

pub(crate) mod dft;
pub(crate) mod fourier;
pub(crate) mod mel;
pub(crate) mod spectrum;
pub(crate) mod stft;
pub(crate) mod tables;
