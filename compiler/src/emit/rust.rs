//! A Rust module for a model that is linked into the program. It has a type with the contract as constants, and a call
//! that takes the symbols as integers and the tensors as slices.
//!
//! The module refers only to `symshape_runtime` and to the descriptor that the model's object exports.

use super::template::{filled, named};
use crate::{
    kernel::{Port, Program},
    plan::{Plan, arena_formula},
};
use std::{
    collections::HashSet,
    fmt::{Result, Write},
};
use symshape::{Dim, Node, Symbol};
use symshape_runtime::DType;

/// The source of the module.
pub(crate) fn module(program: &Program, plan: &Plan) -> String {
    let mut text = String::new();
    write_module(&mut text, program, plan).expect("writing to a string can't fail");
    text
}

/// Identifiers in the module.
struct ModuleNames {
    ty: String,
    symbols: Vec<String>,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl ModuleNames {
    fn new(program: &Program) -> ModuleNames {
        let mut taken = HashSet::new();
        let mut list = |names: Vec<&str>| -> Vec<String> {
            names.into_iter().map(|name| unique(snake_case(name), &mut taken)).collect()
        };
        let ports = |ports: &'_ [Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
        let inputs = ports(&program.inputs);
        let outputs = ports(&program.outputs);

        ModuleNames {
            ty: camel_case(&program.name),
            symbols: list(program.symbols.iter().map(Symbol::name).collect()),
            inputs: list(inputs.iter().map(String::as_str).collect()),
            outputs: list(outputs.iter().map(String::as_str).collect()),
        }
    }
}

fn write_module(out: &mut String, program: &Program, plan: &Plan) -> Result {
    let names = ModuleNames::new(program);
    let ty = &names.ty;

    let name = &program.name;
    writeln!(out, "{}", named(include_str!("descriptor.txt"), name))?;
    contract(out, program, plan)?;
    writeln!(
        out,
        "pub struct {ty} {{\n    context: ::symshape_runtime::Context,\n}}\n\n#[allow(dead_code)]\nimpl {ty} {{"
    )?;

    constants(out, program, plan, &names)?;
    let constructors = filled(include_str!("module.txt"), &[("TYPE", ty), ("PREFIX", name)]);
    write!(out, "\n{constructors}\n")?;
    run(out, program, &names)?;

    writeln!(out, "}}")
}

/// The documentation of the type.
fn contract(out: &mut String, program: &Program, plan: &Plan) -> Result {
    writeln!(
        out,
        "/// The model `{}`, compiled by symshape {}.\n///",
        program.name,
        env!("CARGO_PKG_VERSION")
    )?;

    for symbol in &program.symbols {
        if let Some(declared) = program.facts.declaration(symbol) {
            writeln!(out, "/// - `{}` is {}.", line(symbol.name()), line(&declared.to_string()))?;
        }
    }

    for (verb, ports) in [("takes", &program.inputs), ("returns", &program.outputs)] {
        for port in ports {
            writeln!(out, "/// - It {verb} `{}: {}`.", line(&port.name), shape(program, port))?;
        }
    }

    writeln!(out, "/// - A call takes `{}` bytes of arena.", line(&arena_formula(program, plan)))
}

fn constants(out: &mut String, program: &Program, plan: &Plan, names: &ModuleNames) -> Result {
    writeln!(out, "    /// Upper bound of the arena's bytes over all allowed sizes.")?;
    writeln!(out, "    pub const ARENA_MAX: usize = {};", plan.arena_max)?;

    for (symbol, name) in program.symbols.iter().zip(&names.symbols) {
        let Some(declared) = program.facts.declaration(symbol) else { continue };
        let upper = name.trim_start_matches("r#").to_ascii_uppercase();
        writeln!(
            out,
            "    /// The smallest `{}`.\n    pub const {upper}_MIN: usize = {};",
            line(symbol.name()),
            declared.lo
        )?;

        if let Some(hi) = &declared.hi {
            writeln!(
                out,
                "    /// The largest `{}`.\n    pub const {upper}_MAX: usize = {hi};",
                line(symbol.name())
            )?;
        }
    }

    Ok(())
}

/// The function `run`.
fn run(out: &mut String, program: &Program, names: &ModuleNames) -> Result {
    writeln!(out, "    /// One call; slices are dense and row-major.\n    ///")?;
    let ports = || program.inputs.iter().zip(&names.inputs).chain(program.outputs.iter().zip(&names.outputs));
    for (port, name) in ports() {
        writeln!(out, "    /// - `{name}`: `{}`", shape(program, port))?;
    }

    writeln!(
        out,
        "    ///\n    /// # Errors\n    /// When a size is outside the contract or a slice has another length; nothing is written then. Also"
    )?;
    writeln!(out, "    /// when an index in the data is out of bounds.")?;
    writeln!(out, "    #[allow(clippy::too_many_arguments, reason = \"one for each symbol and tensor\")]")?;
    writeln!(out, "    pub fn run(\n        &mut self,")?;

    for name in &names.symbols {
        writeln!(out, "        {name}: usize,")?;
    }

    let elem = |port: &Port| element(program.buffers[port.buffer].dtype);
    for (port, name) in program.inputs.iter().zip(&names.inputs) {
        writeln!(out, "        {name}: &[{}],", elem(port))?;
    }

    for (port, name) in program.outputs.iter().zip(&names.outputs) {
        writeln!(out, "        {name}: &mut [{}],", elem(port))?;
    }

    writeln!(out, "    ) -> Result<(), ::symshape_runtime::CallError> {{")?;
    writeln!(out, "        use ::symshape_runtime::{{CallError, TensorMut, TensorRef}};")?;

    for (symbol, name) in program.symbols.iter().zip(&names.symbols) {
        writeln!(
            out,
            "        // {}\n        let {name} = i64::try_from({name}).unwrap_or(i64::MAX);",
            line(symbol.name())
        )?;
    }

    // Only sizes outside the contract give a negative size, and no slice is as long as `usize::MAX`.
    writeln!(out, "        let size = |dim: i64| usize::try_from(dim).unwrap_or(usize::MAX);")?;

    let mut args = Vec::new();
    for (kind, ports, names_of) in
        [("", &program.inputs, &names.inputs), ("_mut", &program.outputs, &names.outputs)]
    {
        let mut list = Vec::new();
        for (port, name) in ports.iter().zip(names_of) {
            let dims: Vec<String> =
                port.shape.iter().map(|dim| format!("size({})", expression(dim, program, names))).collect();
            let dtype = program.buffers[port.buffer].dtype;
            let tensor = tensor_of_slice(kind, name, dtype, &dims.join(", "));
            writeln!(
                out,
                "        let {name} = {tensor}\n            .map_err(|error| CallError::NoTensor {{ tensor: {:?}, error }})?;",
                port.name
            )?;
            list.push(name.clone());
        }

        args.push(list.join(", "));
    }

    writeln!(out, "        self.context.run(&[{}], &mut [{}])\n    }}", args[0], args[1])
}

/// The expression for a tensor over the slice `name`.
fn tensor_of_slice(kind: &str, name: &str, dtype: DType, dims: &str) -> String {
    let raw = matches!(dtype, DType::F16 | DType::BF16);
    match (kind.is_empty(), raw) {
        (true, false) => format!("TensorRef::new(&[{dims}], {name})"),
        (true, true) => {
            format!("TensorRef::from_bytes(::symshape_runtime::DType::{dtype:?}, &[{dims}], {name})")
        }
        (false, false) => format!("TensorMut::shaped(&[{dims}], {name})"),
        (false, true) => format!("TensorMut::from_bytes(::symshape_runtime::DType::{dtype:?}, {name})"),
    }
}

/// The Rust type of an element. Half-precision floats are bytes, since Rust has no type for them.
fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::Bool => "bool",
        DType::U8 | DType::F16 | DType::BF16 => "u8",
        DType::I8 => "i8",
        DType::U16 => "u16",
        DType::I16 => "i16",
        DType::U32 => "u32",
        DType::I32 => "i32",
        DType::U64 => "u64",
        DType::I64 => "i64",
    }
}

