//! Rows of the operator table, and the results of an operator's import function.

use crate::import::node::traits::Trait;
use crate::{
    error::Result,
    graph::{Graph, Value},
    import::node::OnnxNode,
};

/// The results of an operator. Optional results that were not computed are `None`.
pub(crate) struct Outputs(pub Vec<Option<Value>>);

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

/// Builds a node from core operators.
pub(crate) type Import = fn(&mut Graph, &OnnxNode) -> Result<Outputs>;

/// A row of the table: the import function of an operator from opset `since` of its domain on.
pub(crate) struct Row {
    pub(crate) domain: &'static str,
    pub(crate) name: &'static str,
    pub(crate) since: i64,
    pub(crate) import: Import,
    pub(crate) traits: &'static [Trait],
    /// Name of the function, for its documentation.
    #[cfg(test)]
    pub(crate) function: &'static str,
}

/// Rows `[domain] operator since function traits`; functions return anything that is [`Outputs`].
macro_rules! ops {
    ($($($domain:literal)? $name:ident $since:literal $function:ident $($property:ident)*,)*) => {
        pub(crate) const TABLE: &[crate::import::ops::table::Row] = &[$(crate::import::ops::table::Row {
            domain: concat!("" $(, $domain)?),
            name: stringify!($name),
            since: $since,
            import: |g, n| $function(g, n).map(crate::import::ops::table::Outputs::from),
            traits: &[$(crate::import::node::traits::Trait::$property),*],
            #[cfg(test)]
            function: stringify!($function),
        },)*];
    };
}
