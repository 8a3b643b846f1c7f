//! Selects the disk for the data.

use std::ptr;

use crate::content::{Content, MINIMUM};
use crate::error::NoDataDisk;
use crate::found::{FoundDisk, Role};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'seen> {
    /// Mount the disk, which has the node's file system.
    Use(&'seen FoundDisk),
    /// Format the disk, which is empty, or which an earlier run began to format.
    Format(&'seen FoundDisk),
}

impl<'seen> Decision<'seen> {
    pub fn disk(self) -> &'seen FoundDisk {
        match self {
            Self::Use(disk) | Self::Format(disk) => disk,
        }
    }
}

/// Decides from all disks of the machine. A data partition is used or rejected, independent of other disks; then the
/// disk that its serial number designates; then the disk with the node's file system; then the empty disk. The system
/// disk and read-only disks never count.
///
/// If another disk has the node's file system too, it may be the data disk that was missing when the selected one was
/// formatted. In this case no disk is used, unless the serial number designates one that has the node's file system
/// too. A disk without the node's file system does not replace a read-only disk that has it.
///
/// # Errors
/// [`NoDataDisk`]: no disk, several disks, or foreign content on the only one.
pub fn plan(seen: &[FoundDisk]) -> Result<Decision<'_>, NoDataDisk> {
    let decision = candidate(seen);
    let has_data = |disk: &FoundDisk| disk.role != Role::System && matches!(disk.content, Content::Data(_));
    if !matches!(decision, Ok(Decision::Use(_)))
        && let Some(disk) = seen.iter().find(|disk| has_data(disk) && disk.read_only)
    {
        return Err(NoDataDisk::ReadOnly { disk: disk.name.clone() });
    }
    let decision = decision?;
    let chosen = decision.disk();
    if chosen.role == Role::Data && matches!(decision, Decision::Use(_)) {
        return Ok(decision);
    }
    let is_candidate = |disk: &FoundDisk| has_data(disk) && !disk.read_only;
    let all: Vec<&FoundDisk> = seen.iter().filter(|disk| ptr::eq(*disk, chosen) || is_candidate(disk)).collect();
    if all.len() == 1 { Ok(decision) } else { Err(several(&all)) }
}

/// The candidate by the order of precedence alone.
fn candidate(seen: &[FoundDisk]) -> Result<Decision<'_>, NoDataDisk> {
    let with_role = |role| seen.iter().filter(move |disk| disk.role == role).collect::<Vec<_>>();
    for designated in [with_role(Role::Partition), with_role(Role::Data)] {
        match designated.as_slice() {
            [] => {}
            [disk] if disk.read_only => return Err(NoDataDisk::ReadOnly { disk: disk.name.clone() }),
            [disk] => return decide(disk),
            [_, ..] => return Err(several(&designated)),
        }
    }
    let others: Vec<&FoundDisk> = with_role(Role::Unnamed).into_iter().filter(|disk| !disk.read_only).collect();
    let with = |wanted: fn(&Content) -> bool| others.iter().copied().filter(move |disk| wanted(&disk.content));
    let data: Vec<&FoundDisk> = with(|content| matches!(content, Content::Data(_))).collect();
    let free: Vec<&FoundDisk> = with(|content| matches!(content, Content::Empty | Content::Unfinished)).collect();
    match (data.as_slice(), free.as_slice(), others.as_slice()) {
        ([disk], ..) | ([], [disk], _) => decide(disk),
        ([_, ..], ..) => Err(several(&data)),
        ([], [_, ..], _) => Err(several(&free)),
        ([], [], [foreign]) => decide(foreign),
        ([], [], foreign) => Err(NoDataDisk::None { foreign: names(foreign) }),
    }
}

fn decide(disk: &FoundDisk) -> Result<Decision<'_>, NoDataDisk> {
    match &disk.content {
        Content::Data(_) => Ok(Decision::Use(disk)),
        Content::Foreign(what) => Err(NoDataDisk::Foreign { disk: disk.name.clone(), what: what.clone() }),
        Content::Unexamined => Err(NoDataDisk::Unexamined { disk: disk.name.clone() }),
        Content::Empty | Content::Unfinished if disk.size < MINIMUM => {
            Err(NoDataDisk::TooSmall { disk: disk.name.clone(), size: disk.size })
        }
        Content::Empty | Content::Unfinished => Ok(Decision::Format(disk)),
    }
}

