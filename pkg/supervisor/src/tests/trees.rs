//! Invariants of random trees of services with arbitrary behavior.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};
use tokio::runtime;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::world::{Body, World};
use crate::context::Service;
use crate::node::{ABORT_DEADLINE, Tree};
use crate::{Backoff, BoxError, Context, Settings, State, Status, Supervisor};

/// A test case: a tree, the behavior of its services, and the stops from outside. Times are in units.
#[derive(Clone, Debug)]
struct Story {
    root: Plan,
    first: u32,
    most: u32,
    settled: u32,
    stop_deadline: u32,
    jitter: u32,
    /// Time before each stop, and the index of the stopped service in the status at that time.
    stops: Vec<(u32, prop::sample::Index)>,
    life: u32,
    end: Finish,
}

#[derive(Clone, Copy, Debug)]
enum Finish {
    /// Stop with more time than all deadlines together.
    Stop,
    StopWithin(u32),
    Drop,
}

#[derive(Clone, Debug)]
struct Plan {
    /// Actions of the attempts. The last one is repeated.
    acts: Vec<Act>,
    children: Vec<Plan>,
}

/// Behavior of one attempt: start of the children, health and end, each after the previous step.
#[derive(Clone, Copy)]
struct Act {
    children_after: u32,
    healthy_after: Option<u32>,
    end: End,
    asked: Asked,
}

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { children_after, healthy_after, end, asked } = self;
        write!(f, "children +{children_after}, healthy +{healthy_after:?}, {end:?}, asked {asked:?}")
    }
}

#[derive(Clone, Copy, Debug)]
enum End {
    Never,
    PanicBeforeTheFuture,
    Fail(u32),
    Panic(u32),
    Leave(u32),
    Done(u32),
}

/// Reaction to a stop.
#[derive(Clone, Copy, Debug)]
enum Asked {
    End,
    EndAfter(u32),
    Fail,
    Panic,
    Ignore,
    /// Tries to start one more child.
    Start,
}

fn act() -> impl Strategy<Value = Act> {
    let end = prop_oneof![
        4 => Just(End::Never),
        1 => Just(End::PanicBeforeTheFuture),
        3 => (0_u32..60).prop_map(End::Fail),
        1 => (0_u32..60).prop_map(End::Panic),
        1 => (0_u32..60).prop_map(End::Leave),
        1 => (0_u32..60).prop_map(End::Done),
    ];
    let asked = prop_oneof![
        4 => Just(Asked::End),
        2 => (1_u32..12).prop_map(Asked::EndAfter),
        1 => Just(Asked::Fail),
        1 => Just(Asked::Panic),
        1 => Just(Asked::Ignore),
        1 => Just(Asked::Start),
    ];
    (prop_oneof![3 => Just(0), 1 => 0_u32..20], prop::option::weighted(0.8, 0_u32..5), end, asked)
        .prop_map(|(children_after, healthy_after, end, asked)| Act { children_after, healthy_after, end, asked })
}

fn plan() -> impl Strategy<Value = Plan> {
    let acts = || prop::collection::vec(act(), 1..4);
    acts().prop_map(|acts| Plan { acts, children: Vec::new() }).prop_recursive(3, 24, 4, move |below| {
        (acts(), prop::collection::vec(below, 0..4)).prop_map(|(acts, children)| Plan { acts, children })
    })
}

fn story() -> impl Strategy<Value = Story> {
    let settings = (1_u32..4, 0_u32..60, 1_u32..40, 1_u32..10, any::<u32>());
    let stops = prop::collection::vec((0_u32..100, any::<prop::sample::Index>()), 0..3);
    let finish = prop_oneof![Just(Finish::Stop), (0_u32..20).prop_map(Finish::StopWithin), Just(Finish::Drop)];
    (plan(), settings, stops, 0_u32..400, finish).prop_map(|(root, settings, stops, life, end)| {
        let (first, more, settled, stop_deadline, jitter) = settings;
        Story { root, first, most: first + more, settled, stop_deadline, jitter, stops, life, end }
    })
}

/// Builds the service of a plan. `parent` is the body that starts it, `order` its position among that body's children.
fn service(plan: Plan, world: World, parent: Option<Body>, order: usize, unit: Duration) -> Service {
    Service::new(move |cx: Context| {
        let number = (cx.attempt() as usize).min(plan.acts.len()) - 1;
        let act = plan.acts[number];
        if matches!(act.end, End::PanicBeforeTheFuture) {
            resume_unwind(Box::new("before the future")); // a panic without a message on the terminal
        }
        let running = world.enters(cx.path(), parent.clone(), order);
        let (children, world) = (plan.children.clone(), world.clone());
        async move {
            let script = async {
                sleep(unit * act.children_after).await;
                for (order, plan) in children.into_iter().enumerate() {
                    let service = service(plan, world.clone(), Some(running.body().clone()), order, unit);
                    world.keeps(cx.start(format!("s{order}"), move |cx| service.attempt(cx)));
                }
                if let Some(after) = act.healthy_after {
                    sleep(unit * after).await;
                    cx.healthy();
                }
                match act.end {
                    End::Never | End::PanicBeforeTheFuture => std::future::pending().await,
                    End::Fail(after) | End::Panic(after) | End::Leave(after) | End::Done(after) => {
                        sleep(unit * after).await;
                    }
                }
            };
            tokio::select! {
                biased;
                () = cx.cancelled() => {
                    running.asked();
                    match act.asked {
                        Asked::End => Ok(()),
                        Asked::EndAfter(time) => {
                            sleep(unit * time).await;
                            Ok(())
                        }
                        Asked::Fail => Err(BoxError::from("failed while it stopped")),
                        Asked::Panic => resume_unwind(Box::new("while it stopped")),
                        Asked::Ignore => std::future::pending().await,
                        Asked::Start => {
                            cx.start("late", move |cx| {
                                world.check(false, || format!("{} runs", cx.path()));
                                std::future::pending::<Result<(), BoxError>>()
                            });
                            Ok(())
                        }
                    }
                }
                () = script => {
                    running.ends_itself();
                    match act.end {
                        End::Fail(_) => Err(BoxError::from("failed")),
                        End::Panic(_) => resume_unwind(Box::new("in the future")),
                        End::Done(_) => {
                            cx.done();
                            Ok(())
                        }
                        End::Never | End::PanicBeforeTheFuture | End::Leave(_) => Ok(()),
                    }
                }
            }
        }
    })
}

