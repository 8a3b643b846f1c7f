//! Positions in the log at which the power can fail, and the writes that the disk keeps.

use std::fmt;
use std::sync::Arc;

use ktest_init::write_log::{Completion, Content, Entry, Write};

use crate::random::Random;

pub(crate) const END_MARK: &str = "dm-log-writes-end";

/// Unit that a disk writes atomically, in bytes.
pub(crate) const SECTOR: u64 = 512;

/// Whether a write that no flush has made durable yet may be kept in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tearing {
    /// A write is kept or lost as a whole.
    Whole,
    /// Each 512-byte sector of file data, and of the journal's write in flight, is kept or lost on its own. Blocks of
    /// metadata stay whole: XFS expects disks that do not tear them, and takes the age of a block from its first
    /// sector.
    Sectors,
}

/// A power cut: its position in the log, and the writes that the disk lost. `Display` prints position, flush, losses,
/// last mark and seed.
#[derive(Clone)]
pub struct Cut {
    log: Arc<[Entry]>,
    position: usize,
    durable: usize,
    kept: Vec<KeptWrite>,
    seed: Option<u64>,
}

/// An entry after the last flush that the disk kept, entirely or in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptWrite {
    pub(crate) entry: usize,
    pub(crate) part: Part,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Sectors(Vec<bool>),
}

impl Cut {
    pub fn position(&self) -> usize {
        self.position
    }

    pub fn marks(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.log[..self.position].iter().filter_map(|entry| match entry {
            Entry::Mark(text) if text != END_MARK => Some(text.as_str()),
            _ => None,
        })
    }

    pub fn last_mark(&self) -> Option<&str> {
        self.marks().next_back()
    }

    /// Whether the test set this mark before the power failed. Data that was durable at the mark must be present.
    pub fn has_passed(&self, mark: &str) -> bool {
        self.marks().any(|passed| passed == mark)
    }

    /// Whether the disk lost a write before the cut, or kept a part of one, including the write in flight.
    pub fn is_lossy(&self) -> bool {
        self.lost().next().is_some() || self.kept.iter().any(|kept| kept.part != Part::All)
    }

    /// Number of entries, from the first one on, that are entirely on the disk.
    pub(crate) fn durable(&self) -> usize {
        self.durable
    }

    pub(crate) fn kept(&self) -> &[KeptWrite] {
        &self.kept
    }

    fn lost(&self) -> impl Iterator<Item = usize> {
        let kept = |entry: &usize| self.kept.iter().any(|kept| kept.entry == *entry && kept.part == Part::All);
        (self.durable..self.position)
            .filter(|&entry| changes_the_disk(&self.log[entry]))
            .filter(move |entry| !kept(entry))
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "power cut before entry {} of {}", self.position, self.log.len())?;
        match self.durable {
            0 => write!(f, ", before any flush")?,
            durable => write!(f, ", flushed at entry {}", durable - 1)?,
        }
        for (number, entry) in self.lost().enumerate() {
            let before = if number == 0 { ", lost or torn: " } else { ", " };
            write!(f, "{before}{entry}")?;
        }
        for kept in self.kept.iter().filter(|kept| kept.entry >= self.position) {
            write!(f, ", in flight: {}", kept.entry)?;
        }
        match self.last_mark() {
            Some(mark) => write!(f, ", last mark {mark:?}")?,
            None => write!(f, ", before any mark")?,
        }
        self.seed.map_or(Ok(()), |seed| write!(f, ", seed {seed:#x}"))
    }
}

impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cut({self})")
    }
}

/// One cut for each different state of the disk, if the disk keeps all writes in their order.
pub(crate) fn every(log: &Arc<[Entry]>) -> Vec<Cut> {
    let mut durable = 0;
    let mut cuts = Vec::new();
    for position in 0..=log.len() {
        if position > 0 && log[position - 1] == Entry::Flush {
            durable = position;
        }
        // The disk is the same before and after a flush or a mark, and the position before it guarantees less.
        if log.get(position).is_none_or(changes_the_disk) {
            let kept = (durable..position).filter(|&entry| changes_the_disk(&log[entry])).map(KeptWrite::all).collect();
            cuts.push(Cut { log: Arc::clone(log), position, durable, kept, seed: None });
        }
    }
    cuts
}

