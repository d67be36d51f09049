//! Operators of the user's: a declaration binds an ONNX operator to a function outside of the compiler.
//!
//! The declaration says what the function takes and gives, its shapes in symbols of its own:
//!
//! ```text
//! com.acme:Swish(x: T[D...], alpha: float = 1.0) -> T[D...] = acme_swish
//! com.acme:Pick(x: f32[A, B], k: int) -> (f32[A, k], i64[A, k]) = acme_pick scratch 8*B
//!
//! declaration = [domain ':'] operator '(' [param (',' param)*] ')' '->' results '=' symbol ['scratch' dim]
//! param       = name ':' element '[' axes ']'
//!             | name ':' ('int' | 'float' | 'string' | 'ints' | 'floats') ['=' default]
//! results     = element '[' axes ']' | '(' element '[' axes ']' (',' …)* ')'
//! element     = an element type such as f32, or a name that begins with a capital letter: any type
//! axes        = [axis (',' axis)*]      axis = dim | name '...'      (any number of axes)
//! ```
//!
//! Operands come first in the order of the node's inputs, attributes by name. A lone name as a dim takes the size that
//! it meets; wherever else a name stands, sizes are compared, and an `int` attribute is a number there. [`apply`] puts a
//! node of such an operator into the graph.

mod apply;
mod parse;

pub(super) use apply::apply;

use crate::error::{At, Result};
use symshape::Dim;
use symshape_runtime::{
    DType,
    external::{AttributeValue, Function},
};

/// An operator that a function outside of the compiler computes.
#[derive(Clone, Debug)]
pub struct Custom {
    domain: String,
    operator: String,
    operands: Vec<(String, Shaped)>,
    attributes: Vec<Declared>,
    results: Vec<Shaped>,
    symbol: String,
    scratch: Dim,
    function: Option<Function>,
}

/// An element type and a shape, in the declaration's own names.
#[derive(Clone, PartialEq, Debug)]
struct Shaped {
    element: Element,
    axes: Vec<Axis>,
}

#[derive(Clone, PartialEq, Debug)]
enum Element {
    Fixed(DType),
    Any(String),
}

#[derive(Clone, PartialEq, Debug)]
enum Axis {
    One(Dim),
    /// Any number of axes.
    Rest(String),
}

/// An attribute of the operator.
#[derive(Clone, Debug)]
struct Declared {
    name: String,
    kind: AttributeKind,
    default: Option<AttributeValue>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum AttributeKind {
    Int,
    Float,
    String,
    Ints,
    Floats,
}

impl Custom {
    /// Reads a declaration.
    ///
    /// ```
    /// use symshape_compiler::import::Custom;
    /// let swish = Custom::parse("com.acme:Swish(x: f32[A, B]) -> f32[A, B] = acme_swish")?;
    /// assert_eq!((swish.name().as_str(), swish.symbol()), ("com.acme:Swish", "acme_swish"));
    /// let error = Custom::parse("Swish(x: f32[A]) -> f32[B] = swish").unwrap_err();
    /// assert!(error.to_string().contains("B stands in no operand as it is"), "{error}");
    /// # Ok::<(), symshape_compiler::Error>(())
    /// ```
    ///
    /// # Errors
    /// What is wrong with the text, and where.
    pub fn parse(text: &str) -> Result<Custom> {
        parse::declaration(text)
    }

    /// Reads a file of declarations, one on a line; `#` begins a comment.
    ///
    /// # Errors
    /// As [`Custom::parse`], with the line.
    pub fn parse_all(text: &str) -> Result<Vec<Custom>> {
        let mut list = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            if !line.trim().is_empty() {
                list.push(Custom::parse(line).at(|| format!("declaration on line {}", number + 1))?);
            }
        }
        Ok(list)
    }

    /// The same operator, computed by `function` in this process: by models compiled into memory, and by the reference
    /// evaluator. Objects call the symbol.
    #[must_use]
    pub fn function(self, function: Function) -> Custom {
        Custom { function: Some(function), ..self }
    }

    /// Domain and operator.
    pub fn name(&self) -> String {
        match self.domain.is_empty() {
            true => self.operator.clone(),
            false => format!("{}:{}", self.domain, self.operator),
        }
    }

    /// The C name of the function.
    pub fn symbol(&self) -> &str {
        &self.symbol
    }

    /// Whether there is a function in this process.
    pub fn is_registered(&self) -> bool {
        self.function.is_some()
    }

    /// Whether it computes this operator.
    pub(super) fn is(&self, domain: &str, operator: &str) -> bool {
        super::scope::same_domain(&self.domain, domain) && self.operator == operator
    }
}

impl std::fmt::Display for Shaped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let axis = |axis: &Axis| match axis {
            Axis::One(dim) => dim.to_string(),
            Axis::Rest(name) => format!("{name}..."),
        };
        let axes: Vec<String> = self.axes.iter().map(axis).collect();
        match &self.element {
            Element::Fixed(dtype) => write!(f, "{dtype}[{}]", axes.join(", ")),
            Element::Any(name) => write!(f, "{name}[{}]", axes.join(", ")),
        }
    }
}
