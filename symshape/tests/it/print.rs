//! Simplified terms have the usual notation: common factors in front, maxima of sums without minus signs, and
//! multiples of a divisor inside the quotient where they shorten it.

use symshape::{Declaration, Dim, Facts, Symbol};

fn simplified(text: &str) -> String {
    let mut facts = Facts::new();
    for (name, hi) in [("N", 64), ("S", 512)] {
        facts.declare(&Symbol::new(name), Declaration::range(1, hi)).expect("a range");
    }
    facts.simplify(&text.parse::<Dim>().expect("a term")).to_string()
}

#[test]
fn maxima_have_no_minus_signs() {
    let arena = "-1024*min(3*N*(-6*S - 1) - 13, -27*N*S)";
    assert_eq!(simplified(arena), "1024*max(3*N*(6*S + 1) + 13, 27*N*S)");
    assert_eq!(simplified("64*max(3*S + 2, 7*N)"), "64*max(7*N, 3*S + 2)");
    assert_eq!(simplified("0 - min(-3*S - 2, -7*N)"), "max(7*N, 3*S + 2)");
}

#[test]
fn minima_stay_within_their_quotients() {
    assert_eq!(simplified("64*((4*S*min(S, 48) + 63)//64)"), "64*((S*min(S, 48) + 15)//16)");
    assert_eq!(
        simplified("64*((4*S*min(S, 48) + 63)//64) + 1536*N*S"),
        "64*(((384*N + min(S, 48))*S + 15)//16)"
    );
}

#[test]
fn what_is_simple_stays_as_it_is() {
    for text in ["min(max(-max(min(-S + 3, 1), -1), 0), 1)", "N + min(max(-max(min(-S + 3, 1), -1), 0), 1)"] {
        let simple = simplified(text);
        assert_eq!(simplified(&simple), simple);
    }
    assert_eq!(simplified("min(max(-max(min(-S + 3, 1), -1), 0), 1)"), "min(max(S - 3, 0), 1)");
}
