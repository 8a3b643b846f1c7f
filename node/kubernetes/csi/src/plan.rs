//! What is left to do, from what is wanted and what is there. Nothing here touches the disk.

use mount::Attributes;
use units::Bytes;

use crate::request::{Publish, Range, Sharing};

/// What the host found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether the volume exists.
    pub volume: Volume,
    /// What is at the target.
    pub target: Target,
    /// Whether the volume is mounted at other targets. [`Elsewhere::Nowhere`] if that was not asked.
    pub elsewhere: Elsewhere,
}

/// Whether the volumes directory has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    /// It has.
    Known,
    /// No volume of this name, or not any more.
    Unknown,
}

/// What is at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Not even the directory that should hold it.
    NoParent,
    /// Nothing.
    Absent,
    /// A directory that nothing is mounted on: an earlier call stopped here, or a reboot took the mount away.
    Bare,
    /// This volume.
    Published(Attributes),
    /// Another directory of the volumes' file system: another volume, or one that was deleted.
    OtherVolume,
    /// A mount that has nothing to do with volumes.
    Foreign,
    /// A file or a symbolic link.
    Obstructed,
}

/// Whether a volume has further targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// None.
    Nowhere,
    /// At least one.
    Published,
}

/// One thing to do at a target. Doing it twice is no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the target directory.
    MakeTarget,
    /// Mount the volume there, with these attributes from the first moment on.
    Bind(Attributes),
    /// Unmount what is mounted there.
    Unmount,
    /// Remove the directory, which is empty.
    RemoveTarget,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No volume of this name.
    #[error("the volume does not exist on this node")]
    Unknown,
    /// kubelet makes the parent before it calls.
    #[error("the directory that should hold the target does not exist")]
    NoParent,
    /// The volume is there, with other attributes.
    #[error("the volume is published there with other options; unpublish it first")]
    Differs,
    /// Another volume is there.
    #[error("another volume is published there; unpublish that one first")]
    OtherVolume,
    /// Something else is mounted there.
    #[error("something that is no volume is mounted there; unmount it")]
    Foreign,
    /// A file or link is there.
    #[error("it is a file or a symbolic link, not a directory; remove it")]
    Obstructed,
    /// One target at a time, and it has one.
    #[error("the volume is published elsewhere on this node and its access mode allows one target")]
    InUse,
    /// Neither statistics nor sizes of what is not there.
    #[error("the volume is not published there")]
    NotPublished,
    /// The quota was not raised, or never will be.
    #[error("the volume has {size}, which is outside the range asked for; change the claim's request")]
    Size {
        /// Its quota.
        size: Bytes,
    },
    /// A volume without a limit has no size.
    #[error("the volume has no quota; its record promises one, restart the node's storage")]
    NoQuota,
}

/// The table of CSI's `NodePublishVolume`. An empty plan means "done already".
pub(crate) fn publish(want: &Publish, seen: &Seen) -> Result<Vec<Step>, Refusal> {
    if seen.volume == Volume::Unknown {
        return Err(Refusal::Unknown);
    }
    let bind = Step::Bind(want.attributes);
    let steps = match seen.target {
        Target::Absent => vec![Step::MakeTarget, bind],
        Target::Bare => vec![bind],
        Target::Published(attributes) if attributes == want.attributes => return Ok(vec![]),
        Target::Published(_) => return Err(Refusal::Differs),
        Target::NoParent => return Err(Refusal::NoParent),
        Target::OtherVolume => return Err(Refusal::OtherVolume),
        Target::Foreign => return Err(Refusal::Foreign),
        Target::Obstructed => return Err(Refusal::Obstructed),
    };
    match (want.sharing, seen.elsewhere) {
        (Sharing::OneTarget, Elsewhere::Published) => Err(Refusal::InUse),
        (Sharing::OneTarget, Elsewhere::Nowhere) | (Sharing::ManyTargets, _) => Ok(steps),
    }
}

