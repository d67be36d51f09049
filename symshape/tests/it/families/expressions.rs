//! Families whose terms are random trees: obfuscated terms, polynomials, bounds and proofs without a pattern.

use super::random::Random;
use super::truth::{Expected, Query};

pub(crate) fn query(symbols: &str, expression: String, kind: &'static str, expected: Expected) -> Query {
    Query { symbols: symbols.to_string(), expression, kind, expected }
}

pub(crate) fn simplify(symbols: &str, expression: String, form: impl Into<String>) -> Query {
    query(symbols, expression, "simplify", Expected::Form(form.into()))
}

pub(crate) fn prove(symbols: &str, expression: String) -> Query {
    let kind = if expression.starts_with("(==") { "equal" } else { "prove_true" };
    query(symbols, expression, kind, Expected::Proven)
}

/// Symbols with ranges that a term can be tried out on.
fn small_symbols(random: &mut Random, names: &[&str]) -> String {
    let entry = |random: &mut Random, name: &str| match random.between(0, 4) {
        0 => format!("{name}:{}..{}:mult 8", 0, 8 * random.between(3, 12)),
        1 => format!("{name}:{}..{}:mult 2", -2 * random.between(0, 8), 2 * random.between(9, 40)),
        2 => format!("{name}:{}..{}", -random.between(0, 20), random.between(3, 30)),
        3 => format!("{name}:{}..{}:mult 4 rem 1", 1, 1 + 4 * random.between(3, 12)),
        _ => format!("{name}:0..{}", random.between(3, 60)),
    };
    names.iter().map(|name| entry(random, name)).collect::<Vec<_>>().join("; ")
}

fn tree(random: &mut Random, names: &[&str], depth: u32) -> String {
    if depth == 0 {
        return match random.between(0, 3) {
            0 => random.between(-4, 12).to_string(),
            _ => random.pick(names).to_string(),
        };
    }
    let left = tree(random, names, depth - 1);
    let divisor = random.pick(&[2, 3, 4, 6, 7, 8, 12, 16]);
    let right = |random: &mut Random| {
        let depth = random.between(0, i64::from(depth) - 1) as u32;
        tree(random, names, depth)
    };
    match random.between(0, 9) {
        0 | 1 => format!("(+ {left} {})", right(random)),
        2 => format!("(- {left} {})", right(random)),
        3 => format!("(* {left} {})", random.between(-3, 8)),
        4 => format!("(floordiv {left} {divisor})"),
        5 => format!("(mod {left} {divisor})"),
        6 => format!("(ceildiv {left} {divisor})"),
        7 => format!("(* {left} {})", right(random)),
        8 => format!("(min {left} {})", right(random)),
        _ => format!("(max {left} {})", right(random)),
    }
}

fn some_names(random: &mut Random) -> &'static [&'static str] {
    random.pick(&[&["x"], &["x", "y"]])
}

pub(crate) fn rbounds(random: &mut Random) -> Query {
    let names = some_names(random);
    let symbols = small_symbols(random, names);
    let depth = random.between(1, 3) as u32;
    query(&symbols, tree(random, names, depth), "bounds", Expected::Tight)
}

