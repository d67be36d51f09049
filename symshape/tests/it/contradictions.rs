//! Contradictory facts: every query about them terminates, with any answer.

use symshape::{Declaration, Dim, Facts, Relation, Symbol};

#[test]
fn ranges_without_a_value_end_every_search() {
    let [a, x, y] = ["A", "x", "y"].map(Symbol::new);
    for (lo, hi) in [(1, -1), (5, 2), (-2, -5), (1, 0), (0, -1)] {
        let mut facts = Facts::default();
        facts.declare(&a, Declaration::range(0, 7)).expect("declared once");
        facts.declare_between(&x, &lo.into(), &hi.into());
        facts.declare_between(&y, &(Dim::from(&a) - 9), &(Dim::from(&a) - 8));
        let (x, y) = (Dim::from(&x), Dim::from(&y));
        for dim in [&x * &y, &y * &x, &x * &x, &x * &x * &x * &y, -(&x * &y) * Dim::from(&a)] {
            facts.bounds(&dim);
            facts.simplify(&dim);
            // A contradiction implies both.
            facts.prove(&Relation::le(Dim::zero(), &dim));
            facts.prove(&Relation::lt(&dim, Dim::zero()));
        }
    }
}
