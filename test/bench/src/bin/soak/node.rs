//! The storage part of a node, with the real store, CSI plugin and provisioner, in a process that can be killed.

use std::env;
use std::fs::File;
use std::hint::black_box;
use std::mem;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use csi::Plugin;
use dir::Dir;
use kube::Config;
use prometheus::Registry;
use provisioner::Metrics;
use supervisor::{BoxError, Context, Supervisor};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use volume::Store;

use crate::{Failure, PATIENCE};

pub(crate) const NODE: &str = "node-1";

/// More than a page of the allocator and more than the tolerance.
const LEAKED_BYTES: usize = 32 << 20;

#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// URL of the API server.
    #[arg(long)]
    api: String,
    /// Mount point of an XFS with project quotas, with the directories `volumes` and `kubelet`.
    #[arg(long)]
    root: PathBuf,
}

/// A deliberate leak of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Leak {
    Descriptor,
    Thread,
    Memory,
}

/// Serves until standard input ends. Each input line requests a leak; an output line confirms it.
pub(crate) fn serve(settings: Settings) -> Result<(), Failure> {
    // Idle threads end soon, so that a census counts only permanent threads.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).thread_keep_alive(Duration::from_millis(100)).enable_all().build()?;
    runtime.block_on(async {
        let Settings { api, root } = settings;
        let settings = volume::Settings { overcommit: "2".parse()?, ..volume::Settings::default() };
        let store = Arc::new(Store::open(&Dir::open(&root.join("volumes"))?, settings)?);
        let (kubelet, registry) = (root.join("kubelet"), Registry::new());
        let host = csi::Linux::new(&kubelet, Arc::clone(&store));
        let plugin = Arc::new(Plugin::new(csi::Settings::new(&kubelet, NODE, "0.0.0"), host, &registry)?);
        let mut config = Config::new(api.parse()?);
        // The guest has no CA certificates. The connection does not use HTTPS.
        config.root_cert = Some(Vec::new());
        let client = apiclient::client(config)?;
        let provisioner = provisioner::Settings {
            metrics: Metrics::register(&registry, store.clone())?,
            revoked: plugin.revoked(),
            ..provisioner::Settings::new(client, NODE.to_owned(), store)
        };
        let tree = Supervisor::start("storage", supervisor::Settings::default(), move |cx| {
            storage(cx, Arc::clone(&plugin), provisioner.clone())
        });
        tree.handle().healthy().await?;
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        println!("ready");
        while let Some(line) = lines.next_line().await? {
            leak(Leak::from_str(&line, true)?)?;
            println!("leaked");
        }
        Ok::<_, Failure>(())
    })
}

async fn storage(
    cx: Context,
    plugin: Arc<Plugin<csi::Linux>>,
    provisioner: provisioner::Settings,
) -> Result<(), BoxError> {
    cx.start("csi", move |cx| Arc::clone(&plugin).run(cx)).healthy().await?;
    cx.start("provisioner", move |cx| provisioner::run(cx, provisioner.clone()));
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}

fn leak(leak: Leak) -> Result<(), Failure> {
    match leak {
        Leak::Descriptor => mem::forget(File::open("/dev/null")?),
        Leak::Thread => drop(thread::spawn(|| {
            loop {
                thread::park();
            }
        })),
        Leak::Memory => mem::forget(black_box(vec![1_u8; LEAKED_BYTES])),
    }
    Ok(())
}

pub(crate) struct Node {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Node {
    /// Starts the process, and waits until the CSI plugin serves.
    pub(crate) async fn start(api: &str, root: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["node", "--api", api, "--root"]).arg(root);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the node has no pipes".into());
        };
        let mut node = Self { child, input, lines: BufReader::new(output).lines() };
        node.answer().await?;
        Ok(node)
    }

    pub(crate) fn process(&self) -> Result<u32, Failure> {
        Ok(self.child.id().ok_or("the node has ended")?)
    }

    pub(crate) async fn leak(&mut self, leak: Leak) -> Result<(), Failure> {
        self.input.write_all(format!("{leak:?}\n").as_bytes()).await?;
        self.answer().await
    }

    pub(crate) async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }

    async fn answer(&mut self) -> Result<(), Failure> {
        let line = timeout(PATIENCE, self.lines.next_line()).await??;
        line.map(drop).ok_or_else(|| "the node has ended".into())
    }
}
