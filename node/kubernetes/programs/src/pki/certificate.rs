//! Creates and verifies certificates. No files, no clock.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use sha2::{Digest as _, Sha256};
use time::{Duration, OffsetDateTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::{Pem, parse_x509_pem};

const CA_NAME: &str = "granary";
const CA_LIFE: Duration = Duration::days(10 * 365);
const LEAF_LIFE: Duration = Duration::days(365);
const RENEWAL: Duration = Duration::days(30);
/// New certificates are valid from a day ago, because the clocks of machines differ at their first boot.
const SKEW: Duration = Duration::days(1);

/// DNS name that etcd requires in client certificates. Other certificates of the CA must not give access to etcd.
pub(crate) const ETCD_CLIENT: &str = "etcd-client.granary.invalid";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: &'static str,
    pub(crate) common_name: String,
    pub(crate) organization: Option<&'static str>,
    pub(crate) purpose: Purpose,
    pub(crate) signer: Signer,
}

/// CA of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signer {
    Cluster,
    /// A CA of the certificate alone, see [`front_proxy`](crate::pki::front_proxy).
    FrontProxy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Client,
    EtcdClient,
    Server(BTreeSet<ServerName>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerName {
    Dns(String),
    Ip(IpAddr),
}

/// A certificate and its private key, both PEM. Without `Clone` and `Debug`.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    #[error("the certificate was missing")]
    Absent,
    #[error("the certificate was unreadable")]
    Unreadable,
    #[error("the certificate did not match its private key")]
    OtherKey,
    #[error("another CA had signed the certificate")]
    OtherCa,
    #[error("the certificate had another subject or purpose")]
    OtherSubject,
    #[error("the certificate was about to expire")]
    Expiring,
    #[error("the certificate had expired")]
    Expired,
    #[error("the CA's certificate was missing from the chain")]
    Alone,
    #[error("the certificate was not valid yet")]
    NotYet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    from: OffsetDateTime,
    to: OffsetDateTime,
}

impl Validity {
    fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self { from: validity.not_before.to_datetime(), to: validity.not_after.to_datetime() }
    }

    #[cfg(test)]
    pub(crate) fn new(from: OffsetDateTime, to: OffsetDateTime) -> Self {
        Self { from, to }
    }

    /// Validity of a certificate from [`Ca::issue`].
    pub(crate) fn of_new_leaf(now: OffsetDateTime) -> Self {
        Self { from: now - SKEW, to: now + LEAF_LIFE }
    }

    pub(crate) fn from(self) -> OffsetDateTime {
        self.from
    }

    pub(crate) fn to(self) -> OffsetDateTime {
        self.to
    }

    /// Renewal time of a certificate that this node signs. Signing takes no time.
    pub(crate) fn shortly_before_its_end(self) -> OffsetDateTime {
        self.to - RENEWAL
    }

    /// Time to request a new certificate from the control plane, which may be unreachable for long.
    pub(crate) fn after_two_thirds(self) -> OffsetDateTime {
        self.from + (self.to - self.from) * 2 / 3
    }

    pub(crate) fn check(self, now: OffsetDateTime, renewal: OffsetDateTime) -> Result<(), Stale> {
        if now < self.from {
            Err(Stale::NotYet)
        } else if now > self.to {
            Err(Stale::Expired)
        } else if now > renewal {
            Err(Stale::Expiring)
        } else {
            Ok(())
        }
    }
}

pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Ca {
    pub(crate) fn make(now: OffsetDateTime) -> Result<(Self, Pair), rcgen::Error> {
        Self::named(CA_NAME, now)
    }

    pub(crate) fn named(name: &str, now: OffsetDateTime) -> Result<(Self, Pair), rcgen::Error> {
        let key = KeyPair::generate()?;
        let params = params_of_ca(name, Validity { from: now - SKEW, to: now + CA_LIFE });
        let certificate = params.self_signed(&key)?.pem();
        let pair = Pair { certificate: certificate.clone(), key: key.serialize_pem() };
        Ok((Self { issuer: Issuer::new(params, key), certificate }, pair))
    }

    /// Another certificate for the same key, PEM. It starts at the former certificate's start, so that a clock that was
    /// ahead for a while does no harm.
    pub(crate) fn renew(&self, before: Validity, now: OffsetDateTime) -> Result<String, rcgen::Error> {
        let mut params = params_of_ca(CA_NAME, Validity { from: before.from, to: now + CA_LIFE });
        // rcgen derives the serial number from the key, but two certificates of one CA need different numbers: RFC
        // 5280, 4.1.2.2.
        params.serial_number = Some(now.unix_timestamp().unsigned_abs().into());
        Ok(params.self_signed(self.issuer.key())?.pem())
    }

    /// The CA in `pair`, if it is valid and not due for renewal.
    #[cfg(test)]
    pub(crate) fn load(pair: &Pair, now: OffsetDateTime) -> Result<Self, Stale> {
        let (ca, validity) = Self::open(pair)?;
        validity.check(now, validity.shortly_before_its_end())?;
        Ok(ca)
    }

    /// The CA in `pair` and its validity, without a check of the time.
    pub(crate) fn open(pair: &Pair) -> Result<(Self, Validity), Stale> {
        let pem = pem_of(&pair.certificate)?;
        let certificate = pem.parse_x509().map_err(|_| Stale::Unreadable)?;
        let key = key_of(pair, &certificate)?;
        if !certificate.is_ca() {
            return Err(Stale::OtherSubject);
        }
        certificate.verify_signature(None).map_err(|_| Stale::OtherCa)?;
        let validity = Validity::of(&certificate);
        let issuer = Issuer::from_ca_cert_pem(&pair.certificate, key).map_err(|_| Stale::Unreadable)?;
        Ok((Self { issuer, certificate: pair.certificate.clone() }, validity))
    }

    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    pub(crate) fn issue(&self, wanted: &Wanted, now: OffsetDateTime) -> Result<Pair, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut certificate = params_of_leaf(wanted, now)?.signed_by(&key, &self.issuer)?.pem();
        if let Purpose::Server(_) = wanted.purpose {
            // A joining node has only the CA's digest, and receives the CA's certificate from the server: RFC 8446,
            // 4.4.2.
            certificate.push_str(&self.certificate);
        }
        Ok(Pair { certificate, key: key.serialize_pem() })
    }

    /// A certificate (PEM) for another holder's public key (SubjectPublicKeyInfo, DER). Its lifetime is that of
    /// [`Ca::issue`].
    pub(crate) fn certify(
        &self,
        wanted: &Wanted,
        public_key: &[u8],
        now: OffsetDateTime,
    ) -> Result<String, rcgen::Error> {
        let mut params = params_of_leaf(wanted, now)?;
        // rcgen derives the serial number from the key, which gets more than one certificate: RFC 5280, 4.1.2.2.
        let time = now.unix_timestamp_nanos().to_be_bytes();
        let number = Sha256::new().chain_update(public_key).chain_update(time).finalize();
        params.serial_number = Some(SerialNumber::from_slice(&number[..16]));
        Ok(params.signed_by(&SubjectPublicKeyInfo::from_der(public_key)?, &self.issuer)?.pem())
    }

    /// Checks that `pair` is a certificate as [`Ca::issue`] would create it. Does not check the time.
    pub(crate) fn verify(&self, wanted: &Wanted, pair: &Pair) -> Result<Validity, Stale> {
        let validity = verify(&self.certificate, wanted, pair)?;
        match wanted.purpose {
            Purpose::Server(_) if !pair.certificate.ends_with(&self.certificate) => Err(Stale::Alone),
            _ => Ok(validity),
        }
    }

    #[cfg(test)]
    pub(crate) fn check(&self, wanted: &Wanted, pair: &Pair, now: OffsetDateTime) -> Result<(), Stale> {
        let validity = self.verify(wanted, pair)?;
        validity.check(now, validity.shortly_before_its_end())
    }
}

