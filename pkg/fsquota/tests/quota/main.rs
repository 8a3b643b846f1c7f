//! Behaviour of project quotas on a real XFS. Requires root and a scratch disk. `docs/xfstests.md` maps the facts of
//! the xfstests quota group to these tests.
#![deny(unsafe_code)]

mod accounting;
mod allocation;
mod boundaries;
mod cow_extent_size;
mod enforcement;
mod faults;
mod files;
mod formatted;
mod known;
mod limits;
mod refusals;
mod removal;
mod report;
mod space;
mod sums;
#[expect(unsafe_code, reason = "the ioctls of inode attributes have no wrapper in nix")]
mod sys;
mod tools;
mod transfer;
#[path = "../volumes/mod.rs"]
mod volumes;
mod walk;
