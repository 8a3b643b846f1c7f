//! Plans the renewal of certificates, and the time of the next check. No files, no clock.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use crate::pki::certificate::{Stale, Validity};
use crate::pki::expiry::{Expiry, Lasting};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) due: BTreeMap<&'static str, Stale>,
    /// Earliest renewal time of the certificates that are not due; `None` if all are due.
    pub(crate) next: Option<OffsetDateTime>,
}

/// Plans the renewal of the certificates with these checks: each is either in `due` or valid until `next`.
pub(crate) fn plan(found: &BTreeMap<&'static str, Result<Validity, Stale>>, now: OffsetDateTime) -> Plan {
    let mut plan = Plan { due: BTreeMap::new(), next: None };
    for (&name, found) in found {
        let until = found.and_then(|validity| {
            let renewal = validity.shortly_before_its_end();
            validity.check(now, renewal).map(|()| renewal)
        });
        match until {
            Ok(renewal) => plan.next = Some(plan.next.map_or(renewal, |next| next.min(renewal))),
            Err(stale) => drop(plan.due.insert(name, stale)),
        }
    }
    plan
}

/// The node's certificates after a check. None that the node signs is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    pub made: Vec<&'static str>,
    /// Expiry of each certificate by name, including the CA's.
    pub expiries: Vec<Expiry>,
    /// Time of the next renewal. `None` on a worker, which signs no certificates.
    pub lasting: Option<Lasting>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::Duration;

    use super::*;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-03-01 12:00 UTC);
    const NAMES: [&str; 4] = ["admin", "apiserver", "kubelet", "proxy"];

    type Found = BTreeMap<&'static str, Result<Validity, Stale>>;

    fn after(minutes: i64) -> OffsetDateTime {
        NOW + Duration::minutes(minutes)
    }

    fn found() -> impl Strategy<Value = Found> {
        let year = 366 * 24 * 60_i64;
        let validity =
            (-2 * year..year, 0..2 * year).prop_map(|(from, life)| Ok(Validity::new(after(from), after(from + life))));
        let one = prop_oneof![
            8 => validity,
            1 => Just(Err(Stale::Absent)),
            1 => Just(Err(Stale::OtherCa)),
        ];
        prop::collection::btree_map(prop::sample::select(NAMES.to_vec()), one, 0..4)
    }

    fn done(mut found: Found, plan: &Plan, now: OffsetDateTime) -> Found {
        for name in plan.due.keys() {
            found.insert(name, Ok(Validity::of_new_leaf(now)));
        }
        found
    }

    proptest! {
        #[test]
        fn a_plan_that_was_carried_out_leaves_nothing_to_do(found in found(), minutes in 0_i64..600_000) {
            let now = after(minutes);
            let first = plan(&found, now);
            let then = plan(&done(found, &first, now), now);
            prop_assert_eq!(then.due, BTreeMap::new());
            prop_assert!(then.next.is_none_or(|next| next >= now));
        }

        #[test]
        fn what_is_not_due_is_valid_until_the_next_look(found in found(), minutes in 0_i64..600_000) {
            let now = after(minutes);
            let plan = plan(&found, now);
            for (name, found) in &found {
                match found {
                    Ok(validity) if !plan.due.contains_key(name) => {
                        let next = plan.next.expect("a time for it");
                        prop_assert!(validity.from() <= now && now <= next && next < validity.to());
                    }
                    Ok(_) | Err(_) => prop_assert!(plan.due.contains_key(name)),
                }
            }
        }

        /// Each check is up to an hour late, and still weeks early.
        #[test]
        fn who_follows_the_plans_never_has_an_expired_certificate(found in found(), late in prop::collection::vec(0_i64..60, 1..30)) {
            let (mut found, mut now) = (found, NOW);
            for minutes in late {
                let plan = plan(&found, now);
                found = done(found, &plan, now);
                for validity in found.values().flatten() {
                    prop_assert!(validity.from() <= now && now + Duration::days(29) < validity.to());
                }
                let Some(next) = super::plan(&found, now).next else { return Ok(()) };
                now = next + Duration::minutes(minutes + 1);
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_makes_new_ones() {
        let made = Found::from([("admin", Ok(Validity::of_new_leaf(NOW)))]);
        assert_eq!(plan(&made, NOW).due, BTreeMap::new());
        assert_eq!(plan(&made, NOW - Duration::days(3)).due, BTreeMap::from([("admin", Stale::NotYet)]));
    }
}
