//! Registry of images that a test pulls, a process outside the guests.

use crate::arguments::Archive;
use launch::StepError;
use serde_json::json;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Address of the registry in the guests: QEMU's gateway leads to the loopback addresses of this machine.
const GATEWAY: &str = "10.0.2.2";
/// Host in the names of the images.
const HOST: &str = "registry.k8s.io";

/// Dropping the value kills the process.
pub(crate) struct Registry {
    _process: Child,
    port: u16,
}

impl Registry {
    /// Returns when the registry has the images.
    pub(crate) async fn start(program: &Path, images: &[Archive]) -> Result<Self, StepError> {
        const STEP: &str = "start the registry of the tests";
        // Another process may take the port before the registry. Then the registry fails.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let port = free.map_err(StepError::of(STEP))?.port();
        let served = images.iter().map(|Archive { image, file }| {
            let name = image.strip_prefix(HOST).unwrap_or(image).trim_start_matches('/');
            format!("{name}={}", file.display())
        });
        let mut command = Command::new(program);
        // No user and no password: the tests have none.
        command.args(["", ""]).args(served).arg(format!("127.0.0.1:{port}"));
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
        let mut process = spawned.map_err(StepError::of(STEP))?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut line).await.map_err(StepError::of(STEP))?;
        }
        if line != "ready\n" {
            return Err(StepError::of(STEP)("the program ended before it was ready"));
        }
        Ok(Self { _process: process, port })
    }

    /// Configuration of nodes that pull from this registry.
    pub(crate) fn configuration(&self) -> String {
        let server = format!("http://{GATEWAY}:{}", self.port);
        json!({"registries": [{"name": HOST, "server": server, "verification": "DISABLED"}]}).to_string()
    }
}
