//! Models of the examples.

use crate::{
    import::{
        model::proto::{
            AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
            TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
        },
        ops::{TABLES, table::Row},
    },
    scalar::{Scalar, eval::cast},
    tensor::Tensor,
};
use symshape_runtime::DType;

/// An example of an operator.
pub(crate) struct Example {
    /// A model with this operator only.
    pub(crate) model: ModelProto,
    /// The inputs of the model.
    pub(crate) given: Vec<Tensor>,
    /// Its outputs.
    pub(crate) wanted: Vec<Tensor>,
}

/// Splits `text` at `separator`, outside of brackets and quotes.
fn cut(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut depth = 0;

    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            c if c == separator && depth == 0 && !quoted => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }

    parts.push(text[start..].trim());
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

fn tensor(text: &str) -> Tensor {
    let digits =
        text.find(|c| "[:".contains(c)).filter(|at| text[..*at].chars().all(|c| c.is_ascii_alphanumeric()));

    let (dtype, list) = match digits {
        Some(at) if at > 0 => {
            (DType::from_name(&text[..at]).expect("a type"), text[at..].trim_start_matches(':'))
        }
        _ => (DType::F32, text),
    };

    let mut shape = Vec::new();
    let mut elems = Vec::new();
    read(list, 0, dtype, &mut shape, &mut elems);

    Tensor::from_scalars(dtype, shape, &elems).unwrap_or_else(|| panic!("`{text}` is ragged"))
}

fn read(text: &str, depth: usize, dtype: DType, shape: &mut Vec<usize>, elems: &mut Vec<Scalar>) {
    let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) else {
        let value: f64 = text.parse().unwrap_or_else(|_| panic!("`{text}` is not a number"));
        elems.push(if dtype.is_float() {
            Scalar::from_f64(dtype, value)
        } else {
            Scalar::from_i64(dtype, value as i64)
        });
        return;
    };

    let parts = cut(inner, ',');
    if shape.len() == depth {
        shape.push(parts.len());
    }

    parts.iter().for_each(|part| read(part, depth + 1, dtype, shape, elems));
}

fn attribute(text: &str) -> AttributeProto {
    let (name, value) = text.split_once('=').expect("name=value");
    let mut out = AttributeProto { name: name.to_string(), ..Default::default() };
    if let Some(quoted) = value.strip_prefix('"') {
        (out.kind, out.s) = (3, quoted.trim_end_matches('"').to_string().into());
    } else if let Some(list) = value.strip_prefix('[') {
        let parts = cut(list.trim_end_matches(']'), ',');
        if value.contains('"') {
            let text = |part: &&str| part.trim().trim_matches('"').to_string().into();
            (out.kind, out.strings) = (8, parts.iter().map(text).collect());
        } else if value.contains('.') {
            (out.kind, out.floats) = (6, parts.iter().map(|part| part.parse().expect("a number")).collect())
        } else {
            (out.kind, out.ints) = (7, parts.iter().map(|part| part.parse().expect("a number")).collect())
        }
    } else if value.contains('[') {
        (out.kind, out.t) = (4, Some(constant("", &tensor(value))));
    } else if value.contains('.') || value == "nan" {
        (out.kind, out.f) = (1, value.parse().expect("a number"));
    } else {
        (out.kind, out.i) = (2, value.parse().expect("a number"));
    }

    out
}

fn declared(name: &str, tensor: &Tensor) -> ValueInfoProto {
    let dim = |size: &usize| DimensionProto { dim_value: Some(*size as i64), dim_param: None };
    let shape = TensorShapeProto { dim: tensor.shape().iter().map(dim).collect() };
    let ty = TensorTypeProto { elem_type: tensor.dtype() as i32, shape: Some(shape) };
    ValueInfoProto {
        name: name.to_string(),
        ty: Some(TypeProto { tensor_type: Some(ty), ..Default::default() }),
    }
}

