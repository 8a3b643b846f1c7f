//! The observer: a pod with the rights to inspect the node. All cases of a boot share it.

use crate::{Case, Failure, Pod, Server, Volume};
use kube::Client;
use serde_json::Value;
use workload::{Check, Signalled, Volumes};

const NAME: &str = "observer";
/// Mount point of securityfs, the state of the kernel's security modules.
pub const SECURITY: &str = "/security";
const VOLUMES: &str = "/data/volumes";

impl Case {
    pub async fn look_at_the_node(&self) -> Result<Volumes, Failure> {
        look(&self.client).await
    }

    pub fn observer(&self) -> Server {
        server(&self.client)
    }

    /// Sends a signal to the node's processes with this program name. Returns their process IDs.
    pub async fn signal(&self, program: &str, number: i32) -> Result<Vec<i32>, Failure> {
        signal(&self.client, program, number).await
    }
}

pub async fn start(client: &Client) -> Result<(), Failure> {
    let case = Case::begin_privileged(client.clone(), NAME.to_owned()).await?;
    case.open(&pod()).await.map(drop)
}

pub(crate) fn pod() -> Pod {
    let volumes = [Volume::node("volumes", VOLUMES), Volume::node("security", "/sys/kernel/security")];
    let pod = volumes.into_iter().fold(Pod::server(NAME), Pod::with).of_the_node();
    // The pod uses the node's network, where `ClusterFirst` means the node's name servers.
    pod.dns("ClusterFirstWithHostNet", Value::Null)
}

/// Waits until the observer of an earlier boot of the same disk runs again.
pub async fn find(client: &Client) -> Result<(), Failure> {
    case(client).find(NAME).await.map(drop)
}

pub(crate) fn case(client: &Client) -> Case {
    Case::resume(client.clone(), NAME.to_owned())
}

pub(crate) async fn look(client: &Client) -> Result<Volumes, Failure> {
    server(client).ask(&Check::Volumes { path: "/volumes".into() }).await
}

pub(crate) async fn signal(client: &Client, program: &str, number: i32) -> Result<Vec<i32>, Failure> {
    let check = Check::Signal { program: program.to_owned(), number };
    Ok(server(client).ask::<Signalled>(&check).await?.processes)
}

pub(crate) fn server(client: &Client) -> Server {
    Server::of(&case(client), NAME)
}
