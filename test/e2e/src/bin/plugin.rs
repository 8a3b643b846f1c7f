//! A CNI plugin for tests, and the program that installs it like the DaemonSets of network plugins do.
//!
//! The plugin has its own address range and delegates to the plugin `ptp` of the node's image.
#![forbid(unsafe_code)]

use serde_json::{Value, json};
use std::error::Error;
use std::fs::{self, Permissions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chroot};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, process};

const NAME: &str = "e2e-plugin";

type Done = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match *words {
        [] if env::var_os("CNI_COMMAND").is_some() => delegate(),
        ["install", programs, configurations, range] => install(Path::new(programs), Path::new(configurations), range),
        ["is-denied", ref paths @ ..] if !paths.is_empty() => paths.iter().try_for_each(|path| is_denied(path)),
        ["observe", host, port] => observe(host, port),
        ["look", host] => look(host),
        _ => {
            Err("usage: install PROGRAMS CONFIGURATIONS RANGE | is-denied PATH | observe ROOT PORT | look ROOT".into())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Delegates to `ptp` as the CNI specification describes: with the same environment and another configuration.
fn delegate() -> Done {
    let mut configuration: Value = serde_json::from_reader(io::stdin())?;
    let range = configuration["range"].take();
    configuration["type"] = "ptp".into();
    configuration["ipam"] = json!({
        "type": "host-local",
        "ranges": [[{"subnet": range}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let path = env::var("CNI_PATH")?;
    let mut found = env::split_paths(&path).map(|directory| directory.join("ptp")).filter(|program| program.exists());
    let ptp = found.next().ok_or_else(|| format!("ptp is not in {path}"))?;
    let mut child = Command::new(ptp).stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(configuration.to_string().as_bytes())?;
    }
    process::exit(child.wait()?.code().unwrap_or(1));
}

fn install(programs: &Path, configurations: &Path, range: &str) -> Done {
    let new = programs.join(format!(".{NAME}"));
    fs::copy("/proc/self/exe", &new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o755))?;
    fs::rename(new, programs.join(NAME))?;
    // Install the program first, because the node becomes Ready as soon as the configuration exists.
    let plugin = json!({"type": NAME, "range": range});
    let list = json!({"cniVersion": "1.0.0", "name": "e2e", "plugins": [plugin]});
    fs::write(configurations.join("10-e2e.conflist"), list.to_string())?;
    Ok(())
}

fn is_denied(path: &str) -> Done {
    match fs::write(path, "") {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => Err(format!("{path} was written").into()),
    }
}

/// Responds to each HTTP request with the output of [`look`].
fn observe(host: &str, port: &str) -> Done {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.parse::<u16>()?))?;
    println!("waiting for requests");
    for stream in listener.incoming() {
        if let Err(error) = answer(&stream?, host) {
            eprintln!("error: {error}");
        }
    }
    Ok(())
}

fn answer(mut stream: &TcpStream, host: &str) -> Done {
    // Read the whole request head. Closing a connection with unread data would reset it.
    let mut head = BufReader::new(stream).lines();
    while head.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    // Run [`look`] in a child process, because it changes its root directory.
    let look = Command::new("/proc/self/exe").args(["look", host]).output()?;
    let (status, body) = match look.status.success() {
        true => ("200 OK", look.stdout),
        false => ("500 Internal Server Error", look.stderr),
    };
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(&body)?;
    Ok(())
}

/// Prints the node's programs, interfaces and nftables rules as JSON. `host` is the node's root directory.
fn look(host: &str) -> Done {
    let mut programs = Vec::new();
    for entry in fs::read_dir("/proc")? {
        // The name is empty if the process has ended, or if the entry is not a process.
        let name = fs::read_to_string(entry?.path().join("comm")).unwrap_or_default();
        programs.push(name.trim_end().to_owned());
    }
    let interfaces = fs::read_to_string("/proc/net/dev")?;
    chroot(host)?;
    env::set_current_dir("/")?;
    let nft = Command::new("/usr/bin/nft").args(["list", "ruleset"]).output()?;
    if !nft.status.success() {
        return Err(String::from_utf8_lossy(&nft.stderr).into());
    }
    let rules = String::from_utf8(nft.stdout)?;
    println!("{}", json!({"programs": programs, "interfaces": interfaces, "rules": rules}));
    Ok(())
}