/// The model of an example. `dtype` replaces the type of the first input.
pub(crate) fn parse(row: &Row, example: &str, dtype: Option<DType>) -> Example {
    let (call, results) = example.split_once(") = ").expect("an example");
    let (name, body) = call.split_once('(').expect("a call");
    let number = |opset: &str| opset.parse().expect("a version");
    let opset = name.split_once('@').map_or_else(|| newest_of(row), |(_, opset)| number(opset));
    let (inputs_text, attributes) = body.split_once(';').unwrap_or((body, ""));
    let (wanted, is_list) = wanted(results);

    let mut graph = GraphProto::default();
    let mut node = NodeProto {
        op_type: row.name.to_string(),
        domain: row.domain.to_string(),
        attribute: cut(attributes, ',').into_iter().map(attribute).collect(),
        output: (0..wanted.len()).map(|k| format!("y{k}")).collect(),
        ..Default::default()
    };

    let mut inputs = Inputs { graph: &mut graph, dtype, own: None, given: Vec::new() };
    for (k, input) in cut(inputs_text, ',').into_iter().enumerate() {
        let name = match input {
            "_" => String::new(),
            _ => inputs.add(&format!("x{k}"), k == 0, input),
        };
        node.input.push(name);
    }

    let given = inputs.given;
    let output = |k: usize| ValueInfoProto { name: format!("y{k}"), ty: None };
    graph.output = match dtype {
        Some(_) => (0..wanted.len()).map(output).collect(),
        None => wanted.iter().enumerate().map(|(k, value)| declared(&format!("y{k}"), value)).collect(),
    };

    if is_list {
        node.output = vec!["list".to_string()];
    }

    graph.node.push(node);
    if is_list {
        take_apart(&mut graph, wanted.len() - 1);
    }

    let opsets = [("", if row.domain.is_empty() { opset } else { 21 }), (row.domain, opset)];
    let opset_import =
        opsets.map(|(domain, version)| OperatorSetIdProto { domain: domain.to_string(), version }).to_vec();
    let model = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() };
    Example { model, given, wanted }
}

/// The expected outputs.
fn wanted(results: &str) -> (Vec<Tensor>, bool) {
    match results.strip_prefix('{').and_then(|list| list.strip_suffix('}')) {
        None => (cut(results, ',').into_iter().map(tensor).collect(), false),
        Some(list) => {
            let mut wanted: Vec<Tensor> = cut(list, ',').into_iter().map(tensor).collect();
            wanted.push(tensor(&format!("i64:{}", wanted.len())));
            (wanted, true)
        }
    }
}

/// Defines the elements of `list` as the first outputs, and its length as the next.
fn take_apart(graph: &mut GraphProto, len: usize) {
    let node = |op: &str, inputs: &[String], output: usize| NodeProto {
        op_type: op.to_string(),
        input: inputs.to_vec(),
        output: vec![format!("y{output}")],
        ..Default::default()
    };

    let list = "list".to_string();
    for k in 0..len {
        let at = format!("at{k}");
        graph.initializer.push(constant(&at, &tensor(&format!("i64:{k}"))));
        graph.node.push(node("SequenceAt", &[list.clone(), at], k));
    }

    graph.node.push(node("SequenceLength", &[list], len));
}

/// The inputs of an example, while they are added to its model.
struct Inputs<'a> {
    graph: &'a mut GraphProto,
    /// The type that replaces the type of the first input.
    dtype: Option<DType>,
    own: Option<DType>,
    given: Vec<Tensor>,
}

impl Inputs<'_> {
    /// Adds the input with this text and returns its name.
    fn add(&mut self, name: &str, is_first: bool, text: &str) -> String {
        if let Some(list) = text.strip_prefix('{').and_then(|list| list.strip_suffix('}')) {
            let elements = cut(list, ',').into_iter().enumerate();
            let input =
                elements.map(|(k, element)| self.add(&format!("{name}_{k}"), true, element)).collect();
            let node = NodeProto {
                op_type: "SequenceConstruct".to_string(),
                input,
                output: vec![name.to_string()],
                ..Default::default()
            };
            self.graph.node.push(node);
            return name.to_string();
        }

        let mut value = tensor(text);
        let own = *self.own.get_or_insert(value.dtype());
        if let Some(dtype) = self.dtype.filter(|_| value.dtype() == own) {
            let elems: Vec<Scalar> = (0..value.elems()).map(|k| cast(dtype, value.get(k))).collect();
            value = Tensor::from_scalars(dtype, value.shape().to_vec(), &elems).expect("as many elements");
        }

        let vector = value.shape().len() == 1 && (!is_first || value.dtype() == DType::I64);
        if value.shape().is_empty() || vector {
            self.graph.initializer.push(constant(name, &value))
        } else {
            self.graph.input.push(declared(name, &value));
            self.given.push(value);
        }

        name.to_string()
    }
}

/// The last opset with this row.
fn newest_of(row: &Row) -> i64 {
    last_of(row).unwrap_or(row.since.max(if row.domain.is_empty() { 21 } else { 1 }))
}

/// The last opset before the next row of the same operator, if there is one.
pub(crate) fn last_of(row: &Row) -> Option<i64> {
    let later =
        |other: &&Row| other.name == row.name && other.domain == row.domain && other.since > row.since;
    let next = TABLES.iter().copied().flatten().filter(later).map(|other| other.since).min();
    next.map(|next| next - 1)
}

fn constant(name: &str, value: &Tensor) -> TensorProto {
    TensorProto {
        name: name.to_string(),
        dims: value.shape().iter().map(|size| *size as i64).collect(),
        data_type: value.dtype() as i32,
        raw_data: Some(value.bytes().to_vec().into()),
        ..Default::default()
    }
}
