//! Compiles the protocol files. Bazel names them in `CSI_PROTO`, `FORMER_CSI_PROTO`, `REGISTRATION_PROTO`, `CRI_PROTO`,
//! `ETCD_PROTO` and `CONFIG_PROTO`; Cargo alone takes those of others from the Go modules that a go.mod in third_party pins.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto};
use tonic_prost_build::FileDescriptorSet;

/// A protocol file: the variable that names it, else where it is.
struct Protocol {
    name: &'static str,
    variable: &'static str,
    /// The go.mod and the Go module that has it; without them it is ours.
    module: Option<(&'static str, &'static str)>,
    path: &'static str,
    /// The file for its descriptors, if the program reads them: as they are, and without comments.
    descriptors: Option<[&'static str; 2]>,
}

const CSI: &str = "github.com/container-storage-interface/spec";

/// CSI 1.12, which the kubelet speaks. CSI 1.13 removed the conditions of volumes from it, and the kubelet reads them.
const FORMER_CSI: Protocol = Protocol {
    name: "csi.proto",
    variable: "FORMER_CSI_PROTO",
    module: Some(("kubernetes", CSI)),
    path: "csi.proto",
    descriptors: None,
};

const PROTOCOLS: [Protocol; 5] = [
    Protocol {
        name: "csi.proto",
        variable: "CSI_PROTO",
        module: Some(("sanity", CSI)),
        path: "csi.proto",
        descriptors: None,
    },
    Protocol {
        name: "api.proto",
        variable: "REGISTRATION_PROTO",
        module: Some(("kubernetes", "k8s.io/kubelet")),
        path: "pkg/apis/pluginregistration/v1/api.proto",
        descriptors: None,
    },
    Protocol { name: "cri.proto", variable: "CRI_PROTO", module: None, path: "cri/cri.proto", descriptors: None },
    Protocol { name: "etcd.proto", variable: "ETCD_PROTO", module: None, path: "etcd/etcd.proto", descriptors: None },
    Protocol {
        name: "config.proto",
        variable: "CONFIG_PROTO",
        module: None,
        path: "node/v1/config.proto",
        descriptors: Some(["config.comments.bin", "config.bin"]),
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for protocol in &PROTOCOLS {
        let &Protocol { name, descriptors, .. } = protocol;
        let mut files = compile(protocol)?;
        if name == FORMER_CSI.name {
            keep_removed(&mut files, &compile(&FORMER_CSI)?);
        }
        if let Some([with_comments, without]) = descriptors {
            fs::write(out.join(with_comments), files.encode_to_vec())?;
            let mut bare = files.clone();
            bare.file.iter_mut().for_each(|file| file.source_code_info = None);
            fs::write(out.join(without), bare.encode_to_vec())?;
        }
        let methods = out.join(name).with_extension("methods.rs");
        fs::write(methods, format!("&{:?}", methods_of(&files)))?;
        tonic_prost_build::configure().compile_fds(files)?;
    }
    Ok(())
}

fn compile(&Protocol { name, variable, module, path, .. }: &Protocol) -> Result<FileDescriptorSet, Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed={variable}");
    let source = match (env::var_os(variable), module) {
        (Some(named), _) => PathBuf::from(named),
        (None, Some((pins, module))) => module_directory(pins, module)?.join(path),
        (None, None) => PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join(path),
    };
    println!("cargo:rerun-if-changed={}", source.display());
    // Only a copy, alone in its directory, can be imported by its bare name.
    let directory = PathBuf::from(env::var("OUT_DIR")?).join("proto").join(variable);
    fs::create_dir_all(&directory)?;
    let text = fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
    fs::write(directory.join(name), text)?;
    Ok(protox::compile([name], [&directory])?)
}

/// Adds messages, fields and values of enums that a newer version of a protocol has removed. Their numbers stay reserved in it,
/// so that none has two meanings.
fn keep_removed(files: &mut FileDescriptorSet, former: &FileDescriptorSet) {
    let is_same = |one: &FileDescriptorProto, other: &FileDescriptorProto| one.name() == other.name();
    for file in &mut files.file {
        let Some(former) = former.file.iter().find(|former| is_same(former, file)) else { continue };
        // Comments are found by positions, which change.
        file.source_code_info = None;
        keep_messages(&mut file.message_type, &former.message_type);
        keep_values(&mut file.enum_type, &former.enum_type);
    }
}

fn keep_messages(messages: &mut Vec<DescriptorProto>, former: &[DescriptorProto]) {
    for former in former {
        let Some(message) = messages.iter_mut().find(|message| message.name() == former.name()) else {
            messages.push(former.clone());
            continue;
        };
        let removed =
            former.field.iter().filter(|field| message.field.iter().all(|kept| kept.number() != field.number()));
        let removed: Vec<_> = removed.cloned().collect();
        message.field.extend(removed);
        keep_messages(&mut message.nested_type, &former.nested_type);
        keep_values(&mut message.enum_type, &former.enum_type);
    }
}

fn keep_values(enums: &mut [EnumDescriptorProto], former: &[EnumDescriptorProto]) {
    for former in former {
        let Some(newer) = enums.iter_mut().find(|newer| newer.name() == former.name()) else { continue };
        let removed =
            former.value.iter().filter(|value| newer.value.iter().all(|kept| kept.number() != value.number()));
        let removed: Vec<_> = removed.cloned().collect();
        newer.value.extend(removed);
    }
}

/// The paths of all calls, such as `/csi.v1.Identity/Probe`.
fn methods_of(files: &FileDescriptorSet) -> Vec<String> {
    let mut paths = Vec::new();
    for file in &files.file {
        for service in &file.service {
            let path = |method: &str| format!("/{}.{}/{method}", file.package(), service.name());
            paths.extend(service.method.iter().map(|method| path(method.name())));
        }
    }
    paths
}

/// Where the `go` client keeps a module of a go.mod in third_party; it fetches and verifies it.
fn module_directory(pins: &str, module: &str) -> Result<PathBuf, Box<dyn Error>> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../third_party").join(pins);
    println!("cargo:rerun-if-changed={}", root.join("go.mod").display());
    let out =
        Command::new("go").args(["mod", "download", "-json", module]).current_dir(&root).output().map_err(|e| {
            format!("cannot start `go`: {e}; it fetches the pinned protocol files when Cargo builds without Bazel")
        })?;
    let text = String::from_utf8(out.stdout)?;
    text.lines()
        .find_map(|line| Some(PathBuf::from(line.trim().strip_prefix("\"Dir\": \"")?.strip_suffix("\",")?)))
        .ok_or_else(|| format!("`go mod download {module}` gave no directory: {text}").into())
}
