//! Ends of the launcher, with a stub guest in place of a node. After each case, no process and no file is left.

use e2e::launcher::{Commands, Kind, Launched, PATIENCE, PRESSED, Stub, WAITING};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;

const STARTED: &str = "runs the guest with";
/// Output when the first program of the guest runs and nothing is in use.
const KERNEL: &str = "kernel: ready";
/// Output from which on the node uses its disk.
const DATA: &str = "data-disk: ready";
/// Console line of a kernel that powers off.
const OFF: &str = "reboot: Power down";

/// Terminal line during the shutdown of a node. The launcher pads a line above the redrawn lines with spaces, which
/// this text includes. A line that was written into the redrawn lines would soon be overwritten.
const SHUTTING: &str = "Shutting the node down. Ctrl-C cuts its power. ";

/// The terminal interrupts all of its foreground processes. QEMU must not be one of them.
#[test]
fn ctrl_c_in_the_middle_of_a_boot_shuts_the_node_down_in_order() {
    let mut launched = Launched::start(Kind::Terminal, Stub::Boots, &[]);
    launched.wait_for(DATA);
    launched.type_ctrl_c();
    launched.wait_for(SHUTTING);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.text);
    assert!(ended.console().contains(OFF), "{}", ended.console());
}

/// Like QEMU, the sweeper must not be interrupted. It removes the directory of a killed launcher.
#[test]
fn a_second_ctrl_c_cuts_the_power() {
    let mut launched = Launched::start(Kind::Terminal, Stub::IgnoresButton, &[]);
    launched.wait_for(DATA);
    let both = [launched.qemu(), launched.sweeper()];
    launched.type_ctrl_c();
    launched.wait_for(SHUTTING);
    // The launcher shows the last line of the console.
    launched.wait_for(PRESSED);
    assert_eq!(both, [launched.qemu(), launched.sweeper()]);
    launched.type_ctrl_c();
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.text);
    assert!(ended.text.contains("The power is cut."), "{}", ended.text);
    assert!(ended.console().contains(PRESSED) && !ended.console().contains(OFF), "{}", ended.console());
}

#[test]
fn sigint_in_the_middle_of_a_boot_is_like_ctrl_c() {
    let mut launched = Launched::start(Kind::Pipe, Stub::Boots, &[]);
    launched.wait_for(DATA);
    launched.signal(Signal::SIGINT);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.text);
    assert!(
        ended.text.ends_with("Shutting the node down. Ctrl-C cuts its power.\nThe node is down.\n"),
        "{}",
        ended.text
    );
    assert!(ended.console().contains(OFF), "{}", ended.console());
}

/// A terminal without a cursor gets plain lines, like a pipe. The guest does not react to its power button.
#[test]
fn sigterm_before_anything_is_in_use_ends_at_once() {
    let mut launched = Launched::start(Kind::DumbTerminal, Stub::Hangs, &[]);
    launched.wait_for(KERNEL);
    launched.signal(Signal::SIGTERM);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.text);
    assert!(ended.text.ends_with("The node is down.\r\n"), "{}", ended.text);
    assert!(!ended.text.contains('\x1b'), "{:?}", ended.text);
    let console = ended.console();
    assert!(console.contains("initramfs: started") && !console.contains(OFF), "{console}");
}

#[test]
fn a_killed_qemu_is_reported_with_the_end_of_the_console() {
    let mut launched = Launched::start(Kind::Pipe, Stub::Hangs, &[]);
    launched.wait_for(KERNEL);
    launched.kill(&launched.qemu());
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.text);
    for text in ["error: node granary did not boot", "signal: 9 (SIGKILL)", "console.log:", "  initramfs: started"] {
        assert!(ended.text.contains(text), "no {text:?} in {}", ended.text);
    }
}

/// A failed demonstration does not end the run, so that the user can inspect the node.
#[test]
fn a_qemu_killed_after_the_boot_ends_the_run_with_the_reason() {
    let mut launched = Launched::start(Kind::Pipe, Stub::Ready, &[]);
    launched.wait_for("The node runs. Ctrl-C shuts it down.\n");
    launched.kill(&launched.qemu());
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.text);
    let (before, last) = ended.text.split_once("Ctrl-C shuts it down.\n").unwrap();
    assert!(before.contains("  the node is Ready\nthe demonstration failed\ncaused by: "), "{before}");
    assert!(last.starts_with("error: node granary ended unexpectedly: QEMU ended with signal: 9 (SIGKILL)"), "{last}");
    // On a busy machine the kernel may print a warning first.
    let console = last.split_once("logs/console.log:\n").map(|(_, console)| console);
    let shown = console.is_some_and(|text| text.contains(&format!("  initramfs: started\n  {WAITING}\n")));
    assert!(shown, "{last}");
}

