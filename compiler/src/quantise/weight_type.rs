//! The types that weights are stored in.

use crate::error::{Error, ErrorKind, Result};
use std::{fmt, str::FromStr};

/// Elements of a block by default.
const DEFAULT_BLOCK: u32 = 32;

/// The smallest and the largest block. Blocks are multiples of the smallest step of packed codes, 8 elements.
const BLOCKS: std::ops::RangeInclusive<u32> = 16..=1024;

/// The type that a weight of `f32` is stored in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightType {
    /// As it is.
    F32,
    /// IEEE half precision, rounded to nearest.
    F16,
    /// The upper half of an `f32`, rounded to nearest.
    Bf16,
    /// Integers of 8 bits, and a scale for each `block` elements along the reduction.
    Int8 {
        /// Elements of a block.
        block: u32,
    },
    /// Integers of 4 bits, and a scale for each `block` elements along the reduction.
    Int4 {
        /// Elements of a block.
        block: u32,
    },
}

impl WeightType {
    /// The bits of an integer and the elements of a block. `None` for floats.
    pub(crate) fn integers(self) -> Option<(u32, usize)> {
        match self {
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 => None,
            WeightType::Int8 { block } => Some((8, block as usize)),
            WeightType::Int4 { block } => Some((4, block as usize)),
        }
    }

    /// The next type with a smaller error. `None` for `f32`.
    pub(crate) fn wider(self) -> Option<WeightType> {
        match self {
            WeightType::Int4 { block } => Some(WeightType::Int8 { block }),
            WeightType::Int8 { .. } | WeightType::F16 | WeightType::Bf16 => Some(WeightType::F32),
            WeightType::F32 => None,
        }
    }
}

impl FromStr for WeightType {
    type Err = Error;

    fn from_str(text: &str) -> Result<WeightType> {
        let wrong = |why: String| Error::new(ErrorKind::Usage, format!("weights {text:?}: {why}"));
        let (name, block) = match text.split_once(':') {
            Some((name, block)) => (name, Some(block)),
            None => (text, None),
        };
        let block = block.map(|block| {
            let size =
                block.parse().ok().filter(|size: &u32| BLOCKS.contains(size) && size.is_multiple_of(8));
            let (lo, hi) = (BLOCKS.start(), BLOCKS.end());
            size.ok_or_else(|| wrong(format!("a block has a multiple of 8 elements, from {lo} to {hi}")))
        });
        let block = block.transpose()?;
        let float = |of: WeightType| match block {
            None => Ok(of),
            Some(_) => Err(wrong("only integers have blocks".into())),
        };

        match name {
            "f32" => float(WeightType::F32),
            "f16" => float(WeightType::F16),
            "bf16" => float(WeightType::Bf16),
            "int8" => Ok(WeightType::Int8 { block: block.unwrap_or(DEFAULT_BLOCK) }),
            "int4" => Ok(WeightType::Int4 { block: block.unwrap_or(DEFAULT_BLOCK) }),
            _ => Err(wrong(
                "expected int8, int4, f16, bf16 or f32; integers with a block, such as int4:64".into(),
            )),
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            WeightType::F32 => "f32",
            WeightType::F16 => "f16",
            WeightType::Bf16 => "bf16",
            WeightType::Int8 { .. } => "int8",
            WeightType::Int4 { .. } => "int4",
        };
        match self.integers() {
            Some((_, block)) if block != DEFAULT_BLOCK as usize => f.pad(&format!("{name}:{block}")),
            _ => f.pad(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for name in ["f32", "f16", "bf16", "int8", "int4", "int8:64", "int4:16", "int4:1024"] {
            assert_eq!(name.parse::<WeightType>().expect("a type").to_string(), name);
        }
        assert_eq!("int4:32".parse::<WeightType>().expect("a type"), WeightType::Int4 { block: 32 });
    }

    #[test]
    fn unknown_names_and_blocks_are_refused() {
        for name in [
            "",
            "int",
            "int2",
            "INT4",
            "int4:",
            "int4:0",
            "int4:12",
            "int4:2048",
            "int4:-8",
            "f16:32",
            "int4:32:32",
        ] {
            let error = name.parse::<WeightType>().expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.message().contains(name), "{error}");
        }
    }
}
