//! The node's provisioner with a disk in memory. The program prints a line `METHOD TARGET STATUS` for each response of
//! the API server, and runs until it is killed.

use std::future;
use std::io::{self, Write as _};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::Arc;

use clap::Args;
use envtest::FakeVolumes;
use http::Request;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use supervisor::Supervisor;
use tower::service_fn;
use units::Bytes;
use volume::VolumeId;

use crate::Failure;

#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Kubeconfig of the node's identity.
    #[arg(long)]
    kubeconfig: PathBuf,
    #[arg(long)]
    node: String,
    /// Number of claims that are served in parallel.
    #[arg(long, default_value_t = provisioner::Settings::PARALLEL)]
    parallel: NonZeroU16,
    /// Parent of a directory for each volume, which the program `create` creates.
    #[arg(long, requires = "create")]
    directories: Option<PathBuf>,
    #[arg(long)]
    create: Option<PathBuf>,
    /// Kubeconfig of an administrator. With it, the reclaimer of a control plane also runs; its requests are not
    /// printed.
    #[arg(long)]
    reclaimer: Option<PathBuf>,
}

pub(crate) async fn run(settings: Settings) -> Result<(), Failure> {
    let Settings { kubeconfig, node, parallel, directories, create, reclaimer } = settings;
    let client = connect(&kubeconfig).await?;
    let admin = match reclaimer {
        Some(kubeconfig) => Some(connect(&kubeconfig).await?),
        None => None,
    };
    let mut disk = FakeVolumes::with_size(Bytes::TIB);
    if let (Some(directories), Some(program)) = (directories, create) {
        disk = disk.creating(move |id, size| {
            if let Err(error) = directory(&program, &directories, id, size) {
                eprintln!("error: cannot create the directory of {id}: {error}");
                process::exit(1);
            }
        });
    }
    let mut settings = provisioner::Settings::new(printing(client), node, Arc::new(disk));
    settings.parallel = parallel;
    let _tree = Supervisor::start("provisioner", supervisor::Settings::default(), move |cx| {
        if let Some(admin) = admin.clone() {
            cx.start("reclaimer", move |cx| reconciler::reclaim(cx, admin.clone()));
        }
        provisioner::run(cx, settings.clone())
    });
    future::pending().await
}

async fn connect(kubeconfig: &Path) -> Result<Client, Failure> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(apiclient::client(config)?)
}

fn directory(program: &Path, directories: &Path, id: &VolumeId, size: Bytes) -> io::Result<()> {
    let status = Command::new(program).arg(directories.join(id.as_str())).arg(size.get().to_string()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

fn printing(client: Client) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let (method, target) = (request.method().clone(), request.uri().clone());
            let answer = client.send(request).await;
            let status = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            if writeln!(io::stdout().lock(), "{method} {target} {status}").is_err() {
                // The benchmark has ended and closed the pipe.
                process::exit(1);
            }
            answer
        }
    });
    Client::new(service, "default")
}
