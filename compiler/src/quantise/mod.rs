//! Quantises weights: large `f32` constants that products and look-ups read get fewer bits.
//!
//! [`quantise`] rounds each weight ([`round`]) and rewrites the graph, which then computes with the rounded weights
//! only ([`rewrite`]). The evaluator of the rewritten graph therefore defines the results. Weights that move the
//! outputs much more than the others keep more bits; trial runs measure that ([`trial`]).

mod activations;
mod find;
mod rewrite;
mod round;
mod table;
mod trial;
mod weight_type;

pub use activations::{ActivationSummary, Activations, RoundedActivations, round_activations};
pub use table::{OutputError, WeightRow, WeightTable, Why};
pub use weight_type::WeightType;

use self::{
    find::Weight,
    rewrite::Replacement,
    round::{Rounded, rounded},
    trial::Trial,
};
use crate::{
    error::{Error, ErrorKind, Result},
    graph::Graph,
    parallel,
    tensor::Tensor,
};

/// Default limit of the error that one weight may cause, see [`WeightRequest::max_error`].
pub const MAX_ERROR: f64 = 0.02;

/// A weight is sensitive only if its error is larger than that of the median weight by this factor.
const SENSITIVE_FACTOR: f64 = 3.0;

/// The types of a model's weights.
#[derive(Clone, PartialEq, Debug)]
pub struct WeightRequest {
    /// The type of all weights that `named` does not name.
    pub weight_type: WeightType,
    /// The types of single weights, by the name of the ONNX initializer.
    pub named: Vec<(String, WeightType)>,
    /// A weight that `named` does not name keeps more bits if it alone causes a larger error of an output, and more
    /// than three times that of the median weight. Errors are roots of mean squares relative to the output. With
    /// infinity, no weight is tried alone.
    pub max_error: f64,
}

impl WeightRequest {
    /// All weights of this type, with the default limit.
    pub fn new(weight_type: WeightType) -> WeightRequest {
        WeightRequest { weight_type, named: Vec::new(), max_error: MAX_ERROR }
    }

    /// The request of a caller that may give no type: then it is `None`. Each of `named` is `NAME=TYPE`. Without
    /// `weight_type`, all other weights stay `f32`.
    ///
    /// # Errors
    /// As [`WeightRequest::name`].
    pub fn given(
        weight_type: Option<WeightType>,
        named: &[String],
        max_error: f64,
    ) -> Result<Option<WeightRequest>> {
        if weight_type.is_none() && named.is_empty() {
            return Ok(None);
        }
        let weight_type = weight_type.unwrap_or(WeightType::F32);
        let mut request = WeightRequest { max_error, ..WeightRequest::new(weight_type) };
        named.iter().try_for_each(|text| request.name(text))?;
        Ok(Some(request))
    }

    /// Adds the type of one weight, as `NAME=TYPE`.
    ///
    /// # Errors
    /// The text has another form.
    pub fn name(&mut self, text: &str) -> Result<()> {
        let Some((name, weight_type)) = text.rsplit_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(usage(format!("weight {text:?}: expected NAME=TYPE, such as lm_head.weight=int8")));
        };
        self.named.push((name.to_string(), weight_type.parse()?));
        Ok(())
    }
}

/// A graph with rounded weights.
#[derive(Debug)]
pub struct Quantised {
    /// The rewritten graph.
    pub graph: Graph,
    /// The types, sizes and errors of the weights.
    pub table: WeightTable,
}

/// Gives the weights of a graph the requested types.
///
/// A weight is an `f32` constant of more than 1,024 elements that only contractions with one reduction axis and
/// look-ups read. The reduction, or the last axis of a table, has at least 8 elements. Constants inside of branches
/// and loops are not changed.
///
/// # Errors
/// A name of no weight, a limit that is negative or NaN.
pub fn quantise(graph: &Graph, request: &WeightRequest) -> Result<Quantised> {
    if request.max_error.is_nan() || request.max_error < 0.0 {
        let limit = request.max_error;
        return Err(usage(format!("limit {limit} of weights: expected a number of 0 or more, or infinity")));
    }
    let weights = find::weights(graph);
    check_names(graph, &weights, request)?;

    let mut choices = rounded_in_parallel(graph, &weights, request);
    let measured = measure(graph, &weights, &mut choices, request.max_error);
    let (output_error, note) = match measured {
        Ok(error) => (error, None),
        Err(why) => (None, Some(format!("the error of the outputs was not measured: {why}"))),
    };

    let replacements: Vec<Replacement<'_>> = weights
        .iter()
        .zip(&choices)
        .filter(|(_, choice)| choice.weight_type != WeightType::F32)
        .map(|(weight, choice)| Replacement {
            weight,
            tensor: &choice.rounded.tensor,
            to: choice.weight_type,
        })
        .collect();
    let mut new = graph.clone();
    rewrite::rewrite(&mut new, &replacements)?;
    let rows = weights.iter().zip(choices).map(|(weight, choice)| choice.row(weight)).collect();
    Ok(Quantised { graph: new, table: WeightTable { rows, output_error, note } })
}