/// A term under operations that undo each other.
pub(crate) fn deobf(random: &mut Random) -> Query {
    let his = [15, 63, 255, 1000];
    let (x, y, z) = (random.pick(&his), random.pick(&his), random.pick(&his));
    let symbols = format!("x:0..{x}; y:0..{y}; z:0..{z}");
    let base = match random.between(0, 5) {
        0 => "(max x y)".to_string(),
        1 => "(min x y)".to_string(),
        2 => format!("(mod x {})", random.pick(&[2, 4, 8])),
        3 => format!("(floordiv x {})", random.pick(&[3, 4, 8])),
        4 => "(+ x y)".to_string(),
        _ => "x".to_string(),
    };
    let mut term = base.clone();
    for _ in 0..random.between(1, 4) {
        let (c, m) = (random.between(2, 6), random.pick(&[2, 4, 8, 16]));
        term = match random.between(0, 8) {
            0 => format!("(floordiv (* {term} {c}) {c})"),
            1 => format!("(ceildiv (* {term} {c}) {c})"),
            2 => format!("(- (+ {term} {m}) {m})"),
            3 => format!("(max {term} (- {term} {c}))"),
            4 => format!("(min {term} (+ {term} {m}))"),
            5 => format!("(floordiv (+ (* {term} {m}) (mod z {m})) {m})"),
            6 => format!("(ceildiv (* {term} (floordiv (+ (* {c} {m}) (mod z {m})) {m})) {c})"),
            7 => format!("(+ (* (floordiv {term} {m}) {m}) (mod {term} {m}))"),
            _ => format!("(- {term} (- (+ z {c}) (+ {c} z)))"),
        };
    }
    simplify(&symbols, term, base)
}

fn product(random: &mut Random, names: &[&str]) -> String {
    let (name, other) = (random.pick(names), random.pick(names));
    let factor = random.pick(&[-2, -1, 2, 3, 4, 8]);
    match random.between(0, 3) {
        0 => name.to_string(),
        1 => format!("(* {name} {factor})"),
        2 => format!("(* {factor} (* {name} {other}))"),
        _ => format!("(* {name} {other})"),
    }
}

/// The sum of `terms` in a random order and shape.
fn sum(random: &mut Random, terms: &[String]) -> String {
    let mut parts = terms.to_vec();
    random.shuffle(&mut parts);
    while parts.len() > 1 {
        let b = parts.remove(random.between(0, parts.len() as i64 - 1) as usize);
        let at = random.between(0, parts.len() as i64 - 1) as usize;
        parts[at] = format!("(+ {} {b})", parts[at]);
    }
    parts.remove(0)
}

pub(crate) fn poly(random: &mut Random) -> Query {
    let names = ["a", "b", "c", "d"];
    let entry = |random: &mut Random, name: &str| {
        format!("{name}:{}..{}", random.pick(&[-50, 0, 1]), random.pick(&[50, 1000, 1_000_000]))
    };
    let symbols = names.map(|name| entry(random, name)).join("; ");
    let terms: Vec<String> = (0..random.between(3, 7)).map(|_| product(random, &names)).collect();
    let (a, b) = (sum(random, &terms), sum(random, &terms));
    let factor = |random: &mut Random| format!("(+ {} {})", random.pick(&names), random.between(0, 4));
    match random.between(0, 3) {
        0 => prove(&symbols, format!("(== {a} {b})")),
        1 => simplify(&symbols, format!("(- (+ {a} d) {b})"), "d"),
        2 => prove(&symbols, format!("(< {a} (+ {b} {}))", random.between(1, 9))),
        _ => {
            let [p, q, r, s] = [(); 4].map(|_| factor(random));
            let expanded = [(&p, &r), (&p, &s), (&q, &r), (&q, &s)].map(|(f, g)| format!("(* {f} {g})"));
            let expanded = sum(random, &expanded);
            prove(&symbols, format!("(== (* (+ {p} {q}) (+ {r} {s})) {expanded})"))
        }
    }
}

/// A random relation, whose truth is only found by evaluation.
pub(crate) fn random_relation(random: &mut Random) -> Query {
    let names = some_names(random);
    let symbols = small_symbols(random, names);
    let (a, b) = (tree(random, names, 2), tree(random, names, 2));
    let operator = random.pick(&["<", "<=", "==", "!="]);
    let expression = format!("({operator} {a} {b})");
    let query = |expected| query(&symbols, expression.clone(), "prove_true", expected);
    match super::truth::Truth::of(&query(Expected::Proven)) {
        Ok(_) => query(Expected::Proven),
        Err(_) => query(Expected::Disproven),
    }
}
