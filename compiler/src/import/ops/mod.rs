//! The table of ONNX operators: for each a plain function that composes core operators, documented with an example.
//!
//! A family's file starts with its part of the table. To add an operator, write a row and a function; its shape rule,
//! its reference evaluation and its lowering are those of the core operators that it is composed of. The tests run
//! the examples in the doc comments, and docs/operators.md is written from the same comments (see `examples`)
//! which are also tried with all that the operators do not want.

use super::node::OnnxNode;
use crate::{
    error::Result,
    graph::{Graph, Value, axis},
    scalar::Scalar,
};
use symshape::Dim;
use symshape_runtime::DType;

/// The results of an operator; optional ones that were not computed are `None`.
pub(super) struct Outputs(pub Vec<Option<Value>>);

impl From<Value> for Outputs {
    fn from(value: Value) -> Outputs {
        Outputs(vec![Some(value)])
    }
}

impl From<Vec<Value>> for Outputs {
    fn from(values: Vec<Value>) -> Outputs {
        Outputs(values.into_iter().map(Some).collect())
    }
}

impl From<Vec<Option<Value>>> for Outputs {
    fn from(values: Vec<Option<Value>>) -> Outputs {
        Outputs(values)
    }
}

/// Composes a node of core operators.
pub(super) type Import = fn(&mut Graph, &OnnxNode) -> Result<Outputs>;

/// A row of the table: from version `since` of its domain on, an operator is imported by a function.
pub(super) struct Row {
    pub domain: &'static str,
    pub name: &'static str,
    pub since: i64,
    pub import: Import,
    /// Name of the function, by which its documentation is found.
    #[cfg(test)]
    pub function: &'static str,
}

/// Rows `[domain] operator since function`; functions return anything that is [`Outputs`].
macro_rules! ops {
    ($($($domain:literal)? $name:ident $since:literal $function:ident,)*) => {
        pub(super) const TABLE: &[super::Row] = &[$(super::Row {
            domain: concat!("" $(, $domain)?),
            name: stringify!($name),
            since: $since,
            import: |g, n| $function(g, n).map(super::Outputs::from),
            #[cfg(test)]
            function: stringify!($function),
        },)*];
    };
}

macro_rules! families {
    ($($family:ident)*) => {
        $(pub(super) mod $family;)*
        /// The tables of all families.
        const TABLES: &[&[Row]] = &[$($family::TABLE),*];
        /// The families and their sources, in which the documentation stands.
        #[cfg(test)]
        const SOURCES: &[(&str, &str)] = &[$((stringify!($family), include_str!(concat!(stringify!($family), ".rs")))),*];
    };
}

#[cfg(test)]
mod examples;

families! {
    elementwise convert activation reduce shape pad create index matmul conv conv_transpose pool norm quant resize control scan rnn selection attention sampling unfold signal stft loss rest microsoft microsoft_attention microsoft_grouped microsoft_quantised learned svm optional sequence
}

mod dynamic;
mod fourier;
mod gates;
mod rounds;
mod trees;

/// How version `opset` of `domain` defines the operator `name`.
pub(super) fn find(domain: &str, name: &str, opset: i64) -> Option<Import> {
    let rows = TABLES.iter().copied().flatten();
    let named = rows.filter(|row| row.name == name && super::scope::same_domain(row.domain, domain));
    named.filter(|row| row.since <= opset).max_by_key(|row| row.since).map(|row| row.import)
}

/// `x * factor + summand`.
fn linear(g: &mut Graph, x: Value, factor: f64, summand: f64) -> Result<Value> {
    let dtype = g.dtype(x);
    let (factor, summand) = (g.number(dtype, factor)?, g.number(dtype, summand)?);
    let x = g.mul(x, factor)?;
    g.add(x, summand)
}

/// The number `value`, an `i64`.
fn int(g: &mut Graph, value: i64) -> Result<Value> {
    g.scalar(Scalar::i64(value))
}

/// The index along axis `k` of each element of `x`.
fn positions(g: &mut Graph, x: Value, k: usize) -> Result<Value> {
    let shape = g.shape(x).to_vec();
    g.index(DType::I64, shape, axis(k).into())
}

/// The smaller of two expressions, without a `min` where one is known to be.
fn smaller(g: &Graph, a: &Dim, b: &Dim) -> Dim {
    if g.facts.prove_le(a, b).is_yes() {
        a.clone()
    } else if g.facts.prove_le(b, a).is_yes() {
        b.clone()
    } else {
        Dim::min(a, b.clone())
    }
}

/// The larger of two expressions, without a `max` where one is known to be.
pub(super) fn larger(g: &Graph, a: &Dim, b: &Dim) -> Dim {
    if g.facts.prove_le(b, a).is_yes() {
        a.clone()
    } else if g.facts.prove_le(a, b).is_yes() {
        b.clone()
    } else {
        Dim::max(a, b.clone())
    }
}
