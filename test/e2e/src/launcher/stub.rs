//! Guest that replaces a node in the launcher's tests: the node's kernel with `:stub_initramfs`. After the start of the
//! kernel, the stub needs a second of CPU time and a node needs a minute.

use serde::de::IntoDeserializer as _;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kernel's command line sets this variable for /init to the name of a [`Stub`].
pub const VARIABLE: &str = "STUB";
/// Console line of a guest that waits for its power button.
pub const WAITING: &str = "stub: waiting for the power button";
/// Console line of a guest whose power button was pressed.
pub const PRESSED: &str = "stub: the power button was pressed";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stub {
    /// Starts /init, announces nothing, and does not watch the power button.
    Hangs,
    /// Announces stages up to `data-disk`, and powers off when the power button is pressed.
    Boots,
    /// Like [`Stub::Boots`], but the guest does not power off.
    IgnoresButton,
    /// Like [`Stub::Boots`], with an API server whose only object is the Ready node `granary`. The API server rejects
    /// every request other than GET.
    Ready,
}

/// Value of [`VARIABLE`].
impl fmt::Display for Stub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Stub {
    pub fn named(name: &str) -> Result<Self, serde::de::value::Error> {
        Self::deserialize(name.into_deserializer())
    }
}
