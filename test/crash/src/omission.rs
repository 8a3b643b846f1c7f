//! Omits single flushes of the store, one after the other. The checks must detect the omission of each flush that the
//! store needs.

use std::collections::BTreeMap;
use std::path::Path;

use ktest_support::process::{Flush, without_flush};
use ktest_support::replay::{Cut, Recorder, Replay};
use units::Bytes;
use volume::Volumes as _;

use crate::experiment::{OPTIONS, check_left};
use crate::history::History;
use crate::model::{self, Progress, begin, end};
use crate::node::{Node, called, id, request};
use crate::operation::{Action, Number, Operation, Shape};
use crate::violation::Violation;

/// An omitted flush.
#[derive(Debug)]
pub struct Omission {
    pub during: (&'static str, Shape),
    /// The flush, such as `fsync of live`.
    pub flush: String,
    pub violation: Option<Violation>,
}

/// Operations of one volume. Before they begin, a start of the store makes all earlier changes durable.
#[derive(Clone, Debug)]
struct Step {
    /// Name of the step in the results.
    name: &'static str,
    volume: Number,
    shape: Shape,
    actions: Vec<Action>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Whole,
    /// Runs in another process, in which one flush is omitted.
    Without,
    /// As `Without`, but the process also starts the store, and no earlier change was synced.
    StartWithout,
}

/// Volume number that no history has.
const NEVER: Number = Number(60_003);

const SIZE: Bytes = Bytes::MIB;
const LARGER: Bytes = Bytes::new(2 << 20);

/// Lives of three volumes of each kind, as lists of steps.
fn lives() -> Vec<Vec<Step>> {
    use Action::{Announce, Discard, Expand, Open, Provision, Restore, Retire, Undo};
    use Kind::{StartWithout, Whole, Without};

    let lives = Shape::ALL.into_iter().flat_map(|shape| {
        let provision = Provision { shape, size: SIZE };
        let lives = [
            vec![
                ("provision", vec![provision], Without),
                ("open", vec![Announce, Open], Without),
                ("expand", vec![Expand { to: LARGER }], Without),
                ("retire", vec![Retire], Without),
                ("restore", vec![Restore], Without),
                ("retire", vec![Retire], Whole),
                ("discard", vec![Discard], Without),
            ],
            vec![("provision", vec![provision], Whole), ("undo", vec![Undo], Without)],
            vec![
                ("provision", vec![provision], Whole),
                ("announce", vec![Announce], Whole),
                ("start", vec![Open], StartWithout),
            ],
        ];
        lives.map(|steps| (shape, steps))
    });
    let steps = |(number, (shape, steps)): (u16, (Shape, Vec<_>))| {
        let volume = Number(number);
        steps.into_iter().map(|(name, actions, kind)| Step { name, volume, shape, actions, kind }).collect()
    };
    (1..).zip(lives).map(steps).collect()
}

/// Omits each flush of the store, one in each process, and reports whether the checks detect the omission.
pub fn every_flush() -> Result<Vec<Omission>, Violation> {
    let mut lives = lives();
    let mut omissions = Vec::new();
    for number in 0.. {
        let recording = Recording::new(&lives, number)?;
        // Keeps the steps up to the last one that has more flushes.
        for (life, flushes) in lives.iter_mut().zip(&recording.flushes) {
            let more = flushes.iter().rposition(|flushes| flushes.len() > number + 1);
            life.truncate(more.map_or(0, |last| last + 1));
        }
        omissions.extend(recording.omissions(number)?);
        lives.retain(|life| !life.is_empty());
        if lives.is_empty() {
            break;
        }
    }
    Ok(omissions)
}

struct Recording {
    history: History,
    steps: Vec<Step>,
    /// The flushes of each step of each life.
    flushes: Vec<Vec<Vec<Flush>>>,
    replay: Replay,
}

impl Recording {
    /// Records all steps. Each step omits the flush with this number, if it has so many.
    fn new(lives: &[Vec<Step>], omitted: usize) -> Result<Self, Violation> {
        let steps: Vec<Step> = lives.iter().flatten().cloned().collect();
        let operations = steps.iter().flat_map(|Step { volume, actions, .. }| {
            actions.iter().map(|&action| Operation { volume: *volume, action })
        });
        let history = History::sequence(operations);
        let recorder = Recorder::on_xfs();
        let mounted = recorder.mount(OPTIONS);
        let root = mounted.path();
        make_counter(root)?;
        let mut rounds = history.rounds().flatten();
        let mut flushes = Vec::new();
        for life in lives {
            let mut of_life = Vec::new();
            for step in life {
                let operations: Vec<_> = rounds.by_ref().take(step.actions.len()).collect();
                of_life.push(step.run(&operations, omitted, root, &recorder));
            }
            flushes.push(of_life);
        }
        drop(rounds);
        // Another start makes the last step durable, as the starts between the steps do for the others.
        Node::start(root)?;
        drop(mounted);
        Ok(Self { history, steps, flushes, replay: recorder.finish() })
    }

