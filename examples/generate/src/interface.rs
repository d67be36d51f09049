//! The inputs and the output of a decoder, found by their names and dims.

use crate::Error;
use symshape_runtime::{DType, Model, TensorInfo};

/// What an input of the model holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The new tokens, `[rows, new]`.
    Tokens,
    /// 1 for each position that a row may look at, `[rows, past + new]`.
    Mask,
    /// The position of each new token in its row, `[rows, new]`.
    Positions,
}

/// The inputs of a decoder that keeps its keys and values as state, and the bounds of its sizes.
#[derive(Debug)]
pub(crate) struct Interface {
    /// The role of each input.
    pub(crate) inputs: Vec<Role>,
    /// Number of tokens that the model knows.
    pub(crate) vocabulary: usize,
    /// Largest number of new tokens in a call.
    pub(crate) max_new: usize,
    pub(crate) max_past: usize,
    /// Number of positions that a state has memory for.
    pub(crate) capacity: usize,
}

impl Interface {
    /// The roles of a model's inputs and outputs.
    pub(crate) fn of(model: &Model) -> Result<Interface, Error> {
        let tokens = find(model.inputs(), "input_ids")?;
        let [_, new] = tokens.dims() else {
            return Err(Error::NotADecoder("`input_ids` must have two axes".into()));
        };

        let (Some(length), Some(capacity)) = (model.length_symbol(), model.capacity_symbol()) else {
            let message = "it keeps no keys and values as state: compile it with --stateful";
            return Err(Error::NotADecoder(message.into()));
        };
        let inputs = model.inputs().iter().map(role).collect::<Result<_, _>>()?;
        let [logits] = model.outputs() else {
            let others = model.outputs().iter().find(|output| output.name() != "logits");
            let name = others.map_or("", |output| output.name());
            return Err(Error::NotADecoder(format!("it has an output `{name}`")));
        };
        expect_type(logits, DType::F32)?;

        let symbols = model.symbols();
        Ok(Interface {
            inputs,
            vocabulary: vocabulary(find(model.outputs(), "logits")?)?,
            max_new: max_of(model, new).max(1),
            max_past: max_of(model, symbols[length].name()),
            capacity: max_of(model, symbols[capacity].name()),
        })
    }
}

/// The role of an input.
fn role(input: &TensorInfo) -> Result<Role, Error> {
    expect_type(input, DType::I64)?;
    match input.name() {
        "input_ids" => Ok(Role::Tokens),
        "attention_mask" => Ok(Role::Mask),
        "position_ids" => Ok(Role::Positions),
        name => Err(Error::NotADecoder(format!("it has an input `{name}`"))),
    }
}

fn find<'m>(tensors: &'m [TensorInfo], name: &str) -> Result<&'m TensorInfo, Error> {
    let missing = || Error::NotADecoder(format!("it has no `{name}`"));
    tensors.iter().find(|tensor| tensor.name() == name).ok_or_else(missing)
}

fn expect_type(tensor: &TensorInfo, expected: DType) -> Result<(), Error> {
    if tensor.dtype() == expected {
        return Ok(());
    }
    Err(Error::NotADecoder(format!("`{}` is {}, not {expected}", tensor.name(), tensor.dtype())))
}

/// The number of logits of a token.
fn vocabulary(logits: &TensorInfo) -> Result<usize, Error> {
    let last = match logits.dims() {
        [_, _, last] => last.parse().ok(),
        _ => None,
    };
    last.ok_or_else(|| Error::NotADecoder("`logits` must be [rows, tokens, vocabulary]".into()))
}

/// The upper bound of a dim: a symbol or a number.
fn max_of(model: &Model, dim: &str) -> usize {
    let symbol = model.symbols().iter().find(|symbol| symbol.name() == dim);
    let bound = symbol.map(|symbol| symbol.hi()).or_else(|| dim.parse().ok());
    bound.and_then(|bound| usize::try_from(bound).ok()).unwrap_or(usize::MAX)
}
