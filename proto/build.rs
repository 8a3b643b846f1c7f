//! Compiles the pinned protocol files. Bazel names them in `CSI_PROTO` and `REGISTRATION_PROTO`; Cargo
//! alone takes them from the Go modules that third_party/kubernetes/go.mod pins.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A protocol file: the variable that names it, else the Go module and the path in it.
struct Protocol {
    name: &'static str,
    variable: &'static str,
    module: &'static str,
    path: &'static str,
}

const PROTOCOLS: [Protocol; 2] = [
    Protocol {
        name: "csi.proto",
        variable: "CSI_PROTO",
        module: "github.com/container-storage-interface/spec",
        path: "csi.proto",
    },
    Protocol {
        name: "api.proto",
        variable: "REGISTRATION_PROTO",
        module: "k8s.io/kubelet",
        path: "pkg/apis/pluginregistration/v1/api.proto",
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for Protocol { name, variable, module, path } in PROTOCOLS {
        println!("cargo:rerun-if-env-changed={variable}");
        let source = match env::var_os(variable) {
            Some(pinned) => PathBuf::from(pinned),
            None => module_directory(module)?.join(path),
        };
        // Only a copy, alone in its directory, can be imported by its bare name.
        let directory = out.join("proto").join(name.trim_end_matches(".proto"));
        fs::create_dir_all(&directory)?;
        let text = fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
        fs::write(directory.join(name), text)?;
        let files = protox::compile([name], [&directory])?;
        tonic_prost_build::configure().compile_fds(files)?;
    }
    Ok(())
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
