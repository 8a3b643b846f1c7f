//! Project IDs of the parts of the data disk.

use std::collections::{BTreeMap, BTreeSet};

use fsquota::ProjectId;

use crate::budget::Part;

/// First ID for parts. The IDs of volumes are counted from 1, used once, and do not reach this value.
const FIRST: u32 = 1 << 31;

/// Project IDs by the names of the parts, as recorded on the disk. A part of another release keeps its ID.
///
/// A pod could use a predictable ID: if it found a way to change the project of its files, it could exhaust etcd's
/// limit, and the control plane would stop. Therefore each ID is an independent random number. A pod can read the IDs
/// of [some parts](Part::is_visible_to_pods), which must not reveal the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProjectIds(BTreeMap<String, ProjectId>);

impl ProjectIds {
    /// Parses a record; `None` if it is damaged.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let ids: BTreeMap<String, ProjectId> = serde_json::from_slice(text).ok()?;
        let different: BTreeSet<_> = ids.values().collect();
        (different.len() == ids.len()).then_some(Self(ids))
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        let ids: BTreeMap<&str, u32> = self.0.iter().map(|(name, id)| (name.as_str(), id.get())).collect();
        format!("{}\n", serde_json::json!(ids)).into_bytes()
    }

    pub(crate) fn get(&self, part: Part) -> Option<ProjectId> {
        self.0.get(part.name()).copied()
    }

    /// Assigns an ID to each part that the record does not contain. `present` returns the current ID of its directory.
    /// The current ID stays if no pod can guess it, or if every pod can read the ID of this part, because another ID
    /// would have no use then.
    pub(crate) fn complete<E>(
        &mut self,
        present: impl Fn(Part) -> Result<Option<ProjectId>, E>,
        mut random: impl FnMut() -> Result<u32, E>,
        is_unused: impl Fn(ProjectId) -> Result<bool, E>,
    ) -> Result<(), E> {
        for part in Part::ALL {
            if self.get(part).is_some() {
                continue;
            }
            let stays = |id: &ProjectId| id.get() >= FIRST || part.is_visible_to_pods();
            let id = match present(part)?.filter(stays).filter(|id| !self.has(*id)) {
                Some(id) => id,
                None => loop {
                    if let Some(id) = ProjectId::new(FIRST | random()?)
                        && !self.has(id)
                        && is_unused(id)?
                    {
                        break id;
                    }
                },
            };
            self.0.insert(part.name().to_owned(), id);
        }
        Ok(())
    }

    fn has(&self, id: ProjectId) -> bool {
        self.0.values().any(|other| *other == id)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// Completes a record with these numbers instead of random ones.
    fn completed(mut ids: ProjectIds, present: &BTreeMap<Part, u32>, numbers: &[u32], used: &[u32]) -> ProjectIds {
        let mut numbers = numbers.iter();
        let done: Result<(), Infallible> = ids.complete(
            |part| Ok(present.get(&part).and_then(|id| ProjectId::new(*id))),
            || Ok(*numbers.next().expect("numbers enough")),
            |id| Ok(!used.contains(&id.get())),
        );
        done.unwrap();
        ids
    }

    fn all(ids: &ProjectIds) -> [u32; Part::ALL.len()] {
        Part::ALL.map(|part| ids.get(part).unwrap().get())
    }

    /// IDs of a release that took them from the counter of volumes.
    fn former() -> BTreeMap<Part, u32> {
        Part::ALL.into_iter().zip(1..).collect()
    }

    /// A number for each part, starting with `first`.
    fn numbers(first: u32) -> [u32; Part::ALL.len()] {
        std::array::from_fn(|index| first + u32::try_from(index).expect("a few parts"))
    }

    #[test]
    fn ids_of_a_new_disk_are_random_different_and_unused() {
        // u32::MAX is not an ID.
        let drawn: Vec<u32> = [7, 7, u32::MAX, 8, 9, 1 << 31].into_iter().chain(numbers(10)).collect();
        let ids = completed(ProjectIds::default(), &BTreeMap::new(), &drawn, &[FIRST | 9]);
        let wanted: Vec<u32> = [7, 8, 0].into_iter().chain(numbers(10)).map(|number| FIRST | number).collect();
        assert_eq!(all(&ids)[..], wanted[..Part::ALL.len()]);
    }

    #[test]
    fn parts_of_a_former_release_get_other_ids_unless_public() {
        let ids = completed(ProjectIds::default(), &former(), &numbers(7), &[]);
        for part in Part::ALL {
            let id = ids.get(part).unwrap().get();
            assert_eq!(id < FIRST, part.is_visible_to_pods(), "{part:?}");
            assert!(id >= FIRST || id == former()[&part], "{part:?}");
        }
    }

    #[test]
    fn a_lost_record_is_restored_from_the_directories() {
        let ids = completed(ProjectIds::default(), &former(), &numbers(7), &[]);
        let present = Part::ALL.into_iter().zip(all(&ids)).collect();
        assert_eq!(completed(ProjectIds::default(), &present, &[], &[]), ids);
    }

    #[test]
    fn a_complete_record_does_not_follow_the_directories() {
        let ids = completed(ProjectIds::default(), &BTreeMap::new(), &numbers(1), &[]);
        assert_eq!(completed(ids.clone(), &former(), &[], &[]), ids);
    }

    #[test]
    fn an_id_of_a_part_that_this_release_does_not_know_is_kept() {
        let ids = ProjectIds::parse(br#"{"registry": 4000000000}"#).unwrap();
        let drawn: Vec<u32> = std::iter::once(4_000_000_000).chain(numbers(1)).collect();
        let ids = completed(ids, &BTreeMap::new(), &drawn, &[]);
        assert_eq!(all(&ids), numbers(1).map(|number| FIRST | number));
        assert!(String::from_utf8(ids.text()).unwrap().contains("\"registry\":4000000000"));
    }

    #[test]
    fn a_record_with_one_id_for_two_parts_is_damaged() {
        for text in
            [&br#"{"etcd": 4000000000, "pods": 4000000000}"#[..], b"", b"{}x", br#"{"etcd": 0}"#, br#"{"etcd": -1}"#]
        {
            assert_eq!(ProjectIds::parse(text), None, "{}", String::from_utf8_lossy(text));
        }
    }

    proptest! {
        #[test]
        fn a_record_is_read_back(numbers in prop::collection::btree_set(0..FIRST - 1, Part::ALL.len())) {
            let numbers: Vec<u32> = numbers.into_iter().collect();
            let ids = completed(ProjectIds::default(), &BTreeMap::new(), &numbers, &[]);
            prop_assert_eq!(ProjectIds::parse(&ids.text()), Some(ids));
        }

        #[test]
        fn no_content_of_the_record_makes_reading_panic(text: Vec<u8>) {
            let _ = ProjectIds::parse(&text);
        }
    }
}
