//! [`VolumeMode`].

/// The requested kind of volume: `spec.volumeMode` of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeMode {
    Filesystem,
    Block,
}

impl VolumeMode {
    /// The value of a claim's field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "Filesystem",
            Self::Block => "Block",
        }
    }
}
