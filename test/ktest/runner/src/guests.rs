//! Saved guests that the tests of one machine share.
//!
//! [`Guests`] is the directory `GRANARY_GUESTS`, which `bazelw` sets. The name of a state in it is its [`Key`], the
//! digest of everything that the state depends on. The first test that needs a state creates it; others wait for the
//! lock of that state. A state expires 12 hours after its creation, because its certificates and leases do. States take
//! at most 12 GiB: the process that creates one first deletes expired ones, then the least recently used ones that no
//! test uses. With less than 4 GiB free on the disk, none is created.
//!
//! If the variable is missing, or the directory is not writable, [`Guests::of_machine`] is `None` and tests boot their
//! guests.
mod key;
mod store;

pub use key::Key;
pub use store::{Guest, Guests, StoreError};
