//! Feature transformations of classical machine learning (`ai.onnx.ml`), for numeric features.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{node::OnnxNode, ops::ml::scores::vector},
    scalar::{CompareOp, ReduceOp, Scalar, UnaryOp},
    tensor::{Bytes, Tensor},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    "ai.onnx.ml" ArrayFeatureExtractor 1 array_feature_extractor,
    "ai.onnx.ml" Binarizer 1 binarizer,
    "ai.onnx.ml" FeatureVectorizer 1 feature_vectorizer,
    "ai.onnx.ml" Imputer 1 imputer,
    "ai.onnx.ml" LabelEncoder 2 label_encoder,
    "ai.onnx.ml" Normalizer 1 normalizer,
    "ai.onnx.ml" OneHotEncoder 1 one_hot_encoder,
    "ai.onnx.ml" Scaler 1 scaler,
}

/// The elements of the last axis at the indices in input 1.
///
/// `ArrayFeatureExtractor([[1, 2, 3]], i64[2, 0]) = [[3, 1]]`
fn array_feature_extractor(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let places = n.input(1)?;
    let last =
        g.rank(x).checked_sub(1).ok_or_else(|| Error::invalid("the input must have at least 1 axis"))?;
    let count = g.facts.simplify(&Dim::product(g.shape(places).iter().cloned()));
    let places = g.reshape(places, vec![count])?;
    let y = g.gather(x, places, last)?;
    // A vector is a matrix of one row.
    if last == 0 { g.unsqueeze(y, &[0]) } else { Ok(y) }
}

/// 1 where the input is above `threshold`, 0 elsewhere.
///
/// `Binarizer([0.5, 2]; threshold=1.0) = [0, 1]`
fn binarizer(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let limit = g.number(g.dtype(x), n.float_or("threshold", 0.0)?)?;
    let above = g.compare(CompareOp::Gt, x, limit)?;
    g.cast(g.dtype(x), above)
}

/// The input, with `replaced_value_float` or `replaced_value_int64` replaced by an imputed value. NaN may be replaced.
/// There is one imputed value per column, or one for all.
///
/// `Imputer([[nan, 2]]; imputed_value_floats=[7.0, 8.0], replaced_value_float=nan) = [[7, 2]]`
fn imputer(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let dtype = g.dtype(x);
    let floats = n.floats("imputed_value_floats")?;
    let ints = n.ints("imputed_value_int64s")?;
    let float = n.float_or("replaced_value_float", 0.0)?;
    let int = n.int_or("replaced_value_int64", 0)?;

    let values = match (floats, ints) {
        (Some(floats), _) if dtype.is_float() => vector(g, &floats)?,
        (_, Some(ints)) => g.constant(
            Tensor::from_i64(vec![ints.len()], &ints)
                .ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?,
        )?,
        _ => return Err(Error::invalid("Imputer without values of the input's type")),
    };

    let values = g.cast(dtype, values)?;
    let gone = if dtype.is_float() && float.is_nan() {
        g.unary(UnaryOp::IsNan, x)?
    } else if dtype.is_float() {
        let old = g.number(dtype, float)?;
        g.compare(CompareOp::Eq, x, old)?
    } else {
        let old = g.scalar(Scalar::from_i64(dtype, int))?;
        g.compare(CompareOp::Eq, x, old)?
    };

    g.select(gone, values, x)
}

/// The list of keys or values of a mapping, from the attribute that is present.
fn mapping_list(n: &OnnxNode, prefix: &str) -> Result<Option<Tensor>> {
    if n.has(&format!("{prefix}_strings")) {
        return Err(Error::unsupported("LabelEncoder of strings"));
    }
    if let Some(list) = n.ints(&format!("{prefix}_int64s"))? {
        return Ok(Tensor::from_i64(vec![list.len()], &list));
    }
    if let Some(list) = n.floats(&format!("{prefix}_floats"))? {
        return Ok(Tensor::from_f32(vec![list.len()], &list));
    }
    n.tensor(&format!("{prefix}_tensor"))
}

