//! Queries of kind `pred`: relations joined by `and`, `or` and `not`.

use super::operator;
use super::sexpr::{Sexpr, read, relation_of, write_dim};
use crate::assume::{Comparison, Facts, Relation};

/// A condition on symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Predicate {
    Known(bool),
    Relation(Relation),
    And(Vec<Predicate>),
    Or(Vec<Predicate>),
}

/// A predicate of equal value in few operations; a constant one is `true` or `false`.
pub(super) fn simplify(facts: &Facts, text: &str) -> Result<String, String> {
    let predicate = read_predicate(&read(text)?, false)?;
    Ok(write(&reduce(facts, predicate)))
}

/// Reads a predicate, or its negation: `not` ends at the relations.
fn read_predicate(sexpr: &Sexpr<'_>, negated: bool) -> Result<Predicate, String> {
    let list = match sexpr {
        Sexpr::Word("true") => return Ok(Predicate::Known(!negated)),
        Sexpr::Word("false") => return Ok(Predicate::Known(negated)),
        Sexpr::Word(word) => return Err(format!("expected a predicate, found `{word}`")),
        Sexpr::List(list) => list,
    };
    let parts = |list: &[Sexpr<'_>]| -> Result<Vec<Predicate>, String> {
        list.iter().map(|part| read_predicate(part, negated)).collect()
    };
    match list.as_slice() {
        [Sexpr::Word("and"), rest @ ..] if !negated => Ok(Predicate::And(parts(rest)?)),
        [Sexpr::Word("and"), rest @ ..] => Ok(Predicate::Or(parts(rest)?)),
        [Sexpr::Word("or"), rest @ ..] if !negated => Ok(Predicate::Or(parts(rest)?)),
        [Sexpr::Word("or"), rest @ ..] => Ok(Predicate::And(parts(rest)?)),
        [Sexpr::Word("not"), inner] => read_predicate(inner, !negated),
        _ => {
            let relation = relation_of(list)?;
            Ok(Predicate::Relation(if negated { negate(&relation) } else { relation }))
        }
    }
}

pub(crate) fn negate(relation: &Relation) -> Relation {
    let Relation { comparison, a, b } = relation;
    match comparison {
        Comparison::Eq => Relation::ne(a, b),
        Comparison::Ne => Relation::eq(a, b),
        Comparison::Lt => Relation::le(b, a),
        Comparison::Le => Relation::lt(b, a),
        Comparison::Divides => Relation::ne(b.modulo(a), 0),
    }
}

fn reduce(facts: &Facts, predicate: Predicate) -> Predicate {
    match predicate {
        Predicate::Known(_) => predicate,
        Predicate::Relation(relation) => reduce_relation(facts, relation),
        Predicate::And(list) => reduce_list(facts, list, true),
        Predicate::Or(list) => reduce_list(facts, list, false),
    }
}

fn reduce_relation(facts: &Facts, relation: Relation) -> Predicate {
    if facts.prove(&relation).is_yes() {
        return Predicate::Known(true);
    }
    if facts.prove(&negate(&relation)).is_yes() {
        return Predicate::Known(false);
    }
    Predicate::Relation(facts.simplify_relation(&relation))
}

/// Reduces the parts of a conjunction (or disjunction), each knowing that those before it hold (fail).
fn reduce_list(facts: &Facts, list: Vec<Predicate>, all: bool) -> Predicate {
    let mut scope = facts.clone();
    let mut kept: Vec<Predicate> = Vec::new();
    for part in list {
        match reduce(&scope, part) {
            Predicate::Known(value) if value == all => {}
            Predicate::Known(value) => return Predicate::Known(value),
            part if kept.contains(&part) => {}
            part => {
                if let Predicate::Relation(relation) = &part {
                    scope.add_assumption(if all { relation.clone() } else { negate(relation) }, "condition");
                }
                kept.push(part);
            }
        }
    }
    match (kept.len(), all) {
        (0, _) => Predicate::Known(all),
        (1, _) => kept.remove(0),
        (_, true) => Predicate::And(kept),
        (_, false) => Predicate::Or(kept),
    }
}

fn write(predicate: &Predicate) -> String {
    match predicate {
        Predicate::Known(value) => value.to_string(),
        Predicate::Relation(relation) => {
            let Relation { comparison, a, b } = relation;
            format!("({} {} {})", operator(*comparison), write_dim(a), write_dim(b))
        }
        Predicate::And(list) => write_list("and", list),
        Predicate::Or(list) => write_list("or", list),
    }
}

fn write_list(operator: &str, list: &[Predicate]) -> String {
    let mut parts = list.iter().map(write);
    let first = parts.next().unwrap_or_default();
    parts.fold(first, |acc, next| format!("({operator} {acc} {next})"))
}
