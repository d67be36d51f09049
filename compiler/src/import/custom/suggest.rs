//! Declarations of unknown operators, for the caller to copy from an error message.

use crate::import::{
    custom::declaration::Custom,
    model::proto::{AttributeProto, NodeProto},
};
use symshape::{Dim, Node};
use symshape_runtime::DType;

/// The element type and shape of an operand or result.
pub(crate) struct TensorType {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<Dim>,
}

/// A declaration of the operator of `node`. An operand of unknown type has any element type and any number of axes. A
/// result of unknown type is taken to be like the first operand.
///
/// `None` if no declaration can describe the node: it lacks an operand, or has an attribute of another kind.
pub(crate) fn declaration(
    node: &NodeProto,
    operands: &[Option<TensorType>],
    results: &[Option<TensorType>],
) -> Option<String> {
    let mut names = Names::default();
    let mut params = Vec::new();
    for (k, operand) in operands.iter().enumerate() {
        params.push(format!("x{k}: {}", names.operand(k, operand.as_ref())));
    }
    for attribute in &node.attribute {
        params.push(format!("{}: {}", attribute.name, kind(attribute)?));
    }

    let first = names.operand(0, operands.first()?.as_ref());
    let results: Vec<String> = results
        .iter()
        .map(|result| result.as_ref().and_then(|ty| names.result(ty)).unwrap_or_else(|| first.clone()))
        .collect();
    let results = match &results[..] {
        [one] => one.clone(),
        more => format!("({})", more.join(", ")),
    };

    let operator = &node.op_type;
    let head = if node.domain.is_empty() { operator.clone() } else { format!("{}:{operator}", node.domain) };
    let text = format!("{head}({}) -> {results} = {}", params.join(", "), function_name(&head));
    let is_complete = node.input.iter().take(operands.len()).all(|name| !name.is_empty());
    (is_complete && Custom::parse(&text).is_ok()).then_some(text)
}

/// The names of dims in a declaration.
#[derive(Default)]
struct Names {
    known: Vec<(Dim, String)>,
}

impl Names {
    fn operand(&mut self, k: usize, ty: Option<&TensorType>) -> String {
        let Some(TensorType { dtype, shape }) = ty else { return format!("T{k}[D{k}...]") };
        let axes: Vec<String> = shape.iter().map(|dim| self.axis(dim)).collect();
        format!("{dtype}[{}]", axes.join(", "))
    }

    /// The name of an axis of an operand: the constant, the symbol, or a new name for an expression.
    fn axis(&mut self, dim: &Dim) -> String {
        if dim.as_i64().is_some() {
            return dim.to_string();
        }
        if let Some((_, name)) = self.known.iter().find(|(known, _)| known == dim) {
            return name.clone();
        }

        let is_word = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let name = match dim.node() {
            Node::Symbol(symbol) if is_word(symbol.name()) => symbol.name().to_string(),
            _ => format!("A{}", self.known.len()),
        };
        self.known.push((dim.clone(), name.clone()));
        name
    }

    /// The type of a result. `None` if an axis is not an axis of an operand.
    fn result(&self, TensorType { dtype, shape }: &TensorType) -> Option<String> {
        let axis = |dim: &Dim| {
            let named = self.known.iter().find(|(known, _)| known == dim).map(|(_, name)| name.clone());
            named.or_else(|| dim.as_i64().map(|size| size.to_string()))
        };
        let axes: Vec<String> = shape.iter().map(axis).collect::<Option<_>>()?;
        Some(format!("{dtype}[{}]", axes.join(", ")))
    }
}

/// The kind of an attribute in a declaration, by the numbers of `AttributeProto.AttributeType`.
fn kind(attribute: &AttributeProto) -> Option<&'static str> {
    match attribute.kind {
        1 => Some("float"),
        2 => Some("int"),
        3 => Some("string"),
        6 => Some("floats"),
        7 => Some("ints"),
        _ => None,
    }
}

/// `com.acme:FastSwish` as `com_acme_fast_swish`.
fn function_name(operator: &str) -> String {
    let mut name = String::new();
    let mut follows_lowercase = false;
    for c in operator.chars() {
        if c.is_ascii_uppercase() && follows_lowercase {
            name.push('_');
        }
        follows_lowercase = c.is_ascii_lowercase() || c.is_ascii_digit();
        name.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
    }
    name
}
