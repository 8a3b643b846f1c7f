//! Operations on volumes, in their order. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use units::{Bytes, Inodes};

use crate::random::Random;

pub const SLOT: Bytes = Bytes::new(8 << 10);

/// Inode limit of a new directory.
pub(crate) const INODES: Inodes = Inodes::new(256);

/// The directory and the image of a block volume.
pub(crate) const IMAGE_INODES: Inodes = Inodes::new(2);

/// Small volumes: each cut reads them as a whole.
const SIZES: [u64; 4] = [1, 2, 3, 4];

/// Volumes that are there at once.
const CROWD: usize = 6;

/// Operations of a sequence, and sequences of a part.
const LENGTH: usize = 3;
const PART: usize = 8;

/// Operations that run at once, so that they share forces of the log.
const PARALLEL: usize = 3;

/// A volume of a history: the claim's UID and the volume's name come from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u16);

/// Kind of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    Filesystem,
    /// An image whose blocks are all allocated.
    Thick,
    Thin,
}

impl Shape {
    pub const ALL: [Self; 3] = [Self::Filesystem, Self::Thick, Self::Thin];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// There is a claim, and the volume is made for it.
    Provision {
        shape: Shape,
        size: Bytes,
    },
    Announce,
    /// The volume is opened for a pod, which writes nothing.
    Open,
    /// The volume is published, marked in this slot, synced, and taken back from the pod.
    Write {
        /// Which file, or which place of the image.
        slot: u16,
        /// Whether the image's loop device stays attached, as after kubelet was killed.
        leave: bool,
    },
    /// The claim asks for more.
    Expand {
        to: Bytes,
    },
    /// The claim asks for more while a pod writes, as in [`Action::Write`].
    ExpandAndWrite {
        to: Bytes,
        slot: u16,
    },
    /// The claim asks for more and is deleted at once: either operation may be the first.
    ExpandAndRetire {
        to: Bytes,
    },
    /// The PV is deleted, and its policy says Retain.
    Retain,
    /// An administrator creates a PV for the retained volume, and a claim binds to it.
    Adopt,
    /// The claim is gone and the PV's policy says Delete.
    Retire,
    /// The PV's policy became Retain before the PV was deleted.
    Restore,
    Discard,
    /// The claim is gone before there was a PV.
    Undo,
}

/// One action on one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub volume: Number,
    pub action: Action,
}

/// Operations in rounds. Those of a round are on different volumes and run at once; a round waits for the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    rounds: Vec<Vec<Operation>>,
}

/// Where a volume is in its life between two operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Life {
    #[default]
    Unborn,
    Staged(Body),
    Announced(Body),
    Retired(Body),
    /// There is neither a PV nor a claim.
    Retained(Body),
    /// It does not come back: a new claim of the same name has another UID.
    Gone,
}

/// An action by its name, and the kind of volume that it is done to.
pub type Case = (&'static str, Shape);

/// How large a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    /// The size of the claim.
    pub bytes: Bytes,
    /// How many files and directories it may hold.
    pub inodes: Inodes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    pub shape: Shape,
    pub asked: Bytes,
    pub size: Size,
    /// The size that an expansion may have given it before it was retired.
    pub grown: Option<Size>,
    /// The slots that were written and synced.
    pub written: BTreeSet<u16>,
    /// Whether it was ever opened for a pod.
    pub opened: bool,
}