fn several(disks: &[&FoundDisk]) -> NoDataDisk {
    NoDataDisk::Several { disks: names(disks) }
}

fn names(disks: &[&FoundDisk]) -> Vec<String> {
    disks.iter().map(|disk| disk.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use units::Bytes;

    use super::*;
    use crate::content::Geometry;
    use crate::signature::Signature;

    const DATA: Content = Content::Data(Geometry { block: Bytes::new(4096), blocks: 1 << 18, inode_percent: 25 });
    const STRANGE: Signature = Signature::Unknown { at: 5 };
    const FOREIGN: Content = Content::Foreign(STRANGE);

    fn disk(name: &str, role: Role, content: Content) -> FoundDisk {
        FoundDisk {
            name: name.to_owned(),
            device: format!("/dev/{name}").into(),
            role,
            read_only: false,
            size: Bytes::GIB,
            content,
        }
    }

    fn unnamed(contents: &[Content]) -> Vec<FoundDisk> {
        let named = contents.iter().zip(["vda", "vdb", "vdc", "vdd"]);
        named.map(|(content, name)| disk(name, Role::Unnamed, content.clone())).collect()
    }

    #[test]
    fn the_one_empty_disk_is_formatted() {
        let seen = unnamed(&[FOREIGN, Content::Empty]);
        assert_eq!(plan(&seen), Ok(Decision::Format(&seen[1])));
    }

    #[test]
    fn a_formatted_disk_is_found_among_empty_ones() {
        let seen = unnamed(&[Content::Empty, DATA, Content::Empty]);
        assert_eq!(plan(&seen), Ok(Decision::Use(&seen[1])));
    }

    #[test]
    fn several_candidates_are_named_and_none_is_taken() {
        let both = || vec!["vda".to_owned(), "vdb".to_owned()];
        assert_eq!(plan(&unnamed(&[Content::Empty, Content::Empty])), Err(NoDataDisk::Several { disks: both() }));
        assert_eq!(plan(&unnamed(&[DATA, DATA, Content::Empty])), Err(NoDataDisk::Several { disks: both() }));
    }

    #[test]
    fn the_other_disks_do_not_affect_a_designated_one() {
        let mut seen = unnamed(&[FOREIGN, Content::Empty]);
        seen.push(disk("vdz", Role::Data, Content::Empty));
        assert_eq!(plan(&seen), Ok(Decision::Format(&seen[2])));
        seen[2].content = FOREIGN;
        assert_eq!(plan(&seen), Err(NoDataDisk::Foreign { disk: "vdz".into(), what: STRANGE }));
    }

    #[test]
    fn a_partition_for_data_goes_before_a_designated_disk() {
        let mut seen = vec![disk("vda2", Role::Partition, Content::Empty), disk("vdb", Role::Data, Content::Empty)];
        assert_eq!(plan(&seen), Ok(Decision::Format(&seen[0])));
        seen[0].content = FOREIGN;
        assert_eq!(plan(&seen), Err(NoDataDisk::Foreign { disk: "vda2".into(), what: STRANGE }));
    }

    #[test]
    fn two_partitions_for_data_are_one_too_many() {
        let seen = vec![disk("vda2", Role::Partition, DATA), disk("vdb1", Role::Partition, Content::Empty)];
        assert_eq!(plan(&seen), Err(NoDataDisk::Several { disks: vec!["vda2".into(), "vdb1".into()] }));
    }

    #[test]
    fn a_data_disk_that_returns_is_not_ignored() {
        let both = Err(NoDataDisk::Several { disks: vec!["vda2".into(), "vdb".into()] });
        for role in [Role::Data, Role::Unnamed] {
            for content in [DATA, Content::Empty, Content::Unfinished] {
                assert_eq!(plan(&[disk("vda2", Role::Partition, content), disk("vdb", role, DATA)]), both);
            }
        }
    }

    #[test]
    fn a_designated_disk_is_not_formatted_beside_a_data_disk() {
        let mut seen = vec![disk("vda", Role::Data, Content::Empty), disk("vdb", Role::Unnamed, DATA)];
        assert_eq!(plan(&seen), Err(NoDataDisk::Several { disks: vec!["vda".into(), "vdb".into()] }));
        seen[0].content = DATA;
        assert_eq!(plan(&seen), Ok(Decision::Use(&seen[0])));
    }

    #[test]
    fn a_read_only_designated_disk_is_not_replaced() {
        let mut seen = vec![disk("vda", Role::Data, DATA), disk("vdb", Role::Unnamed, Content::Empty)];
        seen[0].read_only = true;
        assert_eq!(plan(&seen), Err(NoDataDisk::ReadOnly { disk: "vda".into() }));
    }

    #[test]
    fn without_a_candidate_no_disk_is_selected() {
        assert_eq!(plan(&[]), Err(NoDataDisk::None { foreign: vec![] }));
        assert_eq!(plan(&[disk("vda", Role::System, DATA)]), Err(NoDataDisk::None { foreign: vec![] }));
    }

    #[test]
    fn a_disk_that_is_too_small_is_not_formatted() {
        let mut seen = unnamed(&[Content::Empty]);
        seen[0].size = Bytes::MIB;
        assert_eq!(plan(&seen), Err(NoDataDisk::TooSmall { disk: "vda".into(), size: Bytes::MIB }));
    }

    fn any_disk() -> impl Strategy<Value = (Role, bool, Content)> {
        let role = prop_oneof![
            4 => Just(Role::Unnamed),
            1 => Just(Role::Data),
            1 => Just(Role::Partition),
            1 => Just(Role::System),
        ];
        let content = prop_oneof![
            Just(Content::Empty),
            Just(Content::Unfinished),
            Just(DATA),
            Just(FOREIGN),
            Just(Content::Unexamined),
        ];
        (role, prop::bool::weighted(0.2), content)
    }

    fn any_machine() -> impl Strategy<Value = Vec<FoundDisk>> {
        prop::collection::vec(any_disk(), 0..6).prop_map(|disks| {
            let numbered = disks.into_iter().enumerate();
            numbered
                .map(|(number, (role, read_only, content))| FoundDisk {
                    read_only,
                    ..disk(&format!("vd{number}"), role, content)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn nothing_that_holds_data_is_ever_formatted(seen in any_machine()) {
            if let Ok(Decision::Format(disk)) = plan(&seen) {
                prop_assert!(matches!(disk.content, Content::Empty | Content::Unfinished));
            }
        }

        #[test]
        fn nothing_is_formatted_beside_a_formatted_disk(seen in any_machine()) {
            if let Ok(Decision::Format(_)) = plan(&seen) {
                let has_data = |disk: &FoundDisk| disk.role != Role::System && disk.content == DATA;
                prop_assert!(!seen.iter().any(has_data));
            }
        }

        #[test]
        fn the_system_disk_and_what_cannot_be_written_are_never_taken(seen in any_machine()) {
            if let Ok(decision) = plan(&seen) {
                prop_assert!(decision.disk().role != Role::System && !decision.disk().read_only);
            }
        }

        #[test]
        fn the_disk_that_was_formatted_is_the_one_that_is_used_next(mut seen in any_machine()) {
            let Ok(first) = plan(&seen).map(|decision| decision.disk().name.clone()) else { return Ok(()) };
            for disk in &mut seen {
                if disk.name == first {
                    disk.content = DATA;
                }
            }
            let next = plan(&seen);
            prop_assert!(matches!(next, Ok(Decision::Use(disk)) if disk.name == first));
        }

        #[test]
        fn the_order_of_the_disks_does_not_matter(seen in any_machine()) {
            let backwards: Vec<FoundDisk> = seen.iter().rev().cloned().collect();
            let name = |decided: Result<Decision<'_>, NoDataDisk>| decided.map(|decision| decision.disk().name.clone()).ok();
            prop_assert_eq!(name(plan(&seen)), name(plan(&backwards)));
        }
    }
}
