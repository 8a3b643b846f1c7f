//! User names of kubelets.

pub(crate) const KUBELET_PREFIX: &str = "system:node:";
pub(crate) const KUBELETS_GROUP: &str = "system:nodes";
