//! Identities of the API server's clients, and their names.

use cluster::{DNS_GROUP, DNS_USER_PREFIX, PROXY_USER, SNAPSHOT_CONTROLLER_USER, STORAGE_GROUP, STORAGE_USER_PREFIX};

use crate::pki::certificate::{Purpose, Signer, Wanted};

pub(crate) const ADMINISTRATOR: &str = "granary:admin";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// An administrator: the only certificate in the group `system:masters`. etcd accepts it too.
    Admin,
    ControllerManager,
    Scheduler,
    /// `system:node:NAME` in the group `system:nodes`.
    Kubelet,
    Proxy,
    /// The node's storage: `granary:node:NAME` in the group `granary:nodes`. A control plane signs the certificate, a
    /// worker requests it ([`Requested`](crate::Requested)).
    Storage,
    /// The node's CoreDNS: `granary:dns:NAME` in the group `granary:dns`. The certificate is issued like that of
    /// [`Self::Storage`].
    Dns,
    SnapshotController,
}

impl Identity {
    pub(crate) const ALL: [Self; 8] = [
        Self::Admin,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kubelet,
        Self::Proxy,
        Self::Storage,
        Self::Dns,
        Self::SnapshotController,
    ];

    /// Name of the certificate's file, without extension.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::ControllerManager => "controller-manager",
            Self::Scheduler => "scheduler",
            Self::Kubelet => "kubelet",
            Self::Proxy => "proxy",
            Self::Storage => "storage",
            Self::Dns => "dns",
            Self::SnapshotController => "snapshot-controller",
        }
    }

    pub(crate) fn wanted(self, node: &str) -> Wanted {
        let (common_name, organization) = match self {
            Self::Admin => (ADMINISTRATOR.to_owned(), Some("system:masters")),
            Self::ControllerManager => ("system:kube-controller-manager".to_owned(), None),
            Self::Scheduler => ("system:kube-scheduler".to_owned(), None),
            Self::Kubelet => (format!("system:node:{node}"), Some("system:nodes")),
            Self::Proxy => (PROXY_USER.to_owned(), None),
            Self::Storage => (format!("{STORAGE_USER_PREFIX}{node}"), Some(STORAGE_GROUP)),
            Self::Dns => (format!("{DNS_USER_PREFIX}{node}"), Some(DNS_GROUP)),
            Self::SnapshotController => (SNAPSHOT_CONTROLLER_USER.to_owned(), None),
        };
        let purpose = match self {
            Self::Admin => Purpose::EtcdClient,
            Self::ControllerManager
            | Self::Scheduler
            | Self::Kubelet
            | Self::Proxy
            | Self::Storage
            | Self::Dns
            | Self::SnapshotController => Purpose::Client,
        };
        Wanted { name: self.name(), common_name, organization, purpose, signer: Signer::Cluster }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identities_are_those_that_kubernetes_gives_roles_to() {
        let named = |identity: Identity| {
            let wanted = identity.wanted("n1");
            (wanted.common_name, wanted.organization)
        };
        assert_eq!(named(Identity::Admin).1, Some("system:masters"));
        assert_eq!(named(Identity::ControllerManager), ("system:kube-controller-manager".into(), None));
        assert_eq!(named(Identity::Scheduler), ("system:kube-scheduler".into(), None));
        assert_eq!(named(Identity::Proxy), ("system:kube-proxy".into(), None));
        assert_eq!(named(Identity::Kubelet), ("system:node:n1".into(), Some("system:nodes")));
        assert_eq!(named(Identity::Storage), ("granary:node:n1".into(), Some("granary:nodes")));
        assert_eq!(named(Identity::Dns), ("granary:dns:n1".into(), Some("granary:dns")));
    }
}