/// For each element, the value at the position of the element among the keys. Elements that are not keys give a
/// default.
///
/// Limits: numeric keys and values only.
///
/// `LabelEncoder(i64[[1, 5]]; keys_int64s=[5, 6], values_floats=[0.5, 0.6], default_float=9.0) = [[9, 0.5]]`
fn label_encoder(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let needed = || Error::invalid("LabelEncoder needs keys and values");
    let keys = mapping_list(n, "keys")?.ok_or_else(needed)?;
    let values = mapping_list(n, "values")?.ok_or_else(needed)?;
    if keys.elems() != values.elems() || keys.elems() == 0 {
        return Err(Error::invalid(format!("{} keys are given for {} values", keys.elems(), values.elems())));
    }

    let float = n.float_or("default_float", -0.0)?;
    let int = n.int_or("default_int64", -1)?;
    n.string_or("default_string", "_Unused")?;

    let otherwise = match n.tensor("default_tensor")? {
        Some(tensor) if tensor.elems() == 1 => tensor.get(0),
        Some(_) => return Err(Error::invalid("default_tensor must have one element")),
        None if values.dtype().is_float() => Scalar::from_f64(values.dtype(), float),
        None => Scalar::from_i64(values.dtype(), int),
    };

    let count = keys.elems();
    let [keys, values] =
        [keys, values].map(|list| Tensor::new(list.dtype(), vec![count], Bytes::Owned(list.bytes().into())));
    let missing = || Error::internal("the elements of a list must match its shape");
    let keys = g.constant(keys.ok_or_else(missing)?)?;
    let values = g.constant(values.ok_or_else(missing)?)?;
    let keys = g.cast(g.dtype(x), keys)?;

    let last = g.rank(x);
    let unsqueezed = g.unsqueeze(x, &[last])?;

    let hit = g.compare(CompareOp::Eq, unsqueezed, keys)?;
    let hit = if g.dtype(x).is_float() {
        // A key may be NaN, which equals NaN here.
        let a = g.unary(UnaryOp::IsNan, unsqueezed)?;
        let b = g.unary(UnaryOp::IsNan, keys)?;
        let both = g.and(a, b)?;
        g.or(hit, both)?
    } else {
        hit
    };

    let hit = g.cast(DType::I32, hit)?;
    let place = g.argreduce(ReduceOp::Max, hit, last, false, false)?;
    let found = g.reduce(ReduceOp::Max, hit, &[last], false)?;
    let found = g.cast(DType::Bool, found)?;
    let value = g.gather(values, place, 0)?;
    let otherwise = g.scalar(otherwise)?;

    g.select(found, value, otherwise)
}

/// The columns of all inputs, concatenated and converted to `f32`.
///
/// `FeatureVectorizer([[1, 2]], i64[[3]]; inputdimensions=[2, 1]) = [[1, 2, 3]]`
fn feature_vectorizer(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let sizes = n.ints("inputdimensions")?;
    let mut columns = Vec::new();
    for (k, x) in n.all()?.into_iter().enumerate() {
        if g.rank(x) != 2 {
            return Err(Error::invalid(format!("input {k} must have 2 axes")));
        }
        if let Some(size) = sizes.as_ref().and_then(|sizes| sizes.get(k)) {
            g.require(Relation::eq(&g.shape(x)[1], *size), "inputdimensions")?;
        }
        columns.push(g.cast(DType::F32, x)?);
    }

    g.concat(&columns, 1)
}

/// A new last axis with one element per category in `cats_int64s`: 1 for the category of the input, 0 for the others.
///
/// Limits: integer categories; elements of unknown categories give zeros (`zeros=1`).
///
/// `OneHotEncoder(i64[[5], [9]]; cats_int64s=[4, 5]) = [[[0, 1]], [[0, 0]]]`
fn one_hot_encoder(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    if !n.flag("zeros", true)? {
        return Err(Error::unsupported("OneHotEncoder with zeros=0"));
    }

    let cats = n.ints("cats_int64s")?.filter(|cats| !cats.is_empty());
    let cats = cats.ok_or_else(|| Error::unsupported("OneHotEncoder of strings"))?;
    let cats = Tensor::from_i64(vec![cats.len()], &cats)
        .ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?;
    let cats = g.constant(cats)?;

    let x = n.input(0)?;
    let x = g.cast(DType::I64, x)?;
    let x = g.unsqueeze(x, &[g.rank(x)])?;
    let same = g.compare(CompareOp::Eq, x, cats)?;

    g.cast(DType::F32, same)
}

/// Each row, divided by its maximum (`norm="MAX"`), its sum of absolute values (`L1`) or its Euclidean length (`L2`).
///
/// `Normalizer([[3, 4]]; norm="L2") = [[0.6, 0.8]]`
fn normalizer(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let x = g.cast(DType::F32, x)?;
    let last =
        g.rank(x).checked_sub(1).ok_or_else(|| Error::invalid("the input must have at least 1 axis"))?;

    let size = match n.string_or("norm", "MAX")? {
        "MAX" => g.reduce(ReduceOp::Max, x, &[last], true)?,
        "L1" => {
            let sizes = g.abs(x)?;
            g.reduce(ReduceOp::Sum, sizes, &[last], true)?
        }
        "L2" => {
            let squares = g.mul(x, x)?;
            let sum = g.reduce(ReduceOp::Sum, squares, &[last], true)?;
            g.sqrt(sum)?
        }
        other => return Err(Error::invalid(format!("unknown norm `{other}`"))),
    };

    let zero = g.number(DType::F32, 0.0)?;
    let none = g.compare(CompareOp::Eq, size, zero)?;
    let quotient = g.div(x, size)?;
    g.select(none, x, quotient)
}

/// `(X - offset) * scale`. Both attributes have one element, or one per column.
///
/// `Scaler([[1, 2]]; offset=[1.0, 1.0], scale=[2.0, 3.0]) = [[0, 3]]`
fn scaler(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let mut y = g.cast(DType::F32, x)?;
    if let Some(offset) = n.floats("offset")? {
        let offset = vector(g, &offset)?;
        y = g.sub(y, offset)?;
    }
    if let Some(scale) = n.floats("scale")? {
        let scale = vector(g, &scale)?;
        y = g.mul(y, scale)?;
    }
    Ok(y)
}