/// [`every`] without most cuts between consecutive in-place writes.
pub(crate) fn recovered(log: &Arc<[Entry]>) -> Vec<Cut> {
    let mut cuts = every(log);
    cuts.retain(|cut| !is_within_row(log, cut.position));
    cuts
}

/// Whether the cut at `position` is between two in-place writes, and the next cut has the same marks.
fn is_within_row(log: &[Entry], position: usize) -> bool {
    let (before, after) = log.split_at(position);
    let Some((next, rest)) = after.split_first() else { return false };
    is_in_place(next)
        && before.iter().rfind(|entry| changes_the_disk(entry)).is_some_and(is_in_place)
        && rest.iter().take_while(|entry| !changes_the_disk(entry)).all(|entry| *entry == Entry::Flush)
}

/// Whether the entry is a write of metadata (`REQ_META`) without `REQ_FUA`. XFS writes the commit records of its
/// journal with `REQ_FUA`. None of the other writes of metadata changes the state that a mount recovers:
/// - A buffer in place: the buffer is pinned until its content is durable in the journal. If recovery replays older
///   content over it, it also replays the newer content.
/// - A part of the journal before the commit record of its transaction: recovery ignores it.
/// - Changes without a log record. Counts of a quotacheck: each mount repeats it, until its end is logged. New inodes:
///   their creation is logged. Large values of attributes, and blocks after the end of the file system: a logged
///   transaction uses them later. Copies of the superblock: no mount reads them.
fn is_in_place(entry: &Entry) -> bool {
    matches!(entry, Entry::Write(write) if write.content == Content::Metadata && write.completion == Completion::Cached)
}

/// `count` cuts at random positions where a write can be lost, in the order of their positions.
pub(crate) fn lossy(log: &Arc<[Entry]>, seed: u64, count: usize, tearing: Tearing) -> Vec<Cut> {
    let places: Vec<Cut> = every(log).into_iter().filter(|cut| cut.can_lose(tearing)).collect();
    let mut random = Random::from_seed(seed);
    let count = if places.is_empty() { 0 } else { count };
    let mut chosen: Vec<_> = (0..count).map(|_| (random.below(places.len()), random.number())).collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|(place, seed)| places[place].lose(seed, tearing)).collect()
}

impl Cut {
    fn can_lose(&self, tearing: Tearing) -> bool {
        self.kept.iter().any(|kept| is_volatile(&self.log[kept.entry])) || self.in_flight(tearing).is_some()
    }

    /// The write with FUA that was in flight at the cut. The cuts at the next position cover other writes in flight.
    fn in_flight(&self, tearing: Tearing) -> Option<&Write> {
        match self.log.get(self.position) {
            Some(Entry::Write(write)) if write.completion == Completion::Durable && tearing == Tearing::Sectors => {
                Some(write)
            }
            _ => None,
        }
    }

    /// Keeps a random part of the writes that were not durable, in order. A disk that reorders writes may have a later
    /// one without an earlier one at a power cut, which is a loss of the earlier one.
    fn lose(&self, seed: u64, tearing: Tearing) -> Self {
        let mut random = Random::from_seed(seed);
        // Each write is kept with a probability of `odds` in eight, from none to all.
        let odds = random.below(9);
        let mut kept = Vec::new();
        for candidate in &self.kept {
            match &self.log[candidate.entry] {
                entry if !is_volatile(entry) => kept.push(candidate.clone()),
                Entry::Write(write)
                    if tearing == Tearing::Sectors && write.content == Content::Data && random.below(4) == 0 =>
                {
                    kept.push(KeptWrite { entry: candidate.entry, part: part(&mut random, write) });
                }
                _ if random.below(8) < odds => kept.push(candidate.clone()),
                _ => {}
            }
        }
        if let Some(write) = self.in_flight(tearing) {
            kept.push(KeptWrite { entry: self.position, part: part(&mut random, write) });
        }
        Self { kept, seed: Some(seed), ..self.clone() }
    }
}