/// `NodeUnpublishVolume`. A volume that is gone can still be mounted: kubelet would ask for ever if that were an error.
pub(crate) fn unpublish(seen: &Seen) -> Result<Vec<Step>, Refusal> {
    match (seen.target, seen.volume) {
        (Target::NoParent | Target::Absent, _) => Ok(vec![]),
        (Target::Bare, _) => Ok(vec![Step::RemoveTarget]),
        (Target::Published(_), _) | (Target::OtherVolume, Volume::Unknown) => {
            Ok(vec![Step::Unmount, Step::RemoveTarget])
        }
        (Target::OtherVolume, Volume::Known) => Err(Refusal::OtherVolume),
        (Target::Foreign, _) => Err(Refusal::Foreign),
        (Target::Obstructed, _) => Err(Refusal::Obstructed),
    }
}

/// For calls that ask about a published volume.
pub(crate) fn published(seen: &Seen) -> Result<(), Refusal> {
    match (seen.volume, seen.target) {
        (Volume::Unknown, _) => Err(Refusal::Unknown),
        (Volume::Known, Target::Published(_)) => Ok(()),
        (
            Volume::Known,
            Target::NoParent
            | Target::Absent
            | Target::Bare
            | Target::OtherVolume
            | Target::Foreign
            | Target::Obstructed,
        ) => Err(Refusal::NotPublished),
    }
}

/// `NodeExpandVolume`: the size that the volume has, if it is one of those asked for. The provisioner raises quotas,
/// because it alone knows what else the disk has promised.
pub(crate) fn expand(range: Range, quota: Option<Bytes>) -> Result<Bytes, Refusal> {
    let size = quota.ok_or(Refusal::NoQuota)?;
    let fits = range.required.is_none_or(|least| least <= size) && range.limit.is_none_or(|most| size <= most);
    if fits { Ok(size) } else { Err(Refusal::Size { size }) }
}