#[test]
fn a_killed_launcher_leaves_no_process_and_no_file() {
    let mut launched = Launched::start(Kind::Pipe, Stub::Hangs, &["--nodes=2"]);
    launched.wait_for(STARTED);
    // QEMU and the network must both be running.
    _ = [launched.qemu(), launched.network()];
    launched.signal(Signal::SIGKILL);
    assert_eq!(launched.end().status.signal(), Some(9));
}

#[test]
fn a_terminal_that_is_closed_shuts_the_node_down_in_order() {
    let mut launched = Launched::start(Kind::Terminal, Stub::Boots, &[]);
    launched.wait_for(DATA);
    // The launcher redraws the last line of the console every quarter of a second. The text appears nowhere else.
    launched.wait_for(WAITING);
    let shown = launched.close_screen();
    // The current stage and its time are below the other stages.
    assert!(shown.contains("s  kernel"), "{shown:?}");
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(130));
    assert!(ended.console().contains(OFF), "{}", ended.console());
}

#[test]
fn a_pipe_that_is_closed_ends_the_run() {
    let mut launched = Launched::start(Kind::Pipe, Stub::Hangs, &[]);
    launched.wait_for("\n");
    launched.close_screen();
    assert_eq!(launched.end().status.code(), Some(1));
}

#[test]
fn impossible_options_are_rejected_with_the_remedy() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = format!("--port={}", taken.local_addr().unwrap().port());
    let directory = e2e::launcher::directory();
    let file = directory.path().join("node.json");
    fs::write(&file, r#"{"podProcesses": 1, "registries": [{"name": "registry.example", "server": "http://a.b"}]}"#)
        .unwrap();
    let config = format!("--config={}", file.display());
    let no_archive = format!("--image={}", file.display());
    let invalid = ["node.json", "podProcesses: 1 is out of range", "registries[0].server: without TLS"];
    let cases: [(_, &[&str], _, &[&str]); 7] = [
        ("an invalid configuration", &[&config], 1, &invalid),
        ("a taken port", &[&port], 1, &["error: node granary did not boot\n", "choose another port with --port"]),
        ("an impossible data file", &["--data=/nowhere/data.img"], 1, &["name a file in an existing directory"]),
        ("a file without images", &[&no_archive], 1, &["cannot use the images in ", "node.json", "docker save"]),
        ("a missing archive", &["--image=/nowhere/app.tar"], 1, &["/nowhere/app.tar", "it cannot be read"]),
        ("too many nodes", &["--nodes=9"], 2, &["\"9\" is not a number of nodes; choose one from 1 to 8"]),
        (
            "workers that do not fit in memory",
            &["--nodes=3", "--worker-memory=1024T"],
            1,
            &["of 3 guests", "choose fewer --nodes"],
        ),
    ];
    for (case, options, status, texts) in cases {
        let ended = Launched::start(Kind::Pipe, Stub::Hangs, options).end();
        assert_eq!(ended.status.code(), Some(status), "{case}: {}", ended.text);
        for text in texts {
            assert!(ended.text.contains(text), "{case}: no {text:?} in {}", ended.text);
        }
        assert!(!ended.text.contains(STARTED), "{case}: {}", ended.text);
        assert!(ended.logs.is_empty(), "{case}: {:?}", ended.logs);
    }
}

