//! Certificates that the node publishes: that of the cluster's CA, and those of the administrators in the
//! configuration.
//!
//! A certificate cannot be revoked. Therefore an administrator's rights depend on the user name, which belongs to one
//! key, and exist only while the configuration has the request. The group has no rights. The certificates are only in
//! memory: each start signs new ones.

use cluster::{ADMINISTRATORS_GROUP, AdministratorRequest};
use time::OffsetDateTime;
use tracing::info;

use crate::pki::certificate::{Ca, Purpose, Signer, Validity, Wanted};
use crate::pki::store::PkiError;

/// None of the certificates is secret. The private keys are elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicCertificates {
    pub ca: String,
    pub administrators: Vec<AdministratorCertificate>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdministratorCertificate {
    /// Name in the request, a DNS label.
    pub name: String,
    pub user: String,
    pub certificate: String,
    validity: Validity,
}

impl PublicCertificates {
    /// Certificates for these requests. Keeps the certificates of `self` that are not due for renewal.
    pub(crate) fn renewed(
        &self,
        ca: &Ca,
        requests: &[AdministratorRequest],
        now: OffsetDateTime,
    ) -> Result<Self, PkiError> {
        let certificate = |request: &AdministratorRequest| {
            let user = request.user();
            let lasts = |validity: Validity| validity.check(now, validity.shortly_before_its_end()).is_ok();
            let kept = self.administrators.iter().find(|one| one.user == user && lasts(one.validity));
            kept.map_or_else(|| AdministratorCertificate::sign(ca, request, user, now), |kept| Ok(kept.clone()))
        };
        let administrators = requests.iter().map(certificate).collect::<Result<_, _>>()?;
        Ok(Self { ca: ca.certificate().to_owned(), administrators })
    }
}

impl AdministratorCertificate {
    fn sign(ca: &Ca, request: &AdministratorRequest, user: String, now: OffsetDateTime) -> Result<Self, PkiError> {
        let wanted = Wanted {
            name: "administrator",
            common_name: user.clone(),
            organization: Some(ADMINISTRATORS_GROUP),
            purpose: Purpose::Client,
            signer: Signer::Cluster,
        };
        let signed = ca.certify(&wanted, request.public_key(), now);
        let certificate = signed.map_err(|source| PkiError::Administrator { user: user.clone(), source })?;
        info!(user, "certificate of an administrator signed");
        Ok(Self { name: request.name().to_owned(), user, certificate, validity: Validity::of_new_leaf(now) })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, PublicKeyData as _};
    use time::Duration;
    use x509_parser::pem::parse_x509_pem;

    use super::*;
    use crate::pki::Credentials;
    use crate::pki::certificate::{ETCD_CLIENT, Pair, Stale, verify};
    use crate::pki::identity::Identity;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-03-01 12:00 UTC);

    /// A request for more rights than an administrator gets, and its key.
    fn greedy() -> (AdministratorRequest, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.subject_alt_names = vec![rcgen::SanType::DnsName(ETCD_CLIENT.try_into().unwrap())];
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let request = params.serialize_request(&key).unwrap().pem().unwrap();
        (request.parse().unwrap(), key)
    }

    fn with(request: &AdministratorRequest) -> (crate::Config, tempfile::TempDir) {
        let scratch = tempfile::tempdir().unwrap();
        let mut config = crate::config::example_in(scratch.path());
        config.settings.administrators = vec![request.clone()];
        (config, scratch)
    }

    /// With the requested group, the certificate's rights could not be withdrawn. With the requested DNS name, etcd
    /// would accept it.
    #[test]
    fn a_request_for_masters_gets_the_group_of_administrators() {
        let (request, key) = greedy();
        let (config, _scratch) = with(&request);
        let public = Credentials::ensure(&config, NOW).unwrap().public();
        let [administrator] = &*public.administrators else { panic!("{public:?}") };
        assert_eq!((&*administrator.name, &administrator.user), ("alice", &request.user()));

        let (_, pem) = parse_x509_pem(administrator.certificate.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        assert_eq!(certificate.subject().to_string(), format!("O=granary:administrators, CN={}", request.user()));
        assert_eq!(certificate.public_key().raw, key.subject_public_key_info());
        assert!(!certificate.is_ca());
        assert!(certificate.subject_alternative_name().unwrap().is_none());
        let usage = certificate.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && !usage.key_cert_sign());
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth && !usage.any);

        let wanted = Wanted {
            name: "administrator",
            common_name: request.user(),
            organization: Some("granary:administrators"),
            purpose: Purpose::Client,
            signer: Signer::Cluster,
        };
        let pair = Pair { certificate: administrator.certificate.clone(), key: key.serialize_pem() };
        assert_eq!(verify(&public.ca, &wanted, &pair), Ok(administrator.validity));
        assert_eq!(fs::read_to_string(config.paths.pki.join("ca.crt")).unwrap(), public.ca);
    }

    #[test]
    fn a_certificate_is_renewed_at_each_start_and_before_its_end() {
        let (request, _) = greedy();
        let (config, _scratch) = with(&request);
        let credentials = Credentials::ensure(&config, NOW).unwrap();
        let certificate = || credentials.public().administrators[0].certificate.clone();
        let first = certificate();
        credentials.renew(NOW + Duration::days(334)).unwrap();
        assert_eq!(certificate(), first);
        credentials.renew(NOW + Duration::days(336)).unwrap();
        let second = certificate();
        let third = Credentials::ensure(&config, NOW).unwrap().public().administrators[0].certificate.clone();
        let serial = |text: &str| {
            let (_, pem) = parse_x509_pem(text.as_bytes()).unwrap();
            pem.parse_x509().unwrap().serial.clone()
        };
        assert_ne!(serial(&first), serial(&second));
        assert!(third != second, "a start signs another one");
    }

    #[test]
    fn a_control_plane_without_requests_publishes_only_its_ca() {
        let (config, _scratch) = with(&greedy().0);
        let config = crate::Config { settings: cluster::ProgramSettings::default(), ..config };
        let public = Credentials::ensure(&config, NOW).unwrap().public();
        assert!(public.administrators.is_empty() && !public.ca.is_empty());
    }

    /// A worker's configuration has no requests. With requests, a worker still has no key to sign certificates.
    #[test]
    fn a_worker_does_not_sign() {
        let (config, _scratch) = with(&greedy().0);
        let ca = Ca::make(NOW).unwrap().1.certificate;
        let credentials = Credentials::joining(&config, "192.0.2.1:6443", &ca).unwrap();
        credentials.renew(NOW).unwrap();
        assert_eq!(credentials.public(), PublicCertificates::default());
    }

    /// An administrator's certificate does not pass as that of one of the node's identities.
    #[test]
    fn a_certificate_of_an_administrator_is_of_no_identity() {
        let (request, key) = greedy();
        let (config, _scratch) = with(&request);
        let public = Credentials::ensure(&config, NOW).unwrap().public();
        let pair = Pair { certificate: public.administrators[0].certificate.clone(), key: key.serialize_pem() };
        for identity in Identity::ALL {
            let verified = verify(&public.ca, &identity.wanted("granary"), &pair);
            assert_eq!(verified, Err(Stale::OtherSubject), "{identity:?}");
        }
    }
}
