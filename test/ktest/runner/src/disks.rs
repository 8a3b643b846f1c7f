//! Requests of tests about their scratch disks, by QMP.

use std::error::Error;
use std::time::Duration;

use ktest_init::BlockStats;
use qemu::{Disk, Vm};
use serde::Deserialize;
use serde_json::{Value, json};

/// Error of a request. The guest receives its text.
type AskError = Box<dyn Error>;

pub(crate) fn stats(vm: &Vm, disks: &[Disk], serial: &str) -> Result<BlockStats, AskError> {
    let disk = find(disks, serial)?;
    let all = vm.block_stats()?;
    let found = all.get(&disk.serial).ok_or_else(|| format!("the disk {serial} is cut off"))?;
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos());
    Ok(BlockStats {
        reads: found.reads,
        writes: found.writes,
        flushes: found.flushes,
        read_bytes: found.read_bytes.get(),
        written_bytes: found.written_bytes.get(),
        read_ns: nanoseconds(found.read_time)?,
        write_ns: nanoseconds(found.write_time)?,
        flush_ns: nanoseconds(found.flush_time)?,
    })
}

/// Inserts a failing node between the device and the disk's node. Reopening the disk's node on top of a failing one
/// would work too, but could not be undone, because QEMU flushes a node first.
pub(crate) fn cut(vm: &Vm, disks: &[Disk], serial: &str) -> Result<(), AskError> {
    find(disks, serial)?;
    let (cut, whole) = (cut_name(serial), whole_name(serial));
    vm.execute("blockdev-add", failing(&cut, &whole))?;
    attach(vm, serial, &whole, &cut)
}

pub(crate) fn restore(vm: &Vm, disks: &[Disk], serial: &str) -> Result<(), AskError> {
    find(disks, serial)?;
    let (cut, whole) = (cut_name(serial), whole_name(serial));
    attach(vm, serial, &cut, &whole)?;
    vm.execute("blockdev-del", json!({"node-name": cut}))?;
    Ok(())
}

fn find<'a>(disks: &'a [Disk], serial: &str) -> Result<&'a Disk, AskError> {
    disks.iter().find(|disk| disk.serial.as_str() == serial).ok_or_else(|| no_disk(serial).into())
}

fn no_disk(serial: &str) -> String {
    format!("unknown scratch disk {serial}")
}

/// The disk's node, as `qemu` names it.
fn whole_name(serial: &str) -> String {
    format!("disk-{serial}")
}

fn cut_name(serial: &str) -> String {
    format!("cut-{serial}")
}

fn failing(name: &str, disk: &str) -> Value {
    json!({
        "driver": "blkdebug",
        "node-name": name,
        "image": disk,
        "inject-error": [{"event": "none", "errno": 5}],
    })
}

fn attach(vm: &Vm, serial: &str, old: &str, new: &str) -> Result<(), AskError> {
    let found = device(vm.execute("query-blockstats", json!({}))?, old)
        .map_err(|error| format!("invalid list of disks of QEMU: {error}"))?;
    let device = found.ok_or_else(|| no_disk(serial))?;
    vm.execute("qom-set", json!({"path": device, "property": "drive", "value": new}))?;
    Ok(())
}

fn device(list: Value, node: &str) -> Result<Option<String>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(rename = "node-name", default)]
        node: String,
        qdev: Option<String>,
    }
    let entries: Vec<Entry> = serde_json::from_value(list)?;
    Ok(entries.into_iter().find(|entry| entry.node == node).and_then(|entry| entry.qdev))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_node_is_found_in_qemus_list() {
        let list = json!([
            {"node-name": "disk-a", "qdev": "/machine/peripheral-anon/device[1]/virtio-backend", "stats": {}},
            {"device": "", "stats": {}},
            {"node-name": "disk-b", "stats": {}},
        ]);
        let found = |node: &str| device(list.clone(), node).unwrap();
        assert_eq!(found("disk-a").as_deref(), Some("/machine/peripheral-anon/device[1]/virtio-backend"));
        assert_eq!((found("disk-b"), found("disk-c")), (None, None));
    }
}
