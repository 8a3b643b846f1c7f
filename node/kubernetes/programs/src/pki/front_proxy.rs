//! The API server's client certificate for aggregated API servers, and its CA.
//!
//! An aggregated API server, and the API server itself, accept the user name in each request with this certificate
//! (`X-Remote-User`). Therefore the cluster's CA does not sign it: no certificate that a user requests can be accepted in
//! its place. Each certificate has a CA of its own, whose key is never stored.

use time::OffsetDateTime;

use crate::pki::certificate::{self, Ca, Purpose, Signer, Stale, Validity, Wanted};
use crate::pki::store::{PUBLIC, PkiError, Store};

pub(crate) const NAME: &str = "frontproxy";
/// Certificates of the CA and of the one before, which the API server publishes for aggregated API servers.
pub(crate) const CA: &str = "frontproxy-ca";
const CA_NAME: &str = "granary:front-proxy-ca";
/// The only common name that aggregated API servers accept.
pub(crate) const USER: &str = "granary:front-proxy";

pub(crate) fn wanted() -> Wanted {
    Wanted {
        name: NAME,
        common_name: USER.into(),
        organization: None,
        purpose: Purpose::Client,
        signer: Signer::FrontProxy,
    }
}

fn cas(store: &Store) -> Result<Option<String>, PkiError> {
    store.read(&format!("{CA}.crt"))
}

pub(crate) fn verify(store: &Store, wanted: &Wanted) -> Result<Result<Validity, Stale>, PkiError> {
    let both = cas(store)?.zip(store.read_pair(wanted.name)?).ok_or(Stale::Absent);
    Ok(both.and_then(|(ca, pair)| certificate::verify(&ca, wanted, &pair)))
}

/// Creates a CA and a certificate. The former CA stays valid, because the API server and the aggregated API servers read
/// the two files at different times.
pub(crate) fn issue(store: &Store, wanted: &Wanted, stale: Stale, now: OffsetDateTime) -> Result<Validity, PkiError> {
    let (ca, pair) = Ca::named(CA_NAME, now).map_err(|source| PkiError::Certificate { name: CA, source })?;
    let former = cas(store)?.and_then(|cas| certificate::first(&cas).ok());
    let cas = pair.certificate + former.as_deref().unwrap_or_default();
    store.write(&format!("{CA}.crt"), &cas, PUBLIC)?;
    store.issue(&ca, wanted, stale, now)
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::*;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-03-01 12:00 UTC);

    /// The certificates in the file of the CAs.
    fn published(store: &Store) -> usize {
        cas(store).unwrap().unwrap().matches("BEGIN CERTIFICATE").count()
    }

    #[test]
    fn the_former_ca_stays_until_renewal_and_no_key_is_stored() {
        let scratch = tempfile::tempdir().unwrap();
        let store = Store::open(scratch.path()).unwrap();
        assert_eq!(verify(&store, &wanted()).unwrap(), Err(Stale::Absent));
        issue(&store, &wanted(), Stale::Absent, NOW).unwrap();
        assert!(verify(&store, &wanted()).unwrap().is_ok());
        assert_eq!(published(&store), 1);

        let first = cas(&store).unwrap().unwrap();
        for later in [1, 2] {
            issue(&store, &wanted(), Stale::Expiring, NOW + Duration::days(335 * later)).unwrap();
            assert!(verify(&store, &wanted()).unwrap().is_ok());
            assert_eq!(published(&store), 2);
            assert_eq!(cas(&store).unwrap().unwrap().ends_with(&first), later == 1);
        }
        assert_eq!(store.read(&format!("{CA}.key")).unwrap(), None);
    }

    #[test]
    fn a_certificate_of_the_clusters_ca_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let store = Store::open(scratch.path()).unwrap();
        issue(&store, &wanted(), Stale::Absent, NOW).unwrap();
        let (cluster, _) = Ca::make(NOW).unwrap();
        store.write_pair(NAME, &cluster.issue(&wanted(), NOW).unwrap()).unwrap();
        assert_eq!(verify(&store, &wanted()).unwrap(), Err(Stale::OtherCa));
    }
}