/// A dim as a Rust expression of type `i64`. It may saturate at sizes outside the contract, which the call refuses
/// later.
fn expression(dim: &Dim, program: &Program, names: &ModuleNames) -> String {
    let inner = |dim: &Dim| expression(dim, program, names);
    let chain = |list: &[Dim], method: &str| {
        let rest: String = list[1..].iter().map(|dim| format!(".{method}({})", inner(dim))).collect();
        format!("({}){rest}", inner(&list[0]))
    };

    match dim.node() {
        Node::Int(value) => format!("{value}_i64"),
        Node::Symbol(symbol) => {
            let known = program.symbols.iter().position(|other| other == symbol);
            known.map_or_else(|| "0_i64".to_string(), |idx| names.symbols[idx].clone())
        }
        Node::Add(terms) => chain(terms, "saturating_add"),
        Node::Mul(factors) => chain(factors, "saturating_mul"),
        Node::Min(operands) => chain(operands, "min"),
        Node::Max(operands) => chain(operands, "max"),
        // The compiler has proved that every divisor is positive.
        Node::FloorDiv(a, b) => format!("({}).div_euclid(({}).max(1))", inner(a), inner(b)),
        Node::Mod(a, b) => format!("({}).rem_euclid(({}).max(1))", inner(a), inner(b)),
    }
}

