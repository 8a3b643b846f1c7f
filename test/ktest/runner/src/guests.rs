//! Saved guests that the tests of one machine share.
//!
//! [`Guests`] is the directory that `GRANARY_GUESTS` names; `bazelw` sets the variable. A state in it is named after a
//! [`Key`]: the digest of everything that the state depends on. The first test that needs a state creates it; others
//! that need it meanwhile wait for the lock of that state. A state expires 12 hours after its creation, because
//! certificates and leases in it age. The states together are limited to 12 GiB: the process that creates one first
//! deletes expired ones, then the least recently used ones that no test uses. On a disk with less than 4 GiB free
//! none is created.
//!
//! Without the variable, or when the directory is missing or not writable, [`Guests::of_machine`] is `None` and tests
//! boot their guests.
mod key;
mod store;

pub use key::Key;
pub use store::{Guest, Guests, StoreError};
