//! The words for sizes: `--dim N=1..64/8`, `--input x=N,3,224`, `--bind k=5`, `--at N=8,S=128`, and bounds.json.

use super::{at_path, npy, usage};
use crate::{
    error::{At, Result},
    scalar::Scalar,
    tensor::Tensor,
};
use std::{collections::BTreeMap, fs, path::Path};
use symshape::{Declaration, Dim};
use symshape_runtime::DType;

/// Splits `NAME=REST`, at the last `=` of the name's side: names may hold anything but that.
fn split<'t>(flag: &str, text: &'t str, form: &str) -> Result<(&'t str, &'t str)> {
    let parts = text.split_once('=').map(|(name, rest)| (name.trim(), rest.trim()));
    match parts {
        Some((name, rest)) if !name.is_empty() && !rest.is_empty() => Ok((name, rest)),
        _ => Err(usage(format!("--{flag} {text}: expected {form}"))),
    }
}

/// `NAME=LO..HI`, `NAME=LO..HI/STEP` or `NAME=V1,V2,V3`.
pub(super) fn dim(text: &str) -> Result<(String, Declaration)> {
    const FORM: &str = "NAME=LO..HI, NAME=LO..HI/STEP or NAME=V1,V2,V3 with whole numbers";
    let (name, rest) = split("dim", text, FORM)?;
    let wrong = || usage(format!("--dim {text}: expected {FORM}"));
    let number = |text: &str| text.trim().parse::<i64>().map_err(|_| wrong());
    let declaration = match rest.split_once("..") {
        Some((lo, rest)) => {
            let (hi, step) = rest.split_once('/').unwrap_or((rest, "1"));
            let (lo, hi, step) = (number(lo)?, number(hi.trim_start_matches('='))?, number(step)?);
            if lo > hi || step < 1 || lo < 0 {
                return Err(usage(format!("--dim {text}: no size lies in that range")));
            }
            // The step counts from zero, as in "a multiple of 8"; a range that holds none begins at LO.
            let offset = if lo.div_euclid(step) * step + step > hi && lo % step != 0 { lo } else { 0 };
            Declaration::range(lo, hi).step(step, offset)
        }
        None => {
            let values = rest.split(',').map(number).collect::<Result<Vec<i64>>>()?;
            if values.iter().any(|value| *value < 0) {
                return Err(usage(format!("--dim {text}: sizes are not negative")));
            }
            Declaration::values(values)
        }
    };
    Ok((name.to_string(), declaration.origin(&format!("--dim {text}"))))
}

/// `NAME=D0,D1,…`: numbers and expressions over symbols; `NAME=` alone can't be said, a scalar is `NAME=[]`.
pub(super) fn input(text: &str) -> Result<(String, Vec<Dim>)> {
    let (name, rest) = split("input", text, "NAME=D0,D1,… with symbols or numbers")?;
    let rest = rest.trim_start_matches('[').trim_end_matches(']');
    let dims = split_dims(rest).into_iter().map(|dim| {
        dim.parse::<Dim>().map_err(|error| usage(format!("--input {text}: `{dim}`: {error}")))
    });
    Ok((name.to_string(), dims.collect::<Result<_>>()?))
}

/// Splits at commas outside parentheses.
fn split_dims(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// What `--bind` says of an input.
#[derive(Clone, Debug)]
pub(super) enum Bound {
    /// Numbers, to be converted to the input's type and shape.
    Numbers(Vec<f64>),
    /// A tensor from a file.
    Tensor(Tensor),
}

/// `NAME=VALUE`: a number, several, or an `.npy` file.
pub(super) fn bind(text: &str) -> Result<(String, Bound)> {
    let (name, rest) = split("bind", text, "NAME=VALUE: numbers, true, false or a file F.npy")?;
    if rest.ends_with(".npy") {
        return Ok((name.to_string(), Bound::Tensor(npy::read(Path::new(rest))?)));
    }
    let number = |word: &str| match word.trim() {
        "true" => Ok(1.0),
        "false" => Ok(0.0),
        word => word.parse::<f64>().map_err(|_| usage(format!("--bind {text}: `{word}` is no number"))),
    };
    let list = rest.trim_start_matches('[').trim_end_matches(']');
    let numbers = list.split(',').map(number).collect::<Result<_>>()?;
    Ok((name.to_string(), Bound::Numbers(numbers)))
}

impl Bound {
    /// The tensor, for an input of this type and rank.
    pub(super) fn tensor(&self, dtype: DType, rank: usize) -> Result<Tensor> {
        match self {
            Bound::Tensor(tensor) => Ok(tensor.clone()),
            Bound::Numbers(numbers) => {
                let elems: Vec<Scalar> = numbers.iter().map(|number| Scalar::from_f64(dtype, *number)).collect();
                let shape = match (rank, elems.len()) {
                    (0, 1) => vec![],
                    (1, n) => vec![n],
                    (_, 1) => vec![1; rank],
                    (_, n) => return Err(usage(format!("{n} numbers for an input with {rank} axes"))),
                };
                Ok(Tensor::from_scalars(dtype, shape, &elems).expect("counted"))
            }
        }
    }
}

/// `N=8,S=128`.
pub(super) fn at(text: &str) -> Result<BTreeMap<String, i64>> {
    let mut binding = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let (name, value) = split("at", part, "NAME=SIZE,…")?;
        let value = value.parse().map_err(|_| usage(format!("--at {text}: `{value}` is no size")))?;
        if binding.insert(name.to_string(), value).is_some() {
            return Err(usage(format!("--at {text}: {name} is given twice")));
        }
    }
    Ok(binding)
}

/// A bounds.json: `{"N": [lo, hi]}`.
pub(super) fn bounds(path: &Path) -> Result<Vec<(String, Declaration)>> {
    let text = at_path(fs::read_to_string(path), path)?;
    let place = || path.display().to_string();
    let wrong = |what: &str| crate::Error::invalid(what.to_string());
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| wrong(&error.to_string())).at(place)?;
    let table = value.as_object().ok_or_else(|| wrong("expected {\"N\": [lo, hi]}")).at(place)?;
    let mut all = Vec::new();
    for (name, range) in table {
        let ends = range.as_array().map(|ends| ends.iter().map(|end| end.as_i64()).collect::<Vec<_>>());
        match ends.as_deref() {
            Some([Some(lo), Some(hi)]) if 0 <= *lo && lo <= hi => {
                let declaration = Declaration::range(*lo, *hi).origin(&place());
                all.push((name.clone(), declaration));
            }
            _ => return Err(wrong(&format!("`{name}`: expected [lo, hi] with 0 <= lo <= hi"))).at(place),
        }
    }
    Ok(all)
}
