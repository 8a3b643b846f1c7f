use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::request::TargetPath;

impl VolumeView {
    fn after(self, step: &Step) -> Self {
        let VolumeView { volume, target, elsewhere, device } = self;
        let shape = match (target, volume) {
            (Target::Stale, _) | (_, Volume::Known(Mode::Block)) => Shape::File,
            _ => Shape::Directory,
        };
        let (target, device) = match *step {
            Step::CreateTarget(shape) => (Target::Bare(shape), device),
            Step::Attach { .. } => (target, Device::Idle),
            Step::Bind(attributes) => (Target::Published(attributes), device),
            Step::Unmount => (Target::Bare(shape), device),
            Step::RemoveTarget => (Target::Absent, device),
            Step::Detach if device == Device::Shared => (target, device),
            Step::Detach => (target, Device::Absent),
            Step::Limit => (target, device),
        };
        Self { volume, target, elsewhere, device }
    }
}

fn attributes() -> impl Strategy<Value = Attributes> {
    any::<[bool; 4]>().prop_map(|[read_only, no_suid, no_dev, no_exec]| Attributes {
        read_only,
        no_suid,
        no_dev,
        no_exec,
    })
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Filesystem), Just(Mode::Block)]
}

prop_compose! {
    fn seen()(
        volume in prop_oneof![
            4 => mode().prop_map(Volume::Known),
            1 => Just(Volume::NotAnnounced),
            1 => Just(Volume::Damaged),
            2 => Just(Volume::Unknown),
        ],
        target in prop_oneof![
            Just(Target::NoParent),
            Just(Target::Absent),
            Just(Target::Bare(Shape::Directory)),
            Just(Target::Bare(Shape::File)),
            attributes().prop_map(Target::Published),
            Just(Target::Stale),
            Just(Target::OtherVolume),
            Just(Target::Foreign),
            Just(Target::Obstructed),
        ],
        elsewhere in prop_oneof![Just(Elsewhere::Nowhere), Just(Elsewhere::Published)],
        device in prop_oneof![Just(Device::Absent), Just(Device::Idle), Just(Device::Shared)],
    ) -> VolumeView {
        // Only block volumes have devices.
        let device = if volume == Volume::Known(Mode::Block) { device } else { Device::Absent };
        VolumeView { volume, target, elsewhere, device }
    }
}

prop_compose! {
    fn want()(
        mode in mode(),
        attributes in attributes(),
        sharing in prop_oneof![Just(Sharing::OneTarget), Just(Sharing::ManyTargets)],
    ) -> Publish {
        Publish { mode, attributes, ..asked(sharing) }
    }
}

