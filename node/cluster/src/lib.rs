//! Names, ports, addresses, settings and rates that several components of a node use, so that no component depends on
//! another one for them.
#![forbid(unsafe_code)]

pub mod address;
mod administrator;
pub mod announcement;
mod ca_digest;
pub mod card;
pub mod claim;
mod domain;
mod overcommit;
pub mod quantity;
mod rate_limiter;
mod registry;
mod settings;
pub mod snapshot;
mod token;

pub use address::AddressError;
pub use administrator::{AdministratorError, AdministratorRequest};
pub use ca_digest::{CaDigest, DigestError};
pub use card::{Card, CardError};
pub use domain::{ClusterDomain, DomainError, is_label};
pub use overcommit::{Overcommit, OvercommitError};
pub use rate_limiter::{Rate, RateLimiter, TokenBucket};
pub use registry::{
    Certificates, Credentials, Endpoint, Images, Registry, RegistryError, RegistryName, Server, Verification,
};
pub use settings::*;
pub use token::{Token, TokenError};

pub const DRIVER_NAME: &str = "local.granary.dev";

/// Share of its space or files in percent from which a filesystem volume is reported as almost full.
pub const ALMOST_FULL: u64 = 90;

/// Label of nodes by which PVs and CSI topologies select one.
pub const TOPOLOGY_KEY: &str = "kubernetes.io/hostname";

/// Finalizer of PVs with reclaim policy `Delete`. It is removed when the volume is out of use.
pub const FINALIZER: &str = "local.granary.dev/volume";

/// Annotation of a PV with its provisioner. Without it, the PV controller sets released PVs with policy `Delete` to
/// `Failed`.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Prefix of the annotations of Nodes that only the node's own components may write.
pub const NODE_ANNOTATIONS: &str = "node.granary.dev/";

/// Annotation of a bootstrap token's Secret with the name of the node that may join with it.
pub const BOOTSTRAP_NODE_ANNOTATION: &str = "node.granary.dev/name";

pub const PUBLIC_KEY_ANNOTATION: &str = "node.granary.dev/wg-pubkey";

/// Group of the users with [`STORAGE_USER_PREFIX`].
pub const STORAGE_GROUP: &str = "granary:nodes";

/// Prefix of the user name of a node's storage components; the name of the node follows.
pub const STORAGE_USER_PREFIX: &str = "granary:node:";

/// User name of the API server as a client of kubelets.
pub const API_SERVER_USER: &str = "granary:apiserver";

/// User name of the control plane's kube-proxy. On workers, kube-proxy uses the identity of the storage components.
pub const PROXY_USER: &str = "system:kube-proxy";

pub const SNAPSHOT_CONTROLLER_USER: &str = "granary:snapshot-controller";

/// Group of the users with [`DNS_USER_PREFIX`].
pub const DNS_GROUP: &str = "granary:dns";

/// Prefix of the user name of a node's CoreDNS; the name of the node follows.
pub const DNS_USER_PREFIX: &str = "granary:dns:";

/// Group of the users with [`ADMINISTRATOR_USER_PREFIX`]. No role is bound to it: a certificate cannot be revoked, and would
/// keep the rights of the group.
pub const ADMINISTRATORS_GROUP: &str = "granary:administrators";

/// Prefix of the user name of an administrator ([`AdministratorRequest::user`]).
pub const ADMINISTRATOR_USER_PREFIX: &str = "granary:administrator:";

/// TCP port of the API server on a control plane.
pub const API_PORT: u16 = 6443;

/// UDP port of WireGuard on every node.
pub const MESH_PORT: u16 = 7838;

/// TCP port of status and metrics on every node. Other nodes are identified there by their addresses, which pods must
/// not be able to use.
pub const STATUS_PORT: u16 = 7839;

/// Prefix of the serial number of a disk, or of the name of a partition, whose content is an archive of images.
pub const IMAGE_ARCHIVE_PREFIX: &str = "image-";

/// Prefix length of the part of the pod network that a node gets.
pub const NODE_PREFIX: u8 = 24;

/// Limit of the events of a namespace. etcd keeps events for an hour. A pod that is created, scheduled and started
/// causes about six.
pub const EVENT_RATE: Rate = Rate { burst: 2000, per_second: 20 };
