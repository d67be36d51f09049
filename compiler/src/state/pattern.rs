//! `IN=OUT`: names of an input and an output, or a pattern for several pairs.

use crate::{
    error::{Error, ErrorKind, Result},
    graph::Graph,
};
use std::{fmt, str::FromStr};

/// A pair of names. One `*` in both stands for the same text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairPattern {
    input: Name,
    output: Name,
}

/// A name, or the texts before and after `*`.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Name {
    Exact(String),
    Around(String, String),
}

impl Name {
    fn parse(text: &str) -> Option<Name> {
        match text.split('*').collect::<Vec<_>>()[..] {
            [name] if !name.is_empty() => Some(Name::Exact(name.into())),
            [before, after] => Some(Name::Around(before.into(), after.into())),
            _ => None,
        }
    }

    fn is_pattern(&self) -> bool {
        matches!(self, Name::Around(..))
    }

    /// The text that `*` stands for in `name`.
    fn middle<'n>(&self, name: &'n str) -> Option<&'n str> {
        match self {
            Name::Exact(own) => (own == name).then_some(""),
            Name::Around(before, after) => name.strip_prefix(before.as_str())?.strip_suffix(after.as_str()),
        }
    }

    fn with(&self, middle: &str) -> String {
        match self {
            Name::Exact(own) => own.clone(),
            Name::Around(before, after) => format!("{before}{middle}{after}"),
        }
    }
}

impl PairPattern {
    /// The pairs of `graph` that it names, as indices of an input and an output.
    ///
    /// # Errors
    /// There is no such input, or an input has no such output.
    pub(super) fn matches(&self, graph: &Graph) -> Result<Vec<(usize, usize)>> {
        let mut pairs = Vec::new();
        for (input, (name, _)) in graph.inputs.iter().enumerate() {
            let Some(middle) = self.input.middle(name) else { continue };
            let wanted = self.output.with(middle);
            let Some(output) = graph.outputs.iter().position(|(name, _)| *name == wanted) else {
                let names = list(graph.outputs.iter().map(|(name, _)| name));
                let message = format!("--state {self}: the model has no output `{wanted}`; it has {names}");
                return Err(Error::new(ErrorKind::Usage, message));
            };
            pairs.push((input, output));
        }
        if pairs.is_empty() {
            let names = list(graph.inputs.iter().map(|(name, _)| name));
            let message = format!("--state {self}: the model has no such input; it has {names}");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        Ok(pairs)
    }
}

/// The names, each in quotes.
fn list<'n>(names: impl Iterator<Item = &'n String>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

impl FromStr for PairPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<PairPattern> {
        let wrong = || {
            let form =
                "expected IN=OUT, the names of an input and an output, with one `*` in both or in neither";
            Error::new(ErrorKind::Usage, format!("--state {text}: {form}"))
        };
        let (input, output) = text.split_once('=').ok_or_else(wrong)?;
        let input = Name::parse(input).ok_or_else(wrong)?;
        let output = Name::parse(output).ok_or_else(wrong)?;
        if input.is_pattern() != output.is_pattern() {
            return Err(wrong());
        }
        Ok(PairPattern { input, output })
    }
}

impl fmt::Display for PairPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.input.with("*"), self.output.with("*"))
    }
}
