//! Runs a behavior once, then several times at once, and checks that nothing is left.

use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;

use crate::{Case, Census, Kind, Node, Services, Volume};

/// Number of concurrent runs: two for each kind of volume.
const AT_ONCE: usize = 4;
/// Deadline of the census. The server closes connections some time after the client has closed them.
const LIMIT: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(5);

/// Runs a behavior once for both kinds of volumes, then four times at once, each for one kind. Fails if anything is
/// left after either step.
pub fn hold(behavior: impl AsyncFn(&Case<'_>)) {
    let node = shared();
    let before = once(&node, Census::take(&node), &behavior);
    settled(&node, before, "four at once", || {
        let kinds = Kind::ALL.iter().cycle().map(std::slice::from_ref);
        let cases: Vec<_> = kinds.take(AT_ONCE).map(|kind| Case::new(&node, kind)).collect();
        node.block_on(join_all(cases.iter().map(|case| behavior(case))));
        cases.into_iter().for_each(Case::end);
    });
}

/// Runs a behavior twice in a row, with the checks of [`hold`]. For behaviors of the whole plugin, such as a restart,
/// and for concurrent behaviors.
pub fn hold_in_turn(behavior: impl AsyncFn(&Case<'_>)) {
    let node = shared();
    let before = once(&node, Census::take(&node), &behavior);
    once(&node, before, &behavior);
}

/// Like [`hold`], for each kind of volume of the case.
pub fn hold_each(behavior: impl AsyncFn(&Case<'_>, Kind)) {
    hold(async |case| each(case, &behavior).await);
}

/// Like [`hold_in_turn`], for each kind of volume.
pub fn hold_each_in_turn(behavior: impl AsyncFn(&Case<'_>, Kind)) {
    hold_in_turn(async |case| each(case, &behavior).await);
}

/// Like [`hold_each`], with a published volume and its target. The volume is unpublished at the end.
pub fn hold_published(behavior: impl AsyncFn(&Case<'_>, Kind, Volume, PathBuf)) {
    hold_each(async |case, kind| {
        let (volume, target) = case.published(kind).await;
        behavior(case, kind, volume.clone(), target.clone()).await;
        case.withdraw(&volume, &target).await;
    });
}

async fn each(case: &Case<'_>, behavior: &impl AsyncFn(&Case<'_>, Kind)) {
    for &kind in case.kinds() {
        behavior(case, kind).await;
    }
}

/// Runs a test that repeats its calls itself, such as one with random messages.
pub fn with_case(test: impl FnOnce(&Case<'_>)) {
    let node = shared();
    settled(&node, Census::take(&node), "the test", || {
        let case = Case::new(&node, &Kind::ALL);
        test(&case);
        case.end();
    });
}

fn once(node: &Node, before: Census, behavior: &impl AsyncFn(&Case<'_>)) -> Census {
    settled(node, before, "once", || {
        let case = Case::new(node, &Kind::ALL);
        node.block_on(behavior(&case));
        case.end();
    })
}

/// Runs `act`, and waits until the state is the same as before.
fn settled(node: &Node, before: Census, what: &str, act: impl FnOnce()) -> Census {
    act();
    let deadline = Instant::now() + LIMIT;
    loop {
        let changes = before.changes(&Census::take(node));
        if changes.is_empty() {
            return before;
        }
        assert!(Instant::now() < deadline, "{what}: still left after {LIMIT:?}:\n{}", changes.join("\n"));
        thread::sleep(INTERVAL);
    }
}

/// The node of all behaviors. Other behaviors continue after one that fails.
fn shared() -> MutexGuard<'static, Node> {
    static NODE: LazyLock<Mutex<Node>> = LazyLock::new(|| Mutex::new(Node::start(Services::NodeAlone)));
    NODE.lock().unwrap_or_else(PoisonError::into_inner)
}
