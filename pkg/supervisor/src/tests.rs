//! Tests of the public interface with tokio's clock paused: time passes only while all tasks wait.

mod progress;
mod trees;
mod world;

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::{Context, Ended, Handle, Settings, State, Status, Supervisor};

#[derive(Debug, thiserror::Error)]
#[error("cannot work")]
struct Broken(#[source] std::fmt::Error);

const BROKEN: Broken = Broken(std::fmt::Error);
const LONG: Duration = Duration::from_secs(100_000);

/// Events, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    fn entries(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn steady(cx: Context) -> Result<(), Infallible> {
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}

/// A service that logs its start and its end.
fn logged(log: &Log, name: &'static str) -> impl Fn(Context) -> crate::tasks::Attempt + Send + Sync + 'static {
    let log = log.clone();
    move |cx| {
        let log = log.clone();
        Box::pin(async move {
            log.add(format!("{name} starts"));
            cx.healthy();
            cx.cancelled().await;
            log.add(format!("{name} ends"));
            Ok(())
        })
    }
}

/// A tree whose root only starts the services of `start`.
fn tree<T: Send + 'static>(start: impl Fn(&Context) -> T + Send + Sync + 'static) -> Supervisor {
    Supervisor::start("node", Settings::default(), move |cx| {
        start(&cx);
        steady(cx)
    })
}

