//! Cases that share one cluster.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use crate::{Cluster, chain};

/// Reason why a case could not continue. A failed assertion is a panic, as in any test.
pub type Failure = Box<dyn Error + Send + Sync>;

type Body = Box<dyn FnOnce(Arc<Cluster>) -> Pin<Box<dyn Future<Output = Result<(), Failure>>>> + Send>;

/// Adds cases to a suite, or to a new one: `suite![suite; module::case, …]`. A case has the name of its function.
#[macro_export]
macro_rules! suite {
    ($suite:expr; $($module:ident::$case:ident),* $(,)?) => {
        $suite$(.case(stringify!($case), $module::$case))*
    };
    ($($module:ident::$case:ident),* $(,)?) => {
        $crate::suite![$crate::Suite::new(); $($module::$case),*]
    };
}

#[derive(Default)]
pub struct Suite {
    cases: Vec<Case>,
}

struct Case {
    name: &'static str,
    body: Body,
    /// Group of cases that run in parallel.
    group: Option<Arc<Group>>,
}

type Starter = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Cases that run in parallel. The first case of a group starts all of them.
#[derive(Default)]
struct Group {
    waiting: Mutex<BTreeMap<&'static str, Starter>>,
    running: Mutex<BTreeMap<&'static str, JoinHandle<Result<(), String>>>>,
}

impl Group {
    fn run(&self, name: &str) -> Result<(), String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((name, start)) = waiting.pop_first() {
            let case = thread::Builder::new().name(name.to_owned()).spawn(start);
            running.insert(name, case.map_err(|error| format!("cannot start a thread: {error}"))?);
        }
        let case = running.remove(name).ok_or_else(|| format!("{name} was started twice"))?;
        drop((running, waiting));
        case.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Suite {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a case. Its name is the behaviour that it verifies.
    pub fn case<F>(mut self, name: &'static str, body: F) -> Self
    where
        F: AsyncFnOnce(Arc<Cluster>) -> Result<(), Failure> + Send + 'static,
    {
        let body: Body = Box::new(move |cluster| Box::pin(body(cluster)));
        self.cases.push(Case { name, body, group: None });
        self
    }

    /// Adds cases that run in parallel. Each case mostly waits, and no case uses the objects of another one.
    pub fn at_once(mut self, cases: Self) -> Self {
        let group = Arc::new(Group::default());
        self.cases.extend(cases.cases.into_iter().map(|case| Case { group: Some(Arc::clone(&group)), ..case }));
        self
    }

    /// Starts the cluster and runs the cases, one after the other except for those of [`Suite::at_once`]. Accepts the
    /// arguments of any Rust test.
    pub fn run(self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        arguments.filter = arguments.filter.or_else(|| env::var("TESTBRIDGE_TEST_ONLY").ok());
        // Names of cluster objects are not unique per case, so cases must not run in parallel threads.
        arguments.test_threads = Some(1);
        if arguments.list {
            let listed = self.cases.into_iter().map(|case| Trial::test(case.name, || Ok(()))).collect();
            return libtest_mimic::run(&arguments, listed).exit_code();
        }
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
        match self.run_with(&arguments) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("error: {}", chain(error.as_ref()));
                ExitCode::FAILURE
            }
        }
    }

    fn run_with(self, arguments: &Arguments) -> Result<ExitCode, Failure> {
        let runtime = Arc::new(Runtime::new()?);
        let cluster = Arc::new(runtime.block_on(Cluster::start())?);
        let trials = self.cases.into_iter().map(|Case { name, body, group }| {
            let (runtime, cluster) = (Arc::clone(&runtime), Arc::clone(&cluster));
            let run = move || runtime.block_on(body(cluster)).map_err(|error| chain(error.as_ref()));
            let Some(group) = group else { return Trial::test(name, move || run().map_err(Failed::from)) };
            let own = Arc::clone(&group);
            let trial = Trial::test(name, move || own.run(name).map_err(Failed::from));
            if !arguments.is_filtered_out(&trial) {
                group.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Box::new(run));
            }
            trial
        });
        let conclusion = libtest_mimic::run(arguments, trials.collect());
        drop(cluster);
        Ok(conclusion.exit_code())
    }
}
