//! Activations of recurrent layers and fused operators, by name.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::OnnxNode,
        ops::{activation::logistic, shared::arithmetic::linear},
    },
    scalar::CompareOp,
};

/// An activation: its name in lower case, and its parameters.
#[derive(Clone)]
pub(crate) struct Activation {
    pub(crate) name: String,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
}

/// The activations of a node's gates, of all directions one after the other.
pub(crate) fn activations(n: &OnnxNode, defaults: &[&str], directions: usize) -> Result<Vec<Activation>> {
    let count = defaults.len() * directions;
    let names = match n.strings("activations")? {
        Some(names) if names.len() == count => names,
        Some(names) => {
            return Err(Error::invalid(format!(
                "{} activations are given, but {count} are needed",
                names.len()
            )));
        }
        None => (0..count).map(|k| defaults[k % defaults.len()].to_string()).collect(),
    };

    let alphas = n.floats("activation_alpha")?;
    let betas = n.floats("activation_beta")?;

    let mut alphas = alphas.unwrap_or_default().into_iter();
    let mut betas = betas.unwrap_or_default().into_iter();

    let mut list = Vec::new();
    for name in names {
        // The lists hold a value for each function that has this parameter.
        let (alpha, beta) = match name.to_lowercase().as_str() {
            "affine" => (Some(1.0), Some(0.0)),
            "scaledtanh" => (Some(1.0), Some(1.0)),
            "hardsigmoid" => (Some(0.2), Some(0.5)),
            "leakyrelu" => (Some(0.01), None),
            "thresholdedrelu" | "elu" => (Some(1.0), None),
            _ => (None, None),
        };

        let take = |default: Option<f64>, list: &mut std::vec::IntoIter<f32>| {
            default.map_or(0.0, |default| list.next().map_or(default, f64::from))
        };
        let alpha = take(alpha, &mut alphas);
        let beta = take(beta, &mut betas);
        list.push(Activation { name: name.to_lowercase(), alpha, beta });
    }

    Ok(list)
}

/// The activation `f` of `x`.
pub(crate) fn activate(g: &mut Graph, f: &Activation, x: Value) -> Result<Value> {
    let dtype = g.dtype(x);
    match f.name.as_str() {
        "sigmoid" => logistic(g, x),
        "tanh" => g.tanh(x),
        "relu" => g.relu(x),
        "affine" => linear(g, x, f.alpha, f.beta),
        "scaledtanh" => {
            let x = linear(g, x, f.beta, 0.0)?;
            let x = g.tanh(x)?;
            linear(g, x, f.alpha, 0.0)
        }
        "hardsigmoid" => {
            let x = linear(g, x, f.alpha, f.beta)?;
            let zero = g.number(dtype, 0.0)?;
            let one = g.number(dtype, 1.0)?;
            let x = g.max(x, zero)?;
            g.min(x, one)
        }
        "leakyrelu" => {
            let below = linear(g, x, f.alpha, 0.0)?;
            let zero = g.number(dtype, 0.0)?;
            let negative = g.compare(CompareOp::Lt, x, zero)?;
            g.select(negative, below, x)
        }
        "thresholdedrelu" => {
            let zero = g.number(dtype, 0.0)?;
            let alpha = g.number(dtype, f.alpha)?;
            let above = g.compare(CompareOp::Gt, x, alpha)?;
            g.select(above, x, zero)
        }
        "elu" => {
            let power = g.expm1(x)?;
            let below = linear(g, power, f.alpha, 0.0)?;
            let zero = g.number(dtype, 0.0)?;
            let negative = g.compare(CompareOp::Lt, x, zero)?;
            g.select(negative, below, x)
        }
        "softsign" => {
            let size = g.abs(x)?;
            let below = linear(g, size, 1.0, 1.0)?;
            g.div(x, below)
        }
        "softplus" => {
            let size = g.abs(x)?;
            let minus = g.neg(size)?;
            let power = g.exp(minus)?;
            let tail = g.log1p(power)?;
            let x = g.relu(x)?;
            g.add(x, tail)
        }
        other => Err(Error::unsupported(format!("activation `{other}` of a recurrent layer"))),
    }
}