/// Refuses names of no weight.
fn check_names(graph: &Graph, weights: &[Weight], request: &WeightRequest) -> Result<()> {
    for (name, _) in &request.named {
        if weights.iter().any(|weight| weight.name == *name) {
            continue;
        }
        let is_constant = graph.nodes.values().any(|node| node.origin == format!("weight `{name}`"));
        let why = if is_constant {
            "it is not an f32 constant of more than 1024 elements, with 8 or more along a block, that only matrix \
             products and look-ups read"
                .into()
        } else {
            let similar = |weight: &&Weight| strsim::jaro_winkler(&weight.name, name);
            let nearest = weights.iter().max_by(|a, b| similar(a).total_cmp(&similar(b)));
            match nearest {
                Some(weight) => {
                    format!("the model has no weight of this name; a similar one is `{}`", weight.name)
                }
                None => "the model has no weight that can be quantised".to_string(),
            }
        };
        return Err(usage(format!("weight `{name}`: {why}")));
    }
    Ok(())
}

/// The type of a weight, and its elements in it.
struct Choice {
    weight_type: WeightType,
    why: Why,
    rounded: Rounded,
    /// The error of the outputs if only this weight is rounded.
    output_error: Option<f64>,
}

impl Choice {
    fn of(tensor: &Tensor, weight: &Weight, request: &WeightRequest) -> Choice {
        let named = request.named.iter().rev().find(|(name, _)| *name == weight.name);
        let (mut weight_type, mut why) = match named {
            Some((_, weight_type)) => (*weight_type, Why::Named),
            None => (request.weight_type, Why::Requested),
        };
        let rounded = rounded(tensor, weight.axis, weight_type).unwrap_or_else(|| {
            weight_type = WeightType::F32;
            why = Why::Extreme;
            Rounded::same(tensor)
        });
        Choice { weight_type, why, rounded, output_error: None }
    }

    fn row(self, weight: &Weight) -> WeightRow {
        WeightRow {
            name: weight.name.clone(),
            shape: self.rounded.tensor.shape().to_vec(),
            weight_type: self.weight_type,
            why: self.why,
            bytes: self.rounded.bytes,
            error: self.rounded.error,
            output_error: self.output_error,
        }
    }
}

/// Rounds all weights, on all processors.
fn rounded_in_parallel(graph: &Graph, weights: &[Weight], request: &WeightRequest) -> Vec<Choice> {
    let tensor = |weight: &Weight| graph.as_constant(weight.value).expect("a weight is a constant");
    let choice = |weight: &Weight| Choice::of(tensor(weight), weight, request);
    parallel::map(weights.iter().collect(), parallel::cores(), choice)
}

/// Measures the errors of the outputs and widens sensitive weights. The result is the error of all weights together;
/// `None` if no weight is rounded.
fn measure(
    graph: &Graph,
    weights: &[Weight],
    choices: &mut [Choice],
    max_error: f64,
) -> Result<Option<OutputError>> {
    let tried: Vec<usize> =
        (0..weights.len()).filter(|idx| choices[*idx].weight_type != WeightType::F32).collect();
    if tried.is_empty() {
        return Ok(None);
    }
    let is_alone = max_error < f64::INFINITY && tried.iter().any(|idx| choices[*idx].why == Why::Requested);
    let inputs: Vec<&Weight> = tried.iter().map(|idx| &weights[*idx]).collect();
    let n_trials = if is_alone { tried.len() + 1 } else { 1 };
    let mut trial = Trial::new(graph, &inputs, n_trials)?;

    if is_alone {
        for (input, idx) in tried.iter().enumerate() {
            let error = trial.error(&[(input, &choices[*idx].rounded)])?;
            choices[*idx].output_error = Some(error);
        }
        let limit = max_error.max(SENSITIVE_FACTOR * median(choices));
        for (input, idx) in tried.iter().enumerate() {
            let tensor = graph.as_constant(weights[*idx].value).expect("a weight is a constant");
            widen(tensor, &weights[*idx], &mut choices[*idx], limit, &mut |rounded| {
                trial.error(&[(input, rounded)])
            })?;
        }
    }

    let all: Vec<(usize, &Rounded)> =
        tried.iter().enumerate().map(|(input, idx)| (input, &choices[*idx].rounded)).collect();
    Ok(Some(OutputError { error: trial.error(&all)?, at: trial.at.clone() }))
}

/// The median of the measured errors.
fn median(choices: &[Choice]) -> f64 {
    let mut errors: Vec<f64> = choices.iter().filter_map(|choice| choice.output_error).collect();
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied().unwrap_or(0.0)
}

/// Gives a weight the next wider type as long as its error exceeds `limit`.
fn widen(
    tensor: &Tensor,
    weight: &Weight,
    choice: &mut Choice,
    limit: f64,
    error: &mut dyn FnMut(&Rounded) -> Result<f64>,
) -> Result<()> {
    while choice.why != Why::Named
        && choice.output_error.is_some_and(|error| error > limit)
        && let Some(wider) = choice.weight_type.wider()
    {
        choice.rounded = rounded(tensor, weight.axis, wider).unwrap_or_else(|| Rounded::same(tensor));
        choice.output_error = Some(error(&choice.rounded)?);
        choice.weight_type = wider;
        choice.why = Why::Sensitive;
    }
    Ok(())
}

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}