proptest! {
    #[test]
    fn publish_finishes_after_any_cut_and_then_does_nothing(want in want(), seen in seen(), cut in 0_usize..5) {
        let Ok(steps) = publish(&want, &seen) else { return Ok(()) };
        let half = steps.iter().take(cut).fold(seen, VolumeView::after);
        let done = publish(&want, &half)?.iter().fold(half, VolumeView::after);
        let Target::Published(found) = done.target else { panic!("{:?}", done.target) };
        prop_assert!(suffices(found, want.attributes), "{:?}", found);
        prop_assert_eq!(publish(&want, &done), Ok(vec![]));
    }

    #[test]
    fn unpublish_finishes_after_any_cut_and_then_does_nothing(seen in seen(), cut in 0_usize..5) {
        let Ok(steps) = unpublish(&seen) else { return Ok(()) };
        let half = steps.iter().take(cut).fold(seen, VolumeView::after);
        let done = unpublish(&half)?.iter().fold(half, VolumeView::after);
        prop_assert!(matches!(done.target, Target::Absent | Target::NoParent));
        prop_assert_eq!(unpublish(&done), Ok(vec![]));
    }

    #[test]
    fn unpublish_undoes_publish_and_leaves_no_device(want in want(), seen in seen()) {
        let Ok(steps) = publish(&want, &seen) else { return Ok(()) };
        let there = steps.iter().fold(seen, VolumeView::after);
        let gone = unpublish(&there)?.iter().fold(there, VolumeView::after);
        prop_assert_eq!(gone.target, Target::Absent);
        prop_assert_ne!(gone.device, Device::Idle);
    }

    #[test]
    fn a_plan_never_covers_a_mount(want in want(), seen in seen()) {
        let Ok(steps) = publish(&want, &seen) else { return Ok(()) };
        let bind = steps.iter().position(|step| matches!(step, Step::Bind(_)));
        let before = steps.iter().take(bind.unwrap_or(0)).fold(seen, VolumeView::after);
        if bind.is_some() {
            prop_assert!(matches!(before.target, Target::Bare(_)), "{:?}", before.target);
        }
    }

    #[test]
    fn a_failed_plan_is_undone(want in want(), seen in seen(), cut in 0_usize..5) {
        let Ok(steps) = publish(&want, &seen) else { return Ok(()) };
        let Some(&failed) = steps.get(cut) else { return Ok(()) };
        let done = &steps[..cut];
        let back = undo(done, failed).iter().fold(done.iter().fold(seen, VolumeView::after), VolumeView::after);
        // Once the call may have attached the image, no idle device is left.
        let is_attached = steps[..=cut].contains(&Step::Limit);
        let idle = if is_attached { Device::Absent } else { Device::Idle };
        prop_assert_eq!(back.device, if seen.device == Device::Idle { idle } else { seen.device });
        // The stale mount is removed. Everything else is as before.
        let stale = seen.target == Target::Stale;
        prop_assert!(back.target == seen.target || stale && back.target == Target::Bare(Shape::File));
    }

    #[test]
    fn a_device_that_another_target_has_is_never_detached(seen in seen()) {
        if let Ok(steps) = unpublish(&seen) {
            prop_assert_eq!(steps.contains(&Step::Detach), seen.device == Device::Idle);
        }
    }

    #[test]
    fn a_volume_is_published_in_its_own_mode_only(want in want(), seen in seen()) {
        if let Volume::Known(is) = seen.volume {
            prop_assert_eq!(publish(&want, &seen) == Err(PlanError::Mode { is }), is != want.mode);
        }
    }

    #[test]
    fn an_expanded_size_is_in_the_range(required: Option<u64>, limit: Option<u64>, size: u64) {
        let range = Range { required: required.map(Bytes::new), limit: limit.map(Bytes::new) };
        let inside = required.unwrap_or(0) <= size && size <= limit.unwrap_or(u64::MAX);
        let size = Bytes::new(size);
        let wanted = if inside { Ok(size) } else { Err(PlanError::Size { size }) };
        prop_assert_eq!(expand(range, size), wanted);
    }
}

const SEEN: VolumeView = VolumeView {
    volume: Volume::Known(Mode::Filesystem),
    target: Target::Bare(Shape::Directory),
    elsewhere: Elsewhere::Nowhere,
    device: Device::Absent,
};

const BLOCK: VolumeView = VolumeView { volume: Volume::Known(Mode::Block), target: Target::Absent, ..SEEN };

fn asked(sharing: Sharing) -> Publish {
    Publish {
        volume: "pvc-1".parse().expect("an identifier"),
        target: TargetPath::parse("/k/t", Path::new("/k")).expect("a path"),
        mode: Mode::Filesystem,
        attributes: Attributes::INERT,
        sharing,
    }
}

#[test]
fn a_target_of_an_earlier_release_is_published() {
    let want = Publish { attributes: crate::request::DIRECTORY, ..asked(Sharing::ManyTargets) };
    let seen = VolumeView { target: Target::Published(Attributes::INERT), ..SEEN };
    assert_eq!(publish(&want, &seen), Ok(vec![]));
    let seen = VolumeView { target: Target::Published(crate::request::DIRECTORY), ..SEEN };
    assert_eq!(publish(&asked(Sharing::ManyTargets), &seen), Err(PlanError::Differs));
}

#[test]
fn other_options_at_the_same_target_differ() {
    let read_only = Attributes { read_only: true, ..Attributes::INERT };
    let seen = VolumeView { target: Target::Published(read_only), ..SEEN };
    assert_eq!(publish(&asked(Sharing::ManyTargets), &seen), Err(PlanError::Differs));
}

#[test]
fn a_second_target_is_refused_to_a_single_writer_only() {
    let seen = VolumeView { elsewhere: Elsewhere::Published, ..SEEN };
    assert_eq!(publish(&asked(Sharing::OneTarget), &seen), Err(PlanError::InUse));
    assert_eq!(publish(&asked(Sharing::ManyTargets), &seen), Ok(vec![Step::Bind(Attributes::INERT)]));
    let again = VolumeView { target: Target::Published(Attributes::INERT), ..seen };
    assert_eq!(publish(&asked(Sharing::OneTarget), &again), Ok(vec![]));
}

