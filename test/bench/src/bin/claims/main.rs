//! Serves claims in a separate cluster and prints samples, one JSON message per line.
#![forbid(unsafe_code)]

mod burst;
mod directories;
mod network;
mod objects;
mod scale;
mod serve;
mod server;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use envtest::Cluster;

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Parser)]
enum Command {
    Burst(burst::Sizes),
    Scale,
    /// Runs the provisioner in this process. The other commands start this command.
    Serve(serve::Settings),
}

fn main() -> ExitCode {
    causes::exit_code(run(Command::parse()).map_err(|error| error as Box<dyn Error>))
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(settings) => tokio::runtime::Runtime::new()?.block_on(serve::run(settings)),
        Command::Burst(sizes) => with_cluster(async |cluster| burst::measure(&cluster, &sizes).await),
        Command::Scale => with_cluster(async |cluster| scale::measure(&cluster).await),
    }
}

fn with_cluster(measure: impl AsyncFnOnce(Cluster) -> Result<(), Failure>) -> Result<(), Failure> {
    // Namespaces belong to a thread, so these calls come before the start of other threads.
    network::leave()?;
    directories::separate_mounts()?;
    tokio::runtime::Runtime::new()?.block_on(async {
        network::loopback().await?;
        let cluster = Cluster::start().await?;
        objects::prepare(&cluster).await?;
        measure(cluster).await
    })
}
