//! Declarations of custom operators.

use crate::import::model::domain::same_domain;
use symshape::Dim;
use symshape_runtime::{
    DType,
    external::{AttributeValue, Function},
};

/// An operator that is computed by an external function.
#[derive(Clone, Debug)]
pub struct Custom {
    pub(crate) domain: String,
    pub(crate) operator: String,
    pub(crate) operands: Vec<OperandPattern>,
    pub(crate) attributes: Vec<AttributePattern>,
    pub(crate) results: Vec<TensorPattern>,
    pub(crate) symbol: String,
    pub(crate) scratch: Dim,
    pub(crate) function: Option<Function>,
}

/// An operand of the operator.
#[derive(Clone, Debug)]
pub(crate) struct OperandPattern {
    pub(crate) name: String,
    pub(crate) pattern: TensorPattern,
}

/// An element type and a shape, in the names of the declaration.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TensorPattern {
    pub(crate) element: ElementPattern,
    pub(crate) axes: Vec<AxisPattern>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ElementPattern {
    Fixed(DType),
    Any(String),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum AxisPattern {
    One(Dim),
    /// Any number of axes.
    Rest(String),
}

/// An attribute of the operator.
#[derive(Clone, Debug)]
pub(crate) struct AttributePattern {
    pub(crate) name: String,
    pub(crate) kind: AttributeKind,
    pub(crate) default: Option<AttributeValue>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum AttributeKind {
    Int,
    Float,
    String,
    Ints,
    Floats,
}

impl Custom {
    /// The same operator, computed by `function` in this process.
    ///
    /// Models compiled into memory and the reference evaluator call `function`. Objects call the symbol.
    #[must_use]
    pub fn function(self, function: Function) -> Custom {
        Custom { function: Some(function), ..self }
    }

    /// Domain and operator.
    pub fn name(&self) -> String {
        if self.domain.is_empty() {
            self.operator.clone()
        } else {
            format!("{}:{}", self.domain, self.operator)
        }
    }

    /// The C name of the function.
    pub fn symbol(&self) -> &str {
        &self.symbol
    }

    /// Whether the declaration is for this operator.
    pub(crate) fn is(&self, domain: &str, operator: &str) -> bool {
        same_domain(&self.domain, domain) && self.operator == operator
    }
}

impl std::fmt::Display for TensorPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let axis = |axis: &AxisPattern| match axis {
            AxisPattern::One(dim) => dim.to_string(),
            AxisPattern::Rest(name) => format!("{name}..."),
        };
        let axes: Vec<String> = self.axes.iter().map(axis).collect();
        match &self.element {
            ElementPattern::Fixed(dtype) => write!(f, "{dtype}[{}]", axes.join(", ")),
            ElementPattern::Any(name) => write!(f, "{name}[{}]", axes.join(", ")),
        }
    }
}