#[test]
fn a_second_target_shares_the_device_of_the_first() {
    let want = Publish { mode: Mode::Block, ..asked(Sharing::ManyTargets) };
    let (make, bind) = (Step::CreateTarget(Shape::File), Step::Bind(Attributes::INERT));
    assert_eq!(publish(&want, &BLOCK), Ok(vec![make, Step::Attach { read_only: false }, Step::Limit, bind]));
    let seen = VolumeView { device: Device::Shared, elsewhere: Elsewhere::Published, ..BLOCK };
    assert_eq!(publish(&want, &seen), Ok(vec![make, Step::Limit, bind]));
}

/// Regression: a volume that got its first limits between the look and the attach was published without them.
#[test]
fn limits_are_read_when_the_device_exists() {
    let want = Publish { mode: Mode::Block, ..asked(Sharing::ManyTargets) };
    let make = Step::CreateTarget(Shape::File);
    let steps = [make, Step::Attach { read_only: false }, Step::Limit, Step::Bind(Attributes::INERT)];
    assert_eq!(publish(&want, &BLOCK).as_deref(), Ok(&steps[..]));
    assert_eq!(undo(&steps[..3], steps[3]), [Step::Detach, Step::RemoveTarget]);
}

/// Regression: if the device was gone since the look, the step attached the image, and the device stayed after an error.
#[test]
fn a_device_that_the_limits_attached_is_detached_after_an_error() {
    let (limit, bind) = (Step::Limit, Step::Bind(Attributes::INERT));
    let make = Step::CreateTarget(Shape::File);
    let want = Publish { mode: Mode::Block, ..asked(Sharing::ManyTargets) };
    let seen = VolumeView { device: Device::Idle, ..BLOCK };
    assert_eq!(publish(&want, &seen), Ok(vec![make, limit, bind]));
    assert_eq!(undo(&[make], limit), [Step::Detach, Step::RemoveTarget]);
    assert_eq!(undo(&[make, limit], bind), [Step::Detach, Step::RemoveTarget]);
    assert_eq!(undo(&[make], Step::Attach { read_only: false }), [Step::RemoveTarget]);
}

#[test]
fn an_idle_device_is_detached_without_its_target() {
    assert_eq!(unpublish(&VolumeView { device: Device::Idle, ..BLOCK }), Ok(vec![Step::Detach]));
    assert_eq!(unpublish(&VolumeView { device: Device::Shared, ..BLOCK }), Ok(vec![]));
}

#[test]
fn targets_of_the_other_mode_are_obstructed() {
    let wanted = Shape::Directory;
    let file = VolumeView { target: Target::Bare(Shape::File), ..SEEN };
    assert_eq!(publish(&asked(Sharing::ManyTargets), &file), Err(PlanError::Obstructed { wanted }));
    assert_eq!(wanted.to_string(), "a directory");
}

#[test]
fn a_deleted_volume_is_unpublished_another_volume_is_not() {
    let deleted = VolumeView { volume: Volume::Unknown, target: Target::Stale, ..SEEN };
    assert_eq!(unpublish(&deleted), Ok(vec![Step::Unmount, Step::RemoveTarget]));
    for volume in [SEEN.volume, Volume::Unknown, Volume::NotAnnounced, Volume::Damaged] {
        let neighbour = VolumeView { volume, target: Target::OtherVolume, ..SEEN };
        assert_eq!(unpublish(&neighbour), Err(PlanError::NotTarget));
    }
}

#[test]
fn a_node_without_its_device_is_replaced_and_removed() {
    let want = Publish { mode: Mode::Block, ..asked(Sharing::ManyTargets) };
    let stale = VolumeView { target: Target::Stale, ..BLOCK };
    let steps = [Step::Unmount, Step::Attach { read_only: false }, Step::Limit, Step::Bind(Attributes::INERT)];
    assert_eq!(publish(&want, &stale).as_deref(), Ok(&steps[..]));
    assert_eq!(unpublish(&stale), Ok(vec![Step::Unmount, Step::RemoveTarget]));
}

#[test]
fn unusable_volumes_have_reasons() {
    let with = |volume| is(volume, None);
    assert_eq!(with(Volume::Unknown), Err(PlanError::Unknown));
    assert_eq!(with(Volume::NotAnnounced), Err(PlanError::NotAnnounced));
    assert_eq!(with(Volume::Damaged), Err(PlanError::Damaged));
    assert_eq!(with(Volume::Known(Mode::Block)), Ok(Mode::Block));
}
