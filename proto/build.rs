//! Compiles the protocol files. Bazel names them in `CSI_PROTO`, `REGISTRATION_PROTO`, `CRI_PROTO` and `CONFIG_PROTO`; Cargo
//! alone takes those of others from the Go modules that third_party/kubernetes/go.mod pins.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use prost::Message;
use tonic_prost_build::FileDescriptorSet;

/// A protocol file: the variable that names it, else where it is.
struct Protocol {
    name: &'static str,
    variable: &'static str,
    /// The Go module that has it; without one it is ours.
    module: Option<&'static str>,
    path: &'static str,
    /// The file for its descriptors, if the program reads them: as they are, and without comments.
    descriptors: Option<[&'static str; 2]>,
}

const PROTOCOLS: [Protocol; 4] = [
    Protocol {
        name: "csi.proto",
        variable: "CSI_PROTO",
        module: Some("github.com/container-storage-interface/spec"),
        path: "csi.proto",
        descriptors: None,
    },
    Protocol {
        name: "api.proto",
        variable: "REGISTRATION_PROTO",
        module: Some("k8s.io/kubelet"),
        path: "pkg/apis/pluginregistration/v1/api.proto",
        descriptors: None,
    },
    Protocol { name: "cri.proto", variable: "CRI_PROTO", module: None, path: "cri/cri.proto", descriptors: None },
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
    let own = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    for Protocol { name, variable, module, path, descriptors } in PROTOCOLS {
        println!("cargo:rerun-if-env-changed={variable}");
        let source = match (env::var_os(variable), module) {
            (Some(named), _) => PathBuf::from(named),
            (None, Some(module)) => module_directory(module)?.join(path),
            (None, None) => own.join(path),
        };
        println!("cargo:rerun-if-changed={}", source.display());
        // Only a copy, alone in its directory, can be imported by its bare name.
        let directory = out.join("proto").join(name.trim_end_matches(".proto"));
        fs::create_dir_all(&directory)?;
        let text = fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
        fs::write(directory.join(name), text)?;
        let files = protox::compile([name], [&directory])?;
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

/// Where the `go` client keeps a module of third_party/kubernetes/go.mod; it fetches and verifies it.
fn module_directory(module: &str) -> Result<PathBuf, Box<dyn Error>> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../third_party/kubernetes");
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
