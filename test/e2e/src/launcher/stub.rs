//! The guest of the launcher's tests in place of a node: the node's kernel with `:stub_initramfs`. It needs a second of
//! CPU time after the start of the kernel, a node needs a minute.

/// The kernel's command line sets this variable for /init to [`Stub::name`].
pub const VARIABLE: &str = "STUB";
/// Line on the console: the guest waits for its power button.
pub const WAITING: &str = "stub: waiting for the power button";
/// Line on the console: the power button was pressed.
pub const PRESSED: &str = "stub: the power button was pressed";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stub {
    /// Starts /init, announces nothing, and does not watch the power button.
    Hangs,
    /// Announces stages up to `data-disk`, and powers off when the power button is pressed.
    Boots,
    /// The same, but the guest does not power off.
    IgnoresButton,
    /// As [`Stub::Boots`], with an API server whose only object is the Ready node `granary`. It rejects every request
    /// other than GET.
    Ready,
}

impl Stub {
    const ALL: [Self; 4] = [Self::Hangs, Self::Boots, Self::IgnoresButton, Self::Ready];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Hangs => "hangs",
            Self::Boots => "boots",
            Self::IgnoresButton => "ignores-button",
            Self::Ready => "ready",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stub| stub.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stub_is_found_by_its_name() {
        assert!(Stub::ALL.into_iter().all(|stub| Stub::named(stub.name()) == Some(stub)));
        assert_eq!(Stub::named("poem"), None);
    }
}
