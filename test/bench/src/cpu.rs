//! CPU time of other processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process;

/// CPU time (user and system) of this process's children in milliseconds, by program name. The time includes all
/// threads of a child, and its own children that have ended.
pub fn children_cpu_ms() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        // A process may end after the listing.
        let read = |name: &str| fs::read_to_string(process.path().join(name)).ok();
        if let Some(cpu) = read("stat").and_then(|stat| child_cpu_ms(&stat)) {
            *all.entry(read("cmdline").map(|line| program(&line)).unwrap_or_default()).or_default() += cpu;
        }
    }
    all
}

/// Fields of proc_pid_stat(5): the parent is the second field after the name; `utime`, `stime`, `cutime` and `cstime`
/// are fields 12 to 15 after the name, in units of 10 ms (`USER_HZ` of x86).
fn child_cpu_ms(stat: &str) -> Option<u64> {
    let fields: Vec<u64> = stat.rsplit_once(") ")?.1.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
    let cpu: u64 = fields.get(11..15)?.iter().sum();
    (fields[1] == u64::from(process::id())).then_some(cpu * 10)
}

/// Program name of a command line that is separated by zero bytes. The name in `stat` has at most 15 bytes.
fn program(line: &str) -> String {
    let path = line.split('\0').next().unwrap_or_default();
    Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_that_of_children_and_of_their_ended_children() {
        let stat = |parent: u32| format!("7 (qemu (x) 86) S {parent} 7 7 0 -1 0 1 2 3 4 250 50 7 3 20");
        assert_eq!(child_cpu_ms(&stat(process::id())), Some(3100));
        assert_eq!(child_cpu_ms(&stat(1)), None);
        assert_eq!(child_cpu_ms("7 (qemu) S 1 7"), None);
    }

    #[test]
    fn a_program_has_its_whole_name() {
        assert_eq!(program("/a/bin/kube-controller-manager\0--profiling=false\0"), "kube-controller-manager");
        assert_eq!(program(""), "");
    }
}
