//! The documentation of the operators as tests: runs its examples through the oracle and keeps docs/operators.md fresh.
//!
//! An example is a line of its own in backticks, `Op(inputs; attributes) = results`, also `Op@opset(…)`. Elements are
//! `f32` unless a type stands before the bracket (`i64[1, 2]`) or before a lone number (`i64:3`); `_` is a missing input.
//! Scalars and vectors are constants of the model, other inputs and a first one of floats are given when it runs.
//! A sequence stands in braces: one among the inputs is made by a node of its own, one that comes out is taken apart.

mod malformed;
mod model;

use crate::{
    graph::eval::eval,
    import::{
        ImportOptions, Model, import,
        ops::{SOURCES, TABLES, table::Row},
    },
    tensor::Tensor,
};
use model::last_of;
use std::fmt::Write;
use symshape_runtime::DType;

/// The documentation of a function: prose, what it can't do, and examples.
struct Doc {
    prose: String,
    limits: String,
    examples: Vec<String>,
}

/// Operators that models have now and then.
const TIER_2: [&str; 44] = [
    "Acos",
    "Acosh",
    "AffineGrid",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitCast",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "BlackmanWindow",
    "CausalConvWithState",
    "Celu",
    "CenterCropPad",
    "Col2Im",
    "Compress",
    "Cosh",
    "CumProd",
    "DeformConv",
    "Det",
    "GlobalLpPool",
    "HammingWindow",
    "Hardmax",
    "LinearAttention",
    "LpNormalization",
    "LpPool",
    "MaxUnpool",
    "MeanVarianceNormalization",
    "ReduceL1",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
    "ReverseSequence",
    "Shrink",
    "Sinh",
    "Softsign",
    "Tan",
    "TensorScatter",
    "ThresholdedRelu",
    "Unique",
    "Xor",
];
/// Operators for training, text, and values that may be absent.
const TIER_3: [&str; 13] = [
    "ConcatFromSequence",
    "NegativeLogLikelihoodLoss",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SoftmaxCrossEntropyLoss",
    "SplitToSequence",
    "TfIdfVectorizer",
];

/// How common the operator is: 1, 2 or 3; the runtime's own ones are `contrib`.
fn tier(row: &Row) -> &'static str {
    match row.domain {
        "" if TIER_2.contains(&row.name) => "2",
        "" if TIER_3.contains(&row.name) => "3",
        "" => "1",
        "com.microsoft" => "contrib",
        _ => "3",
    }
}

#[test]
fn tiers_name_operators() {
    let known =
        |name: &&str| TABLES.iter().copied().flatten().any(|row| row.domain.is_empty() && row.name == *name);
    for name in TIER_2.iter().chain(&TIER_3) {
        assert!(known(name), "{name} is no operator of the table");
    }
}

/// The comment above `fn function` in `source`.
fn doc_of(source: &str, function: &str) -> Doc {
    let head = format!("fn {function}(");
    let shared = format!("pub(crate) {head}");

    let lines: Vec<&str> = source.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.starts_with(&head) || line.starts_with(&shared))
        .unwrap_or_else(|| panic!("no {head}"));

    let start = lines[..at].iter().rposition(|line| !line.starts_with("///")).map_or(0, |k| k + 1);
    let mut doc = Doc { prose: String::new(), limits: String::new(), examples: Vec::new() };

    let mut in_limits = false;
    for line in &lines[start..at] {
        let text = line.trim_start_matches("///").trim();
        match text
            .strip_prefix('`')
            .and_then(|text| text.strip_suffix('`'))
            .filter(|text| text.contains(") = "))
        {
            Some(example) => doc.examples.push(example.to_string()),
            None if text.is_empty() => in_limits = false,
            None if text.starts_with("Limits: ") => {
                in_limits = true;
                doc.limits = text.trim_start_matches("Limits: ").to_string();
            }
            None if in_limits => write!(doc.limits, " {text}").expect("a string takes all"),
            None if doc.prose.is_empty() => doc.prose = text.to_string(),
            None => write!(doc.prose, " {text}").expect("a string takes all"),
        }
    }

    doc
}

fn rows() -> impl Iterator<Item = (&'static str, &'static Row, Doc)> {
    TABLES.iter().zip(SOURCES).flat_map(|(table, (family, source))| {
        table.iter().map(move |row| (*family, row, doc_of(source, row.function)))
    })
}

/// A function can serve several rows; an example is written for one of them.
fn is_of(row: &Row, example: &str) -> bool {
    example.split(['(', '@']).next() == Some(row.name)
}

