//! The caller's additions to a model: ranges of symbols, shapes of inputs, and constant inputs.

use crate::{
    error::{Error, ErrorKind, Result},
    import::{
        custom::declaration::Custom,
        model::{dims, weights},
    },
    tensor::Tensor,
};
use serde_json::Value as Json;
use symshape::{Declaration, Dim};
use symshape_runtime::DType;

/// Declarations and constants that a caller adds to a model.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The name of the graph. The default is the name of the model file.
    pub name: Option<String>,
    /// Declarations of symbols, see [`parse_dim`]. A symbol that the model lacks is an error.
    pub dims: Vec<(String, Declaration)>,
    /// Symbols that are expressions over other symbols, see [`parse_relation`]. A symbol that the model lacks is an
    /// error.
    pub relations: Vec<(String, Dim)>,
    /// Declarations from a bounds.json for symbols that `dims` and `relations` lack. Other names are ignored.
    pub bounds: Bounds,
    /// Shapes that replace those of the model's inputs, see [`parse_input`].
    pub inputs: Vec<(String, Vec<Dim>)>,
    /// Constant inputs, see [`parse_bind`].
    pub binds: Vec<(String, InputConstant)>,
    /// Operators that external functions compute.
    ///
    /// They take precedence over functions of the model and over known operators. Of two declarations of one operator,
    /// the last counts.
    pub customs: Vec<Custom>,
    /// The upper bound of data-dependent sizes without any other bound. Without it, such a size is an error.
    pub data_dependent_max: Option<i64>,
    /// Whether symbols may lack an upper bound. Such a graph can be printed, but not compiled.
    pub unbounded: bool,
    /// The upper bound of symbols that are declared without one.
    pub cap: Option<i64>,
    /// Whether the model is going to keep state, see [`crate::graph::Graph::keeps_state`].
    pub keeps_state: bool,
}

/// Declarations of symbols, see [`parse_dims`] and [`parse_bounds`].
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Ranges and sets of values of symbols.
    pub dims: Vec<(String, Declaration)>,
    /// Symbols that are expressions over other symbols.
    pub relations: Vec<(String, Dim)>,
}

impl Bounds {
    /// Adds a declaration in the form of [`parse_dim`] or [`parse_relation`].
    fn declare(&mut self, text: &str) -> Result<()> {
        match parse_relation(text)? {
            Some(relation) => self.relations.push(relation),
            None => self.dims.push(parse_dim(text)?),
        }
        Ok(())
    }
}

/// The value of a constant input.
#[derive(Clone, Debug)]
pub enum InputConstant {
    /// As text: one element for all, or a list of elements. It takes the type and shape of the input.
    Text(String),
    /// As a tensor of the input's type and shape.
    Tensor(Tensor),
}

impl InputConstant {
    pub(crate) fn tensor(&self, dtype: DType, shape: &[Dim]) -> Result<Tensor> {
        match self {
            InputConstant::Tensor(tensor) => Ok(tensor.clone()),
            InputConstant::Text(text) => {
                let sizes: Option<Vec<usize>> =
                    shape.iter().map(|dim| dim.as_i64().and_then(|dim| usize::try_from(dim).ok())).collect();
                let sizes = sizes.ok_or_else(|| {
                    usage("an input with symbols in its shape can't be bound to a constant; re-declare its shape with --input")
                })?;
                weights::parse_elements(text, dtype, &sizes)
            }
        }
    }
}

fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, message)
}

fn split<'a>(text: &'a str, form: &str) -> Result<(&'a str, &'a str)> {
    let parts = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    parts.ok_or_else(|| usage(format!("`{text}` is not of the form {form}")))
}

/// The forms of a declaration of a symbol.
const FORMS: &str = "NAME=LO..HI, NAME=LO..HI/STEP, NAME=V1,V2,… or NAME=EXPRESSION";

/// Parses `NAME=LO..HI` (inclusive), `NAME=LO..HI/STEP` or `NAME=V1,V2,…`. Without `HI` there is no upper bound.
///
/// # Errors
/// Any other text, and empty ranges.
///
/// ```
/// let (name, declaration) = symshape_compiler::import::parse_dim("N=8..64/8")?;
/// assert_eq!(name, "N");
/// assert!(declaration.contains(&16.into()) && !declaration.contains(&17.into()));
/// # Ok::<(), symshape_compiler::Error>(())
/// ```
pub fn parse_dim(text: &str) -> Result<(String, Declaration)> {
    let (name, values) = split(text, FORMS)?;

    let number = |word: &str| {
        let value = word.trim().parse::<i64>().ok().filter(|value| *value >= 0);
        value.ok_or_else(|| usage(format!("`{text}`: `{word}` is not a size; expected {FORMS}")))
    };

    let empty = || usage(format!("`{text}` is an empty range for {name}"));
    let Some((lo, rest)) = values.split_once("..") else {
        let values = values.split(',').map(number).collect::<Result<Vec<i64>>>()?;
        return Ok((name.to_string(), Declaration::values(values)));
    };

    let (hi, step) = match rest.split_once('/') {
        None => (rest, None),
        Some((hi, step)) => (hi, Some(number(step)?)),
    };

    let lo = number(lo)?;
    let range = match hi.trim() {
        "" => Declaration::at_least(lo),
        hi => match number(hi)? {
            hi if hi < lo => return Err(empty()),
            hi => Declaration::range(lo, hi),
        },
    };

    if step == Some(0) {
        return Err(empty());
    }

    Ok((name.to_string(), step.map_or(range.clone(), |step| range.step(step, lo % step))))
}