    /// Checks the cuts within each step with an omitted flush, and after it, until one shows a violation.
    fn omissions(mut self, omitted: usize) -> Result<Vec<Omission>, Violation> {
        let mut cuts: BTreeMap<usize, Vec<Cut>> = BTreeMap::new();
        for cut in self.replay.every_recovered_cut() {
            let last = cut.last_mark().and_then(|mark| mark.split_once(' ')?.1.parse().ok());
            cuts.entry(last.unwrap_or(usize::MAX)).or_default().push(cut);
        }
        let mut omissions = Vec::new();
        let mut first = 0;
        for (Step { name, shape, actions, .. }, flushes) in self.steps.iter().zip(self.flushes.iter().flatten()) {
            let operations = first..first + actions.len();
            first = operations.end;
            let Some(flush) = flushes.get(omitted) else { continue };
            let mut violation = None;
            for cut in operations.filter_map(|number| cuts.get(&number)).flatten() {
                let expected = model::expected(&self.history, &Progress::from_marks(cut.marks()));
                let disk = self.replay.restore(cut);
                let mounted = disk.try_mount(OPTIONS).map_err(Violation::Mount)?;
                violation = check_left(mounted.path(), &expected).err();
                if violation.is_some() {
                    break;
                }
            }
            omissions.push(Omission { during: (name, *shape), flush: flush.to_string(), violation });
        }
        Ok(omissions)
    }
}

/// Creates a volume and removes it. The first volume of a disk creates the counter of project IDs, so all later volumes
/// are created in the same way.
fn make_counter(root: &Path) -> Result<(), Violation> {
    let store = Node::start(root)?.store;
    let (volume, name) = (id(NEVER), || NEVER.to_string());
    store.provision(&volume, &request(NEVER, Shape::Filesystem, SIZE)).map_err(called("provision", name()))?;
    store.undo(&volume).map_err(called("undo", name()))?;
    Ok(())
}

impl Step {
    fn run(&self, operations: &[(usize, Operation)], omitted: usize, root: &Path, recorder: &Recorder) -> Vec<Flush> {
        let run = |node: Result<Node, Violation>| {
            let node = node.unwrap_or_else(|violation| panic!("{violation}"));
            for &(number, operation) in operations {
                recorder.mark(&begin(number));
                node.run(operation).unwrap_or_else(|violation| panic!("{operation:?}: {violation}"));
                recorder.mark(&end(number));
            }
        };
        match self.kind {
            Kind::Whole => {
                run(Node::start(root));
                vec![]
            }
            Kind::Without => {
                let node = Node::start(root);
                without_flush(omitted, || run(node))
            }
            Kind::StartWithout => without_flush(omitted, || run(Node::start(root))),
        }
    }
}
