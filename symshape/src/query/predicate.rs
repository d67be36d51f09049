//! Queries of kind `pred`: relations joined by `and`, `or` and `not`.

use super::sexpr::{Reader, operator, write_dim};
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
    let mut reader = Reader::new(text, facts.symbols().cloned());
    let predicate = read_predicate(&mut reader, false)?;
    reader.end()?;
    Ok(write(&reduce(facts, predicate)))
}

/// Reads a predicate, or its negation: `not` ends at the relations.
fn read_predicate(reader: &mut Reader<'_>, negated: bool) -> Result<Predicate, String> {
    let Some(operator) = reader.open()? else {
        return match reader.leaf() {
            "true" => Ok(Predicate::Known(!negated)),
            "false" => Ok(Predicate::Known(negated)),
            word => Err(format!("expected a predicate, found `{word}`")),
        };
    };
    match operator {
        "and" | "or" => {
            let mut parts = Vec::new();
            while !reader.close() {
                parts.push(read_predicate(reader, negated)?);
            }
            Ok(if (operator == "and") == negated { Predicate::Or(parts) } else { Predicate::And(parts) })
        }
        "not" => {
            let inner = read_predicate(reader, !negated)?;
            if reader.close() { Ok(inner) } else { Err("`not` takes one predicate".to_string()) }
        }
        _ => {
            let relation = reader.relation(operator)?;
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
                // Parts that contradict each other decide the whole.
                if !suppose(&mut scope, &part, all) {
                    return Predicate::Known(!all);
                }
                kept.push(part);
            }
        }
    }

    kept = without_implied(facts, kept, all);
    match (kept.len(), all) {
        (0, _) => Predicate::Known(all),
        (1, _) => kept.remove(0),
        (_, true) => Predicate::And(kept),
        (_, false) => Predicate::Or(kept),
    }
}

/// Adds to the scope that a part holds (or fails, in a disjunction); `false` where it cannot.
fn suppose(scope: &mut Facts, part: &Predicate, all: bool) -> bool {
    match part {
        Predicate::Relation(relation) if all => scope.assume(relation.clone(), "condition").is_ok(),
        Predicate::Relation(relation) => scope.assume(negate(relation), "condition").is_ok(),
        _ => true,
    }
}

/// Leaves out the parts that follow from all others.
fn without_implied(facts: &Facts, mut list: Vec<Predicate>, all: bool) -> Vec<Predicate> {
    let mut idx = 0;
    while idx < list.len() && list.len() > 1 && list.len() <= MAX_PARTS {
        let mut scope = facts.clone();
        let others = list.iter().enumerate().filter(|(other, _)| *other != idx);
        let possible = others.fold(true, |possible, (_, part)| possible && suppose(&mut scope, part, all));
        let implied = possible
            && match &list[idx] {
                Predicate::Relation(relation) if all => scope.derives(relation),
                Predicate::Relation(relation) => scope.derives(&negate(relation)),
                _ => false,
            };
        if implied { drop(list.remove(idx)) } else { idx += 1 }
    }

    list
}

/// Longer lists are left as they are.
const MAX_PARTS: usize = 8;

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
