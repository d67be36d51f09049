//! The copies that a call makes, as `symc compile` and `symc report` print them.

use super::output::print_line;
use crate::kernel::{self, Program};
use serde_json::{Value as Json, json};
use std::borrow::Cow;
use symshape::Dim;

/// Lines about copies.
const MAX_LISTED: usize = 5;
/// Copies of fewer bytes are not worth a line.
const MIN_LISTED_BYTES: u64 = 4096;

/// The copies of a program, in the order of its kernels.
pub(super) struct Copies {
    copies: Vec<NamedCopy>,
    /// The joint size at the upper bounds; `None` if there is no upper bound.
    max_bytes: Option<u64>,
}

struct NamedCopy {
    kernel: String,
    from: String,
    to: String,
    /// The size over the model's symbols.
    bytes: Dim,
    max_bytes: Option<u64>,
}

impl Copies {
    pub(super) fn of(program: &Program) -> Copies {
        let copies = kernel::copies(program);
        let max_bytes = kernel::max_bytes(program, &kernel::copied_bytes(program, &copies));
        let name = |buffer| program.buffers[buffer].name.clone();
        let named = |copy: kernel::Copy| NamedCopy {
            kernel: program.kernels[copy.kernel].name.clone(),
            from: name(copy.from),
            to: name(copy.to),
            max_bytes: kernel::max_bytes(program, &copy.bytes),
            bytes: copy.bytes,
        };
        Copies { copies: copies.into_iter().map(named).collect(), max_bytes }
    }

    /// The number and the joint size, for the line about the model.
    pub(super) fn phrase(&self) -> String {
        let noun = if self.copies.len() == 1 { "copy" } else { "copies" };
        match (self.copies.len(), self.max_bytes) {
            (0, _) => "no copies".to_string(),
            (count, Some(bytes)) => format!("{count} {noun} of at most {bytes} B"),
            (count, None) => format!("{count} {noun} without an upper bound"),
        }
    }

    pub(super) fn json(&self) -> Json {
        let copy = |copy: &NamedCopy| {
            json!({
                "kernel": copy.kernel, "from": copy.from, "to": copy.to, "bytes": copy.bytes.to_string(),
                "max_bytes": copy.max_bytes,
            })
        };
        self.copies.iter().map(copy).collect()
    }

    /// Prints one line for each of the largest copies.
    pub(super) fn print_largest(&self) {
        let is_listed = |copy: &&NamedCopy| copy.max_bytes.is_none_or(|bytes| bytes >= MIN_LISTED_BYTES);
        let mut largest: Vec<&NamedCopy> = self.copies.iter().filter(is_listed).collect();
        largest.sort_by_key(|copy| std::cmp::Reverse(copy.max_bytes.unwrap_or(u64::MAX)));

        for NamedCopy { kernel, from, to, bytes, max_bytes } in largest.iter().take(MAX_LISTED) {
            let at_most = max_bytes.map(|max| format!(", at most {max} B")).unwrap_or_default();
            let [from, to, kernel] = [from, to, kernel].map(|name| quoted(name));
            print_line(&format!("  copies {from} to {to} in {kernel}: {bytes} B{at_most}"));
        }
        let rest = self.copies.len() - largest.len().min(MAX_LISTED);
        if rest > 0 && !largest.is_empty() {
            print_line(&format!("  smaller copies: {rest}, see --emit plan"));
        }
    }
}

/// The name in backticks, unless it is in words that quote a name, as `` weight `w` `` is.
fn quoted(name: &str) -> Cow<'_, str> {
    if name.contains('`') { name.into() } else { format!("`{name}`").into() }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn names_are_quoted_once() {
        assert_eq!(quoted("x"), "`x`");
        assert_eq!(quoted("weight `w`"), "weight `w`");
    }
}