/// Parses `NAME=EXPRESSION`, such as `T=P+S`: the symbol is an expression over other symbols wherever it occurs in the
/// shapes of inputs. `None` if the value has another form, see [`parse_dim`].
///
/// # Errors
/// The expression contains the symbol itself.
///
/// ```
/// let relation = symshape_compiler::import::parse_relation("T=P+S")?;
/// assert!(relation.is_some_and(|(name, dim)| name == "T" && dim.to_string() == "P + S"));
/// assert!(symshape_compiler::import::parse_relation("T=1..64")?.is_none());
/// # Ok::<(), symshape_compiler::Error>(())
/// ```
pub fn parse_relation(text: &str) -> Result<Option<(String, Dim)>> {
    let (name, value) = split(text, FORMS)?;
    let Some(dim) = dims::expression(value).filter(|dim| !dim.symbols().is_empty()) else { return Ok(None) };
    if dim.symbols().iter().any(|symbol| symbol.name() == name) {
        return Err(usage(format!("`{text}`: the expression contains {name} itself")));
    }
    Ok(Some((name.to_string(), dim)))
}

/// Parses declarations, each in the form of [`parse_dim`] or [`parse_relation`].
///
/// # Errors
/// A text has neither form.
///
/// ```
/// let bounds = symshape_compiler::import::parse_dims(&["N=1..64", "T=P+S"])?;
/// assert_eq!((bounds.dims.len(), bounds.relations.len()), (1, 1));
/// # Ok::<(), symshape_compiler::Error>(())
/// ```
pub fn parse_dims(texts: &[impl AsRef<str>]) -> Result<Bounds> {
    let mut bounds = Bounds::default();
    texts.iter().try_for_each(|text| bounds.declare(text.as_ref()))?;
    Ok(bounds)
}

/// Parses `NAME=D0,D1,…`, where a dim is a symbol, a constant or an expression. The shape of a scalar is `()`.
///
/// # Errors
/// Any other text.
///
/// ```
/// let (name, shape) = symshape_compiler::import::parse_input("x=N,3,2*H,W")?;
/// assert_eq!((name.as_str(), shape[2].to_string().as_str()), ("x", "2*H"));
/// # Ok::<(), symshape_compiler::Error>(())
/// ```
pub fn parse_input(text: &str) -> Result<(String, Vec<Dim>)> {
    let (name, shape) = split(text, "NAME=D0,D1,…")?;
    if shape == "()" {
        return Ok((name.to_string(), Vec::new()));
    }
    let dim = |word: &str| match word.trim() {
        "" => Err(usage(format!("`{text}` has an empty dim"))),
        word => dims::expression(word).ok_or_else(|| usage(format!("`{text}`: `{word}` is not a dim"))),
    };
    Ok((name.to_string(), shape.split(',').map(dim).collect::<Result<_>>()?))
}

/// Parses `NAME=VALUE`, where the value is one element or a list of elements.
///
/// # Errors
/// The text has another form. Whether the value fits the input is checked by the import.
pub fn parse_bind(text: &str) -> Result<(String, InputConstant)> {
    let (name, value) = split(text, "NAME=VALUE")?;
    Ok((name.to_string(), InputConstant::Text(value.to_string())))
}

/// Parses a bounds.json: an object with a range `[LO, HI]`, or with a text in the form of `--dim`, for each symbol.
///
/// # Errors
/// The text has another form.
///
/// ```
/// let text = r#"{"N": [1, 64], "H": "32..640/32", "B": "1,2,4", "T": "P + S"}"#;
/// let bounds = symshape_compiler::import::parse_bounds(text)?;
/// assert_eq!((bounds.dims.len(), bounds.relations.len()), (3, 1));
/// # Ok::<(), symshape_compiler::Error>(())
/// ```
pub fn parse_bounds(text: &str) -> Result<Bounds> {
    let form = |what: &str| {
        usage(format!(
            "{what}; expected a JSON object with [LO, HI], \"LO..HI/STEP\", \"V1,V2,…\" or an expression such as \
             \"P + S\" for each symbol"
        ))
    };
    let json: Json = serde_json::from_str(text).map_err(|error| form(&error.to_string()))?;
    let symbols = json.as_object().ok_or_else(|| form("not an object"))?;

    let mut bounds = Bounds::default();
    for (name, value) in symbols {
        if let Some(text) = value.as_str() {
            bounds.declare(&format!("{name}={text}"))?;
            continue;
        }

        let range = value.as_array().and_then(|pair| match &pair[..] {
            [lo, hi] => Some((lo.as_i64()?, hi.as_i64()?)),
            _ => None,
        });
        let (lo, hi) = range
            .filter(|(lo, hi)| 0 <= *lo && lo <= hi)
            .ok_or_else(|| form(&format!("`{name}` has the value {value}")))?;
        bounds.dims.push((name.clone(), Declaration::range(lo, hi)));
    }
    Ok(bounds)
}
