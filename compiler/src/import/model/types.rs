//! Declared types. Those of inputs become the call contract; those of other values are checked against the inferred
//! types.

use crate::{
    error::{At, Error, ErrorKind, Result},
    graph::{Graph, Value, build::shape_text},
    import::model::{
        dims, given_inputs,
        options::ImportOptions,
        proto::{DimensionProto, GraphProto, TensorTypeProto, TypeProto, ValueInfoProto},
        storage_type::StorageType,
        weights,
    },
};
use std::collections::HashSet;
use symshape::{Declaration, Dim, Symbol};
use symshape_runtime::DType;

/// The largest size of a dim whose symbols are replaced by expressions.
const MAX_RELATION: usize = 4096;

/// An input of the model.
pub(crate) struct ModelInput<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: DType,
    /// The type of its elements, if they are stored only.
    pub(crate) storage_type: Option<StorageType>,
    pub(crate) shape: Vec<Dim>,
}

/// The type of an input, as the model and the caller declare it.
pub(crate) fn input<'a>(info: &'a ValueInfoProto, options: &ImportOptions) -> Result<ModelInput<'a>> {
    let name = info.name.as_str();
    read_input(info, options).at(|| format!("input `{name}`"))
}

fn read_input<'a>(info: &'a ValueInfoProto, options: &ImportOptions) -> Result<ModelInput<'a>> {
    let name = info.name.as_str();
    let ty = info.ty.as_ref().ok_or_else(|| Error::invalid("it has no type"))?;
    refuse_others(ty)?;
    let tensor = ty.tensor_type.as_ref().ok_or_else(|| Error::invalid("it has no type"))?;

    let storage_type = StorageType::from_code(tensor.elem_type);
    let dtype = match storage_type {
        Some(storage_type) => storage_type.byte_dtype(),
        None => weights::dtype(tensor.elem_type)?,
    };

    let given = options.inputs.iter().find(|(given, _)| given == name);
    let declared = tensor.shape.as_ref().map(|shape| shape.dim.as_slice());
    let shape = match (given, declared) {
        (Some((_, shape)), Some(dims)) if dims.len() != shape.len() => {
            let message = format!("it has {} axes, but --input declares {}", dims.len(), shape.len());
            return Err(Error::new(ErrorKind::Usage, message));
        }
        (Some((_, shape)), _) => shape.clone(),
        (None, Some(dims)) => dims.iter().enumerate().map(|(k, dim)| input_dim(name, k, dim)).collect(),
        (None, None) => {
            let message = format!("its shape is not declared; give one with --input {name}=D0,D1,…");
            return Err(Error::new(ErrorKind::Contract, message));
        }
    };

    Ok(ModelInput { name, dtype, storage_type, shape })
}

fn refuse_others(ty: &TypeProto) -> Result<()> {
    let kinds = [
        (ty.sequence_type.is_some(), "a sequence", "sequences may occur inside of a model only"),
        (ty.map_type.is_some(), "a map", "inputs and outputs are dense tensors"),
        (ty.opaque_type.is_some(), "an opaque type", "inputs and outputs are dense tensors"),
        (ty.sparse_tensor_type.is_some(), "a sparse tensor", "inputs and outputs are dense tensors"),
        (ty.optional_type.is_some(), "an optional", "a call passes and returns all tensors"),
    ];
    match kinds.iter().find(|(is, ..)| *is) {
        Some((_, kind, rule)) => Err(Error::unsupported(format!("{kind} as input or output: {rule}"))),
        None => Ok(()),
    }
}

/// The dim of axis `k` of an input. A dim without a usable name gets one.
fn input_dim(input: &str, k: usize, dim: &DimensionProto) -> Dim {
    match (dim.dim_value, dim.dim_param.as_deref()) {
        (Some(value), _) if value >= 0 => value.into(),
        (_, Some(text)) if !matches!(text.trim(), "" | "?" | "None" | "-1") => dims::parse(text.trim()),
        _ => {
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            Dim::symbol(&format!("{}_dim{k}", input.chars().map(plain).collect::<String>()))
        }
    }
}

/// A declared dim that is a constant, or an expression over the model's symbols.
pub(crate) fn known_dim(g: &Graph, dim: &DimensionProto) -> Option<Dim> {
    let dim = match (dim.dim_value, dim.dim_param.as_deref()) {
        (Some(value), _) if value >= 0 => value.into(),
        (None, Some(text)) => dims::expression(text.trim())?,
        _ => return None,
    };
    let known = |symbol: &Symbol| g.symbols.contains(symbol);
    dim.symbols().iter().all(known).then_some(dim)
}

/// The symbol that a declared dim names, if it is just a name.
pub(crate) fn plain_symbol(dim: &DimensionProto) -> Option<Symbol> {
    let text = dim.dim_param.as_deref()?.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(plain);
    (dim.dim_value.is_none() && is_name && text != "None").then(|| Symbol::new(text))
}