/// Waits until `wanted` accepts the status of the tree, and returns the status.
async fn eventually(tree: &Supervisor, wanted: impl Fn(&Status) -> bool) -> Status {
    let end = Instant::now() + LONG;
    loop {
        let status = tree.status();
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < end, "never came: {status:#?}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_service_runs_again_with_growing_waits() {
    let starts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&starts);
    let tree = tree(move |cx| {
        let seen = Arc::clone(&seen);
        cx.start("flaky", move |cx| {
            seen.lock().unwrap().push(Instant::now());
            async move { if cx.attempt() < 6 { Err(BROKEN) } else { steady(cx).await.map_err(|never| match never {}) } }
        })
    });
    let status = eventually(&tree, |status| status.children.first().is_some_and(|c| c.state == State::Healthy)).await;
    assert_eq!(status.children[0].attempts, 6);
    assert_eq!(
        status.children[0].last_error.as_deref(),
        Some("cannot work: an error occurred when formatting an argument")
    );
    let starts = starts.lock().unwrap();
    for (failures, pair) in (0_u32..).zip(starts.windows(2)) {
        let wait = (pair[1] - pair[0]).as_secs_f64();
        let least = f64::from(1 << failures);
        assert!(wait >= least && wait <= 2.0 * least + 0.1, "waited {wait} s after {} failures", failures + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_health_makes_the_next_wait_short_again() {
    let tree = tree(|cx| {
        cx.start("flaky", |cx| async move {
            if cx.attempt() == 9 {
                cx.healthy();
                sleep(Duration::from_secs(3600)).await;
            }
            if cx.attempt() == 10 {
                pending::<()>().await;
            }
            Err::<(), _>(BROKEN)
        })
    });
    eventually(&tree, |status| status.children.first().is_some_and(|c| c.state == State::Healthy)).await;
    eventually(&tree, |status| status.children[0].state == State::Failed).await;
    let failed = Instant::now();
    eventually(&tree, |status| status.children[0].state == State::Starting).await;
    assert!(failed.elapsed() <= Duration::from_secs(2), "waited {:?}", failed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_with_its_message() {
    let tree = tree(|cx| {
        cx.start("late", |cx| async move {
            assert!(cx.attempt() > 1, "out of luck");
            steady(cx).await
        });
        cx.start("early", |cx: Context| {
            assert!(cx.attempt() > 1, "before the future");
            steady(cx)
        })
    });
    let status =
        eventually(&tree, |s| s.children.len() == 2 && s.children.iter().all(|c| c.state == State::Healthy)).await;
    assert_eq!(status.children[0].last_error.as_deref(), Some("panicked: out of luck"));
    assert_eq!(status.children[1].last_error.as_deref(), Some("panicked: before the future"));
    assert_eq!(status.attempts, 1, "the parent went on");
}

#[tokio::test(start_paused = true)]
async fn an_end_without_done_is_a_failure() {
    let tree = tree(|cx| {
        cx.start("leaves", |_| async { Ok::<(), Infallible>(()) });
        cx.start("done", |cx| async move {
            cx.start("child", steady);
            cx.done();
            Ok::<(), Infallible>(())
        })
    });
    let status = eventually(&tree, |s| s.children.first().is_some_and(|leaves| leaves.attempts == 3)).await;
    assert_eq!(status.children[0].last_error.as_deref(), Some("ended without a call of done"));
    assert_eq!(status.children[1].state, State::Done);
    assert_eq!(status.children[1].attempts, 1);
    assert_eq!(status.children[1].children[0].state, State::Healthy, "children of a done service go on");
    tree.stop(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn services_stop_in_reverse_order_children_first() {
    let log = Log::default();
    let kept = log.clone();
    let tree = tree(move |cx| {
        cx.start("a", logged(&kept, "a"));
        let inner = kept.clone();
        cx.start("b", move |cx| {
            cx.start("b1", logged(&inner, "b1"));
            cx.start("b2", logged(&inner, "b2"));
            logged(&inner, "b")(cx)
        });
        cx.start("c", logged(&kept, "c"))
    });
    eventually(&tree, |s| s.children.len() == 3 && s.children[1].children.len() == 2).await;
    eventually(&tree, |s| s.children.iter().all(|c| c.state == State::Healthy)).await;
    let root = tree.handle();
    tree.stop(LONG).await.unwrap();
    let ends: Vec<String> = log.entries().into_iter().filter(|entry| entry.ends_with("ends")).collect();
    assert_eq!(ends, ["c ends", "b2 ends", "b1 ends", "b ends", "a ends"]);
    assert_eq!(root.state(), State::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_failure_stops_the_children_and_a_restart_has_new_ones() {
    let log = Log::default();
    let kept = log.clone();
    let tree = tree(move |cx| {
        let log = kept.clone();
        cx.start("parent", move |cx| {
            let child = cx.start("child", logged(&log, "child"));
            async move {
                child.healthy().await.unwrap();
                cx.healthy();
                if cx.attempt() == 1 {
                    return Err(BROKEN);
                }
                cx.cancelled().await;
                Ok(())
            }
        })
    });
    eventually(&tree, |s| s.children.first().is_some_and(|p| p.attempts == 2 && p.state == State::Healthy)).await;
    assert_eq!(log.entries(), ["child starts", "child ends", "child starts"]);
    assert_eq!(tree.status().children[0].children.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_stop_in_time_is_aborted() {
    let tree = tree(|cx| {
        cx.start("deaf", |cx| async move {
            cx.healthy();
            pending::<Result<(), Infallible>>().await
        })
    });
    eventually(&tree, |s| s.children.first().is_some_and(|c| c.state == State::Healthy)).await;
    let asked = Instant::now();
    tree.stop(LONG).await.unwrap();
    assert_eq!(asked.elapsed().as_secs(), Settings::default().stop_deadline.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_takes_too_long_names_what_was_left() {
    let tree = tree(|cx| {
        cx.start("quick", steady);
        cx.start("deaf", |cx| async move {
            cx.healthy();
            pending::<Result<(), Infallible>>().await
        })
    });
    eventually(&tree, |s| s.children.len() == 2 && s.children[1].state == State::Healthy).await;
    let root = tree.handle();
    let overdue = tree.stop(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(overdue.services, ["node.quick", "node.deaf", "node"]);
    assert_eq!(overdue.to_string(), "services did not stop in time: node.quick, node.deaf, node");
    assert!(root.status().walk().all(|(_, service)| service.state == State::Stopped), "{}", root.status());
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait_for_a_restart_and_for_health() {
    let (sender, mut handles) = tokio::sync::mpsc::channel::<Handle>(1);
    let tree = tree(move |cx| {
        let broken = cx.start("broken", |_| async { Err::<(), _>(BROKEN) });
        sender.try_send(broken).unwrap();
    });
    let broken = handles.recv().await.unwrap();
    eventually(&tree, |s| s.children[0].attempts == 9).await;
    let (stopped, healthy) = tokio::join!(timeout(Duration::from_secs(1), broken.stop()), broken.healthy());
    stopped.expect("a stop does not wait for the back-off");
    assert_eq!(healthy, Err(Ended { service: "node.broken".into() }));
    assert_eq!(tree.status().state, State::Healthy, "only the child was stopped");
}

#[tokio::test(start_paused = true)]
async fn a_context_of_an_earlier_attempt_starts_and_says_nothing() {
    let kept: Arc<Mutex<Option<Context>>> = Arc::default();
    let old = Arc::clone(&kept);
    let tree = tree(move |cx| {
        let old = Arc::clone(&old);
        cx.start("parent", move |cx| {
            let old = Arc::clone(&old);
            async move {
                if cx.attempt() == 1 {
                    *old.lock().unwrap() = Some(cx);
                    return Err(BROKEN);
                }
                pending().await
            }
        })
    });
    eventually(&tree, |s| s.children.first().is_some_and(|p| p.attempts == 2)).await;
    let old = kept.lock().unwrap().take().unwrap();
    old.healthy();
    let child = old.start("ghost", |_| async { panic!("must not run") as Result<(), Infallible> });
    assert_eq!(child.healthy().await, Err(Ended { service: "node.parent.ghost".into() }));
    let status = tree.status();
    assert_eq!(status.children[0].state, State::Starting);
    assert!(status.children[0].children.is_empty());
}

/// Decrements the counter when the task that owns it is dropped.
struct Alive(Arc<AtomicU32>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_tree_leaves_no_task_behind() {
    let alive = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&alive);
    let tree = tree(move |cx| {
        let count = Arc::clone(&count);
        cx.start("parent", move |cx| {
            let count = Arc::clone(&count);
            cx.start("child", move |cx| {
                count.fetch_add(1, Ordering::Relaxed);
                let alive = Alive(Arc::clone(&count));
                async move {
                    let _alive = alive;
                    steady(cx).await
                }
            });
            steady(cx)
        })
    });
    eventually(&tree, |_| alive.load(Ordering::Relaxed) == 1).await;
    let (root, end) = (tree.handle(), Instant::now() + LONG);
    drop(tree);
    while alive.load(Ordering::Relaxed) != 0 {
        assert!(Instant::now() < end, "the child outlives the tree");
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(root.state(), State::Stopped);
}

#[tokio::test(start_paused = true)]
async fn the_observer_sees_every_change_in_order() {
    let log = Log::default();
    let seen = log.clone();
    let observer = move |change: &crate::Change<'_>| {
        if change.name == "flaky" {
            seen.add(format!("{} {} {}", change.path, change.attempts, change.state));
        }
    };
    let tree = Supervisor::observed("node", Settings::default(), observer, |cx| {
        cx.start("flaky", |cx| async move {
            if cx.attempt() == 1 { Err(BROKEN) } else { steady(cx).await.map_err(|never| match never {}) }
        });
        steady(cx)
    });
    eventually(&tree, |s| s.children.first().is_some_and(|c| c.state == State::Healthy)).await;
    tree.stop(LONG).await.unwrap();
    assert_eq!(
        log.entries(),
        [
            "node.flaky 1 starting",
            "node.flaky 1 failed",
            "node.flaky 2 starting",
            "node.flaky 2 healthy",
            "node.flaky 2 stopping",
            "node.flaky 2 stopped"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_is_dropped_before_it_ran_wakes_who_waits_for_it() {
    let tree = tree(|_| ());
    let root = tree.handle();
    drop(tree);
    let ended = timeout(LONG, root.healthy()).await.expect("the end is reported");
    assert_eq!(ended, Err(Ended { service: "node".into() }));
    assert_eq!(root.status().attempts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_stopped_for_good_leaves_the_status() {
    let tree = tree(|cx| {
        let connection = cx.start("connection", steady);
        let other = cx.start("other", steady);
        cx.start("closer", move |cx| {
            let (connection, other) = (connection.clone(), other.clone());
            async move {
                other.healthy().await?;
                connection.stop().await;
                cx.done();
                Ok::<(), Ended>(())
            }
        })
    });
    let status = eventually(&tree, |s| s.walk().any(|(_, service)| service.state == State::Done)).await;
    let names: Vec<&str> = status.children.iter().map(|child| child.name.as_str()).collect();
    assert_eq!(names, ["other", "closer"]);
}

#[tokio::test(start_paused = true)]
async fn a_done_service_goes_on_supervising() {
    let (sender, mut contexts) = tokio::sync::mpsc::channel::<Context>(1);
    let tree = tree(move |cx| {
        let sender = sender.clone();
        cx.start("done", move |cx| {
            sender.try_send(cx.clone()).unwrap();
            cx.done();
            async { Ok::<(), Infallible>(()) }
        })
    });
    let cx = contexts.recv().await.unwrap();
    eventually(&tree, |s| s.children[0].state == State::Done).await;
    let late = cx.start("late", steady);
    late.healthy().await.unwrap();
    assert_eq!(tree.status().children[0].children[0].name, "late");
    late.stop().await;
    eventually(&tree, |s| s.children[0].children.is_empty()).await;
    assert!(!cx.is_cancelled());
    tree.stop(LONG).await.unwrap();
    assert!(cx.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn the_context_of_a_failed_attempt_is_cancelled() {
    let (sender, mut contexts) = tokio::sync::mpsc::channel::<Context>(1);
    let _tree = tree(move |cx| {
        let sender = sender.clone();
        cx.start("fails", move |cx| {
            let _ = sender.try_send(cx);
            async { Err::<(), _>(BROKEN) }
        })
    });
    let first = contexts.recv().await.unwrap();
    timeout(LONG, first.cancelled()).await.expect("the attempt is over");
    assert_eq!(first.attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_child_can_be_started_by_a_thread_that_is_not_the_runtimes() {
    let tree = tree(|cx| {
        let cx = cx.clone();
        std::thread::spawn(move || cx.start("child", steady)).join().unwrap()
    });
    eventually(&tree, |s| s.children.first().is_some_and(|c| c.state == State::Healthy)).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_observer_is_contained() {
    let tree = Supervisor::observed(
        "node",
        Settings::default(),
        |_| panic!("cannot look"),
        |cx| {
            cx.start("child", steady);
            steady(cx)
        },
    );
    eventually(&tree, |s| s.children.first().is_some_and(|c| c.state == State::Healthy)).await;
    assert_eq!(tree.status().walk().map(|(_, service)| service.attempts).max(), Some(1));
    tree.stop(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_only_waits_for_a_restart_is_not_overdue() {
    let tree = Supervisor::start("node", Settings::default(), |_| async { Err::<(), _>(BROKEN) });
    eventually(&tree, |s| s.state == State::Failed).await;
    tree.stop(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_service_sees_the_whole_tree() {
    let (sender, mut pages) = tokio::sync::mpsc::channel::<Status>(1);
    let tree = tree(move |cx| {
        cx.start("neighbour", steady);
        let sender = sender.clone();
        cx.start("page", move |cx| {
            sender.try_send(cx.tree()).unwrap();
            steady(cx)
        })
    });
    let page = pages.recv().await.unwrap();
    let paths: Vec<&str> = page.walk().map(|(_, service)| service.path.as_str()).collect();
    assert_eq!(paths, ["node", "node.neighbour", "node.page"]);
    tree.stop(LONG).await.unwrap();
}
