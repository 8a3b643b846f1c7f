//! Messages and services, generated from these files:
//!
//! - the official files of the two protocols between kubelet and a CSI node plugin (pinned in go.mod files of
//!   `third_party`);
//! - `cri/cri.proto` and `etcd/etcd.proto`: the few calls of the Container Runtime Interface and of etcd that the node
//!   makes itself;
//! - `node/v1/config.proto`: the configuration of a node.
//!
//! The last file is the only source of the configuration: crate `config` reads JSON by its descriptors, and
//! `bazel run //proto:reference` writes docs/configuration.md from its comments.
#![forbid(unsafe_code)]

/// The Container Storage Interface, `csi.proto` 1.13, with the conditions of volumes of 1.12.
pub mod csi {
    #![allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
    tonic::include_proto!("csi.v1");

    /// The paths of all calls, such as `/csi.v1.Identity/Probe`.
    pub const METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/csi.methods.rs"));
}

/// kubelet's plugin registration, `pluginregistration/v1/api.proto`.
pub mod registration {
    #![allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
    tonic::include_proto!("pluginregistration");
}

/// The Container Runtime Interface, as far as the node calls it.
pub mod cri {
    #![allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
    tonic::include_proto!("runtime.v1");
}

/// etcd's API, as far as the node calls it.
pub mod etcd {
    #![allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
    tonic::include_proto!("etcdserverpb");
}

/// The configuration of a node, `node/v1/config.proto`.
pub mod node {
    #![allow(clippy::doc_markdown, reason = "generated")]
    tonic::include_proto!("granary.node.v1");

    /// The descriptors of the file, an encoded `google.protobuf.FileDescriptorSet` without comments.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/config.bin"));

    pub const DESCRIPTORS_WITH_COMMENTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/config.comments.bin"));
}
