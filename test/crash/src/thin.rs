//! Adds operations on thin snapshots to a history. Pure.

use std::collections::BTreeSet;

use crate::history::PARALLEL;
use crate::life::{Body, Life, Lives, after, has_thin_snapshot};
use crate::operation::{Action, Case, Number, Operation};
use crate::random::Random;

/// Number of the first thin snapshot. All other volumes have lower numbers, so that a seed has the same other
/// operations, for which [`crate::SEEDS`] were selected.
const FIRST: Number = Number(1_000);

/// Maximum number of thin snapshots at a time, because the check of each cut reads them as a whole.
const CROWD: usize = 3;

/// Adds at most one operation to each round, or before it. The other operations stay, but most writes to a volume with
/// a thin snapshot are to slots that were written before, because their blocks are shared.
pub(crate) fn with_thin_snapshots(rounds: Vec<Vec<Operation>>, random: &mut Random) -> Vec<Vec<Operation>> {
    let (mut lives, mut next, mut shown, mut all) = (Lives::new(), FIRST, BTreeSet::new(), Vec::new());
    for mut round in rounds {
        let chosen = choose(next, &lives, &shown, random);
        let mut beside = None;
        if let Some((operation, case)) = chosen {
            shown.extend(case);
            next = next.max(Number(operation.volume.0 + 1));
            if round.len() < PARALLEL && is_apart(operation, &round) {
                beside = Some(operation);
            } else {
                lives.extend(after(operation, &lives).unwrap_or_default());
                all.push(vec![operation]);
            }
        }
        round.iter_mut().for_each(|operation| *operation = rewritten(*operation, &lives, random));
        round.extend(beside);
        let before = lives.clone();
        lives.extend(round.iter().filter_map(|operation| after(*operation, &before)).flatten());
        all.push(round);
    }
    // Cases that are still missing: the sources of these snapshots have not changed.
    for (&volume, snapshot) in lives.iter().filter_map(|(volume, life)| Some((volume, as_thin(life)?))) {
        let operation = Operation { volume, action: Action::RemoveSnapshot };
        if after(operation, &lives).is_some() && shown.insert((Action::REMOVE_THIN, snapshot.shape)) {
            all.push(vec![operation]);
        }
    }
    all
}

fn is_apart(operation: Operation, round: &[Operation]) -> bool {
    let mut touched = operation.action.others().chain([operation.volume]);
    !touched.any(|number| round.iter().any(|other| other.touches(number)))
}

/// Chooses an operation that shows a case for the first time, or else any operation in a third of the rounds.
fn choose(
    next: Number,
    lives: &Lives,
    shown: &BTreeSet<Case>,
    random: &mut Random,
) -> Option<(Operation, Option<Case>)> {
    let all = candidates(next, lives);
    let is_new = |(_, case): &&(Operation, Option<Case>)| case.is_some_and(|case| !shown.contains(&case));
    let new: Vec<_> = all.iter().filter(is_new).copied().collect();
    match random.one_of(&new) {
        None if random.below(3) == 0 => random.one_of(&all).copied(),
        chosen => chosen.copied(),
    }
}

/// Possible operations. Those that take or remove a thin snapshot have their case. At most one volume or kept snapshot
/// at a time has the content of a thin snapshot.
fn candidates(next: Number, lives: &Lives) -> Vec<(Operation, Option<Case>)> {
    let is_there = |(_, life): &(&Number, &Life)| !matches!(life, Life::Gone(_));
    let own: Vec<(&Number, &Life)> = lives.range(FIRST..).filter(is_there).collect();
    let snapshots: Vec<_> = own.iter().filter_map(|&(&number, life)| Some((number, as_thin(life)?))).collect();
    let mut found = Vec::new();
    let mut add = |volume, action, case| found.push((Operation { volume, action }, case));
    for &(&number, life) in &own {
        match life {
            Life::Copying(_) => {
                add(number, Action::Copy, None);
                add(number, Action::Undo, None);
            }
            Life::Staged(_) => add(number, Action::Undo, None),
            Life::Snapshot(body) if !body.is_thin => add(number, Action::RemoveSnapshot, None),
            Life::Snapshot(body) if has_changed(body, lives) => {
                add(number, Action::RemoveSnapshot, Some((Action::REMOVE_THIN, body.shape)));
            }
            _ => {}
        }
    }
    if snapshots.len() < CROWD {
        for (&source, life) in lives {
            if let Life::Announced(body) = life {
                let action = Action::Snapshot { source, is_thin: true };
                add(next, action, Some((action.name(), body.shape)));
            }
        }
    }
    if snapshots.len() == own.len() {
        for &(source, body) in &snapshots {
            add(next, Action::RestoreSnapshot { source, shape: body.shape, size: body.size.bytes }, None);
            if let Some(origin) = body.origin {
                add(next, Action::RollBack { volume: origin.source, source }, None);
            }
        }
    }
    found.retain(|(operation, _)| after(*operation, lives).is_some());
    found
}