#[cfg(test)]
impl Seen {
    /// What there is once a step was done.
    pub(crate) fn after(self, step: &Step) -> Self {
        let target = match *step {
            Step::MakeTarget | Step::Unmount => Target::Bare,
            Step::Bind(attributes) => Target::Published(attributes),
            Step::RemoveTarget => Target::Absent,
        };
        Self { target, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::request::TargetPath;

    fn attributes() -> impl Strategy<Value = Attributes> {
        any::<[bool; 4]>().prop_map(|[read_only, no_suid, no_dev, no_exec]| Attributes {
            read_only,
            no_suid,
            no_dev,
            no_exec,
        })
    }

    fn seen() -> impl Strategy<Value = Seen> {
        let target = prop_oneof![
            Just(Target::NoParent),
            Just(Target::Absent),
            Just(Target::Bare),
            attributes().prop_map(Target::Published),
            Just(Target::OtherVolume),
            Just(Target::Foreign),
            Just(Target::Obstructed),
        ];
        let volume = prop_oneof![Just(Volume::Known), Just(Volume::Unknown)];
        let elsewhere = prop_oneof![Just(Elsewhere::Nowhere), Just(Elsewhere::Published)];
        (volume, target, elsewhere).prop_map(|(volume, target, elsewhere)| Seen { volume, target, elsewhere })
    }

    fn want() -> impl Strategy<Value = Publish> {
        let sharing = prop_oneof![Just(Sharing::OneTarget), Just(Sharing::ManyTargets)];
        (attributes(), sharing).prop_map(|(attributes, sharing)| Publish {
            volume: "pvc-1".parse().expect("an identifier"),
            target: TargetPath::parse("/k/t", Path::new("/k")).expect("a path"),
            attributes,
            sharing,
        })
    }

    proptest! {
        #[test]
        fn publish_finishes_after_any_cut_and_then_does_nothing(want in want(), seen in seen(), cut in 0_usize..3) {
            let Ok(steps) = publish(&want, &seen) else { return Ok(()) };
            let half = steps.iter().take(cut).fold(seen, Seen::after);
            let done = publish(&want, &half)?.iter().fold(half, Seen::after);
            prop_assert_eq!(done.target, Target::Published(want.attributes));
            prop_assert_eq!(publish(&want, &done), Ok(vec![]));
        }

        #[test]
        fn unpublish_finishes_after_any_cut_and_then_does_nothing(seen in seen(), cut in 0_usize..3) {
            let Ok(steps) = unpublish(&seen) else { return Ok(()) };
            let half = steps.iter().take(cut).fold(seen, Seen::after);
            let done = unpublish(&half)?.iter().fold(half, Seen::after);
            prop_assert!(matches!(done.target, Target::Absent | Target::NoParent));
            prop_assert_eq!(unpublish(&done), Ok(vec![]));
        }

        #[test]
        fn what_was_published_can_be_unpublished(want in want(), seen in seen()) {
            let Ok(steps) = publish(&want, &seen) else { return Ok(()) };
            let there = steps.iter().fold(seen, Seen::after);
            let gone = unpublish(&there)?.iter().fold(there, Seen::after);
            prop_assert_eq!(gone.target, Target::Absent);
        }

        #[test]
        fn a_plan_never_covers_a_mount(want in want(), seen in seen()) {
            if let Ok(steps) = publish(&want, &seen)
                && steps.contains(&Step::Bind(want.attributes))
            {
                prop_assert!(matches!(seen.target, Target::Absent | Target::Bare));
            }
        }

        #[test]
        fn an_expanded_size_is_in_the_range(required: Option<u64>, limit: Option<u64>, size: u64) {
            let range = Range { required: required.map(Bytes::new), limit: limit.map(Bytes::new) };
            let inside = required.unwrap_or(0) <= size && size <= limit.unwrap_or(u64::MAX);
            let size = Bytes::new(size);
            let wanted = if inside { Ok(size) } else { Err(Refusal::Size { size }) };
            prop_assert_eq!(expand(range, Some(size)), wanted);
        }
    }

    const SEEN: Seen = Seen { volume: Volume::Known, target: Target::Bare, elsewhere: Elsewhere::Nowhere };

    fn asked(sharing: Sharing) -> Publish {
        Publish {
            volume: "pvc-1".parse().expect("an identifier"),
            target: TargetPath::parse("/k/t", Path::new("/k")).expect("a path"),
            attributes: Attributes::INERT,
            sharing,
        }
    }

    #[test]
    fn other_options_at_the_same_target_differ() {
        let read_only = Attributes { read_only: true, ..Attributes::INERT };
        let seen = Seen { target: Target::Published(read_only), ..SEEN };
        assert_eq!(publish(&asked(Sharing::ManyTargets), &seen), Err(Refusal::Differs));
    }

    #[test]
    fn a_second_target_is_refused_to_a_single_writer_only() {
        let seen = Seen { elsewhere: Elsewhere::Published, ..SEEN };
        assert_eq!(publish(&asked(Sharing::OneTarget), &seen), Err(Refusal::InUse));
        assert_eq!(publish(&asked(Sharing::ManyTargets), &seen), Ok(vec![Step::Bind(Attributes::INERT)]));
        let again = Seen { target: Target::Published(Attributes::INERT), ..seen };
        assert_eq!(publish(&asked(Sharing::OneTarget), &again), Ok(vec![]));
    }

    #[test]
    fn a_deleted_volume_is_unpublished_and_a_living_neighbour_is_not() {
        let deleted = Seen { volume: Volume::Unknown, target: Target::OtherVolume, ..SEEN };
        assert_eq!(unpublish(&deleted), Ok(vec![Step::Unmount, Step::RemoveTarget]));
        let neighbour = Seen { volume: Volume::Known, ..deleted };
        assert_eq!(unpublish(&neighbour), Err(Refusal::OtherVolume));
    }

    #[test]
    fn only_a_published_volume_has_statistics() {
        assert_eq!(published(&SEEN), Err(Refusal::NotPublished));
        assert_eq!(published(&Seen { target: Target::Published(Attributes::INERT), ..SEEN }), Ok(()));
        assert_eq!(published(&Seen { volume: Volume::Unknown, ..SEEN }), Err(Refusal::Unknown));
    }

    #[test]
    fn a_volume_without_a_quota_has_no_size() {
        assert_eq!(expand(Range::default(), None), Err(Refusal::NoQuota));
    }
}
