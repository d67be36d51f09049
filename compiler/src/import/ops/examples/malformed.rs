//! Malformed examples. Each is imported or refused; none may panic.

use crate::{
    graph::verify,
    import::{
        ImportOptions, Model, import,
        model::proto::{
            AttributeProto, DimensionProto, GraphProto, ModelProto, TensorProto, TensorShapeProto,
            TensorTypeProto, TypeProto, ValueInfoProto,
        },
        ops::examples::{SOURCES, is_of, model, rows},
    },
};
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
};
use symshape_runtime::DType;

/// Shapes that replace those of the operands; `-1` is a symbol.
const SHAPES: [&[i64]; 13] = [
    &[],
    &[0],
    &[1],
    &[7],
    &[-1],
    &[1, 1],
    &[3, 2],
    &[0, -1],
    &[2, 3, 4],
    &[2, -1, 0],
    &[1, 2, 3, 3],
    &[2, -1, 5, 5, 1],
    &[1, 2, 1, 2, 1, 2],
];

/// Integers that replace attributes and elements of operands.
const NUMBERS: [i64; 8] = [0, -1, 1, 3, -7, 1 << 31, i64::MAX, i64::MIN];

/// The number of operands that are added to those of an example.
const MORE_OPERANDS: usize = 8;

#[test]
fn malformed_examples_do_not_panic() {
    let mut failed = Vec::new();
    let mut tried = 0;
    for (family, row, doc) in rows() {
        for example in doc.examples.iter().filter(|example| is_of(row, example)) {
            let example_model = model::parse(row, example, None).model;
            let mutated = mutated(&example_model)
                .into_iter()
                .chain(with_attributes(&example_model, family))
                .chain(with_operands(&example_model));

            for (change, mutated) in mutated {
                tried += 1;
                let result = catch_unwind(AssertUnwindSafe(|| {
                    let options = ImportOptions { unbounded: true, ..ImportOptions::default() };
                    if let Ok(graph) = import(&Model::from(mutated), &options) {
                        verify::verify(&graph).expect("imported graphs are well-formed");
                    }
                }));
                if result.is_err() {
                    failed.push(format!("{example}: {change}"));
                }
            }
        }
    }

    println!("{tried} models");
    assert!(failed.is_empty(), "{} panics:\n{}", failed.len(), failed.join("\n"));
}

/// Copies of the model, each with a shape, constant or attribute replaced, or with an operand or attribute removed.
fn mutated(model: &ModelProto) -> Vec<(String, ModelProto)> {
    let graph = model.graph.as_ref().expect("a graph");
    let mut all = Vec::new();
    for k in 0..graph.input.len() {
        for shape in SHAPES {
            let other = changed(model, |graph| reshape(&mut graph.input[k], shape));
            all.push((format!("input {k} of shape {shape:?}"), other));
        }
    }

    for (k, tensor) in graph.initializer.iter().enumerate() {
        for (change, other) in other_tensors(tensor) {
            let other = changed(model, |graph| graph.initializer[k] = other);
            all.push((format!("constant {k} {change}"), other));
        }
    }

    for k in 0..graph.node[0].input.len() {
        all.push((format!("no operand {k}"), changed(model, |graph| graph.node[0].input[k].clear())));
    }

    for (k, attribute) in graph.node[0].attribute.iter().enumerate() {
        for other in other_attributes(attribute) {
            let change = format!("{} {} {:?} {}", other.name, other.i, other.ints, other.f);
            all.push((change, changed(model, |graph| graph.node[0].attribute[k] = other)));
        }
        let without = changed(model, |graph| drop(graph.node[0].attribute.remove(k)));
        all.push((format!("no {}", attribute.name), without));
    }

    all
}

