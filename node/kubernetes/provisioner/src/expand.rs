//! What is left of a claim's expansion, by Kubernetes' resize protocol with recovery (KEP-1790, in every API server
//! since 1.34). Pure.
//!
//! Nothing is remembered: the volume on the disk says how far the work got, the claim's status says how much of that
//! the rest of the cluster knows.
//!
//! ```text
//! Begin ─► Grow ─► Announce ─┬─► Finish                    no device of the volume is attached
//!   ▲       │                └─► AwaitNode ─► (kubelet)    a pod has the block device: kubelet refreshes and finishes it
//!   └───────┴─ infeasible: tried again, or begun with another size as soon as the claim asks for one
//! ```

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use units::Bytes;

use crate::claim::BLOCK;
use crate::quantity::{self, QuantityError};

/// Whole blocks that fit into the API's 63 bits.
const LARGEST: Bytes = Bytes::new(i64::MAX as u64 / BLOCK * BLOCK);

/// What a bound claim's size looks like from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// What its owner asks for, in whole blocks.
    pub(crate) wanted: Bytes,
    /// `status.capacity`: what the owner may rely on.
    pub(crate) has: Bytes,
    /// `status.allocatedResources`: what the last expansion was begun for.
    pub(crate) allocated: Option<Bytes>,
    /// `status.allocatedResourceStatuses`: how far that got.
    pub(crate) stage: Stage,
}

/// `ClaimResourceStatus` of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No expansion is under way.
    None,
    ControllerInProgress,
    ControllerInfeasible,
    NodePending,
    NodeInProgress,
    NodeInfeasible,
    /// Of a newer API: not to be acted on.
    Unknown,
}

/// The volume as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    /// Its limit, or its image's length.
    pub(crate) size: Bytes,
    /// The PV's `spec.capacity`.
    pub(crate) announced: Bytes,
    /// A pod may have a block device of it that was attached before it grew.
    pub(crate) attached: bool,
}

/// One change. Each may run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Say in the claim's status what is worked at: quotas count it from now on.
    Begin { to: Bytes },
    /// Enlarge the volume on the disk.
    Grow { to: Bytes },
    /// Write the size into the PV.
    Announce { size: Bytes },
    /// Say in the claim's status that kubelet has to do its part.
    AwaitNode { size: Bytes },
    /// kubelet works.
    Wait,
    /// Say in the claim's status that the volume has this size, and that nothing is under way.
    Finish { size: Bytes },
    /// Nothing is left.
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

/// What a bound claim says of its size. `None` if it is not bound, or is none of a volume with a size.
pub(crate) fn asked(claim: &PersistentVolumeClaim) -> Option<Asked> {
    let status = claim.status.as_ref().filter(|status| status.phase.as_deref() == Some("Bound"))?;
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    let wanted = match quantity::bytes(&requests.get("storage")?.0) {
        Ok(size) => size.round_up::<BLOCK>().unwrap_or(LARGEST).min(LARGEST),
        // The disk says no to it.
        Err(QuantityError::TooLarge) => LARGEST,
        Err(QuantityError::Syntax | QuantityError::Negative) => return None,
    };
    let has = quantity::bytes(&status.capacity.as_ref()?.get("storage")?.0).ok()?;
    let allocated = status.allocated_resources.as_ref().and_then(|allocated| allocated.get("storage"));
    let stage = status.allocated_resource_statuses.as_ref().and_then(|statuses| statuses.get("storage"));
    Some(Asked {
        wanted,
        has,
        allocated: allocated.and_then(|allocated| quantity::bytes(&allocated.0).ok()),
        stage: Stage::of(stage.map_or("", String::as_str)),
    })
}

impl Asked {
    /// Whether the volume has to be looked at. Of most claims nothing is asked.
    pub(crate) fn is_open(&self) -> bool {
        self.wanted > self.has || self.stage != Stage::None
    }
}

