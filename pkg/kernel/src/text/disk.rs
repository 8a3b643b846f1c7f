//! Failed requests to disks.

/// Kinds of errors of the medium, the transfer, and the disk's checksums. Other kinds concern the request, such as an
/// operation that the disk does not support, or are retried, such as a timeout.
const KINDS: [&str; 3] = ["critical medium", "I/O", "protection"];

/// The disk of a message about a request that failed with a medium or I/O error: its kernel name, without partition.
///
/// `blk_print_req_error`, Linux 5.17. The kernel writes up to ten of these messages in five seconds. Devices without
/// requests, such as those of the device mapper, cause no such messages; the disks below them do.
///
/// ```
/// let text = "critical medium error, dev sda, sector 4660 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2";
/// assert_eq!(kernel::text::failed_disk(text), Some("sda"));
/// ```
pub fn failed_disk(text: &str) -> Option<&str> {
    let (kind, rest) = text.split_once(" error, dev ")?;
    let (disk, _) = rest.split_once(", sector ")?;
    KINDS.contains(&kind).then_some(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_other_things_have_no_failed_disk() {
        for text in [
            "",
            "I/O error, dev vda",
            "operation not supported error, dev vda, sector 0 op 0x3:(DISCARD) flags 0x0 phys_seg 1 prio class 2",
            "critical space allocation error, dev loop0, sector 8 op 0x1:(WRITE) flags 0x8800 phys_seg 1 prio class 2",
            "Buffer I/O error on dev vda, logical block 0, async page read",
            "XFS (vda4): log I/O error -5",
            "a pod prints: I/O error, dev vda, sector 1",
        ] {
            assert_eq!(failed_disk(text), None, "{text}");
        }
    }

    #[test]
    fn the_name_of_the_disk_is_returned() {
        let text = "I/O error, dev nvme0n1, sector 2048 op 0x1:(WRITE) flags 0x9800 phys_seg 1 prio class 2";
        assert_eq!(failed_disk(text), Some("nvme0n1"));
    }
}