/// The type of a tensor as text, such as `f32[N, 3]`.
fn shape(program: &Program, port: &Port) -> String {
    let dims: Vec<String> = port.shape.iter().map(Dim::to_string).collect();
    line(&format!("{}[{}]", program.buffers[port.buffer].dtype, dims.join(", ")))
}

/// Text that stays within a line of a comment.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || c == '`' { ' ' } else { c }).collect()
}

fn unique(name: String, taken: &mut HashSet<String>) -> String {
    let mut free = name.clone();
    let mut number = 2;
    while !taken.insert(free.clone()) {
        free = format!("{}_{number}", name.trim_start_matches("r#"));
        number += 1;
    }
    free
}

/// A name for a variable.
fn snake_case(name: &str) -> String {
    const KEYWORDS: &str = " as async await box break const continue dyn else enum extern false fn for gen if impl in \
        let loop match mod move mut pub ref return static struct trait true type unsafe use where while yield abstract \
        become do final macro override priv try typeof unsized virtual union ";

    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect();
    match clean.trim_matches('_') {
        "" => "unnamed".to_string(),
        // These can't be raw identifiers; `size` is a local variable of `run`.
        word @ ("self" | "super" | "crate" | "size") => format!("{word}_"),
        word if KEYWORDS.contains(&format!(" {word} ")) => format!("r#{word}"),
        word if word.starts_with(|c: char| c.is_ascii_digit()) => format!("_{word}"),
        word => word.to_string(),
    }
}

/// A name for a type.
fn camel_case(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let capital = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    match words.map(capital).collect::<String>() {
        empty if empty.is_empty() => "Model".to_string(),
        digit if digit.starts_with(|c: char| c.is_ascii_digit()) => format!("Model{digit}"),
        word => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_valid_and_unique_identifiers() {
        let mut taken = HashSet::new();
        let mut name = |text: &str| unique(snake_case(text), &mut taken);
        assert_eq!(name("N"), "n");
        assert_eq!(name("n"), "n_2");
        assert_eq!(name("serving_default_input_2:0"), "serving_default_input_2_0");

        assert_eq!(
            (name("type"), name("self"), name("3x"), name("é")),
            ("r#type".into(), "self_".into(), "_3x".into(), "unnamed".into())
        );
        assert_eq!(
            (camel_case("mlp_int8"), camel_case("2d"), camel_case("_")),
            ("MlpInt8".into(), "Model2d".into(), "Model".into())
        );
    }
}
