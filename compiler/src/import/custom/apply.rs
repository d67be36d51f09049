//! Nodes of custom operators as calls in the graph. The names in the declaration are bound by the node.

use crate::{
    error::{At, Error, Result},
    external::Callee,
    graph::{Graph, Op, Type, Value},
    import::{
        custom::declaration::{
            AttributeKind, AttributePattern, AxisPattern, Custom, ElementPattern, TensorPattern,
        },
        node::OnnxNode,
        ops::table::Outputs,
    },
    text::join,
};
use std::collections::HashMap;
use symshape::{Dim, Relation, Symbol};
use symshape_runtime::{
    DType,
    external::{Attribute, AttributeValue},
};

/// The bindings of a declaration's names at one node.
#[derive(Default)]
struct Bindings {
    elements: HashMap<String, DType>,
    dims: HashMap<Symbol, Dim>,
    rests: HashMap<String, Vec<Dim>>,
}

/// Imports a node of a custom operator.
pub(crate) fn apply(g: &mut Graph, node: &OnnxNode, custom: &Custom) -> Result<Outputs> {
    call(g, node, custom).at(|| format!("as {} is declared", custom.name()))
}

fn call(g: &mut Graph, node: &OnnxNode, custom: &Custom) -> Result<Outputs> {
    let names = || join(custom.operands.iter().map(|operand| &operand.name));
    if node.input_count() != custom.operands.len() {
        let has = node.input_count();
        let wants = custom.operands.len();
        return Err(Error::invalid(format!(
            "the node has {has} inputs, but the declaration has {wants} ({})",
            names()
        )));
    }

    let mut bindings = Bindings::default();
    let attributes = custom.attributes.iter().map(|declared| attribute(node, declared, &mut bindings));
    let attributes = attributes.collect::<Result<Vec<_>>>()?;
    let operands = (0..custom.operands.len()).map(|k| node.input(k)).collect::<Result<Vec<Value>>>()?;
    let operand_title = |k: usize| format!("input {k} (`{}`)", custom.operands[k].name);

    for (k, (declared, operand)) in custom.operands.iter().zip(&operands).enumerate() {
        bind(g, &declared.pattern, *operand, &mut bindings).at(|| operand_title(k))?;
    }

    for (k, (declared, operand)) in custom.operands.iter().zip(&operands).enumerate() {
        require_dims(g, &declared.pattern, *operand, &bindings, &operand_title(k))?;
    }

    let results = custom.results.iter().map(|declared| bindings.ty(declared)).collect();
    let callee =
        Callee { function: custom.function.clone(), attributes, ..Callee::new(custom.symbol.clone()) };
    let scratch = bindings.dim(&custom.scratch);
    Ok(g.push_multi(Op::Call { callee, results, scratch }, &operands)?.into())
}

impl Bindings {
    fn dim(&self, dim: &Dim) -> Dim {
        dim.substitute(&|symbol| self.dims.get(symbol).cloned())
    }

    /// The dims of `axes`, with names replaced by their bindings.
    fn shape(&self, axes: &[AxisPattern]) -> Vec<Dim> {
        let dims = |axis: &AxisPattern| match axis {
            AxisPattern::One(dim) => vec![self.dim(dim)],
            AxisPattern::Rest(name) => self.rests.get(name).cloned().unwrap_or_default(),
        };
        axes.iter().flat_map(dims).collect()
    }

    fn ty(&self, declared: &TensorPattern) -> Type {
        let dtype = match &declared.element {
            ElementPattern::Fixed(dtype) => *dtype,
            // The parser refuses results whose type no operand has.
            ElementPattern::Any(name) => self.elements.get(name).copied().unwrap_or(DType::F32),
        };
        Type { dtype, shape: self.shape(&declared.axes) }
    }
}

/// Checks type and rank of an operand against its declaration, and binds names that are not bound yet.
fn bind(g: &Graph, declared: &TensorPattern, operand: Value, bindings: &mut Bindings) -> Result<()> {
    let Type { dtype, shape } = g.ty(operand).clone();
    let wanted = match &declared.element {
        ElementPattern::Fixed(wanted) => *wanted,
        ElementPattern::Any(name) => *bindings.elements.entry(name.clone()).or_insert(dtype),
    };

    if wanted != dtype {
        return Err(Error::invalid(format!(
            "its element type is {dtype}, but {declared} is declared, which is {wanted} here"
        )));
    }

    let singles = declared.axes.iter().filter(|axis| matches!(axis, AxisPattern::One(_))).count();
    let has_rest = singles < declared.axes.len();
    if shape.len() < singles || !has_rest && shape.len() > singles {
        return Err(Error::invalid(format!(
            "it has {} axes, [{}], but {declared} is declared, which has {singles}{}",
            shape.len(),
            join(&shape),
            if has_rest { " or more" } else { "" }
        )));
    }

    let mut rest = &shape[..];
    for axis in &declared.axes {
        match axis {
            AxisPattern::One(dim) => {
                if let Some(symbol) = dim.as_symbol() {
                    bindings.dims.entry(symbol.clone()).or_insert_with(|| rest[0].clone());
                }
                rest = &rest[1..];
            }
            AxisPattern::Rest(name) => {
                let (own, others) = rest.split_at(shape.len() - singles);
                let known = bindings.rests.entry(name.clone()).or_insert_with(|| own.to_vec());
                if known.len() != own.len() {
                    let has = own.len();
                    let wants = known.len();
                    return Err(Error::invalid(format!(
                        "{name}... has {has} axes here, but {wants} in an earlier operand"
                    )));
                }
                rest = others;
            }
        }
    }

    Ok(())
}

/// Requires that the dims of an operand are the declared ones.
fn require_dims(
    g: &mut Graph,
    declared: &TensorPattern,
    operand: Value,
    bindings: &Bindings,
    operand_title: &str,
) -> Result<()> {
    let shape = g.shape(operand).to_vec();
    for (axis, (dim, wanted)) in shape.iter().zip(bindings.shape(&declared.axes)).enumerate() {
        if *dim != wanted {
            let operand_title = format!("axis {axis} of {operand_title}, declared as {declared}");
            g.require(Relation::eq(dim, &wanted), &operand_title)?;
        }
    }
    Ok(())
}

/// The value of the attribute at this node.
fn attribute(node: &OnnxNode, declared: &AttributePattern, bindings: &mut Bindings) -> Result<Attribute> {
    let name = &declared.name;
    let given = match declared.kind {
        AttributeKind::Int => node.int(name)?.map(|value| AttributeValue::Ints(vec![value])),
        AttributeKind::Float => node.float(name)?.map(|value| AttributeValue::Floats(vec![value])),
        AttributeKind::String => node.bytes(name)?.map(|bytes| AttributeValue::Bytes(bytes.to_vec())),
        AttributeKind::Ints => node.ints(name)?.map(AttributeValue::Ints),
        AttributeKind::Floats => node.floats(name)?.map(AttributeValue::Floats),
    };

    let missing = || Error::invalid(format!("the node lacks the attribute `{name}`, which has no default"));
    let value = given.or_else(|| declared.default.clone()).ok_or_else(missing)?;
    if let (AttributeKind::Int, AttributeValue::Ints(values)) = (declared.kind, &value)
        && let [value] = values[..]
    {
        // A dim with the name of the attribute must equal it.
        bindings.dims.insert(Symbol::new(name), Dim::from(value));
    }

    Ok(Attribute { name: name.clone(), value })
}
