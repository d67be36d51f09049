//! All answers of the engine, against brute force over small domains.

use crate::cases;

use cases::{Case, Source};
use symshape::{Answer, Declaration, Dim, Facts, Symbol};

/// The number of random cases in a test run; `ORACLE_CASES` overrides it.
fn count() -> u64 {
    std::env::var("ORACLE_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(4_000)
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    (0..160).map(|_| next()).collect()
}

#[test]
fn random_cases_agree_with_evaluation() {
    let first: u64 = std::env::var("ORACLE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut n_checked = 0;
    for seed in first..first + count() {
        let bytes = bytes(seed);
        let result = std::panic::catch_unwind(|| {
            let case = Case::read(&mut Source::new(&bytes));
            case.iter().for_each(Case::check);
            case.is_some()
        });
        match result {
            Ok(is_checked) => n_checked += u64::from(is_checked),
            Err(_) => panic!("seed {seed}"),
        }
    }
    assert!(2 * n_checked > count(), "only {n_checked} of {} random cases could be checked", count());
}

/// Cases have the same three symbols with other facts, so a key that lacked a fact would mix up their answers.
#[test]
fn facts_that_share_a_memory_keep_their_own_answers() {
    let memory = Facts::new().remembering();
    let mut n_checked = 0;
    for seed in 1..1 + count() / 4 {
        let bytes = bytes(seed);
        let forgetful = Case::read(&mut Source::new(&bytes));
        let remembering = Case::read_from(memory.clone(), &mut Source::new(&bytes));
        let (Some(forgetful), Some(remembering)) = (forgetful, remembering) else { continue };
        let expected = forgetful.answers();
        for time in ["worked out", "from memory"] {
            assert_eq!(remembering.answers(), expected, "seed {seed}, {time}");
        }
        remembering.check();
        n_checked += 1;
    }
    assert!(n_checked > count() / 10, "only {n_checked} cases");
}

#[test]
fn a_fact_that_is_added_later_changes_later_answers() {
    let mut facts = Facts::new().remembering();
    let n = Dim::symbol("N");
    let question = (&n + 7).floor_div(8);
    facts.declare(&Symbol::new("N"), Declaration::range(1, 64)).unwrap();
    let before = facts.clone();
    assert_eq!(facts.bounds(&question).hi, Some(8.into()));
    assert!(!facts.prove_le(&n, &Dim::from(8)).is_yes());
    facts.declare(&Symbol::new("N"), Declaration::range(1, 8)).unwrap();
    assert_eq!(facts.simplify(&question).as_i64(), Some(1));
    assert!(facts.prove_le(&n, &Dim::from(8)).is_yes());
    assert_eq!(before.bounds(&question).hi, Some(8.into()));
    assert!(!before.prove_le(&n, &Dim::from(8)).is_yes());
}

#[test]
fn hostile_symbols_end_soon() {
    let chain = |bound: &dyn Fn(usize) -> String, count| {
        let rest = (1..count).map(|n| format!("; x{n}:0..{}", bound(n - 1)));
        rest.fold("x0:0..5".to_string(), |text, entry| text + &entry)
    };
    // Each range is the square of the one before, or ends where the one before does.
    let squares = chain(&|n| format!("(* x{n} x{n})"), 60);
    let steps = chain(&|n| format!("(+ x{n} 5)"), 500);
    for (symbols, term) in [(&squares, "(- x59 x58)"), (&steps, "(floordiv (* x499 7) 3)")] {
        for kind in ["simplify", "bounds"] {
            let reply = symshape::query::answer_line(&format!("0\t{symbols}\t{term}\t{kind}"));
            assert!(reply.micros < 30e6, "{kind} took {} s", reply.micros / 1e6);
        }
    }
}

#[test]
fn malformed_lines_are_errors() {
    let malformed = [
        "",
        "\t\t\t",
        "abc",
        "0\tx\tx\tsimplify",
        "0\tx:0..\tx\tsimplify",
        "0\tx:5..1\tx\tsimplify",
        "0\tx:0..9:mult 0\tx\tsimplify",
        "0\tx:0..9\t(+ x\tsimplify",
        "0\tx:0..9\tx y\tsimplify",
        "0\tx:0..9\t(min)\tsimplify",
        "0\tx:0..9\t(x)\tequal",
        "0\tx:0..9\t(<= x)\tequal",
        "0\tx:0..9\tx\tfoo",
        "0\tx:0..9\t(floordiv x 0)\tsimplify",
        "0\tx:0..9\tx\tequal",
    ];
    for line in malformed {
        let answer = symshape::query::answer_line(line).answer;
        assert!(answer.starts_with("error: "), "{line}: {answer}");
    }
}

#[test]
fn hostile_terms_end_soon() {
    let nested = |step: &dyn Fn(String, usize) -> String, depth| (0..depth).fold("x".to_string(), step);
    let terms = [
        nested(&|x, n| format!("(floordiv {x} {})", n % 7 + 2), 240),
        nested(&|x, n| format!("(floordiv {x} {})", n % 7 + 2), 4_000),
        nested(&|x, n| format!("(+ (floordiv {x} 3) (min y{n} z{n}))"), 40),
        nested(&|x, n| format!("(min (max {x} y{n}) z{n})"), 12),
        nested(&|x, _| format!("(* {x} (+ x y))"), 40),
        format!("(* x {})", "9".repeat(3_000)),
        format!("(+ {})", (0..3_000).map(|n| format!("(* x{n} {n})")).collect::<Vec<_>>().join(" ")),
        format!("(* {})", (0..300).map(|n| format!("(+ x {n})")).collect::<Vec<_>>().join(" ")),
        "(floordiv x".to_string(),
        "(mod x 0)".to_string(),
    ];
    for term in terms {
        for kind in ["simplify", "bounds"] {
            let reply = symshape::query::answer_line(&format!("0\tx:0..100\t{term}\t{kind}"));
            assert!(reply.micros < 30e6, "{kind} took {} s", reply.micros / 1e6);
        }
    }
}

#[test]
fn halves_that_stand_alone_replay() {
    for (lo, hi) in [(-6, -6), (5, 5), (-6, 5)] {
        let mut facts = Facts::new();
        facts.declare(&Symbol::new("x"), Declaration::range(lo, hi)).unwrap();
        let term: Dim = "(x%9 + y%2)%2%2".parse().unwrap();
        let Answer::Yes(proof) = facts.prove_eq(&term, &facts.simplify(&term)) else {
            panic!("not proven for x in {lo}..={hi}");
        };
        assert_eq!(proof.check(), Ok(()), "{proof}");
    }
}
