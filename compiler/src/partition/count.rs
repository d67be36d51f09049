//! The number of partitions that a user requests.

use crate::error::{Error, ErrorKind, Result};
use std::{fmt, num::NonZeroU32, str::FromStr};

/// The requested number of partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// As many as its branches can use.
    Auto,
    /// This number, or fewer if the program has fewer atoms.
    Of(NonZeroU32),
}

/// The largest number of partitions: tables must stay readable, and drivers decide within microseconds.
pub const MAX_PARTITIONS: u32 = 256;

/// As [`FromStr`] reads it.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Count::Auto => f.write_str("auto"),
            Count::Of(count) => count.fmt(f),
        }
    }
}

impl FromStr for Count {
    type Err = Error;

    fn from_str(text: &str) -> Result<Count> {
        let usage = |message: String| Err(Error::new(ErrorKind::Usage, message));
        match (text, text.parse::<NonZeroU32>()) {
            ("auto", _) => Ok(Count::Auto),
            (_, Ok(count)) if count.get() <= MAX_PARTITIONS => Ok(Count::Of(count)),
            (_, Ok(count)) => usage(format!("{count} partitions; at most {MAX_PARTITIONS} are possible")),
            (_, Err(_)) => usage(format!("`{text}` partitions: a number from 1 on, or `auto`")),
        }
    }
}
