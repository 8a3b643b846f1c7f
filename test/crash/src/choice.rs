//! Chooses the cuts that are checked. Pure.

use std::collections::BTreeSet;

use crate::random::Random;

/// Chooses `count` candidates, or all if there are fewer: for each case that is not `shown` yet and that a candidate
/// shows, one that shows it, and the rest at random. Adds the cases to `shown`.
pub(crate) fn of<K: Clone + Ord, T>(
    candidates: Vec<(BTreeSet<K>, T)>,
    count: usize,
    shown: &mut BTreeSet<K>,
    random: &mut Random,
) -> Vec<T> {
    let mut left = candidates;
    let mut chosen = Vec::new();
    while chosen.len() < count && !left.is_empty() {
        let useful: Vec<usize> = (0..left.len()).filter(|&at| !left[at].0.is_subset(shown)).collect();
        let at = random.one_of(&useful).copied().unwrap_or_else(|| random.below(left.len()));
        let (shows, candidate) = left.swap_remove(at);
        shown.extend(shows);
        chosen.push(candidate);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_some_candidate_shows_is_shown(
            candidates in prop::collection::vec(prop::collection::btree_set(0u8..20, 0..4), 0..60),
            count in 20usize..40,
            seed: u64,
        ) {
            let all: BTreeSet<u8> = candidates.iter().flatten().copied().collect();
            let numbered: Vec<_> = candidates.iter().cloned().zip(0..).collect();
            let mut shown = BTreeSet::new();
            let chosen = of(numbered, count, &mut shown, &mut Random::from_seed(seed));
            prop_assert_eq!(chosen.len(), candidates.len().min(count));
            prop_assert_eq!(&chosen.iter().flat_map(|&at: &usize| candidates[at].clone()).collect::<BTreeSet<_>>(), &shown);
            prop_assert_eq!(shown, all);
            prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), chosen.len(), "none is chosen twice");
        }
    }

    #[test]
    fn what_is_shown_already_is_not_looked_for() {
        let candidates = vec![(BTreeSet::from([1]), "again"), (BTreeSet::from([2]), "new")];
        let chosen = of(candidates, 1, &mut BTreeSet::from([1]), &mut Random::from_seed(0));
        assert_eq!(chosen, ["new"]);
    }
}
