//! Prints and parses the elements of constants: `[2, 3] 0.5, -0.0, …`, `[10, 10] all 0`, or elided; weights of few bits
//! always are elided. Hand-written texts
//! may also contain `[4] iota` (0, 1, 2, 3) and `[64, 3] random SEED`.

use super::{Cursor, join};
use crate::{
    error::{Error, Result},
    random,
    scalar::Scalar,
    tensor::{Bytes, Tensor, fingerprint},
};
use std::{
    fmt::{self, Formatter},
    str::FromStr,
};
use symshape_runtime::DType;

/// Constants with more elements are elided, unless all are equal.
const MAX_ELEMS: usize = 64;

/// The maximum size of all constants of one text. Otherwise a short text could demand any amount of memory.
const MAX_CONST_BYTES: usize = 1 << 28;

/// The elements of a constant.
pub(crate) struct Elems<'a>(pub(crate) &'a Tensor);

impl fmt::Display for Elems<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let tensor = self.0;
        let count = tensor.elems();
        if let Some(weights) = tensor.few_bits() {
            return write!(
                f,
                "of {} bits in blocks {:?} elided {:#018x}",
                weights.bits(),
                weights.block(),
                fingerprint(weights.codes())
            );
        }
        if count > 1 && (1..count).all(|idx| tensor.get(idx) == tensor.get(0)) {
            write!(f, "all {}", tensor.get(0))
        } else if count <= MAX_ELEMS {
            write!(f, "{}", join((0..count).map(|idx| tensor.get(idx))))
        } else {
            write!(f, "elided {:#018x}", fingerprint(tensor.bytes()))
        }
    }
}

/// Parses constants, up to a limit for a whole text.
#[derive(Default)]
pub(crate) struct TensorReader {
    bytes: usize,
}

impl TensorReader {
    /// `[SHAPE] ELEMENTS`
    pub(crate) fn tensor(&mut self, cursor: &mut Cursor<'_>, dtype: DType) -> Result<Tensor> {
        cursor.expect("[")?;
        let dims = cursor.dims()?;
        let shape: Option<Vec<usize>> =
            dims.iter().map(|dim| dim.as_i64().and_then(|dim| usize::try_from(dim).ok())).collect();

        let shape = shape.ok_or_else(|| cursor.error("the shape of a constant consists of integers"))?;
        let bytes = shape
            .iter()
            .try_fold(dtype.size_bytes(), |bytes, dim| bytes.checked_mul(*dim))
            .filter(|bytes| *bytes <= MAX_CONST_BYTES - self.bytes)
            .ok_or_else(|| cursor.error(format!("constants exceed {MAX_CONST_BYTES} bytes")))?;

        self.bytes += bytes;
        let count = bytes / dtype.size_bytes();
        if cursor.eat_word("elided") {
            return Err(cursor.error("this text leaves the elements of the constant out"));
        }

        let elems = if cursor.eat_word("all") {
            vec![cursor.literal(dtype)?; count]
        } else if cursor.eat_word("iota") {
            (0..count).map(|idx| Scalar::from_i64(dtype, idx as i64)).collect()
        } else if cursor.eat_word("random") {
            random_elems(dtype, cursor.number()?, count)
        } else {
            literals(cursor, dtype)?
        };

        if elems.len() != count {
            return Err(cursor.error(format!("{count} elements expected, {} found", elems.len())));
        }

        let bytes: Vec<u8> = elems
            .iter()
            .flat_map(|elem| elem.bits().to_le_bytes().into_iter().take(dtype.size_bytes()))
            .collect();

        Tensor::new(dtype, shape, Bytes::Owned(bytes.into())).ok_or_else(|| cursor.error("odd shape"))
    }
}

/// Multiples of 1/64 in `[-2, 2)` for floats, integers in `-8..8` (`0..16` for unsigned types). Small tests multiply
/// and add them exactly.
fn random_elems(dtype: DType, seed: u64, count: usize) -> Vec<Scalar> {
    let mut state = seed;
    let elem = |bits: u64| {
        if dtype.is_float() {
            Scalar::from_f64(dtype, (bits % 256) as f64 / 64.0 - 2.0)
        } else if dtype.is_signed_int() {
            Scalar::from_i64(dtype, (bits % 16) as i64 - 8)
        } else {
            Scalar::from_i64(dtype, (bits % 16) as i64)
        }
    };
    (0..count).map(|_| elem(random::next(&mut state))).collect()
}

fn literals(cursor: &mut Cursor<'_>, dtype: DType) -> Result<Vec<Scalar>> {
    let mut elems = Vec::new();
    while !cursor.at_line_end() {
        if !elems.is_empty() {
            cursor.expect(",")?;
        }
        elems.push(cursor.literal(dtype)?);
    }
    Ok(elems)
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}] {}", self.dtype(), join(self.shape()), Elems(self))
    }
}

/// Parses the output of `Display`, unless it is elided.
///
/// ```
/// use symshape_compiler::tensor::Tensor;
/// let t: Tensor = "f32[2, 2] 1.0, 2.5, -0.0, inf".parse()?;
/// assert_eq!(t.to_string(), "f32[2, 2] 1.0, 2.5, -0.0, inf");
/// # Ok::<(), symshape_compiler::Error>(())
/// ```
impl FromStr for Tensor {
    type Err = Error;
    fn from_str(text: &str) -> Result<Tensor> {
        let mut cursor = Cursor::new(text);
        let dtype = cursor.dtype()?;
        let tensor = TensorReader::default().tensor(&mut cursor, dtype)?;
        cursor.end_line()?;
        Ok(tensor)
    }
}