impl Life {
    /// The life after an action, `None` if the action is not possible now.
    pub fn after(self, action: Action) -> Option<Self> {
        match (self, action) {
            (Self::Unborn, Action::Provision { shape, size }) => {
                let (asked, size) = (size, Size::new(shape, size));
                Some(Self::Staged(Body { shape, asked, size, grown: None, written: BTreeSet::new(), opened: false }))
            }
            (Self::Staged(body), Action::Announce) => Some(Self::Announced(body)),
            (Self::Staged(_), Action::Undo) | (Self::Retired(_), Action::Discard) => Some(Self::Gone),
            (Self::Announced(body), Action::Open) => Some(Self::Announced(Body { opened: true, ..body })),
            (Self::Announced(mut body), Action::Write { slot, .. }) if slot < slots(body.size) => {
                body.opened = true;
                body.written.insert(slot).then_some(Self::Announced(body))
            }
            (Self::Announced(body), Action::Expand { to }) if to > body.size.bytes => {
                Some(Self::Announced(Body { size: body.size.grown(body.shape, to), ..body }))
            }
            (life @ Self::Announced(_), Action::ExpandAndWrite { to, slot }) => {
                life.after(Action::Write { slot, leave: false })?.after(Action::Expand { to })
            }
            (Self::Announced(body), Action::ExpandAndRetire { to }) if to > body.size.bytes => {
                Some(Self::Retired(Body { grown: Some(body.size.grown(body.shape, to)), ..body }))
            }
            (Self::Announced(body), Action::Retire) => Some(Self::Retired(body)),
            (Self::Retired(body), Action::Restore) if body.grown.is_none() => Some(Self::Announced(body)),
            // The announcement of a volume that was never opened may be lost, and then the volume is undone.
            (Self::Announced(body), Action::Retain) if body.opened => Some(Self::Retained(body)),
            (Self::Retained(body), Action::Adopt) => Some(Self::Announced(body)),
            _ => None,
        }
    }
}

impl Life {
    /// Each action once. Not all of them are possible.
    fn candidates(&self, shape: Shape) -> [Action; Action::NAMES.len()] {
        let (size, slot) = match self {
            Self::Unborn | Self::Gone => (Bytes::ZERO, 0),
            Self::Staged(body) | Self::Announced(body) | Self::Retired(body) | Self::Retained(body) => {
                let is_free = |slot: &u16| !body.written.contains(slot);
                (body.size.bytes, (0..slots(body.size)).rev().find(is_free).unwrap_or_default())
            }
        };
        let to = size.saturating_add(Bytes::MIB);
        [
            Action::Provision { shape, size: Bytes::MIB },
            Action::Announce,
            Action::Open,
            Action::Write { slot, leave: shape == Shape::Thin },
            Action::Expand { to },
            Action::ExpandAndWrite { to, slot },
            Action::ExpandAndRetire { to },
            Action::Retain,
            Action::Adopt,
            Action::Retire,
            Action::Restore,
            Action::Discard,
            Action::Undo,
        ]
    }
}

impl Size {
    pub(crate) const fn new(shape: Shape, bytes: Bytes) -> Self {
        let inodes = match shape {
            Shape::Filesystem => INODES,
            Shape::Thick | Shape::Thin => IMAGE_INODES,
        };
        Self { bytes, inodes }
    }

    /// A directory may hold more files in the same proportion.
    fn grown(self, shape: Shape, to: Bytes) -> Self {
        let inodes = match shape {
            Shape::Filesystem => Inodes::new((self.inodes.get() * to.get()).div_ceil(self.bytes.get())),
            Shape::Thick | Shape::Thin => self.inodes,
        };
        Self { bytes: to, inodes }
    }
}

/// So many slots has a volume of this size. The last one is at its end.
fn slots(size: Size) -> u16 {
    u16::try_from(size.bytes.get() / SLOT.get()).unwrap_or(u16::MAX)
}

impl Action {
    /// Each of them by its name.
    pub const NAMES: [&'static str; 13] = [
        "provision",
        "announce",
        "open",
        "write",
        "expand",
        "expand and write",
        "expand and retire",
        "retain",
        "adopt",
        "retire",
        "restore",
        "discard",
        "undo",
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Provision { .. } => "provision",
            Self::Announce => "announce",
            Self::Open => "open",
            Self::Write { .. } => "write",
            Self::Expand { .. } => "expand",
            Self::ExpandAndWrite { .. } => "expand and write",
            Self::ExpandAndRetire { .. } => "expand and retire",
            Self::Retain => "retain",
            Self::Adopt => "adopt",
            Self::Retire => "retire",
            Self::Restore => "restore",
            Self::Discard => "discard",
            Self::Undo => "undo",
        }
    }
}

