//! Messages and services of the two protocols between kubelet and a CSI node plugin, generated from
//! their official files (pinned in `third_party/kubernetes/go.mod`).
#![forbid(unsafe_code)]

/// The Container Storage Interface, `csi.proto` 1.12.
pub mod csi {
    #![allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
    tonic::include_proto!("csi.v1");
}

/// kubelet's plugin registration, `pluginregistration/v1/api.proto`.
pub mod registration {
    #![allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
    tonic::include_proto!("pluginregistration");
}
