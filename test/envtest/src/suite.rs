//! Cases that share one cluster.

use std::env;
use std::error::Error;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use crate::{Cluster, chain};

/// The reason for which a case could not continue. A failed assertion is a panic, as in any test.
pub type Failure = Box<dyn Error + Send + Sync>;

type Body = Box<dyn FnOnce(Arc<Cluster>) -> Pin<Box<dyn Future<Output = Result<(), Failure>>>> + Send>;

#[derive(Default)]
pub struct Suite {
    cases: Vec<(&'static str, Body)>,
}

impl Suite {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a case. Its name is the behaviour that it shows.
    pub fn case<F>(mut self, name: &'static str, body: F) -> Self
    where
        F: AsyncFnOnce(Arc<Cluster>) -> Result<(), Failure> + Send + 'static,
    {
        self.cases.push((name, Box::new(move |cluster| Box::pin(body(cluster)))));
        self
    }

    /// Starts the cluster and runs the cases, one after the other. Takes the arguments of any Rust test.
    pub fn run(self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        arguments.filter = arguments.filter.or_else(|| env::var("TESTBRIDGE_TEST_ONLY").ok());
        // Objects of the cluster have one name only.
        arguments.test_threads = Some(1);
        if arguments.list {
            let listed = self.cases.into_iter().map(|(name, _)| Trial::test(name, || Ok(()))).collect();
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
        let trials = self.cases.into_iter().map(|(name, body)| {
            let (runtime, cluster) = (Arc::clone(&runtime), Arc::clone(&cluster));
            Trial::test(name, move || {
                runtime.block_on(body(cluster)).map_err(|error| Failed::from(chain(error.as_ref())))
            })
        });
        let conclusion = libtest_mimic::run(arguments, trials.collect());
        drop(cluster);
        Ok(conclusion.exit_code())
    }
}