fn params_of_leaf(wanted: &Wanted, now: OffsetDateTime) -> Result<CertificateParams, rcgen::Error> {
    let validity = Validity::of_new_leaf(now);
    let mut params = CertificateParams::default();
    params.distinguished_name = subject_of(wanted);
    params.not_before = validity.from;
    params.not_after = validity.to;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params.subject_alt_names = names_of(wanted)?;
    params.extended_key_usages = match &wanted.purpose {
        Purpose::Client | Purpose::EtcdClient => vec![ExtendedKeyUsagePurpose::ClientAuth],
        Purpose::Server(_) => vec![ExtendedKeyUsagePurpose::ServerAuth],
    };
    Ok(params)
}

fn params_of_ca(name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = validity.from;
    params.not_after = validity.to;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

pub(crate) fn request(wanted: &Wanted) -> Result<(String, KeyPair), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = subject_of(wanted);
    params.subject_alt_names = names_of(wanted)?;
    let request = params.serialize_request(&key)?.pem()?;
    Ok((request, key))
}

fn names_of(wanted: &Wanted) -> Result<Vec<SanType>, rcgen::Error> {
    let dns = |name: &str| Ok(SanType::DnsName(name.try_into()?));
    let name = |name: &ServerName| match name {
        ServerName::Dns(name) => dns(name),
        ServerName::Ip(address) => Ok(SanType::IpAddress(*address)),
    };
    match &wanted.purpose {
        Purpose::Client => Ok(Vec::new()),
        Purpose::EtcdClient => Ok(vec![dns(ETCD_CLIENT)?]),
        Purpose::Server(names) => names.iter().map(name).collect(),
    }
}

fn subject_of(wanted: &Wanted) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if let Some(organization) = wanted.organization {
        subject.push(DnType::OrganizationName, organization);
    }
    subject.push(DnType::CommonName, wanted.common_name.as_str());
    subject
}

/// The first of several certificates.
pub(crate) fn first(certificates: &str) -> Result<String, Stale> {
    let end = "-----END CERTIFICATE-----\n";
    pem_of(certificates)?;
    certificates.find(end).map(|at| certificates[..at + end.len()].to_owned()).ok_or(Stale::Unreadable)
}

/// Validity of a certificate (PEM). Does not check its signature.
pub(crate) fn validity(certificate: &str) -> Result<Validity, Stale> {
    Ok(Validity::of(&pem_of(certificate)?.parse_x509().map_err(|_| Stale::Unreadable)?))
}

/// Checks that the CA with the certificate `ca` signed `pair` for `wanted`. Does not check the time.
pub(crate) fn verify(ca: &str, wanted: &Wanted, pair: &Pair) -> Result<Validity, Stale> {
    let pem = pem_of(&pair.certificate)?;
    let certificate = pem.parse_x509().map_err(|_| Stale::Unreadable)?;
    key_of(pair, &certificate)?;

    let own = pem_of(ca)?;
    let own = own.parse_x509().map_err(|_| Stale::Unreadable)?;
    certificate.verify_signature(Some(own.public_key())).map_err(|_| Stale::OtherCa)?;

    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().map(str::to_owned).ok();
    let common_names: Vec<_> = certificate.subject().iter_common_name().map(text).collect();
    let organizations: Vec<_> = certificate.subject().iter_organization().map(text).collect();
    let wanted_organizations: Vec<_> = wanted.organization.iter().map(|name| Some((*name).to_owned())).collect();
    if common_names != [Some(wanted.common_name.clone())]
        || organizations != wanted_organizations
        || purpose_of(&certificate)? != wanted.purpose
    {
        return Err(Stale::OtherSubject);
    }
    Ok(Validity::of(&certificate))
}

fn pem_of(text: &str) -> Result<Pem, Stale> {
    parse_x509_pem(text.as_bytes()).map(|(_, pem)| pem).map_err(|_| Stale::Unreadable)
}

fn key_of(pair: &Pair, certificate: &X509Certificate<'_>) -> Result<KeyPair, Stale> {
    let key = KeyPair::from_pem(&pair.key).map_err(|_| Stale::Unreadable)?;
    if key.subject_public_key_info() == certificate.public_key().raw { Ok(key) } else { Err(Stale::OtherKey) }
}

