//! Expiry and renewal time of certificates.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::sleep;

const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    pub name: &'static str,
    pub at: OffsetDateTime,
}

/// Renewal time of one or more certificates on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lasting {
    pub(crate) renewal: OffsetDateTime,
}

impl Lasting {
    #[must_use]
    pub fn first(one: Self, other: Self) -> Self {
        Self { renewal: one.renewal.min(other.renewal) }
    }

    /// Waits until the renewal time. Cancel-safe.
    pub async fn renewal(self) {
        while let Ok(left) = Duration::try_from(self.renewal - OffsetDateTime::now_utc()) {
            // One second more, so that the renewal time has passed afterwards.
            sleep(left.min(CHECK_INTERVAL) + Duration::from_secs(1)).await;
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Expiries(watch::Sender<Vec<Expiry>>);

impl Expiries {
    pub(crate) fn publish(&self, expiry: Expiry) {
        self.0.send_if_modified(|known| match known.binary_search_by_key(&expiry.name, |known| known.name) {
            Ok(index) if known[index] == expiry => false,
            Ok(index) => {
                known[index] = expiry;
                true
            }
            Err(index) => {
                known.insert(index, expiry);
                true
            }
        });
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Vec<Expiry>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::*;

    const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    #[test]
    fn only_what_is_new_is_a_change() {
        let expiries = Expiries::default();
        let mut known = expiries.subscribe();
        let [first, other] = ["storage", "kubelet"].map(|name| Expiry { name, at: NOW });
        for expiry in [first, other] {
            expiries.publish(expiry);
            assert!(known.has_changed().unwrap());
            known.mark_unchanged();
        }
        assert_eq!(*known.borrow(), [other, first]);
        expiries.publish(first);
        assert!(!known.has_changed().unwrap());
        let renewed = Expiry { at: NOW + Duration::DAY, ..first };
        expiries.publish(renewed);
        assert!(known.has_changed().unwrap());
        assert_eq!(*known.borrow(), [other, renewed]);
    }
}
