//! Showing a behaviour: in a row, at once, and nothing is left.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;

use crate::{Case, Census, Kind, Node};

/// Runs in a row after the first one, and runs at once: ten in all.
const IN_A_ROW: usize = 3;
const AT_ONCE: usize = 6;
/// Connections are closed by their server some time after the client has gone.
const LIMIT: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(5);

/// Shows a behaviour ten times: once, three times in a row, and six times at once. After each of these three nothing is
/// left. The first run is for both kinds of volumes, those after it for one kind each, in turns.
///
/// # Panics
/// If the behaviour does, or if something is left.
pub fn hold(behaviour: impl AsyncFn(&Case<'_>)) {
    let node = shared();
    in_a_row(&node, &behaviour);
    settled(&node, "six at once", || {
        let cases: Vec<_> = (0..AT_ONCE).map(|number| Case::new(&node, one_kind(number))).collect();
        node.block_on(join_all(cases.iter().map(|case| behaviour(case))));
        cases.into_iter().for_each(Case::end);
    });
}

/// The same for a behaviour that concerns the whole plugin, such as a restart: not at once.
///
/// # Panics
/// As [`hold`].
pub fn hold_in_turn(behaviour: impl AsyncFn(&Case<'_>)) {
    in_a_row(&shared(), &behaviour);
}

/// Gives a run to a test that repeats things in its own way, such as one that draws its messages.
///
/// # Panics
/// If the test does, or if something is left.
pub fn with_case(test: impl FnOnce(&Case<'_>)) {
    let node = shared();
    settled(&node, "the test", || {
        let case = Case::new(&node, &Kind::ALL);
        test(&case);
        case.end();
    });
}

fn in_a_row(node: &Node, behaviour: &impl AsyncFn(&Case<'_>)) {
    let once = |kinds| {
        let case = Case::new(node, kinds);
        node.block_on(behaviour(&case));
        case.end();
    };
    settled(node, "once", || once(&Kind::ALL));
    settled(node, "three times in a row", || (0..IN_A_ROW).for_each(|number| once(one_kind(number))));
}

fn one_kind(number: usize) -> &'static [Kind] {
    let [filesystem, block] = Kind::ALL.each_ref();
    std::slice::from_ref(if number.is_multiple_of(2) { filesystem } else { block })
}

/// Waits until everything is as it was.
fn settled(node: &Node, what: &str, act: impl FnOnce()) {
    let before = Census::take(node);
    act();
    let deadline = Instant::now() + LIMIT;
    loop {
        let changes = before.changes(&Census::take(node));
        if changes.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{what}, waited {LIMIT:?} until nothing is left:\n{}", changes.join("\n"));
        thread::sleep(INTERVAL);
    }
}

/// The node that all behaviours share. A behaviour that failed does not end the others.
fn shared() -> MutexGuard<'static, Node> {
    static NODE: LazyLock<Mutex<Node>> = LazyLock::new(|| Mutex::new(Node::start()));
    NODE.lock().unwrap_or_else(PoisonError::into_inner)
}