fn purpose_of(certificate: &X509Certificate<'_>) -> Result<Purpose, Stale> {
    let usage = certificate.extended_key_usage().map_err(|_| Stale::Unreadable)?.ok_or(Stale::OtherSubject)?;
    let mut names = BTreeSet::new();
    if let Some(found) = certificate.subject_alternative_name().map_err(|_| Stale::Unreadable)? {
        for name in &found.value.general_names {
            names.insert(server_name(name).ok_or(Stale::OtherSubject)?);
        }
    }
    match (usage.value.client_auth, usage.value.server_auth) {
        (true, false) if names.is_empty() => Ok(Purpose::Client),
        (true, false) if names == [ServerName::Dns(ETCD_CLIENT.to_owned())].into() => Ok(Purpose::EtcdClient),
        (false, true) => Ok(Purpose::Server(names)),
        _ => Err(Stale::OtherSubject),
    }
}

fn server_name(name: &GeneralName<'_>) -> Option<ServerName> {
    match name {
        GeneralName::DNSName(name) => Some(ServerName::Dns((*name).to_owned())),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(ServerName::Ip)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::discovery::ca_digest;
    use crate::pki::identity::Identity;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-03-01 12:00 UTC);

    fn client() -> Wanted {
        Identity::Kubelet.wanted("granary")
    }

    fn etcd_client() -> Wanted {
        Wanted { purpose: Purpose::EtcdClient, ..client() }
    }

    fn server(address: [u8; 4]) -> Wanted {
        let names = [ServerName::Dns("kubernetes.default.svc".into()), ServerName::Ip(Ipv4Addr::from(address).into())];
        Wanted {
            name: "apiserver",
            common_name: "kube-apiserver".into(),
            organization: None,
            purpose: Purpose::Server(names.into()),
            signer: Signer::Cluster,
        }
    }

    #[test]
    fn what_is_issued_is_what_was_wanted() {
        let (ca, _) = Ca::make(NOW).unwrap();
        for wanted in [client(), etcd_client(), server([10, 0, 2, 15])] {
            let pair = ca.issue(&wanted, NOW).unwrap();
            assert_eq!(ca.check(&wanted, &pair, NOW), Ok(()));
        }
    }

    #[test]
    fn a_certificate_for_another_address_or_group_is_stale() {
        let (ca, _) = Ca::make(NOW).unwrap();
        let pair = ca.issue(&server([10, 0, 2, 15]), NOW).unwrap();
        assert_eq!(ca.check(&server([10, 0, 2, 16]), &pair, NOW), Err(Stale::OtherSubject));
        let pair = ca.issue(&client(), NOW).unwrap();
        let admin = Wanted { organization: Some("system:masters"), ..client() };
        assert_eq!(ca.check(&admin, &pair, NOW), Err(Stale::OtherSubject));
        let other = Wanted { organization: None, ..client() };
        assert_eq!(ca.check(&other, &pair, NOW), Err(Stale::OtherSubject));
        assert_eq!(ca.check(&etcd_client(), &pair, NOW), Err(Stale::OtherSubject));
        let pair = ca.issue(&etcd_client(), NOW).unwrap();
        assert_eq!(ca.check(&client(), &pair, NOW), Err(Stale::OtherSubject));
    }

    #[test]
    fn a_server_shows_its_ca() {
        let (ca, _) = Ca::make(NOW).unwrap();
        let wanted = server([10, 0, 2, 15]);
        let mut pair = ca.issue(&wanted, NOW).unwrap();
        pair.certificate.truncate(pair.certificate.len() - ca.certificate().len());
        assert_eq!(ca.check(&wanted, &pair, NOW), Err(Stale::Alone));
    }

    #[test]
    fn a_leaf_is_renewed_thirty_days_before_its_end() {
        let (ca, _) = Ca::make(NOW).unwrap();
        let pair = ca.issue(&client(), NOW).unwrap();
        let at = |days| ca.check(&client(), &pair, NOW + Duration::days(days));
        assert_eq!(at(334), Ok(()));
        assert_eq!(at(336), Err(Stale::Expiring));
        assert_eq!(at(364), Err(Stale::Expiring));
        assert_eq!(at(366), Err(Stale::Expired));
        assert_eq!(at(5000), Err(Stale::Expired));
        assert_eq!(at(0), Ok(()));
        assert_eq!(at(-2), Err(Stale::NotYet));
    }

    #[test]
    fn a_clock_that_is_a_few_hours_behind_still_accepts() {
        let (ca, pair) = Ca::make(NOW).unwrap();
        let leaf = ca.issue(&client(), NOW).unwrap();
        assert_eq!(ca.check(&client(), &leaf, NOW - Duration::hours(20)), Ok(()));
        assert!(Ca::load(&pair, NOW - Duration::hours(20)).is_ok());
        assert_eq!(Ca::load(&pair, NOW - Duration::days(3)).err(), Some(Stale::NotYet));
    }

    #[test]
    fn another_ca_of_the_same_name_is_found_out() {
        let (ca, _) = Ca::make(NOW).unwrap();
        let (other, _) = Ca::make(NOW).unwrap();
        let pair = other.issue(&client(), NOW).unwrap();
        assert_eq!(ca.check(&client(), &pair, NOW), Err(Stale::OtherCa));
    }

    #[test]
    fn a_key_that_is_not_the_certificates_is_found_out() {
        let (ca, pair) = Ca::make(NOW).unwrap();
        let (one, two) = (ca.issue(&client(), NOW).unwrap(), ca.issue(&client(), NOW).unwrap());
        let mixed = Pair { certificate: one.certificate, key: two.key };
        assert_eq!(ca.check(&client(), &mixed, NOW), Err(Stale::OtherKey));
        let mixed = Pair { certificate: pair.certificate, key: mixed.key };
        assert_eq!(Ca::load(&mixed, NOW).err(), Some(Stale::OtherKey));
    }

    #[test]
    fn a_loaded_ca_signs_what_the_made_one_accepts() {
        let (made, pair) = Ca::make(NOW).unwrap();
        let loaded = Ca::load(&pair, NOW).unwrap();
        let leaf = loaded.issue(&client(), NOW).unwrap();
        assert_eq!(made.check(&client(), &leaf, NOW), Ok(()));
        assert_eq!(loaded.certificate(), made.certificate());
    }

    #[test]
    fn a_renewed_ca_is_the_same_for_all_who_know_it() {
        let (ca, pair) = Ca::make(NOW).unwrap();
        let late = NOW + Duration::days(3640);
        let [leaf, shown] = [client(), server([10, 0, 2, 15])].map(|wanted| ca.issue(&wanted, late).unwrap());
        let (_, before) = Ca::open(&pair).unwrap();
        let renewed = Pair { certificate: ca.renew(before, late).unwrap(), ..pair };
        let (renewed, validity) = Ca::open(&renewed).unwrap();
        assert_eq!(validity, Validity::new(before.from(), late + CA_LIFE));
        assert_eq!(renewed.check(&client(), &leaf, late), Ok(()));
        assert_eq!(renewed.check(&server([10, 0, 2, 15]), &shown, late), Err(Stale::Alone), "it shows the old one");
        let leaf = renewed.issue(&client(), late).unwrap();
        assert_eq!(ca.check(&client(), &leaf, late), Ok(()), "the old certificate verifies what the new one signs");
        let [old, new] = [&ca, &renewed].map(|ca| ca_digest(ca.certificate()));
        assert!(old.is_some() && old == new);
        let serial = |ca: &Ca| pem_of(ca.certificate()).unwrap().parse_x509().unwrap().serial.clone();
        assert_ne!(serial(&ca), serial(&renewed));
    }

    #[test]
    fn rubbish_is_unreadable_and_a_leaf_is_not_a_ca() {
        let (ca, pair) = Ca::make(NOW).unwrap();
        let rubbish = Pair { certificate: "-----BEGIN".into(), key: pair.key };
        assert_eq!(Ca::load(&rubbish, NOW).err(), Some(Stale::Unreadable));
        let leaf = ca.issue(&client(), NOW).unwrap();
        assert_eq!(Ca::load(&leaf, NOW).err(), Some(Stale::OtherSubject));
    }
}
