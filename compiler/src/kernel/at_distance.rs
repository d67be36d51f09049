//! Results for terms, shared by all terms at a constant distance.

use num_bigint::BigInt;
use std::{collections::HashMap, hash::Hash};
use symshape::{Dim, Displacement, Facts, NormalForms};

/// Results of a computation on terms, such as addresses. Most addresses are at a constant distance from another one,
/// and their results are at the same distance. So it runs for one of them.
pub(crate) struct AtDistance<K, V> {
    forms: NormalForms,
    /// By the key and the varying part of terms: the constant of one of them, and its result.
    known: HashMap<(K, usize), (BigInt, V)>,
}

impl<K: Eq + Hash, V: Clone> AtDistance<K, V> {
    pub(crate) fn new(facts: &Facts) -> AtDistance<K, V> {
        AtDistance { forms: facts.normal_forms(), known: HashMap::new() }
    }

    /// The result for a term with the same key, and the distance from that term to this one. If there is none, the
    /// result of `compute` for this one, and 0.
    ///
    /// # Errors
    /// That of `compute`.
    pub(crate) fn get<E>(
        &mut self,
        key: K,
        term: &Dim,
        compute: impl FnOnce() -> Result<V, E>,
    ) -> Result<(V, Dim), E> {
        let Displacement { varying, constant } = self.forms.displacement(term);
        let key = (key, varying);
        if let Some((first, value)) = self.known.get(&key) {
            return Ok((value.clone(), Dim::from(constant - first)));
        }
        let value = compute()?;
        self.known.insert(key, (constant, value.clone()));
        Ok((value, Dim::zero()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_of_one_key_at_a_constant_distance_share_a_result() {
        let dim = |text: &str| text.parse::<Dim>().expect("a term");
        let mut results = AtDistance::new(&Facts::new());
        let mut get = |key, text: &str| {
            let (first, distance) = results.get(key, &dim(text), || Ok::<_, ()>(text.to_string()))?;
            Ok::<_, ()>((first, distance.as_i64()))
        };
        assert_eq!(get('a', "4*i + 3"), Ok(("4*i + 3".into(), Some(0))));
        assert_eq!(get('a', "4*(i - 1)"), Ok(("4*i + 3".into(), Some(-7))));
        assert_eq!(get('b', "4*(i - 1)"), Ok(("4*(i - 1)".into(), Some(0))));
        assert_eq!(get('a', "3*i"), Ok(("3*i".into(), Some(0))));
        assert_eq!(results.get('a', &dim("i"), || Err(5)), Err(5));
    }
}