/// Copies of the model, each with an added attribute that operators of its family read.
fn with_attributes(model: &ModelProto, family: &str) -> Vec<(String, ModelProto)> {
    let source = SOURCES.iter().find(|(name, _)| *name == family).expect("its source").1;
    let quoted = source.split("(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let names: BTreeSet<&str> = quoted.filter(is_name).collect();

    let mut all = Vec::new();
    for name in names {
        let numbers = NUMBERS.map(|i| AttributeProto { kind: 2, i, ..Default::default() });
        let lists = [0, 1, 2, 3, 4, 6].into_iter().flat_map(|len| {
            [0, 1, -1, 2, i64::MAX].map(|i| AttributeProto {
                kind: 7,
                ints: vec![i; len],
                ..Default::default()
            })
        });

        for attribute in numbers.into_iter().chain(lists) {
            let change = format!("{name}={:?} {:?}", attribute.i, attribute.ints);
            let other = changed(model, |graph| {
                graph.node[0].attribute.retain(|own| own.name != name);
                graph.node[0].attribute.push(AttributeProto { name: name.to_string(), ..attribute });
            });
            all.push((change, other));
        }
    }

    all
}

/// Copies of the model, each with an operand that its example leaves out.
fn with_operands(model: &ModelProto) -> Vec<(String, ModelProto)> {
    let have = model.graph.as_ref().expect("a graph").node[0].input.len();
    let mut all = Vec::new();
    for (k, dtype, shape) in (have..have + MORE_OPERANDS).flat_map(|k| {
        let types = [DType::F32, DType::I64, DType::Bool];
        types.into_iter().flat_map(move |dtype| SHAPES.into_iter().map(move |shape| (k, dtype, shape)))
    }) {
        let tensor = TensorTypeProto { elem_type: dtype as i32, shape: None };
        let ty = TypeProto { tensor_type: Some(tensor), ..Default::default() };
        let mut info = ValueInfoProto { name: "more".to_string(), ty: Some(ty) };
        reshape(&mut info, shape);
        let other = changed(model, |graph| {
            graph.node[0].input.resize(k, String::new());
            graph.node[0].input.push(info.name.clone());
            graph.input.push(info);
        });
        all.push((format!("operand {k} {dtype}{shape:?}"), other));
    }

    all
}

fn changed(model: &ModelProto, change: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let mut model = model.clone();
    change(model.graph.as_mut().expect("a graph"));
    model
}

fn reshape(info: &mut ValueInfoProto, shape: &[i64]) {
    let named = |k: usize| Some(format!("S{k}"));
    let dim = |(k, size): (usize, &i64)| match size {
        -1 => DimensionProto { dim_value: None, dim_param: named(k) },
        size => DimensionProto { dim_value: Some(*size), dim_param: None },
    };
    let ty = info.ty.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor");
    ty.shape = Some(TensorShapeProto { dim: shape.iter().enumerate().map(dim).collect() });
}

/// The constant with other shapes, and with other elements if they are 64-bit integers.
fn other_tensors(tensor: &TensorProto) -> Vec<(String, TensorProto)> {
    let bytes = tensor.raw_data.clone().unwrap_or_default();
    let elems = tensor.dims.iter().product::<i64>() as usize;

    let mut others = Vec::new();
    for shape in SHAPES.iter().filter(|shape| !shape.contains(&-1) && elems > 0) {
        let size = shape.iter().product::<i64>() as usize * (bytes.len() / elems);
        let data: Vec<u8> = bytes.iter().copied().cycle().take(size).collect();
        let other = TensorProto { dims: shape.to_vec(), raw_data: Some(data.into()), ..tensor.clone() };
        others.push((format!("of shape {shape:?}"), other));
    }

    if bytes.len() == 8 * elems {
        for number in NUMBERS {
            let other =
                TensorProto { raw_data: Some(number.to_le_bytes().repeat(elems).into()), ..tensor.clone() };
            others.push((format!("all {number}"), other));
        }
    }

    others
}

fn other_attributes(attribute: &AttributeProto) -> Vec<AttributeProto> {
    let ints = &attribute.ints;
    let floats = &attribute.floats;

    let mut others = Vec::new();
    for number in NUMBERS {
        others.push(AttributeProto { i: number, ..attribute.clone() });
        others.extend((0..ints.len()).map(|k| {
            let mut other = attribute.clone();
            other.ints[k] = number;
            other
        }));
    }

    for number in [0.0, -1.0, 1e30, f32::NAN, f32::INFINITY] {
        others.push(AttributeProto { f: number, floats: vec![number; floats.len()], ..attribute.clone() });
    }

    for len in [0, 1, ints.len().saturating_sub(1), ints.len() + 1, 9] {
        let ints = ints.iter().copied().cycle().take(len).collect();
        let floats = floats.iter().copied().cycle().take(len).collect();
        others.push(AttributeProto { ints, floats, ..attribute.clone() });
    }

    others.push(AttributeProto { s: "other".to_string().into(), ..attribute.clone() });
    others
}