impl KeptWrite {
    pub(crate) fn all(entry: usize) -> Self {
        Self { entry, part: Part::All }
    }
}

fn changes_the_disk(entry: &Entry) -> bool {
    matches!(entry, Entry::Write(_) | Entry::Discard(_))
}

/// Whether the entry may be lost after its completion.
fn is_volatile(entry: &Entry) -> bool {
    match entry {
        Entry::Write(write) => write.completion == Completion::Cached,
        Entry::Discard(_) => true,
        Entry::Flush | Entry::Mark(_) => false,
    }
}

/// Each sector is kept or lost on its own.
fn part(random: &mut Random, write: &Write) -> Part {
    Part::Sectors((0..write.extent.length / SECTOR).map(|_| random.below(2) == 0).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ktest_init::write_log::Extent;
    use proptest::prelude::*;

    use super::*;

    fn write(completion: Completion) -> Entry {
        let extent = Extent { start: 0, length: 4 * SECTOR };
        Entry::Write(Write { extent, completion, content: Content::Data, data: 0 })
    }

    fn mark(text: &str) -> Entry {
        Entry::Mark(text.into())
    }

    fn log(entries: impl IntoIterator<Item = Entry>) -> Arc<[Entry]> {
        entries.into_iter().collect()
    }

    const CACHED: Completion = Completion::Cached;
    const DURABLE: Completion = Completion::Durable;

    #[test]
    fn each_state_of_the_disk_has_one_cut_with_all_its_marks() {
        let log = log([write(CACHED), mark("written"), Entry::Flush, mark("flushed"), write(DURABLE)]);
        let cuts = every(&log);
        let found: Vec<_> = cuts.iter().map(|cut| (cut.position, cut.durable, cut.last_mark())).collect();
        assert_eq!(found, [(0, 0, None), (4, 3, Some("flushed")), (5, 3, Some("flushed"))]);
        assert_eq!(cuts[1].kept, []);
        assert_eq!(cuts[2].kept, [KeptWrite::all(4)]);
        assert!(cuts[1].has_passed("written") && !cuts[0].has_passed("written"));
    }

    #[test]
    fn a_row_of_writes_in_place_has_its_first_and_last_cut() {
        let in_place = || {
            let extent = Extent { start: 0, length: 4 * SECTOR };
            Entry::Write(Write { extent, completion: CACHED, content: Content::Metadata, data: 0 })
        };
        let positions = |log: Arc<[Entry]>| recovered(&log).iter().map(Cut::position).collect::<Vec<_>>();
        let row = [write(DURABLE), in_place(), in_place(), in_place(), Entry::Flush, write(DURABLE)];
        assert_eq!(positions(log(row)), [0, 1, 5, 6]);
        assert_eq!(positions(log([in_place(), in_place(), mark("done"), in_place(), in_place()])), [0, 1, 5]);
        assert_eq!(positions(log([write(CACHED), in_place(), write(CACHED), write(CACHED)])), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn the_kernels_own_mark_is_none() {
        assert_eq!(every(&log([mark("mine"), mark(END_MARK)]))[0].last_mark(), Some("mine"));
    }

    #[test]
    fn without_a_cache_nothing_is_lost() {
        let durable = log([write(DURABLE), Entry::Flush, write(DURABLE)]);
        assert!(lossy(&durable, 1, 10, Tearing::Whole).is_empty());
        assert_eq!(lossy(&durable, 1, 10, Tearing::Sectors).len(), 10, "writes in flight are torn");
        assert!(lossy(&log([]), 1, 10, Tearing::Sectors).is_empty());
    }

    #[test]
    fn metadata_is_never_torn() {
        let extent = Extent { start: 0, length: 4 * SECTOR };
        let metadata = Write { extent, completion: CACHED, content: Content::Metadata, data: 0 };
        let torn = |log| {
            lossy(&log, 1, 100, Tearing::Sectors)
                .iter()
                .flat_map(|cut| cut.kept.clone())
                .any(|kept| kept.part != Part::All)
        };
        assert!(!torn(log([Entry::Write(metadata)])));
        assert!(torn(log([write(CACHED)])));
    }

    #[test]
    fn every_loss_of_two_writes_is_found() {
        let log = log([write(CACHED), write(CACHED)]);
        let cuts = lossy(&log, 1, 200, Tearing::Whole);
        let kept: BTreeSet<Vec<usize>> = cuts
            .iter()
            .filter(|cut| cut.position == 2)
            .map(|cut| cut.kept.iter().map(|kept| kept.entry).collect())
            .collect();
        assert_eq!(kept, [vec![], vec![0], vec![0, 1], vec![1]].into());
    }

    #[test]
    fn a_cut_prints_its_details() {
        let log = log([write(CACHED), Entry::Flush, mark("done"), write(CACHED), write(CACHED), write(DURABLE)]);
        let cut = Cut {
            log,
            position: 5,
            durable: 2,
            kept: vec![KeptWrite::all(4), KeptWrite { entry: 5, part: Part::Sectors(vec![true, false]) }],
            seed: Some(255),
        };
        assert_eq!(
            cut.to_string(),
            "power cut before entry 5 of 6, flushed at entry 1, lost or torn: 3, in flight: 5, last mark \"done\", seed 0xff"
        );
    }

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let extent = Extent { start: 0, length: 4 * SECTOR };
        let in_place = Write { extent, completion: CACHED, content: Content::Metadata, data: 0 };
        let entry = prop_oneof![
            4 => Just(write(CACHED)),
            4 => Just(Entry::Write(in_place)),
            2 => Just(write(DURABLE)),
            1 => Just(Entry::Discard(Extent { start: 0, length: SECTOR })),
            2 => Just(Entry::Flush),
            1 => Just(mark("mark")),
        ];
        prop::collection::vec(entry, 0..40)
    }

    proptest! {
        #[test]
        fn nothing_durable_is_ever_lost(entries in entries(), seed: u64) {
            let log = log(entries);
            for tearing in [Tearing::Whole, Tearing::Sectors] {
                for cut in lossy(&log, seed, 20, tearing).iter().chain(&every(&log)) {
                    let flushed = log[..cut.position].iter().rposition(|entry| *entry == Entry::Flush);
                    prop_assert_eq!(cut.durable, flushed.map_or(0, |flush| flush + 1));
                    for entry in cut.durable..cut.position {
                        if changes_the_disk(&log[entry]) && !is_volatile(&log[entry]) {
                            prop_assert!(cut.kept.contains(&KeptWrite::all(entry)), "{} lost {}", cut, entry);
                        }
                    }
                }
            }
        }

        #[test]
        fn a_later_cut_has_the_marks_of_one_that_is_left_out(entries in entries()) {
            let log = log(entries);
            let left = recovered(&log);
            for cut in every(&log) {
                let marks = cut.marks().count();
                let next = left.iter().find(|left| left.position >= cut.position);
                prop_assert!(next.is_some_and(|next| next.marks().count() == marks), "{}", cut);
            }
        }

        #[test]
        fn only_writes_since_the_flush_can_be_lost(entries in entries(), seed: u64) {
            let log = log(entries);
            for cut in lossy(&log, seed, 20, Tearing::Sectors) {
                prop_assert!(cut.kept.is_sorted_by(|one, next| one.entry < next.entry), "{:?}", cut.kept);
                for kept in &cut.kept {
                    prop_assert!((cut.durable..=cut.position).contains(&kept.entry));
                }
            }
        }

        #[test]
        fn the_same_seed_gives_the_same_cuts_in_order(entries in entries(), seed: u64) {
            let log = log(entries);
            let describe = || lossy(&log, seed, 20, Tearing::Sectors).iter().map(|cut| (cut.position, cut.kept.clone())).collect::<Vec<_>>();
            prop_assert_eq!(describe(), describe());
            prop_assert!(!every(&log).iter().any(Cut::is_lossy));
            prop_assert!(describe().is_sorted_by_key(|(position, _)| *position));
        }
    }
}
