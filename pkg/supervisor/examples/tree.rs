//! A small daemon with a status page and a worker whose first attempts fail. The daemon runs until Ctrl-C, or for the
//! number of seconds in its argument.
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

/// Work that is done once, before the other services start.
async fn prepare(cx: Context) -> Result<(), Infallible> {
    cx.done();
    Ok(())
}

#[derive(Debug, thiserror::Error)]
#[error("the queue is empty")]
struct Empty;

/// Fails in its first two attempts. The supervisor starts the next ones after 0.1 s to 0.2 s and 0.2 s to 0.4 s.
async fn worker(cx: Context) -> Result<(), Empty> {
    if cx.attempt() < 3 {
        return Err(Empty);
    }
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}

/// Prints its address, and sends the status of the tree to each client.
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
