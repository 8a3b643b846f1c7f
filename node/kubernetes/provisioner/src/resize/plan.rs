//! Plans a claim's expansion by Kubernetes' resize protocol with recovery (KEP-1790, in every API server since 1.34).
//! Pure.
//!
//! The disk has the actual progress, the claim's status the published progress.
//!
//! ```text
//! Begin ─► Grow ─► Announce ─┬─► Finish                    no device of the volume is attached
//!   ▲       │                └─► AwaitNode ─► (kubelet)    a pod has the block device: the kubelet refreshes it
//!   └───────┴─ infeasible: retried, or started again when the claim requests another size
//! ```

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use units::Bytes;
use volume::BLOCK;

use crate::quantity::{self, QuantityError};

/// Largest size in whole blocks that fits into the API's 63 bits.
const LARGEST: Bytes = Bytes::new(i64::MAX as u64 / BLOCK * BLOCK);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimSize {
    /// The request, in whole blocks.
    pub(crate) requested: Bytes,
    /// `status.capacity`
    pub(crate) capacity: Bytes,
    /// `status.allocatedResources`: the target of the last expansion.
    pub(crate) allocated: Option<Bytes>,
    /// `status.allocatedResourceStatuses`
    pub(crate) stage: Stage,
}

/// `ClaimResourceStatus` of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    None,
    ControllerInProgress,
    ControllerInfeasible,
    NodePending,
    NodeInProgress,
    NodeInfeasible,
    /// Status of a later API version. No action.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeSize {
    /// Limit of a filesystem volume, or length of the image of a block volume.
    pub(crate) size: Bytes,
    /// The PV's `spec.capacity`.
    pub(crate) announced: Bytes,
    /// A pod may have a block device that was attached before the image grew.
    pub(crate) attached: bool,
}

/// One change of an expansion. All changes are idempotent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write the target into the claim's status, where quotas count it.
    Begin {
        to: Bytes,
    },
    Grow {
        to: Bytes,
    },
    Announce {
        size: Bytes,
    },
    /// Request the kubelet's part in the claim's status.
    AwaitNode {
        size: Bytes,
    },
    /// Wait until the kubelet has completed its part.
    Wait,
    /// Write the size into the claim's status.
    Finish {
        size: Bytes,
    },
    Done,
}

impl Stage {
    fn of(status: &str) -> Self {
        match status {
            "" => Self::None,
            "ControllerResizeInProgress" => Self::ControllerInProgress,
            "ControllerResizeInfeasible" => Self::ControllerInfeasible,
            "NodeResizePending" => Self::NodePending,
            "NodeResizeInProgress" => Self::NodeInProgress,
            "NodeResizeInfeasible" => Self::NodeInfeasible,
            _ => Self::Unknown,
        }
    }
}

/// Returns `None` if the claim is not bound, or has no size.
pub(crate) fn claim_size(claim: &PersistentVolumeClaim) -> Option<ClaimSize> {
    let status = claim.status.as_ref().filter(|status| status.phase.as_deref() == Some("Bound"))?;
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    let requested = match quantity::bytes(&requests.get("storage")?.0) {
        Ok(size) => size.round_up::<BLOCK>().unwrap_or(LARGEST).min(LARGEST),
        // The store rejects this size.
        Err(QuantityError::TooLarge) => LARGEST,
        Err(QuantityError::Syntax | QuantityError::Negative) => return None,
    };
    let capacity = quantity::bytes(&status.capacity.as_ref()?.get("storage")?.0).ok()?;
    let allocated = status.allocated_resources.as_ref().and_then(|allocated| allocated.get("storage"));
    let stage = status.allocated_resource_statuses.as_ref().and_then(|statuses| statuses.get("storage"));
    Some(ClaimSize {
        requested,
        capacity,
        allocated: allocated.and_then(|allocated| quantity::bytes(&allocated.0).ok()),
        stage: Stage::of(stage.map_or("", String::as_str)),
    })
}

