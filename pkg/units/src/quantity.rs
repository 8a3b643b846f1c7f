//! The code that [`Bytes`](crate::Bytes) and [`Inodes`](crate::Inodes) share.

/// Construction, arithmetic and sums of a wrapped `u64`.
macro_rules! quantity {
    ($name:ident, $unit:literal) => {
        impl $name {
            #[doc = concat!("0 ", $unit, ".")]
            pub const ZERO: Self = Self(0);

            #[doc = concat!("Wraps a number of ", $unit, ".")]
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            #[doc = concat!("The number of ", $unit, ".")]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The sum; `None` on overflow.
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// The difference; `None` if `other` is larger than `self`.
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(rest) => Some(Self(rest)),
                    None => None,
                }
            }

            /// The sum, at most `u64::MAX`.
            pub const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }

            /// The difference, at least 0.
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl std::iter::Sum for $name {
            /// Saturates at `u64::MAX`.
            fn sum<I: Iterator<Item = Self>>(numbers: I) -> Self {
                numbers.fold(Self::ZERO, Self::saturating_add)
            }
        }
    };
}

pub(crate) use quantity;