/// Replaces symbols in the shapes of inputs by the expressions that the caller declares for them.
///
/// # Errors
/// Relations of symbols that no input has, and relations that lead back to their own symbol.
pub(crate) fn relate(inputs: &mut [ModelInput], options: &ImportOptions) -> Result<()> {
    let occurs = |name: &str| {
        let dims = inputs.iter().flat_map(|input| &input.shape);
        dims.flat_map(Dim::symbols).any(|symbol| symbol.name() == name)
    };
    let expands = |name: &str| options.relations.iter().any(|(_, dim)| contains(dim, name));
    if let Some((name, dim)) = options.relations.iter().find(|(name, _)| !occurs(name) && !expands(name)) {
        let message = format!("--dim {name}={dim}: no input has a symbol `{name}`");
        return Err(Error::new(ErrorKind::Usage, message));
    }

    let is_ranged = |name: &str| options.dims.iter().any(|(declared, _)| declared == name);
    if let Some((name, dim)) = options.relations.iter().find(|(name, _)| is_ranged(name)) {
        let message = format!("--dim {name}={dim}: `{name}` also has a range; keep one of the two");
        return Err(Error::new(ErrorKind::Usage, message));
    }

    let from_file = options.bounds.relations.iter().filter(|(name, _)| !is_ranged(name));
    let relations: Vec<&(String, Dim)> = options.relations.iter().chain(from_file).collect();
    let of = |symbol: &Symbol| {
        let found = relations.iter().find(|(name, _)| name == symbol.name());
        found.map(|(_, dim)| dim.clone())
    };
    // A relation may refer to symbols of other relations, each of which needs one more round.
    let factor = relations.iter().map(|(_, dim)| n_nodes(dim)).max().unwrap_or(1);
    for _ in 0..relations.len() {
        for dim in inputs.iter_mut().flat_map(|input| &mut input.shape) {
            let symbols = dim.symbols();
            let Some(related) = symbols.iter().find(|symbol| of(symbol).is_some()) else { continue };
            if n_nodes(dim).saturating_mul(factor) > MAX_RELATION {
                let name = related.name();
                let message = format!("the relations of `{name}` form a cycle, or are too long");
                return Err(Error::new(ErrorKind::Usage, message));
            }
            *dim = dim.substitute(&of);
        }
    }
    let is_left = |(name, _): &&&(String, Dim)| {
        inputs.iter().flat_map(|input| &input.shape).any(|dim| contains(dim, name))
    };
    match relations.iter().find(is_left) {
        Some((name, dim)) => {
            Err(Error::new(ErrorKind::Usage, format!("{name}={dim}: the relations of `{name}` form a cycle")))
        }
        None => Ok(()),
    }
}

/// The number of operators, symbols and integers in an expression.
fn n_nodes(dim: &Dim) -> usize {
    1 + dim.node().operands().into_iter().map(n_nodes).sum::<usize>()
}

fn contains(dim: &Dim, name: &str) -> bool {
    dim.symbols().iter().any(|symbol| symbol.name() == name)
}

/// The symbols of a model's inputs that the caller does not declare, in the order of their first appearance.
pub(crate) fn undeclared(graph: Option<&GraphProto>, options: &ImportOptions) -> Vec<Symbol> {
    let inputs = graph.into_iter().flat_map(given_inputs).map(|info| input(info, options));
    let Ok(mut inputs) = inputs.collect::<Result<Vec<ModelInput>>>() else { return Vec::new() };
    if relate(&mut inputs, options).is_err() {
        return Vec::new();
    }
    let symbols = inputs.iter().flat_map(|input| &input.shape).flat_map(Dim::symbols);
    let mut undeclared: Vec<Symbol> = Vec::new();
    for symbol in symbols.filter(|symbol| declared(symbol, options).is_none()) {
        if !undeclared.contains(&symbol) {
            undeclared.push(symbol);
        }
    }
    undeclared
}

/// The caller's declaration of a symbol: the last flag, else the bounds.json.
fn declared(symbol: &Symbol, options: &ImportOptions) -> Option<Declaration> {
    let of = |list: &[(String, Declaration)]| {
        let found = list.iter().rev().find(|(name, _)| name == symbol.name());
        found.map(|(_, declared)| declared.clone())
    };
    of(&options.dims).or_else(|| of(&options.bounds.dims))
}

