//! Serves bursts of claims in a cluster of its own, and prints the samples: one JSON message per line.
#![forbid(unsafe_code)]

mod client;
mod network;
mod way;

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use bench::{BurstSample, Way};
use clap::Parser;
use envtest::Cluster;

#[derive(Debug, Parser)]
struct Arguments {
    /// How often each way is measured.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// How many claims there are at once.
    #[arg(long, default_value_t = 500)]
    claims: u32,
    /// How many there are for the client that may ask seldom.
    #[arg(long, default_value_t = 50)]
    claims_of_limited_client: u32,
}

fn main() -> ExitCode {
    let Err(error) = run(&Arguments::parse()) else { return ExitCode::SUCCESS };
    eprintln!("error: {}", causes::lines(&*error));
    ExitCode::FAILURE
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error + Send + Sync>> {
    // Before there is a second thread: a namespace is a thread's.
    network::leave()?;
    tokio::runtime::Runtime::new()?.block_on(measure(arguments))
}

async fn measure(arguments: &Arguments) -> Result<(), Box<dyn Error + Send + Sync>> {
    network::loopback().await?;
    let cluster = Cluster::start().await?;
    way::prepare(&cluster).await?;
    for run in 1..=arguments.runs {
        for way in [Way::Ours, Way::OneWorker, Way::LimitedClient] {
            let claims = if way == Way::LimitedClient { arguments.claims_of_limited_client } else { arguments.claims };
            print(&way::measure(&cluster, way, run, claims).await?)?;
        }
    }
    Ok(())
}

fn print(sample: &BurstSample) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, sample)?;
    out.write_all(b"\n")?;
    out.flush()
}