#[test]
fn a_cluster_in_the_background_lives_from_start_to_delete() {
    let commands = Commands::new(Stub::Ready);
    let kubeconfig = commands.home().join(".kube/config");
    let directory = commands.home().join(".local/state/granary/a");
    let disk = directory.join("data.img");

    let forwarded = free_port();
    let forward = format!("--forward={forwarded}:6443");
    let started = commands.start(&["--name=a", "--data-size=2G", "--kubeconfig", &forward]);
    assert_eq!(started.status, Some(0), "{}", started.text);
    for text in [
        "  the node is Ready\n",
        &format!("\ncontext     a in {0}\nshell       export KUBECONFIG={0}\n", kubeconfig.display()),
        "The node runs in the background. `./bazelw run //:launch -- stop --name=a` shuts it down.\n",
    ] {
        assert!(started.text.contains(text), "no {text:?} in {}", started.text);
    }
    assert_eq!(fs::metadata(&disk).unwrap().len(), 2 << 30);
    let contexts = fs::read_to_string(&kubeconfig).unwrap();
    assert!(contexts.contains("current-context: a\n"), "{contexts}");
    let server = contexts.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
    let server = server.trim_matches(['"', '\'']);
    let shown = commands.run(&["status"]).text;
    let row = shown.lines().find(|line| line.starts_with("a ")).unwrap();
    assert!(row.contains(" ready ") && row.contains(server), "{shown}");
    // The API server of the stub responds to plain text with a TLS alert (RFC 8446, section 5.1).
    assert_eq!(first_byte_of_the_answer(forwarded, b"plain text\r\n"), 21);
    let second = commands.start(&["--name=a"]);
    assert_eq!(second.status, Some(1), "{}", second.text);
    assert!(second.text.contains("cluster a is in use by another launcher;"), "{}", second.text);

    // Another cluster beside it has its own port, and ends by its own name.
    let beside = commands.start(&["--name=b"]);
    assert_eq!(beside.status, Some(0), "{}", beside.text);
    let shown = commands.run(&["status"]).text;
    let [a, b] = ["a ", "b "].map(|name| shown.lines().find(|line| line.starts_with(name)).unwrap());
    assert!([a, b].iter().all(|row| row.contains(" ready ")), "{shown}");
    assert!(a.contains(server) && !b.contains(server), "{shown}");
    let stopped = commands.run(&["stop", "--name=b"]);
    assert!(stopped.text.ends_with("Cluster b is stopped.\n"), "{}", stopped.text);
    let shown = commands.run(&["status"]).text;
    assert!(shown.contains("\na     ready ") && shown.contains("\nb     stopped "), "{shown}");

    let stopped = commands.run(&["stop", "--name=a"]);
    assert_eq!((stopped.status, commands.processes()), (Some(0), Vec::new()), "{}", stopped.text);
    assert!(stopped.text.ends_with("Cluster a is stopped.\n"), "{}", stopped.text);
    let console = fs::read(directory.join("console.log")).unwrap();
    assert!(String::from_utf8_lossy(&console).contains(OFF), "{console:?}");
    assert!(commands.run(&["status"]).text.contains("a     stopped  "), "{}", commands.run(&["status"]).text);
    let smaller = commands.start(&["--name=a", "--data-size=1G"]);
    assert_eq!(smaller.status, Some(1), "{}", smaller.text);
    assert!(smaller.text.contains("a data disk is never shrunk to 1 GiB"), "{}", smaller.text);

    // A killed launcher blocks neither a start nor a deletion.
    assert_eq!(commands.start(&["--name=a"]).status, Some(0));
    assert!(fs::read_to_string(&kubeconfig).unwrap().contains(server), "the port is another one");
    commands.kill_launcher();
    assert!(commands.run(&["status"]).text.contains("a     killed  "), "{}", commands.run(&["status"]).text);
    let deleted = commands.run(&["delete", "--name=a"]);
    assert_eq!(deleted.status, Some(0), "{}", deleted.text);
    for text in [&*format!("Removed context a from {}.", kubeconfig.display()), &*disk.display().to_string()] {
        assert!(deleted.text.contains(text), "no {text:?} in {}", deleted.text);
    }
    assert!(!directory.exists());
    assert!(!fs::read_to_string(&kubeconfig).unwrap().contains("name: a\n"));
    assert_eq!(commands.run(&["stop", "--name=a"]).status, Some(1));
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn first_byte_of_the_answer(port: u16, request: &[u8]) -> u8 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    byte[0]
}

#[test]
fn a_start_that_fails_says_why_and_leaves_no_process() {
    let commands = Commands::new(Stub::Hangs);
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    for (option, text) in [
        (format!("--forward={port}:30080"), "choose another port with --forward"),
        ("--data-size=512M".to_owned(), "a data disk of 512 MiB is too small; choose at least 1 GiB with --data-size"),
        ("--config=/nowhere/node.json".to_owned(), "cannot read the configuration /nowhere/node.json"),
    ] {
        let failed = commands.start(&[&option]);
        assert_eq!(failed.status, Some(1), "{}", failed.text);
        for text in [text, "error: cluster granary did not start"] {
            assert!(failed.text.contains(text), "no {text:?} in {}", failed.text);
        }
        assert!(commands.processes().is_empty(), "{:?}", commands.processes());
    }
    assert_eq!(commands.run(&["delete"]).status, Some(0));
}

/// The control plane uses a network segment from the beginning. Workers start after the control plane is ready.
#[test]
fn the_first_of_several_nodes_is_shut_down_in_order() {
    let mut launched = Launched::start(Kind::Pipe, Stub::Boots, &["--nodes=2"]);
    launched.wait_for("granary    data-disk: ready");
    launched.signal(Signal::SIGINT);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.text);
    assert!(ended.text.ends_with("Ctrl-C cuts their power.\nThe nodes are down.\n"), "{}", ended.text);
    assert!(ended.console().contains(OFF), "{}", ended.console());
}

#[test]
fn a_killed_network_is_reported_and_the_nodes_shut_down() {
    let mut launched = Launched::start(Kind::Pipe, Stub::Hangs, &["--nodes=2"]);
    launched.wait_for(STARTED);
    launched.kill(&launched.network());
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.text);
    for text in ["error: the network between the nodes failed", "signal: 9 (SIGKILL)", "The nodes are down.\n"] {
        assert!(ended.text.contains(text), "no {text:?} in {}", ended.text);
    }
}
