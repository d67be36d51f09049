//! The proof that padding and the other sequences of a batch don't reach the results of a sequence.
//!
//! For each value of the padded graph, the analysis finds the coordinates of an element: which sequence it belongs to,
//! and which tokens. A coordinate is an expression over the axes `$k`. An element whose tokens are all real has the
//! value that it has in a call with this sequence alone. Padding follows the tokens of a sequence. For an element with
//! padding among its tokens, the analysis keeps what is known about it ([`AtPadding`]): it is masked, or it may be
//! anything.
//!
//! A window of neighbouring tokens contains padding and positions that were added to the ends. If both have one value,
//! an element of a window has the value that it has alone.
//!
//! An operator that combines elements of several tokens, such as a sum, must get neutral elements from padding. An
//! operator that combines elements of several sequences is refused. A refusal counts only if the value reaches an
//! output.

use super::{
    at_padding::{self, AtPadding},
    contents,
    origin::{Found, Origin, Refusal, Token, add, has_axis, reduce, union, without_axes},
    token_input::TokenInput,
};
use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Label, Node, NodeId, Op, Value, axis},
    scalar::{ReduceOp, Scalar},
};
use cranelift_entity::SecondaryMap;
use symshape::{Dim, Facts, Node as DimNode, Symbol};
use symshape_runtime::DType;

/// The axes of the padded graph.
#[derive(Clone, Copy)]
pub(super) struct Padded<'p> {
    pub(super) graph: &'p Graph,
    pub(super) batch: &'p Symbol,
    pub(super) length: &'p Symbol,
    /// The input that tells which positions are tokens.
    pub(super) mask: Option<TokenInput>,
}

impl Padded<'_> {
    /// The request that is proved.
    fn request(&self) -> String {
        let Padded { graph, length, mask, .. } = self;
        match mask {
            Some(TokenInput::Mask(idx)) => {
                format!("--ragged {length} with the mask `{}`", graph.inputs[*idx].0)
            }
            Some(TokenInput::Lengths(idx)) => {
                format!("--ragged {length} with the lengths `{}`", graph.inputs[*idx].0)
            }
            None => format!("--ragged {length}"),
        }
    }
}

/// Proves that the outputs of a sequence depend on its tokens alone.
///
/// # Errors
/// The first operator that could combine tokens with padding or with other sequences.
pub(super) fn prove(padded: Padded<'_>) -> Result<(), Unproven> {
    let mut proof = Proof { padded, origins: SecondaryMap::new() };
    padded.graph.nodes.keys().enumerate().for_each(|(position, id)| proof.node(position, id));
    padded.graph.outputs.iter().try_for_each(|(name, value)| proof.output(name, *value))
}

/// The failure of a proof.
#[derive(Debug)]
pub(super) struct Unproven {
    pub(super) error: Error,
    /// How many operators of the graph precede the one that is refused.
    pub(super) position: usize,
}

struct Proof<'p> {
    padded: Padded<'p>,
    /// The origins of the values, or the reason why a value must not reach an output.
    origins: SecondaryMap<Value, Option<Found>>,
}