impl History {
    /// These operations, one after the other.
    ///
    /// # Panics
    /// If one is not possible where it stands.
    pub fn sequence(operations: impl IntoIterator<Item = Operation>) -> Self {
        let all = Self { rounds: operations.into_iter().map(|operation| vec![operation]).collect() };
        assert_eq!(all.only(|_, _| true), all, "an operation is not possible where it stands");
        all
    }

    /// All sequences of [`LENGTH`] operations, for each kind of volume: on a new one, and on one that was opened.
    fn sequences() -> Vec<Vec<Action>> {
        let new = |shape| (Life::Unborn, shape, vec![]);
        let opened = |shape| {
            let begin = vec![Action::Provision { shape, size: Bytes::MIB }, Action::Announce, Action::Open];
            let life = begin.iter().try_fold(Life::Unborn, |life, action| life.after(*action));
            (life.unwrap_or_default(), shape, begin)
        };
        let mut sequences: Vec<_> = Shape::ALL.into_iter().flat_map(|shape| [new(shape), opened(shape)]).collect();
        for _ in 0..LENGTH {
            let longer = |(life, shape, before): (Life, Shape, Vec<Action>)| -> Vec<_> {
                let next = |action| {
                    Some((life.clone().after(action)?, shape, before.iter().copied().chain([action]).collect()))
                };
                let longer: Vec<_> = life.candidates(shape).into_iter().filter_map(next).collect();
                if longer.is_empty() { vec![(life, shape, before)] } else { longer }
            };
            sequences = sequences.into_iter().flat_map(longer).collect();
        }
        sequences.into_iter().map(|(_, _, actions)| actions).collect()
    }

    /// How many parts [`History::of_sequences`] has.
    pub fn parts() -> usize {
        Self::sequences().len().div_ceil(PART)
    }

    /// A part of all sequences, one after the other, each on a volume of its own.
    pub fn of_sequences(part: usize) -> Self {
        let numbered = (1..).map(Number).zip(Self::sequences()).skip(part * PART).take(PART);
        Self::sequence(
            numbered.flat_map(|(volume, actions)| actions.into_iter().map(move |action| Operation { volume, action })),
        )
    }

    /// Kind and volume of each operation, in the order of their numbers.
    ///
    /// # Panics
    /// If a volume was never provisioned.
    pub fn cases(&self) -> Vec<Case> {
        let mut shapes = BTreeMap::new();
        let case = |Operation { volume, action }: Operation| {
            if let Action::Provision { shape, .. } = action {
                shapes.insert(volume, shape);
            }
            (action.name(), shapes[&volume])
        };
        self.operations().map(case).collect()
    }

    /// A history of `count` operations.
    pub fn from_seed(seed: u64, count: usize) -> Self {
        let mut random = Random::from_seed(seed);
        let mut lives: BTreeMap<Number, Life> = BTreeMap::new();
        let (mut rounds, mut left, mut next) = (Vec::new(), count, 0);
        while left > 0 {
            let width = (1 + random.below(PARALLEL)).min(left);
            let mut round: Vec<Operation> = Vec::new();
            for _ in 0..width {
                let there: Vec<Number> = lives
                    .iter()
                    .filter(|(number, life)| {
                        **life != Life::Gone && round.iter().all(|operation| operation.volume != **number)
                    })
                    .map(|(number, _)| *number)
                    .collect();
                let new = there.is_empty() || there.len() < CROWD && random.below(4) == 0;
                let chosen = if new { None } else { random.one_of(&there).copied() };
                let volume = chosen.unwrap_or_else(|| {
                    next += 1;
                    Number(next)
                });
                let life = lives.remove(&volume).unwrap_or_default();
                let action = next_action(&life, &mut random);
                let Some(life) = action.and_then(|action| life.after(action)) else { continue };
                lives.insert(volume, life);
                round.extend(action.map(|action| Operation { volume, action }));
            }
            left = left.saturating_sub(round.len().max(1));
            if !round.is_empty() {
                rounds.push(round);
            }
        }
        Self { rounds }
    }

