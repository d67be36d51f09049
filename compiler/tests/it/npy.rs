//! Files of arrays.

use std::path::Path;

/// The bytes of an `.npy` file of floats.
pub(crate) fn bytes(shape: &[usize], elems: &[f32]) -> Vec<u8> {
    let dims: String = shape.iter().map(|dim| format!("{dim},")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({dims}), }}");
    // Elements begin at a multiple of 64.
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(elems.iter().flat_map(|elem| elem.to_le_bytes()));
    bytes
}

/// Writes an `.npy` file of floats.
pub(crate) fn write(path: &Path, shape: &[usize], elems: &[f32]) {
    std::fs::write(path, bytes(shape, elems)).expect("the folder can be written");
}
