//! A small daemon: a page with the status of the tree, and a worker whose first attempts fail. Runs until Ctrl-C, or
//! for as many seconds as its argument says.
//!
//! ```text
//! $ cargo run --example tree -- 5
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::time::Duration;

use supervisor::{Backoff, Change, Context, Ended, Settings, Supervisor};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::sleep;

/// Ends for good before the rest starts.
async fn prepare(cx: Context) -> Result<(), Infallible> {
    cx.done();
    Ok(())
}

#[derive(Debug, thiserror::Error)]
#[error("the queue is empty")]
struct Empty;

/// Starts again after 0.1 s, then after 0.2 s, then it works.
async fn worker(cx: Context) -> Result<(), Empty> {
    if cx.attempt() < 3 {
        return Err(Empty);
    }
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}

/// Says where it listens, and shows the tree.
async fn page(cx: Context) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("status page: nc {}", listener.local_addr()?);
    cx.healthy();
    loop {
        let (mut peer, _) = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            peer = listener.accept() => peer?,
        };
        peer.write_all(cx.tree().to_string().as_bytes()).await?;
    }
}

async fn daemon(cx: Context) -> Result<(), Ended> {
    cx.start("prepare", prepare).healthy().await?;
    cx.start("worker", worker);
    cx.start("page", page);
    cx.done();
    Ok(())
}

fn show(change: &Change<'_>) {
    println!("{} is {}", change.path, change.state);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limit =
        std::env::args().nth(1).map(|seconds| seconds.parse()).transpose()?.map_or(Duration::MAX, Duration::from_secs);
    let backoff = Backoff { first: Duration::from_millis(100), ..Backoff::default() };
    let tree = Supervisor::observed("daemon", Settings { backoff, ..Settings::default() }, show, daemon);
    tokio::select! {
        asked = tokio::signal::ctrl_c() => asked?,
        () = sleep(limit) => {}
    }
    print!("{}", tree.status());
    tree.stop(Duration::from_secs(5)).await?;
    Ok(())
}