    /// The operations with their numbers, which count through all rounds.
    pub fn rounds(&self) -> impl Iterator<Item = Vec<(usize, Operation)>> {
        let mut number = 0;
        self.rounds.iter().map(move |round| {
            let first = number;
            number += round.len();
            (first..).zip(round.iter().copied()).collect()
        })
    }

    /// All operations, in an order in which they could have run one after the other.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.rounds.iter().flatten().copied()
    }

    /// Shorter histories, the shortest first: without one volume, then without one operation and those that are not
    /// possible without it.
    pub fn shorter(&self) -> impl Iterator<Item = Self> {
        let volumes: BTreeSet<Number> = self.operations().map(|operation| operation.volume).collect();
        let without_volume =
            volumes.into_iter().map(|volume| self.only(move |_, operation| operation.volume != volume));
        let total = self.operations().count();
        let without_operation = (0..total).rev().map(|gone| self.only(move |number, _| number != gone));
        without_volume.chain(without_operation)
    }

    /// Without the operations that had not begun.
    pub fn begun(&self, begun: &BTreeSet<usize>) -> Self {
        self.only(|number, _| begun.contains(&number))
    }

    fn only(&self, keep: impl Fn(usize, Operation) -> bool) -> Self {
        let mut lives: BTreeMap<Number, Life> = BTreeMap::new();
        let possible = |round: Vec<(usize, Operation)>| -> Vec<Operation> {
            let kept = round.into_iter().filter(|(number, operation)| keep(*number, *operation));
            kept.filter_map(|(_, operation)| {
                let life = lives.get(&operation.volume).cloned().unwrap_or_default();
                lives.insert(operation.volume, life.after(operation.action)?);
                Some(operation)
            })
            .collect()
        };
        let rounds = self.rounds().map(possible).filter(|round| !round.is_empty()).collect();
        Self { rounds }
    }
}

fn next_action(life: &Life, random: &mut Random) -> Option<Action> {
    let mebibytes = |random: &mut Random| random.one_of(&SIZES).map(|size| Bytes::new(size << 20));
    match life {
        Life::Unborn => {
            let shape = *random.one_of(&Shape::ALL)?;
            Some(Action::Provision { shape, size: mebibytes(random)? })
        }
        Life::Staged(_) => {
            random.one_of(&[Action::Announce, Action::Announce, Action::Announce, Action::Undo]).copied()
        }
        Life::Announced(body) => {
            let to = body.size.bytes.saturating_add(mebibytes(random)?);
            let is_small = body.size.bytes < Bytes::new(16 << 20);
            let free: Vec<u16> = (0..slots(body.size)).filter(|slot| !body.written.contains(slot)).collect();
            // The last one now and then: what an expansion added.
            let slot = *if random.below(3) == 0 { free.last() } else { random.one_of(&free) }?;
            match random.below(9) {
                0 => Some(Action::Retire),
                1 => Some(Action::ExpandAndRetire { to }),
                2 if is_small => Some(Action::Expand { to }),
                3 if is_small => Some(Action::ExpandAndWrite { to, slot }),
                4 if !body.opened => Some(Action::Open),
                5 if body.opened => Some(Action::Retain),
                _ => Some(Action::Write { slot, leave: random.below(2) == 0 }),
            }
        }
        Life::Retired(body) if body.grown.is_some() => Some(Action::Discard),
        Life::Retired(_) => random.one_of(&[Action::Restore, Action::Discard, Action::Discard]).copied(),
        Life::Retained(_) => Some(Action::Adopt),
        Life::Gone => None,
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pvc-{}", self.0)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provision { shape: Shape::Filesystem, size } => write!(f, "provision directory of {size}"),
            Self::Provision { shape: Shape::Thick, size } => write!(f, "provision thick image of {size}"),
            Self::Provision { shape: Shape::Thin, size } => write!(f, "provision thin image of {size}"),
            Self::Write { slot, leave: false } => write!(f, "write slot {slot}"),
            Self::Write { slot, leave: true } => write!(f, "write slot {slot}, leave it attached"),
            Self::Expand { to } => write!(f, "expand to {to}"),
            Self::ExpandAndWrite { to, slot } => write!(f, "expand to {to} and write slot {slot}"),
            Self::ExpandAndRetire { to } => write!(f, "expand to {to} and retire"),
            Self::Announce
            | Self::Open
            | Self::Retain
            | Self::Adopt
            | Self::Retire
            | Self::Restore
            | Self::Discard
            | Self::Undo => f.write_str(self.name()),
        }
    }
}