fn as_thin(life: &Life) -> Option<&Body> {
    match life {
        Life::Snapshot(body) if body.is_thin => Some(body),
        _ => None,
    }
}

/// Whether the source has changed since the instant of the snapshot.
fn has_changed(snapshot: &Body, lives: &Lives) -> bool {
    match snapshot.origin.and_then(|origin| lives.get(&origin.source)) {
        Some(Life::Announced(source)) => source.written != snapshot.written || source.size != snapshot.size,
        _ => true,
    }
}

fn rewritten(operation: Operation, lives: &Lives, random: &mut Random) -> Operation {
    let Some(Life::Announced(body)) = lives.get(&operation.volume) else { return operation };
    let is_again = has_thin_snapshot(operation.volume, lives) && random.below(4) > 0;
    let written: Vec<u16> = body.written.keys().copied().collect();
    let Some(&slot) = random.one_of(&written).filter(|_| is_again) else { return operation };
    let action = match operation.action {
        Action::Write { turn, leave, .. } => Action::Write { slot, turn, leave },
        Action::ExpandAndWrite { to, turn, .. } => Action::ExpandAndWrite { to, slot, turn },
        action => action,
    };
    Operation { action, ..operation }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::history::History;
    use crate::operation::Shape;

    fn without_slot(operation: Operation) -> Operation {
        let action = match operation.action {
            Action::Write { turn, leave, .. } => Action::Write { slot: 0, turn, leave },
            Action::ExpandAndWrite { to, turn, .. } => Action::ExpandAndWrite { to, slot: 0, turn },
            action => action,
        };
        Operation { action, ..operation }
    }

    proptest! {
        #[test]
        fn a_seed_has_the_same_other_operations(seed: u64, count in 0usize..80) {
            let (others, _) = History::without_thin_snapshots(seed, count);
            let others: Vec<Operation> = others.into_iter().flatten().map(without_slot).collect();
            prop_assert!(others.len() <= count);
            let history = History::from_seed(seed, count);
            let found = history.operations().filter(|operation| operation.volume < FIRST).map(without_slot);
            prop_assert_eq!(found.collect::<Vec<_>>(), others);
        }
    }

    #[test]
    fn sources_are_overwritten_and_removed_and_thin_snapshots_are_copied() {
        let mut found = BTreeSet::new();
        for seed in 0..100 {
            let mut lives = Lives::new();
            for operation in History::from_seed(seed, 36).operations() {
                if let Some((slot, _)) = operation.written()
                    && let Some(Life::Announced(body)) = lives.get(&operation.volume)
                    && has_thin_snapshot(operation.volume, &lives)
                    && body.written.contains_key(&slot)
                {
                    found.insert(("overwritten", body.shape));
                }
                if let Action::RestoreSnapshot { source, .. } | Action::RollBack { source, .. } = operation.action
                    && let Some(body) = lives.get(&source).and_then(as_thin)
                {
                    found.insert((operation.action.name(), body.shape));
                }
                lives.extend(after(operation, &lives).unwrap_or_default());
                let is_gone = |body: &&Body| {
                    body.origin.is_some_and(|origin| matches!(lives.get(&origin.source), Some(Life::Gone(_))))
                };
                found.extend(lives.values().filter_map(as_thin).filter(is_gone).map(|body| ("removed", body.shape)));
            }
        }
        let names = ["overwritten", "removed", "restore snapshot", "rollback"];
        let all = names.into_iter().flat_map(|name| Shape::ALL.map(|shape| (name, shape)));
        assert_eq!(found, all.collect());
    }
}
