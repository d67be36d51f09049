//! Tests of the documentation of operators: they run its examples through the oracle and keep docs/operators.md fresh.
//!
//! An example is a line in backticks, `Op(inputs; attributes) = results` or `Op@opset(…)`. Elements are `f32`, unless a
//! type precedes the bracket (`i64[1, 2]`) or a scalar (`i64:3`). `_` is a missing input. Scalars and vectors are
//! constants of the model; other inputs, and a first input of floats, are inputs of the model. Sequences are in braces.
//! A sequence among the inputs is built by another node, a sequence among the results is split into its elements.

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

/// The documentation of a function: prose, limits and examples.
struct Doc {
    prose: String,
    limits: String,
    examples: Vec<String>,
}

/// Operators of some models.
const TIER_2: [&str; 48] = [
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
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
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
/// Operators that are rare: training, text, and optional values.
const TIER_3: [&str; 15] = [
    "Bernoulli",
    "ConcatFromSequence",
    "Multinomial",
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

/// The tier of the operator: `1`, `2`, `3`, or `contrib` for operators of ONNX Runtime.
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
        assert!(known(name), "{name} is not in the operator table");
    }
}

/// The doc comment of `fn function` in `source`.
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

/// Whether the example is of this row. A function can serve several rows.
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
         A test generates this page from the operator table and its comments in `compiler/src/import/ops`. Don't edit it.\n\n\
         Each entry names an operator, the opsets with this meaning (up to 27), its tier, and element types.\n\
         Tier 1 operators occur in most models, tier 2 operators in some, tier 3 operators in few.\n\
         `contrib` operators are those of ONNX Runtime.\n\
         The element types are those that the first input of the first example accepts.\n\n\
         Names of inputs and attributes are those of the ONNX specification. Inputs and outputs are counted from 0.\n\
         All sizes may be symbolic, unless an entry says otherwise.\n\
         Floats of 8 and 4 bits and integers of 4 and 2 bits can be stored, moved and converted, but not computed with.\n\
         `Cast`, `CastLike`, `BitCast`, `QuantizeLinear` and `DequantizeLinear` convert them.\n\
         Such an element takes one byte in the inputs and outputs of the artefact.\n\
         Sequences may occur inside of a model if their lengths are known at compile time.\n\n\
         Random operators are functions of a seed, see [random.md](random.md).\n\
         Not supported: strings, maps, sparse tensors, image decoding and training.\n",
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

    page + include_str!("differences.md")
}

/// The element types that the first input of the first example accepts.
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
        (true, true) => "numeric types".to_string(),
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

/// The computed and the expected results of an example. `dtype` replaces the type of the first input.
fn compute(row: &Row, example: &str, dtype: Option<DType>) -> Result<(Vec<Tensor>, Vec<Tensor>), String> {
    let model::Example { model, given, wanted } = model::parse(row, example, dtype);
    let graph = import(&Model::from(model), &ImportOptions::default())
        .map_err(|error| format!("{example}: {error}"))?;
    let found = eval(&graph, &given).map_err(|error| format!("{example}: {error}"))?;
    Ok((found, wanted))
}
