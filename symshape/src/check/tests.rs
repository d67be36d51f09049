//! Every law of the checker is reached by a proof, and no changed step passes.

use super::Replay;
use crate::assume::{Declaration, Facts, Relation};
use crate::dim::{Dim, Symbol};
use crate::engine::proof::{Argument, Derivation, Event, MinimumLaw, Proof, QuotientLaw};
use crate::int::Int;
use crate::prove::Answer;

/// `(symbols, left, right)` with `left == right` or, for `<=`, `left <= right`.
const PROOFS: &[(&str, &str)] = &[
    ("x:-9..9", "(3*x + 1)//(-4) == (-3*x - 1)//4"),
    ("x:-9..9 y:1..9", "x//(-y) == (-x)//y"),
    ("x:-5..5 n:1..5 y:-9..9", "(x*n + y)//n == x + y//n"),
    ("x:-9..9", "(13*x + 2)//5 == 3*x + (2 - 2*x)//5"),
    ("x:-9..9 y:1..5", "(-x)//y == -((x + y - 1)//y)"),
    ("x:-9..9 y:0..3", "(8*x + y + 4)//24 == x//3"),
    ("x:1..9", "(7*x + 7)//(12*x + 12) == 0"),
    ("x:-4..4 n:1..6", "(x*n + x)//(n + 1) == x"),
    ("x:0..1", "(3*x + 3)//4 == x"),
    ("x:-30..30 n:1..4", "(x//n + 1)//(2*n) == (x + n)//(2*n*n)"),
    ("x:-30..30 y:-3..3", "(y - x//4)//5 == (4*y + 3 - x)//20"),
    ("n:1..50 j:0..7", "(n*8 + j)//8 <= n"),
    ("x:-5..5 y:-5..5 z:-5..5", "min(3*min(x, y) + z, 7) <= 3*y + z"),
    ("x:-9..9 y:-9..9", "min(x//4, y//4 + 1) == min(x, y + 4)//4"),
    ("x:-9..9 y:-9..9", "max(x//4, y//4) == max(x, y)//4"),
    ("x:-5..5 y:-5..5 n:0..3", "min(n*x, n*y) == n*min(x, y)"),
    ("x:0..5 y:6..9", "min(x, y) == x"),
    ("y:0..9", "(y%2 + 1)%2 <= (y%2 + 1)%2 + y%2"),
    ("y:-9..9", "min(max(y, -7)%2%2, (y%2 - 1)%2) == min((1 - y)%2, max(y, -7)%2)"),
];

fn prove(symbols: &str, relation: &str) -> Proof {
    let mut facts = Facts::new();
    for entry in symbols.split(' ') {
        let (name, range) = entry.split_once(':').expect("name:lo..hi");
        let (lo, hi) = range.split_once("..").expect("lo..hi");
        let range: [i64; 2] = [lo, hi].map(|end| end.parse().expect("an integer"));
        facts.declare(&Symbol::new(name), Declaration::range(range[0], range[1])).expect("a range");
    }

    let dim = |text: &str| text.parse::<Dim>().expect("a term");
    let relation = match relation.split_once("==") {
        Some((a, b)) => Relation::eq(dim(a), dim(b)),
        None => relation.split_once("<=").map(|(a, b)| Relation::le(dim(a), dim(b))).expect("a relation"),
    };

    match facts.prove(&relation) {
        Answer::Yes(proof) => proof,
        _ => panic!("{relation} is not proven"),
    }
}

fn derivation(proof: &Proof) -> (&Relation, &Derivation) {
    match &*proof.0 {
        Argument::Derivation { facts, relation, steps } => {
            (relation, steps.derive(facts, relation).expect("a proof is found again"))
        }
        _ => panic!("{proof} is not a derivation"),
    }
}

fn law_name(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Quotient { law, .. } => match &**law {
            QuotientLaw::Atom => "atom",
            QuotientLaw::Remainder(_) => "remainder",
            QuotientLaw::Negate => "negate",
            QuotientLaw::Flip => "flip",
            QuotientLaw::Split { .. } => "split",
            QuotientLaw::Cancel(_) => "cancel",
            QuotientLaw::Merge { .. } => "merge",
        },
        Event::Minimum { law, .. } => match law {
            MinimumLaw::Affine { .. } => "affine",
            MinimumLaw::Flatten { .. } => "flatten",
            MinimumLaw::Drop { .. } => "drop",
            MinimumLaw::CommonDivisor { .. } => "common divisor",
        },
        Event::Atom { .. } | Event::Narrow { .. } | Event::Side { .. } | Event::Divisor { .. } => {
            return None;
        }
    })
}

#[test]
fn every_law_is_reached() {
    let mut met: Vec<&str> = Vec::new();
    for (symbols, relation) in PROOFS {
        let proof = prove(symbols, relation);
        assert_eq!(proof.check(), Ok(()), "{relation}");
        met.extend(derivation(&proof).1.engine.log.iter().filter_map(law_name));
    }

    for law in [
        "atom",
        "remainder",
        "negate",
        "flip",
        "split",
        "cancel",
        "merge",
        "affine",
        "flatten",
        "drop",
        "common divisor",
    ] {
        assert!(met.contains(&law), "no proof uses the law `{law}`");
    }
}

/// The step with another value, or with another premise.
fn broken(event: &Event) -> Option<Event> {
    let mut event = event.clone();
    match &mut event {
        Event::Quotient { result, .. } | Event::Minimum { result, .. } => {
            *result = result.add_const(&Int::ONE)
        }
        Event::Divisor { negative, .. } => *negative = !*negative,
        Event::Atom { range, .. } => range.hi = range.hi.as_ref().map(|hi| hi - &Int::from(1_000)),
        Event::Narrow { .. } | Event::Side { .. } => return None,
    }
    Some(event)
}

#[test]
fn a_changed_step_is_refused() {
    for (symbols, text) in PROOFS {
        let proof = prove(symbols, text);
        let (relation, Derivation { engine, goal }) = derivation(&proof);
        for (idx, event) in engine.log.iter().enumerate() {
            let Some(event) = broken(event) else { continue };
            let mut engine = engine.clone();
            engine.log[idx] = event;
            let flaw = Replay::new(&engine).run(&engine, relation, goal);
            assert!(flaw.is_err(), "{text}: step {idx} may be {:?}", engine.log[idx]);
        }
    }
}

/// A log that lacks a step proves nothing.
#[test]
fn a_missing_step_is_refused() {
    for (symbols, text) in PROOFS {
        let proof = prove(symbols, text);
        let (relation, Derivation { engine, goal }) = derivation(&proof);
        let mut empty = engine.clone();
        empty.log.clear();
        assert!(Replay::new(&empty).run(&empty, relation, goal).is_err(), "{text}");
    }
}