impl ClaimSize {
    pub(crate) fn is_open(&self) -> bool {
        self.requested > self.capacity || self.stage != Stage::None
    }
}

pub(crate) fn next(claim: &ClaimSize, volume: VolumeSize) -> Step {
    use Stage::{ControllerInProgress, ControllerInfeasible, NodeInProgress, NodePending, Unknown};

    let VolumeSize { size, announced, attached } = volume;
    let published = claim.allocated == Some(size) && announced >= size;
    match claim.stage {
        Unknown => return Step::Wait,
        // The kubelet completes its part before a further request is started.
        NodePending | NodeInProgress if attached && published && claim.capacity < size => return Step::Wait,
        _ => {}
    }
    if claim.requested > size {
        let started = matches!(claim.stage, ControllerInProgress | ControllerInfeasible);
        return if started && claim.allocated == Some(claim.requested) {
            Step::Grow { to: claim.requested }
        } else {
            Step::Begin { to: claim.requested }
        };
    }
    if !claim.is_open() {
        return Step::Done;
    }
    // Volumes never shrink: a request that was reduced after the expansion gets the actual size.
    if announced < size {
        Step::Announce { size }
    } else if attached && claim.capacity < size {
        Step::AwaitNode { size }
    } else {
        Step::Finish { size: size.max(claim.capacity) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn claim(wanted: &str, has: &str, allocated: Option<&str>, stage: Option<&str>) -> PersistentVolumeClaim {
        let storage = |value: Option<&str>| value.map_or(Value::Null, |value| json!({"storage": value}));
        serde_json::from_value(json!({
            "metadata": {},
            "spec": {"resources": {"requests": {"storage": wanted}}},
            "status": {
                "phase": "Bound", "capacity": {"storage": has},
                "allocatedResources": storage(allocated), "allocatedResourceStatuses": storage(stage),
            },
        }))
        .expect("a claim")
    }

    fn step(claim_of: (&str, &str, Option<&str>, Option<&str>), size: u64, announced: u64, attached: bool) -> Step {
        let (wanted, has, allocated, stage) = claim_of;
        let size_of_claim = claim_size(&claim(wanted, has, allocated, stage)).expect("a bound claim");
        next(
            &size_of_claim,
            VolumeSize { size: Bytes::new(size * MIB), announced: Bytes::new(announced * MIB), attached },
        )
    }

    const fn mib(count: u64) -> Bytes {
        Bytes::new(count * MIB)
    }

    #[test]
    fn a_claim_with_its_requested_size_is_done() {
        assert_eq!(step(("1Mi", "1Mi", None, None), 1, 1, true), Step::Done);
        assert!(!claim_size(&claim("1000", "4Ki", None, None)).unwrap().is_open(), "rounded up to whole blocks");
        assert!(!claim_size(&claim("1Mi", "2Mi", Some("9Mi"), None)).unwrap().is_open());
    }

    #[test]
    fn unbound_and_invalid_claims_have_no_size() {
        assert_eq!(claim_size(&PersistentVolumeClaim::default()), None);
        let mut unbound = claim("2Mi", "1Mi", None, None);
        unbound.status.as_mut().unwrap().phase = Some("Lost".into());
        assert_eq!(claim_size(&unbound), None);
        assert_eq!(claim_size(&claim("much", "1Mi", None, None)), None);
    }

    #[test]
    fn an_offline_expansion_changes_claim_disk_and_pv_in_order() {
        assert_eq!(step(("2Mi", "1Mi", None, None), 1, 1, false), Step::Begin { to: mib(2) });
        let started = ("2Mi", "1Mi", Some("2Mi"), Some("ControllerResizeInProgress"));
        assert_eq!(step(started, 1, 1, false), Step::Grow { to: mib(2) });
        assert_eq!(step(started, 2, 1, false), Step::Announce { size: mib(2) });
        assert_eq!(step(started, 2, 2, false), Step::Finish { size: mib(2) });
    }

    #[test]
    fn the_kubelet_finishes_an_attached_device() {
        let started = ("2Mi", "1Mi", Some("2Mi"), Some("ControllerResizeInProgress"));
        assert_eq!(step(started, 2, 2, true), Step::AwaitNode { size: mib(2) });
        for stage in ["NodeResizePending", "NodeResizeInProgress"] {
            assert_eq!(step(("2Mi", "1Mi", Some("2Mi"), Some(stage)), 2, 2, true), Step::Wait);
            assert_eq!(step(("9Mi", "1Mi", Some("2Mi"), Some(stage)), 2, 2, true), Step::Wait, "one at a time");
            // The pod has ended: a later attachment has the new size.
            assert_eq!(step(("2Mi", "1Mi", Some("2Mi"), Some(stage)), 2, 2, false), Step::Finish { size: mib(2) });
        }
    }

    #[test]
    fn a_failed_node_expansion_is_requested_again() {
        let failed = ("2Mi", "1Mi", Some("2Mi"), Some("NodeResizeInfeasible"));
        assert_eq!(step(failed, 2, 2, true), Step::AwaitNode { size: mib(2) });
        assert_eq!(step(failed, 2, 2, false), Step::Finish { size: mib(2) });
    }

    #[test]
    fn a_request_that_is_too_large_can_be_lowered() {
        let stuck = ("9Mi", "1Mi", Some("9Mi"), Some("ControllerResizeInfeasible"));
        assert_eq!(step(stuck, 1, 1, false), Step::Grow { to: mib(9) }, "the disk may have free space now");
        let lowered = ("2Mi", "1Mi", Some("9Mi"), Some("ControllerResizeInfeasible"));
        assert_eq!(step(lowered, 1, 1, false), Step::Begin { to: mib(2) });
    }

    #[test]
    fn a_request_lowered_too_late_gets_the_actual_size() {
        let late = ("2Mi", "1Mi", Some("9Mi"), Some("ControllerResizeInProgress"));
        assert_eq!(step(late, 9, 1, false), Step::Announce { size: mib(9) });
        assert_eq!(step(late, 9, 9, false), Step::Finish { size: mib(9) });
    }

    #[test]
    fn sizes_above_63_bits_are_limited() {
        for text in ["9223372036854775807", "8Ei", "9223372036854775806"] {
            assert_eq!(step((text, "1Mi", None, None), 1, 1, false), Step::Begin { to: LARGEST }, "{text}");
        }
    }

    #[test]
    fn an_unknown_stage_is_not_changed() {
        assert_eq!(step(("2Mi", "1Mi", Some("2Mi"), Some("NodeResizeRefused")), 1, 1, false), Step::Wait);
    }

    /// A model of the API server, the disk, the kubelet and the user.
    #[derive(Clone, Debug)]
    struct World {
        claim: ClaimSize,
        volume: VolumeSize,
        free: Bytes,
        /// A pod attached the device before the last growth.
        stale: bool,
    }

    #[derive(Clone, Copy, Debug)]
    enum Action {
        Request(u64),
        Attach,
        Detach,
        Kubelet,
        KubeletFails,
        Free(u64),
        /// One step of the provisioner. The process may end after any step.
        Step,
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            2 => (1..20u64).prop_map(Action::Request),
            1 => Just(Action::Attach),
            1 => Just(Action::Detach),
            2 => Just(Action::Kubelet),
            1 => Just(Action::KubeletFails),
            1 => (0..10u64).prop_map(Action::Free),
            6 => Just(Action::Step),
        ]
    }

    impl World {
        fn new() -> Self {
            let claim = ClaimSize { requested: mib(1), capacity: mib(1), allocated: None, stage: Stage::None };
            let volume = VolumeSize { size: mib(1), announced: mib(1), attached: false };
            Self { claim, volume, free: mib(5), stale: false }
        }

        fn step(&mut self) -> bool {
            let before = format!("{self:?}");
            match next(&self.claim, self.volume) {
                Step::Begin { to } => {
                    self.claim.allocated = Some(to);
                    self.claim.stage = Stage::ControllerInProgress;
                }
                Step::Grow { to } => {
                    let more = Bytes::new(to.get() - self.volume.size.get());
                    if more > self.free {
                        self.claim.stage = Stage::ControllerInfeasible;
                    } else {
                        self.free = Bytes::new(self.free.get() - more.get());
                        self.volume.size = to;
                        self.stale = self.volume.attached;
                    }
                }
                Step::Announce { size } => self.volume.announced = size,
                Step::AwaitNode { size } => {
                    self.claim.allocated = Some(size);
                    self.claim.stage = Stage::NodePending;
                }
                Step::Finish { size } => self.finish(size),
                Step::Wait | Step::Done => {}
            }
            before != format!("{self:?}")
        }

        fn finish(&mut self, size: Bytes) {
            assert!(!self.stale, "a pod has the old size: {self:?}");
            self.claim.capacity = size;
            self.claim.stage = Stage::None;
        }

        fn kubelet(&mut self, works: bool) {
            let pending = matches!(self.claim.stage, Stage::NodePending | Stage::NodeInProgress);
            if !(pending && self.volume.attached) {
                return;
            }
            if works {
                self.stale = false;
                self.finish(self.claim.allocated.expect("an allocated size"));
            } else {
                self.claim.stage = Stage::NodeInfeasible;
            }
        }

        fn apply(&mut self, action: Action) {
            match action {
                // The API server rejects requests up to the capacity.
                Action::Request(size) if mib(size) >= self.claim.requested || mib(size) > self.claim.capacity => {
                    self.claim.requested = mib(size);
                }
                Action::Request(_) => {}
                Action::Attach => {
                    self.stale &= self.volume.attached;
                    self.volume.attached = true;
                }
                Action::Detach => {
                    self.volume.attached = false;
                    self.stale = false;
                }
                Action::Kubelet => self.kubelet(true),
                Action::KubeletFails => self.kubelet(false),
                Action::Free(size) => self.free = mib(size),
                Action::Step => {
                    self.step();
                }
            }
            assert!(self.claim.capacity <= self.volume.announced, "{self:?}");
            assert!(self.volume.announced <= self.volume.size, "{self:?}");
        }
    }

    proptest! {
        #[test]
        fn every_expansion_ends_with_the_requested_size(actions in prop::collection::vec(action(), 0..60)) {
            let mut world = World::new();
            for action in actions {
                let before = world.claim.capacity;
                world.apply(action);
                prop_assert!(world.claim.capacity >= before, "{world:?}");
            }
            world.free = mib(100);
            // Several rounds: the kubelet may have to complete its part before the next expansion starts.
            for _ in 0..4 {
                let steps = (0..20).take_while(|_| world.step()).count();
                prop_assert!(steps < 20, "no end: {world:?}");
                world.kubelet(true);
            }
            prop_assert_eq!(next(&world.claim, world.volume), Step::Done, "{:?}", world);
            prop_assert!(world.claim.capacity >= world.claim.requested);
            prop_assert_eq!((world.claim.capacity, world.volume.announced), (world.volume.size, world.volume.size));
        }

        #[test]
        fn a_step_is_not_planned_twice(actions in prop::collection::vec(action(), 0..60)) {
            let mut world = World::new();
            for action in actions {
                world.apply(action);
                let first = next(&world.claim, world.volume);
                let mut after = world.clone();
                after.step();
                // An infeasible expansion is retried.
                let infeasible = matches!(first, Step::Grow { .. }) && after.volume == world.volume;
                if !infeasible && first != Step::Wait && first != Step::Done {
                    prop_assert_ne!(first, next(&after.claim, after.volume), "{:?}", world);
                }
            }
        }

        #[test]
        fn any_status_is_accepted(wanted in ".{0,9}", has in ".{0,9}", allocated in ".{0,9}", stage in ".{0,9}") {
            let _ = claim_size(&claim(&wanted, &has, Some(&allocated), Some(&stage)))
                .map(|size| next(&size, World::new().volume));
        }
    }
}