impl Proof<'_> {
    fn node(&mut self, position: usize, id: NodeId) {
        let node = &self.padded.graph.nodes[id];
        let origin = self.origin(node).map_err(|refusal| {
            if !refusal.node.is_empty() {
                return refusal;
            }
            let name = if node.origin.is_empty() { node.op.name() } else { &node.origin };
            Refusal { node: name.into(), position, ..refusal }
        });
        for result in &node.results {
            self.origins[*result] = Some(origin.clone());
        }
    }

    /// The origin of an operand.
    fn of(&self, value: Value) -> Result<&Origin, Refusal> {
        match &self.origins[value] {
            Some(Ok(origin)) => Ok(origin),
            Some(Err(refusal)) => Err(refusal.clone()),
            None => Err("an operand is not defined".into()),
        }
    }

    fn of_all(&self, node: &Node) -> Result<Vec<&Origin>, Refusal> {
        node.operands.iter().map(|value| self.of(*value)).collect()
    }

    /// The origin of the results of a node.
    fn origin(&self, node: &Node) -> Found {
        // Operands without an origin may be positions, whose contents are known.
        let is_padded = |value: &Value| {
            self.of(*value).is_ok_and(|operand| operand.tokens.iter().any(|token| token.is_padded))
        };
        let moves = matches!(node.op, Op::Map(_) | Op::View { .. } | Op::Pad { .. });
        if !moves && node.operands.iter().any(is_padded) {
            return Err("it combines tokens with positions that were added to their axis".into());
        }
        match &node.op {
            Op::Input(idx) => Ok(self.input(*idx as usize)),
            Op::Const(_) => Ok(Origin::default()),
            Op::Index { dtype, shape, expr } => self.index(*dtype, shape, expr),
            Op::Map(body) => {
                let operands = self.of_all(node)?;
                let mut origin = union(&operands)?;
                let values: Vec<AtPadding> = operands.iter().map(|operand| operand.alone()).collect();
                origin.value = at_padding::body(body, &values);
                for token in &mut origin.tokens {
                    let params: Vec<AtPadding> =
                        operands.iter().map(|operand| operand.at(&token.at)).collect();
                    token.padding = at_padding::body(body, &params);
                }
                Ok(origin)
            }
            Op::View { shape, index } => self.moved(self.of(node.operands[0])?, shape, index),
            Op::Pad { lo, hi, value } => self.pad(node, lo, hi, *value),
            Op::Concat { axis } => self.concat(node, *axis),
            Op::Gather { shape, coords } => self.gather(node, shape, coords),
            Op::Reduce { op, axes } => self.reduce(node, *op, axes),
            Op::Contraction { lhs, rhs, out, .. } => self.contraction(node, lhs, rhs, out),
            Op::Scan { axis, reverse, .. } => self.scan(node, *axis, *reverse),
            Op::ArgReduce { axis, .. } => self.along(node, *axis),
            Op::Sort { axis, .. } if node.operands.len() == 1 => self.along(node, *axis),
            other => {
                if self.of_all(node)?.iter().all(|origin| origin.is_shared()) {
                    return Ok(Origin::default());
                }
                Err(format!("{} of tokens or sequences is not supported", other.name()).into())
            }
        }
    }

    fn input(&self, idx: usize) -> Origin {
        let Padded { graph, batch, length, mask } = self.padded;
        let mut origin = Origin::default();
        let (_, value) = graph.inputs[idx];
        for (k, dim) in graph.shape(value).iter().enumerate() {
            if dim.as_symbol() == Some(batch) {
                origin.sequence = Some(axis(k).into());
            } else if dim.as_symbol() == Some(length) {
                let zero = Scalar::from_i64(graph.dtype(value), 0);
                let padding =
                    if mask == Some(TokenInput::Mask(idx)) { AtPadding::Known(zero) } else { AtPadding::Any };
                origin.tokens.push(Token::new(axis(k).into(), padding));
            }
        }
        if mask == Some(TokenInput::Lengths(idx)) {
            let max = graph.facts.bounds(&Dim::from(length)).hi;
            let max = max.and_then(|max| i64::try_from(max).ok()).unwrap_or(i64::MAX);
            origin.value = AtPadding::Length { max };
        }
        origin
    }

    /// Positions. Their values may depend neither on the padded length nor on the batch.
    fn index(&self, dtype: DType, shape: &[Dim], expr: &Dim) -> Found {
        let Padded { batch, length, .. } = self.padded;
        if let Some(symbol) = [batch, length].into_iter().find(|symbol| expr.contains(symbol)) {
            return Err(format!("it uses the value {expr}, which depends on the padded {symbol}").into());
        }
        let mut origin = Origin::default();
        for (k, dim) in shape.iter().enumerate() {
            if dim.as_symbol() == Some(length) {
                let distance = self.padded.graph.facts.simplify(&(expr - Dim::from(axis(k)))).as_i64();
                let is_near = |by: &i64| by.abs() <= at_padding::MAX_DISTANCE;
                let position = distance.filter(is_near).map_or(AtPadding::Any, AtPadding::Position);
                // Types of fewer bits don't hold all positions.
                let padding = at_padding::cast(dtype, position);
                origin.tokens.push(Token::new(axis(k).into(), padding));
            } else if (dim.contains(length) || dim.contains(batch)) && expr.contains(&axis(k)) {
                return Err(format!("it counts along an axis of the size {dim}").into());
            }
        }
        Ok(origin)
    }

    /// The origin of `operand[index]`, for a result of this shape.
    fn moved(&self, operand: &Origin, shape: &[Dim], index: &[Dim]) -> Found {
        let coordinates = || operand.tokens.iter().map(|token| &token.at).chain(&operand.sequence);
        for (k, at) in index.iter().enumerate() {
            if self.is_padded(at) && !coordinates().any(|coordinate| coordinate.contains(&axis(k))) {
                return Err(format!("it reads position {at}, which depends on the padded sizes").into());
            }
        }

        let facts = self.padded.graph.index_facts(shape);
        let is_single =
            |symbol: &Symbol| (0..shape.len()).any(|k| shape[k].as_i64() == Some(1) && axis(k) == *symbol);
        let at = |dim: &Dim| {
            let moved = dim.substitute(&|symbol| coordinate(index, symbol));
            facts.simplify(&moved.substitute(&|symbol| is_single(symbol).then(Dim::zero)))
        };
        let sequence = operand.sequence.as_ref().map(at);
        if let Some(sequence) = &sequence {
            self.check_coordinate(&facts, sequence, self.padded.batch, shape)?;
        }
        let mut tokens: Vec<Token> = Vec::new();
        for token in &operand.tokens {
            let moved = Token { at: at(&token.at), ..token.clone() };
            if token.is_padded {
                self.move_padded(&facts, moved, shape, &mut tokens)?;
                continue;
            }
            if moved.at.symbols().is_empty() {
                self.check_fixed(&facts, &moved.at)?;
                continue;
            }
            self.check_coordinate(&facts, &moved.at, self.padded.length, shape)?;
            add(&mut tokens, moved);
        }
        Ok(Origin { sequence, tokens, value: operand.value })
    }

    /// Adds the tokens of an element that is read from an axis with added positions, such as an element of a window.
    ///
    /// It has the same value in padding and at the added positions. So where it is read at a position that does not
    /// depend on the padded sizes, it has the value that it has in a call with the sequence alone. That call has the
    /// element if the coordinates along the length are tokens.
    fn move_padded(
        &self,
        facts: &Facts,
        token: Token,
        shape: &[Dim],
        tokens: &mut Vec<Token>,
    ) -> Result<(), Refusal> {
        if self.is_padded(&token.at) {
            return Err(format!("it reads position {}, which depends on the padded sizes", token.at).into());
        }
        let length = self.padded.length;
        if visits_all(facts, &token.at, length, shape) {
            add(tokens, Token { is_padded: false, ..token });
            return Ok(());
        }
        let is_length = |k: &usize| shape[*k].as_symbol() == Some(length) && token.at.contains(&axis(*k));
        let along: Vec<usize> = (0..shape.len()).filter(is_length).collect();
        if along.is_empty() || !matches!(token.padding, AtPadding::Known(_)) {
            add(tokens, token);
            return Ok(());
        }
        along.into_iter().for_each(|k| add(tokens, Token::new(axis(k).into(), AtPadding::Any)));
        Ok(())
    }

    /// A fixed position must be a token of every sequence.
    fn check_fixed(&self, facts: &Facts, at: &Dim) -> Result<(), Refusal> {
        let length = Dim::from(self.padded.length);
        if facts.prove_lt(at, &length).is_yes() {
            return Ok(());
        }
        Err(format!("it reads token {at}, which shorter sequences don't have").into())
    }

    /// A coordinate along an axis of the size `symbol` must visit all positions, and must be a plain axis or a part of
    /// an axis that joins several.
    fn check_coordinate(
        &self,
        facts: &Facts,
        at: &Dim,
        symbol: &Symbol,
        shape: &[Dim],
    ) -> Result<(), Refusal> {
        if visits_all(facts, at, symbol, shape) {
            return Ok(());
        }
        Err(format!("it reads position {at} along {symbol}, which is not an axis of all positions").into())
    }

    fn pad(&self, node: &Node, lo: &[Dim], hi: &[Dim], added: Scalar) -> Found {
        let operand = self.of(node.operands[0])?;
        let shape = self.padded.graph.shape(node.operands[0]);
        let is_zero = |dim: &Dim| dim.as_i64() == Some(0);
        let mut origin = operand.clone();
        for (k, (lo, hi)) in lo.iter().zip(hi).enumerate() {
            let grows = !is_zero(lo) || !is_zero(hi);
            if self.is_padded(lo) {
                return Err(format!("it moves elements by {lo}, which depends on the padded sizes").into());
            }
            if grows && operand.sequence.as_ref().is_some_and(|at| at.contains(&axis(k))) {
                return Err("it pads the axis of the sequences".into());
            }
            // Elements that all positions share end with the padded length, and not with that of a sequence.
            if !is_zero(hi) && self.is_padded(&shape[k]) && !has_axis(operand, k) {
                return Err(format!("it adds positions after an axis of the size {}", shape[k]).into());
            }
            for token in origin.tokens.iter_mut().filter(|token| grows && token.at.contains(&axis(k))) {
                let is_plain = token.at.as_symbol() == Some(&axis(k)) && !token.is_padded;
                if !is_plain || !token.padding.is_equal(added) {
                    let why = format!(
                        "it adds positions of {added} to the axis of the tokens, and padding is not masked"
                    );
                    return Err(format!("{why} by {added}").into());
                }
                *token = Token { at: &token.at - lo, is_padded: true, ..token.clone() };
            }
        }

        if !lo.iter().chain(hi).all(is_zero) {
            origin.value = at_padding::join(origin.value, AtPadding::Known(added));
            for token in &mut origin.tokens {
                token.padding = at_padding::join(token.padding, AtPadding::Known(added));
            }
        }
        Ok(origin)
    }

    fn concat(&self, node: &Node, along: usize) -> Found {
        let operands = self.of_all(node)?;
        let (_, before_last) = node.operands.split_last().ok_or("it joins nothing")?;
        for operand in before_last {
            let size = &self.padded.graph.shape(*operand)[along];
            if self.is_padded(size) {
                return Err(format!("it moves elements by {size}, which depends on the padded sizes").into());
            }
        }
        let mut origin = union(&operands)?;
        if has_axis(&origin, along) {
            return Err("it joins values along the axis of the tokens or the sequences".into());
        }
        for token in &mut origin.tokens {
            let all = operands.iter().map(|operand| operand.at(&token.at));
            token.padding = all.reduce(at_padding::join).unwrap_or(AtPadding::Any);
        }
        Ok(origin)
    }

    fn gather(&self, node: &Node, shape: &[Dim], coords: &[Coord]) -> Found {
        let data = self.of(node.operands[0])?;
        let mut index: Vec<Dim> = Vec::new();
        let mut loaded: Vec<Origin> = Vec::new();
        for (k, coord) in coords.iter().enumerate() {
            match coord {
                Coord::At(at) => index.push(at.clone()),
                Coord::Load { operand, at } => {
                    if has_axis(data, k) {
                        let facts = self.padded.graph.index_facts(shape);
                        let value = node.operands[*operand];
                        let at = contents::element(self.padded.graph, &facts, value, at);
                        index.push(at.ok_or("it looks up tokens or sequences by computed positions")?);
                        continue;
                    }
                    // No coordinate refers to this axis.
                    index.push(Dim::zero());
                    let mut position = self.moved(self.of(node.operands[*operand])?, shape, at)?;
                    position.tokens.iter_mut().for_each(|token| token.padding = AtPadding::Any);
                    loaded.push(position);
                }
            }
        }
        let data = self.moved(data, shape, &index)?;
        let mut all: Vec<&Origin> = loaded.iter().collect();
        all.push(&data);
        union(&all)
    }

    fn reduce(&self, node: &Node, op: ReduceOp, axes: &[usize]) -> Found {
        let operand = self.of(node.operands[0])?;
        let shape = self.padded.graph.shape(node.operands[0]);
        for k in axes {
            let is_token = operand.tokens.iter().any(|token| token.at.as_symbol() == Some(&axis(*k)));
            if self.is_padded(&shape[*k]) && !is_token {
                return Err(
                    format!("it reduces an axis of the size {}, whatever the lengths", shape[*k]).into()
                );
            }
        }
        reduce(operand, op, axes)
    }

    /// Whether a size depends on the padded length or on the batch.
    fn is_padded(&self, size: &Dim) -> bool {
        size.contains(self.padded.length) || size.contains(self.padded.batch)
    }

    fn contraction(&self, node: &Node, lhs: &[Label], rhs: &[Label], out: &[Label]) -> Found {
        let sides = [(node.operands[0], lhs), (node.operands[1], rhs)];
        let mut origins = Vec::new();
        let mut summed: Vec<(Label, AtPadding)> = Vec::new();
        for (value, labels) in sides {
            let origin = self.of(value)?;
            let summed_axis = |at: &Dim| {
                labels.iter().enumerate().find(|(k, label)| at.contains(&axis(*k)) && !out.contains(label))
            };
            let renamed = |at: &Dim| {
                at.substitute(&|symbol| {
                    let k = (0..labels.len()).find(|k| axis(*k) == *symbol)?;
                    let to = out.iter().position(|label| *label == labels[k])?;
                    Some(axis(to).into())
                })
            };
            if origin.sequence.as_ref().is_some_and(|at| summed_axis(at).is_some()) {
                return Err("it adds up elements of several sequences".into());
            }
            let mut kept = Origin { sequence: origin.sequence.as_ref().map(renamed), ..Origin::default() };
            for token in &origin.tokens {
                match summed_axis(&token.at) {
                    Some((k, label)) if token.at.as_symbol() == Some(&axis(k)) => {
                        summed.push((*label, token.padding))
                    }
                    Some(_) => return Err("it adds up elements of a part of the tokens".into()),
                    // A product with zero is zero, but a sum of products is not known.
                    None => kept.tokens.push(Token::new(renamed(&token.at), AtPadding::Any)),
                }
            }
            origins.push(kept);
        }

        for (k, label) in lhs.iter().enumerate().filter(|(_, label)| !out.contains(label)) {
            let size = &self.padded.graph.shape(node.operands[0])[k];
            if self.is_padded(size) && !summed.iter().any(|(other, _)| other == label) {
                return Err(format!("it adds up an axis of the size {size}, whatever the lengths").into());
            }
        }
        for (label, _) in &summed {
            let is_masked = summed.iter().any(|(other, padding)| other == label && padding.is_zero());
            if !is_masked {
                return Err("it adds up all tokens, and no factor is 0 at padding".into());
            }
        }
        union(&origins.iter().collect::<Vec<_>>())
    }

    /// A scan gives a token a result of the tokens before it. Padding is not among them, because it comes last.
    fn scan(&self, node: &Node, along: usize, is_reverse: bool) -> Found {
        let operand = self.of(node.operands[0])?;
        if operand.sequence.as_ref().is_some_and(|at| at.contains(&axis(along))) {
            return Err("it scans the sequences of the batch".into());
        }
        let size = &self.padded.graph.shape(node.operands[0])[along];
        if is_reverse && self.is_padded(size) {
            return Err("it scans from the end, where padding is".into());
        }
        let mut origin = operand.clone();
        for token in &mut origin.tokens {
            let is_scanned = token.at.contains(&axis(along));
            if is_scanned && (is_reverse || token.at.as_symbol() != Some(&axis(along))) {
                return Err("it scans tokens from the end, where padding is".into());
            }
            token.padding = AtPadding::Any;
        }
        Ok(Origin { value: AtPadding::Any, ..origin })
    }

    /// An operator that works along one axis, which must hold neither tokens nor sequences.
    fn along(&self, node: &Node, along: usize) -> Found {
        let operand = self.of(node.operands[0])?;
        let size = &self.padded.graph.shape(node.operands[0])[along];
        if has_axis(operand, along) || self.is_padded(size) {
            return Err(format!("{} compares tokens or sequences with each other", node.op.name()).into());
        }
        let mut origin = operand.clone();
        origin.tokens.iter_mut().for_each(|token| token.padding = AtPadding::Any);
        if matches!(node.op, Op::ArgReduce { .. }) {
            return Ok(without_axes(&origin, &[along]));
        }
        Ok(Origin { value: AtPadding::Any, ..origin })
    }

    /// An output must have the sequence, and at most one token, as axes.
    fn output(&self, name: &str, value: Value) -> Result<(), Unproven> {
        let Padded { graph, batch, length, .. } = self.padded;
        let at = || format!("output `{name}`");
        let request = self.padded.request();
        let origin = self.of(value).map_err(|Refusal { reason, node, position }| Unproven {
            error: Error::unsupported(format!("{request}: {reason}")).at(node).at(at()),
            position,
        })?;
        let shape = graph.shape(value);
        let along = |symbol: &Symbol| {
            let k = shape.iter().position(|dim| dim.as_symbol() == Some(symbol));
            k.map(|k| Dim::from(axis(k)))
        };
        let fits = origin.sequence.as_ref().is_none_or(|at| Some(at) == along(batch).as_ref())
            && origin.tokens.iter().all(|token| Some(&token.at) == along(length).as_ref());
        if fits {
            return Ok(());
        }
        let why = format!("{request}: its elements don't belong to one token and one sequence each");
        Err(Unproven { error: Error::unsupported(why).at(at()), position: graph.nodes.len() })
    }
}