/// Decides what comes next.
pub(crate) fn next(claim: &Asked, volume: Volume) -> Step {
    use Stage::{ControllerInProgress, ControllerInfeasible, NodeInProgress, NodePending, Unknown};

    let Volume { size, announced, attached } = volume;
    let told = claim.allocated == Some(size) && announced >= size;
    match claim.stage {
        Unknown => return Step::Wait,
        // What kubelet was told to do it finishes, or reports; only then comes what was asked for since.
        NodePending | NodeInProgress if attached && told && claim.has < size => return Step::Wait,
        _ => {}
    }
    if claim.wanted > size {
        let begun = matches!(claim.stage, ControllerInProgress | ControllerInfeasible);
        return if begun && claim.allocated == Some(claim.wanted) {
            Step::Grow { to: claim.wanted }
        } else {
            Step::Begin { to: claim.wanted }
        };
    }
    if !claim.is_open() {
        return Step::Done;
    }
    // The volume is as large as asked for, or larger: an owner who asks for less once it has grown gets what is there.
    if announced < size {
        Step::Announce { size }
    } else if attached && claim.has < size {
        Step::AwaitNode { size }
    } else {
        Step::Finish { size: size.max(claim.has) }
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
        let asked = asked(&claim(wanted, has, allocated, stage)).expect("it is bound");
        next(&asked, Volume { size: Bytes::new(size * MIB), announced: Bytes::new(announced * MIB), attached })
    }

    const fn mib(count: u64) -> Bytes {
        Bytes::new(count * MIB)
    }

    #[test]
    fn a_claim_that_has_what_it_asks_for_is_left_alone() {
        assert_eq!(step(("1Mi", "1Mi", None, None), 1, 1, true), Step::Done);
        assert!(!asked(&claim("1000", "4Ki", None, None)).unwrap().is_open(), "rounded up to whole blocks");
        assert!(!asked(&claim("1Mi", "2Mi", Some("9Mi"), None)).unwrap().is_open());
    }

    #[test]
    fn unbound_and_strange_claims_ask_for_nothing() {
        assert_eq!(asked(&PersistentVolumeClaim::default()), None);
        let mut unbound = claim("2Mi", "1Mi", None, None);
        unbound.status.as_mut().unwrap().phase = Some("Lost".into());
        assert_eq!(asked(&unbound), None);
        assert_eq!(asked(&claim("much", "1Mi", None, None)), None);
    }

    #[test]
    fn an_offline_expansion_goes_from_claim_to_disk_to_pv_and_back() {
        assert_eq!(step(("2Mi", "1Mi", None, None), 1, 1, false), Step::Begin { to: mib(2) });
        let begun = ("2Mi", "1Mi", Some("2Mi"), Some("ControllerResizeInProgress"));
        assert_eq!(step(begun, 1, 1, false), Step::Grow { to: mib(2) });
        assert_eq!(step(begun, 2, 1, false), Step::Announce { size: mib(2) });
        assert_eq!(step(begun, 2, 2, false), Step::Finish { size: mib(2) });
    }

    #[test]
    fn an_attached_device_is_left_to_kubelet() {
        let begun = ("2Mi", "1Mi", Some("2Mi"), Some("ControllerResizeInProgress"));
        assert_eq!(step(begun, 2, 2, true), Step::AwaitNode { size: mib(2) });
        for stage in ["NodeResizePending", "NodeResizeInProgress"] {
            assert_eq!(step(("2Mi", "1Mi", Some("2Mi"), Some(stage)), 2, 2, true), Step::Wait);
            assert_eq!(step(("9Mi", "1Mi", Some("2Mi"), Some(stage)), 2, 2, true), Step::Wait, "one at a time");
            // The pod is gone: whoever attaches it next sees the new size at once.
            assert_eq!(step(("2Mi", "1Mi", Some("2Mi"), Some(stage)), 2, 2, false), Step::Finish { size: mib(2) });
        }
    }

    #[test]
    fn what_kubelet_could_not_do_it_is_told_again() {
        let failed = ("2Mi", "1Mi", Some("2Mi"), Some("NodeResizeInfeasible"));
        assert_eq!(step(failed, 2, 2, true), Step::AwaitNode { size: mib(2) });
        assert_eq!(step(failed, 2, 2, false), Step::Finish { size: mib(2) });
    }

    #[test]
    fn a_request_that_was_too_large_can_be_lowered() {
        let stuck = ("9Mi", "1Mi", Some("9Mi"), Some("ControllerResizeInfeasible"));
        assert_eq!(step(stuck, 1, 1, false), Step::Grow { to: mib(9) }, "the disk may have room by now");
        let lowered = ("2Mi", "1Mi", Some("9Mi"), Some("ControllerResizeInfeasible"));
        assert_eq!(step(lowered, 1, 1, false), Step::Begin { to: mib(2) });
    }

    #[test]
    fn a_request_that_was_lowered_too_late_gets_what_is_there() {
        let late = ("2Mi", "1Mi", Some("9Mi"), Some("ControllerResizeInProgress"));
        assert_eq!(step(late, 9, 1, false), Step::Announce { size: mib(9) });
        assert_eq!(step(late, 9, 9, false), Step::Finish { size: mib(9) });
    }

    #[test]
    fn no_size_is_too_large_to_be_asked_for() {
        for text in ["9223372036854775807", "8Ei", "9223372036854775806"] {
            assert_eq!(step((text, "1Mi", None, None), 1, 1, false), Step::Begin { to: LARGEST }, "{text}");
        }
    }

    #[test]
    fn what_a_newer_api_says_is_not_touched() {
        assert_eq!(step(("2Mi", "1Mi", Some("2Mi"), Some("NodeResizeRefused")), 1, 1, false), Step::Wait);
    }

    /// A cluster in small: what the API server, the disk, kubelet and the claim's owner do.
    #[derive(Clone, Debug)]
    struct World {
        claim: Asked,
        volume: Volume,
        free: Bytes,
        /// Attached before the last growth.
        stale: bool,
    }

    #[derive(Clone, Copy, Debug)]
    enum Deed {
        Ask(u64),
        Attach,
        Detach,
        Kubelet,
        KubeletFails,
        Free(u64),
        /// One step of ours; the program may end after any.
        Step,
    }

    fn deed() -> impl Strategy<Value = Deed> {
        prop_oneof![
            2 => (1..20u64).prop_map(Deed::Ask),
            1 => Just(Deed::Attach),
            1 => Just(Deed::Detach),
            2 => Just(Deed::Kubelet),
            1 => Just(Deed::KubeletFails),
            1 => (0..10u64).prop_map(Deed::Free),
            6 => Just(Deed::Step),
        ]
    }

    impl World {
        fn new() -> Self {
            let claim = Asked { wanted: mib(1), has: mib(1), allocated: None, stage: Stage::None };
            let volume = Volume { size: mib(1), announced: mib(1), attached: false };
            Self { claim, volume, free: mib(5), stale: false }
        }

        /// What [`next`] says is done; whether it changed anything.
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
            assert!(!self.stale, "a pod would see the old size for ever: {self:?}");
            self.claim.has = size;
            self.claim.stage = Stage::None;
        }

        fn kubelet(&mut self, works: bool) {
            let told = matches!(self.claim.stage, Stage::NodePending | Stage::NodeInProgress);
            if !(told && self.volume.attached) {
                return;
            }
            if works {
                // It sets the size that it was told of.
                self.stale = false;
                self.finish(self.claim.allocated.expect("kubelet was told a size"));
            } else {
                self.claim.stage = Stage::NodeInfeasible;
            }
        }

        fn happen(&mut self, deed: Deed) {
            match deed {
                // The API server takes back a request only down to what the claim has.
                Deed::Ask(size) if mib(size) >= self.claim.wanted || mib(size) > self.claim.has => {
                    self.claim.wanted = mib(size);
                }
                Deed::Ask(_) => {}
                Deed::Attach => {
                    self.stale &= self.volume.attached;
                    self.volume.attached = true;
                }
                Deed::Detach => {
                    self.volume.attached = false;
                    self.stale = false;
                }
                Deed::Kubelet => self.kubelet(true),
                Deed::KubeletFails => self.kubelet(false),
                Deed::Free(size) => self.free = mib(size),
                Deed::Step => {
                    self.step();
                }
            }
            assert!(self.claim.has <= self.volume.announced, "nobody is told of more than the PV has: {self:?}");
            assert!(self.volume.announced <= self.volume.size, "the PV promises what is there: {self:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_it_comes_to_rest_with_what_was_asked_for(deeds in prop::collection::vec(deed(), 0..60)) {
            let mut world = World::new();
            for deed in deeds {
                let had = world.claim.has;
                world.happen(deed);
                prop_assert!(world.claim.has >= had, "a claim loses nothing: {world:?}");
            }
            world.free = mib(100);
            // More than once: kubelet may have to do its part before the next begins.
            for _ in 0..4 {
                let steps = (0..20).take_while(|_| world.step()).count();
                prop_assert!(steps < 20, "it goes on for ever: {world:?}");
                world.kubelet(true);
            }
            prop_assert_eq!(next(&world.claim, world.volume), Step::Done, "{:?}", world);
            prop_assert!(world.claim.has >= world.claim.wanted);
            prop_assert_eq!((world.claim.has, world.volume.announced), (world.volume.size, world.volume.size));
        }

        #[test]
        fn a_step_is_not_asked_for_again_once_it_is_done(deeds in prop::collection::vec(deed(), 0..60)) {
            let mut world = World::new();
            for deed in deeds {
                world.happen(deed);
                let first = next(&world.claim, world.volume);
                let mut after = world.clone();
                after.step();
                // What does not fit is tried again.
                let vain = matches!(first, Step::Grow { .. }) && after.volume == world.volume;
                if !vain && first != Step::Wait && first != Step::Done {
                    prop_assert_ne!(first, next(&after.claim, after.volume), "{:?}", world);
                }
            }
        }

        #[test]
        fn no_status_makes_it_panic(wanted in ".{0,9}", has in ".{0,9}", allocated in ".{0,9}", stage in ".{0,9}") {
            let _ = asked(&claim(&wanted, &has, Some(&allocated), Some(&stage)))
                .map(|asked| next(&asked, World::new().volume));
        }
    }
}