/// Declares the symbols of all inputs, in the order of their first appearance.
///
/// # Errors
/// Symbols without an upper bound, with the flags to add; declarations of symbols that no input has.
pub(crate) fn declare_symbols(g: &mut Graph, inputs: &[ModelInput], options: &ImportOptions) -> Result<()> {
    let mut missing: Vec<(Symbol, String)> = Vec::new();
    let mut met: Vec<Symbol> = Vec::new();
    for input in inputs {
        for (k, dim) in input.shape.iter().enumerate() {
            for symbol in dim.symbols() {
                if met.contains(&symbol) {
                    continue;
                }

                let mut declared = declared(&symbol, options);
                if let (Some(cap), None) =
                    (options.cap, declared.as_ref().and_then(|declared| declared.hi.clone()))
                {
                    let open = declared.unwrap_or_else(|| Declaration::at_least(1));
                    declared = Some(Declaration { hi: Some(cap.into()), ..open });
                }

                if declared.as_ref().is_none_or(|declared| declared.hi.is_none()) && !options.unbounded {
                    missing.push((symbol.clone(), format!("input `{}` axis {k}", input.name)));
                }

                let declared = declared.unwrap_or_else(|| Declaration::at_least(1));
                g.facts.declare(&symbol, declared).map_err(|error| contract(error.to_string()))?;
                met.push(symbol);
            }
        }
    }

    if !missing.is_empty() {
        return Err(contract(no_bound(&missing)));
    }

    Ok(())
}

/// Refuses declarations of symbols that neither the inputs nor data-dependent values have.
///
/// # Errors
/// There is such a declaration; the message lists the known names.
pub(crate) fn refuse_unknown(g: &Graph, options: &ImportOptions, found: &HashSet<String>) -> Result<()> {
    let known = |name: &str| g.symbols.iter().any(|symbol| symbol.name() == name) || found.contains(name);
    let Some((name, _)) = options.dims.iter().find(|(name, _)| !known(name)) else { return Ok(()) };
    let mut names: Vec<&str> = g.symbols.iter().map(Symbol::name).collect();
    let mut others: Vec<&str> = found.iter().map(String::as_str).collect();
    others.sort_unstable();
    names.extend(others);
    let known = if names.is_empty() { "none".to_string() } else { names.join(", ") };
    let message = format!("--dim {name}: no input has a symbol `{name}`; known: {known}");
    Err(Error::new(ErrorKind::Usage, message))
}

fn contract(message: String) -> Error {
    Error::new(ErrorKind::Contract, message)
}

fn no_bound(missing: &[(Symbol, String)]) -> String {
    let places: Vec<String> =
        missing.iter().map(|(symbol, place)| format!("`{}` ({place})", symbol.name())).collect();

    let flags: Vec<String> = missing
        .iter()
        .map(|(symbol, _)| {
            if symbol.to_string() == symbol.name() {
                format!("--dim {}=1..64", symbol.name())
            } else {
                format!("--dim '{}=1..64'", symbol.name())
            }
        })
        .collect();

    let verb = if missing.len() == 1 { "has" } else { "have" };
    format!(
        "{} {verb} no upper bound; declare, for example, {}, or compile with --dynamic-memory",
        places.join(", "),
        flags.join(" ")
    )
}

/// Compares an inferred type with a declared one.
///
/// Names of dims are not compared, since exporters invent them. Constants and the number of axes are compared if
/// `strict`. Otherwise a [`contradiction`] gives a warning: exporters get shapes wrong, and the code does not depend on
/// them.
///
/// # Errors
/// The two types contradict each other.
pub(crate) fn check(
    g: &Graph,
    value: Value,
    storage_type: Option<StorageType>,
    declared: &TypeProto,
    strict: bool,
) -> Result<()> {
    refuse_others(declared)?;
    let Some(tensor) = &declared.tensor_type else { return Ok(()) };

    let inferred = g.ty(value);
    let code = storage_type.map_or(inferred.dtype as i32, StorageType::code);
    if tensor.elem_type != 0 && tensor.elem_type != code {
        let declared = weights::dtype(tensor.elem_type)
            .map_or_else(|_| weights::type_name(tensor.elem_type), |d| d.to_string());
        let have = storage_type
            .map_or_else(|| inferred.dtype.to_string(), |storage_type| storage_type.name().to_string());
        return Err(Error::invalid(format!("it is declared as {declared}, but its elements are {have}")));
    }

    match contradiction(g, value, tensor).filter(|_| strict) {
        Some(message) => Err(Error::invalid(message)),
        None => Ok(()),
    }
}

/// A sentence about the first contradiction between a declared shape and the inferred shape of `value`.
pub(crate) fn contradiction(g: &Graph, value: Value, declared: &TensorTypeProto) -> Option<String> {
    let inferred = g.shape(value);
    let shape = declared.shape.as_ref()?;
    if shape.dim.len() != inferred.len() {
        let axes = shape.dim.len();
        return Some(format!("it is declared with {axes} axes, but its shape is {}", shape_text(inferred)));
    }

    let mut dims = shape.dim.iter().zip(inferred).enumerate();
    dims.find_map(|(k, (declared, dim))| {
        let size = declared.dim_value.filter(|size| *size >= 0)?;
        let differs = g.facts.prove_ne(dim, &size.into()).is_yes();
        differs.then(|| format!("axis {k} is declared as {size}, but it is {dim}"))
    })
}