/// The replacement of the axis `symbol` by an index.
fn coordinate(index: &[Dim], symbol: &Symbol) -> Option<Dim> {
    index.iter().enumerate().find(|(k, _)| axis(*k) == *symbol).map(|(_, at)| at.clone())
}

/// Whether a coordinate is `$k`, `$k // c`, `$k % S` or `$k // c % S` that visits all positions `0..S` of `symbol`.
fn visits_all(facts: &Facts, at: &Dim, symbol: &Symbol, shape: &[Dim]) -> bool {
    let size = Dim::from(symbol);
    let extent = |dim: &Dim| (0..shape.len()).find(|k| dim.as_symbol() == Some(&axis(*k))).map(|k| &shape[k]);
    match at.node() {
        DimNode::Symbol(_) => extent(at).is_some_and(|extent| *extent == size),
        DimNode::FloorDiv(joint, inner) => {
            extent(joint).is_some_and(|extent| facts.prove_eq(extent, &(&size * inner)).is_yes())
        }
        DimNode::Mod(joint, inner) if *inner == size => match joint.node() {
            DimNode::FloorDiv(joint, step) => {
                extent(joint).is_some_and(|extent| facts.divides(&(&size * step), extent).is_yes())
            }
            _ => extent(joint).is_some_and(|extent| facts.divides(&size, extent).is_yes()),
        },
        _ => false,
    }
}