/// A line for each round, with the numbers of its operations.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for round in self.rounds() {
            let said: Vec<String> = round
                .iter()
                .map(|(number, Operation { volume, action })| format!("{number}: {volume} {action}"))
                .collect();
            writeln!(f, "  {}", said.join("  |  "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether each operation is possible where it stands, and each round is on different volumes.
    fn is_possible(history: &History) -> bool {
        let mut lives: BTreeMap<Number, Life> = BTreeMap::new();
        history.rounds.iter().all(|round| {
            let volumes: BTreeSet<Number> = round.iter().map(|operation| operation.volume).collect();
            let possible = round.iter().all(|Operation { volume, action }| {
                let life = lives.remove(volume).unwrap_or_default().after(*action);
                life.map(|life| lives.insert(*volume, life)).is_some()
            });
            possible && volumes.len() == round.len()
        })
    }

    proptest! {
        #[test]
        fn a_seed_gives_a_history_that_can_be(seed: u64, count in 0usize..80) {
            let history = History::from_seed(seed, count);
            prop_assert!(is_possible(&history));
            prop_assert_eq!(&history, &History::from_seed(seed, count));
            prop_assert!(history.operations().count() <= count);
        }

        #[test]
        fn what_is_shorter_is_shorter_and_can_be(seed: u64, count in 0usize..30) {
            let history = History::from_seed(seed, count);
            for shorter in history.shorter() {
                prop_assert!(is_possible(&shorter), "{shorter}");
                prop_assert!(shorter.operations().count() < history.operations().count());
            }
        }

        #[test]
        fn what_was_begun_was_possible_without_the_rest(seed: u64, count in 0usize..30, until in 0usize..30) {
            let history = History::from_seed(seed, count);
            let begun: BTreeSet<usize> = (0..history.operations().count().min(until)).collect();
            let operations: Vec<_> = history.operations().take(until).collect();
            prop_assert_eq!(history.begun(&begun).operations().collect::<Vec<_>>(), operations);
        }
    }

    #[test]
    fn the_parts_have_each_pair_of_operations_that_can_follow_each_other() {
        let parts: Vec<History> = (0..History::parts()).map(History::of_sequences).collect();
        assert!(parts.iter().all(is_possible));
        let volumes = parts.iter().flat_map(|part| part.operations().map(|operation| operation.volume));
        assert_eq!(volumes.collect::<BTreeSet<_>>().len(), History::sequences().len());
        let pairs = |history: &History| -> BTreeSet<_> {
            let mut last = BTreeMap::new();
            let cases = history.operations().zip(history.cases());
            cases.filter_map(|(operation, case)| Some((last.insert(operation.volume, case)?, case))).collect()
        };
        let found: BTreeSet<_> = parts.iter().flat_map(pairs).collect();
        let random = (0..200).flat_map(|seed| pairs(&History::from_seed(seed, 30)));
        assert_eq!(random.filter(|pair| !found.contains(pair)).collect::<BTreeSet<_>>(), BTreeSet::new());
    }

    #[test]
    fn operations_of_a_round_run_at_once() {
        let widest = (0..8).flat_map(|seed| History::from_seed(seed, 30).rounds).map(|round| round.len()).max();
        assert_eq!(widest, Some(PARALLEL));
    }
}
