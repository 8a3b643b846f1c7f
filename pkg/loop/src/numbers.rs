//! Device numbers in increasing order.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::ListError;
use crate::number::Number;

/// Increasing numbers for new devices.
///
/// The kernel returns the lowest free number (`LOOP_CTL_GET_FREE`), even if a process still has that device or a node
/// of it open. That process would then access the next file that is attached. With increasing numbers, a stale
/// descriptor or node belongs to a device that is not attached.
///
/// After the largest number the sequence begins again and skips existing devices: [remove](crate::Control::remove) a
/// device when no process can have a node of it any more.
#[derive(Debug)]
pub struct Numbers {
    next: AtomicU32,
}

impl Numbers {
    /// The first number. The driver creates 8 devices when it is loaded, and opening a node with a number
    /// below its parameter `max_loop` creates that device again.
    pub const FIRST: u32 = 8;

    /// The largest number: a minor number has 20 bits.
    pub const LAST: u32 = (1 << 20) - 1;

    /// Starts above the highest device that exists.
    pub fn after_existing() -> Result<Self, ListError> {
        let path = PathBuf::from("/sys/block");
        let failed = |source| ListError::Sysfs { path: path.clone(), source };
        let mut highest = None;
        for entry in fs::read_dir(&path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            highest = highest.max(name.to_str().and_then(|name| name.parse::<Number>().ok()));
        }
        Ok(Self::after(highest))
    }

    fn after(highest: Option<Number>) -> Self {
        let next = highest.map_or(Self::FIRST, |highest| Self::successor(highest.get()));
        Self { next: AtomicU32::new(next) }
    }

    const fn successor(number: u32) -> u32 {
        match number {
            Self::FIRST..Self::LAST => number + 1,
            _ => Self::FIRST,
        }
    }

    /// Whether this number is the latest that was taken.
    pub fn is_latest(&self, number: Number) -> bool {
        Self::successor(number.get()) == self.next.load(Ordering::Relaxed)
    }

    /// Takes the next number.
    pub(crate) fn take(&self) -> Number {
        let advance = |next| Some(Self::successor(next));
        let (Ok(taken) | Err(taken)) = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance);
        Number::of_sequence(taken)
    }

    /// Continues with the first number, because the kernel rejects `beyond`. With the parameter `max_part` the kernel
    /// has fewer numbers.
    pub(crate) fn wrap(&self, beyond: Number) {
        let after = Self::successor(beyond.get());
        // Another thread may have started again at the first number already.
        let _ = self.next.compare_exchange(after, Self::FIRST, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: u32) -> Number {
        Number::of_sequence(number)
    }

    #[test]
    fn numbers_increase_from_the_highest_device() {
        for (highest, first) in [(None, 8), (Some(0), 8), (Some(7), 8), (Some(8), 9), (Some(41), 42)] {
            let numbers = Numbers::after(highest.map(number));
            assert_eq!([(); 3].map(|()| numbers.take().get()), [first, first + 1, first + 2]);
        }
    }

    #[test]
    fn after_the_largest_number_the_sequence_begins_again() {
        let numbers = Numbers::after(Some(number(Numbers::LAST - 1)));
        assert_eq!([(); 3].map(|()| numbers.take().get()), [Numbers::LAST, Numbers::FIRST, Numbers::FIRST + 1]);
        assert_eq!(Numbers::after(Some(number(Numbers::LAST))).take().get(), Numbers::FIRST);
    }

    #[test]
    fn a_number_beyond_the_kernels_range_restarts_the_sequence() {
        let numbers = Numbers::after(Some(number(65_535)));
        let beyond = numbers.take();
        numbers.wrap(beyond);
        numbers.wrap(beyond);
        assert_eq!(numbers.take().get(), Numbers::FIRST);
    }
}