#[test]
fn examples_hold() {
    let mut wrong = Vec::new();
    for (family, row, doc) in rows() {
        assert!(!doc.prose.is_empty(), "{family}: {} has no documentation", row.name);
        for example in doc.examples.iter().filter(|example| is_of(row, example)) {
            wrong.extend(run(row, example).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_operator_has_an_example() {
    for (family, row, doc) in rows() {
        assert!(
            !doc.examples.is_empty() || ["Control flow", "Scan"].contains(&family),
            "{} has no example",
            row.name
        );
    }
}

#[test]
fn operator_pages_are_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operators.md");
    let page = page();
    if std::env::var_os("BLESS").is_some_and(|value| value == "1") {
        std::fs::write(path, &page).expect("the page can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == page, "docs/operators.md is stale; BLESS=1 cargo test operator_pages rewrites it");
}

fn page() -> String {
    let mut page = String::from(
        "# ONNX operators\n\n\
         Written by a test from the operator table and its comments (compiler/src/import/ops); don't edit.\n\
         Behind each name stand the versions of the operator set with this meaning (those up to 27 are known), the tier\n\
         (1: what most models are made of, 2: what models have now and then, 3: the rest; contrib: ONNX Runtime's own)\n\
         and the element types with which the first example is accepted in place of its own.\n\n\
         Sizes may be symbols everywhere, unless an entry says otherwise. Elements of 8- and 4-bit floats and of 4- and\n\
         2-bit integers are stored and converted (`Cast`, `CastLike`, `BitCast`, `QuantizeLinear`, `DequantizeLinear`) and\n\
         moved, but not computed with; as inputs and outputs of the artefact they are bytes, one for each element.\n\
         Sequences may stand inside of a model, if their lengths are known while compiling.\n\
         Not done at all: strings, maps, sparse tensors, decoding of images, random numbers, and the operators of\n\
         training.\n",
    );

    let mut last = "";
    for (family, row, doc) in rows() {
        if family != last {
            writeln!(page, "\n## {}\n", family).expect("a string takes all");
            last = family;
        }

        let domain = if row.domain.is_empty() { String::new() } else { format!("{}::", row.domain) };
        let versions = match last_of(row) {
            _ if !row.domain.is_empty() => format!("version {}", row.since),
            Some(end) if end == row.since => format!("opset {end}"),
            Some(end) => format!("opsets {} to {end}", row.since),
            None => format!("from opset {}", row.since),
        };

        let types = types_of(row, &doc);
        let types = if types.is_empty() { String::new() } else { format!("; {types}") };
        let limits = if doc.limits.is_empty() { String::new() } else { format!(" *Limits: {}*", doc.limits) };
        let head = format!("- **{domain}{}** ({versions}; tier {}{types})", row.name, tier(row));
        writeln!(page, "{head}: {}{limits}", doc.prose).expect("a string takes all");

        for example in doc.examples {
            writeln!(page, "  `{example}`").expect("a string takes all");
        }
    }

    page
}

/// The types of elements that can stand in place of those of the first example's first input.
fn types_of(row: &Row, doc: &Doc) -> String {
    let Some(example) = doc.examples.iter().find(|example| is_of(row, example)) else { return String::new() };
    let takes = |dtype: &DType| compute(row, example, Some(*dtype)).is_ok();
    let taken: Vec<DType> = DType::ALL.into_iter().filter(takes).collect();
    let all_of = |of: fn(&DType) -> bool| {
        DType::ALL.iter().filter(|dtype| of(dtype)).all(|dtype| taken.contains(dtype))
    };
    let floats = all_of(|dtype| dtype.is_float());
    let ints = all_of(|dtype| dtype.is_int());

    let bool = taken.contains(&DType::Bool);
    let rest = |keep: &dyn Fn(&DType) -> bool| {
        taken.iter().filter(|dtype| keep(dtype)).map(|dtype| dtype.name()).collect::<Vec<_>>().join(" ")
    };

    match (floats, ints) {
        (true, true) if bool => "all types".to_string(),
        (true, true) => "numbers".to_string(),
        (true, false) => format!("floats {}", rest(&|dtype| !dtype.is_float())).trim().to_string(),
        (false, true) => format!("integers {}", rest(&|dtype| !dtype.is_int())).trim().to_string(),
        (false, false) => rest(&|_| true),
    }
}

fn run(row: &Row, example: &str) -> Result<(), String> {
    let (found, wanted) = compute(row, example, None)?;
    for (found, wanted) in found.iter().zip(&wanted) {
        let elems = |tensor: &Tensor| (0..tensor.elems()).map(|k| tensor.get(k).as_f64()).collect::<Vec<_>>();
        let a = elems(found);
        let b = elems(wanted);
        let close = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-6 + 1e-6 * b.abs();
        let same =
            a.iter().zip(&b).all(close) && found.shape() == wanted.shape() && found.dtype() == wanted.dtype();
        if !same {
            return Err(format!("{example}: found {found:?} {a:?}"));
        }
    }

    Ok(())
}

/// What the example gives and what it says that it gives; with `dtype` in place of the first input's type.
fn compute(row: &Row, example: &str, dtype: Option<DType>) -> Result<(Vec<Tensor>, Vec<Tensor>), String> {
    let model::Example { model, given, wanted } = model::parse(row, example, dtype);
    let graph = import(&Model::from(model), &ImportOptions::default())
        .map_err(|error| format!("{example}: {error}"))?;
    let found = eval(&graph, &given).map_err(|error| format!("{example}: {error}"))?;
    Ok((found, wanted))
}