/// Checks the invariants of each status.
struct Watch<'a> {
    tree: &'a Supervisor,
    world: &'a World,
}

impl Watch<'_> {
    fn looks(&self) -> Status {
        let status = self.tree.status();
        for (_, service) in status.walk() {
            let Status { path, state, attempts, last_error, .. } = service;
            self.world.check(*state != State::Failed || last_error.is_some(), || format!("{path} failed without why"));
            self.world.check(*attempts > 0 || matches!(state, State::Starting | State::Stopped), || {
                format!("{path} is {state} before its first attempt")
            });
            for child in &service.children {
                let expected = format!("{path}.{}", child.name);
                self.world.check(child.path == expected, || format!("{} below {path}", child.path));
                self.world.check(*state != State::Stopped || child.state == State::Stopped, || {
                    format!("{path} is stopped, {} is {}", child.path, child.state)
                });
            }
            // Services are named in the order of their start.
            self.world.check(service.children.is_sorted_by_key(|child| child.name[1..].to_owned()), || {
                format!("the children of {path} are out of order")
            });
        }
        status
    }
}

async fn live(story: Story, unit: Duration) -> World {
    let backoff = Backoff { first: unit * story.first, most: unit * story.most, settled: unit * story.settled };
    let settings = Settings { backoff, stop_deadline: unit * story.stop_deadline, ..Settings::default() };
    let world = World::new(backoff);
    let (watched, jitter) = (world.clone(), AtomicU32::new(story.jitter));
    let tree = Tree {
        root: OnceLock::new(),
        observer: Box::new(move |change| watched.changes(change)),
        runtime: runtime::Handle::current(),
        abort: CancellationToken::new(),
        jitter: Box::new(move || jitter.fetch_add(0x9e37_79b9, Ordering::Relaxed)),
    };
    let root = service(story.root, world.clone(), None, 0, unit);
    let tree = Supervisor::with("root".to_owned(), settings, tree, root);

    let watch = Watch { tree: &tree, world: &world };
    for (after, which) in story.stops {
        sleep(unit * after).await;
        let status = watch.looks();
        let services: Vec<&str> = status.walk().map(|(_, service)| service.path.as_str()).collect();
        let path = services[which.index(services.len())];
        if let Some(handle) = world.stops(path) {
            handle.stop().await;
            world.check(handle.state() == State::Stopped, || format!("{path} was stopped, is {}", handle.state()));
        }
    }
    let end = Instant::now() + unit * story.life;
    while Instant::now() < end {
        sleep(unit * 7).await;
        watch.looks();
    }

    let root = tree.handle();
    let asked = Instant::now();
    match story.end {
        Finish::Stop => {
            let stopped = tree.stop(unit * 100_000).await;
            world.check(stopped.is_ok(), || format!("{stopped:?}"));
        }
        Finish::StopWithin(deadline) => {
            let stopped = tree.stop(unit * deadline).await;
            let took = asked.elapsed();
            world.check(took <= unit * deadline + ABORT_DEADLINE + unit, || format!("the stop took {took:?}"));
            world.check(!stopped.is_err_and(|overdue| overdue.services.is_empty()), || "overdue, but what?".to_owned());
        }
        Finish::Drop => {
            world.is_dropped();
            drop(tree);
            let limit = Instant::now() + Duration::from_secs(5);
            while (world.alive() > 0 || root.state() != State::Stopped) && Instant::now() < limit {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }
    let left = world.alive();
    world.check(left == 0, || format!("{left} services outlive the tree"));
    for (_, service) in root.status().walk() {
        world.check(service.state == State::Stopped, || format!("{} is {} at the end", service.path, service.state));
    }
    world
}

/// Runs `cases` random trees, each in a runtime of its own.
fn run(cases: u32, unit: Duration, runtime: impl Fn() -> runtime::Runtime) {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(crate::backoff::jitter()));
    println!("PROPTEST_RNG_SEED={seed} repeats this run");
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_time: 20_000,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&story(), |story| {
        let world = runtime().block_on(live(story, unit));
        let wrong = world.wrong();
        prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, story)) => panic!("{why}\n{story:?}\nPROPTEST_RNG_SEED={seed} repeats this run"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn no_service_outlives_its_parent_and_none_restarts_too_often() {
    let paused = || runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    run(512, Duration::from_secs(1), paused);
}

/// Real threads and short real times: finds errors that depend on interleaving.
#[test]
fn the_same_holds_when_services_run_in_parallel() {
    let threads = || runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    run(24, Duration::from_millis(1), threads);
}
