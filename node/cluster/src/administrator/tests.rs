use proptest::prelude::*;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use super::*;

// Requests of openssl(1) with the subject CN=alice, each of a new key.

/// `openssl req -new -key KEY -subj /CN=alice`, as the documentation says.
const P256: &str = include_str!("p256.csr");
const P384: &str = include_str!("p384.csr");
const ED25519: &str = include_str!("ed25519.csr");
const RSA_2048: &str = include_str!("rsa-2048.csr");
const P521: &str = include_str!("p521.csr");
const RSA_1024: &str = include_str!("rsa-1024.csr");

/// Request with the key of [`P256`]. The subject has O=system:masters, and the extensions request a CA certificate for
/// servers and clients, with etcd's name for clients.
const GREEDY: &str = include_str!("greedy.csr");

fn parse(text: &str) -> Result<AdministratorRequest, AdministratorError> {
    text.parse()
}

fn request(names: &[(DnType, &str)]) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for (kind, name) in names {
        params.distinguished_name.push(kind.clone(), *name);
    }
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

fn named(name: &str) -> String {
    request(&[(DnType::CommonName, name)])
}

#[test]
fn a_request_is_reduced_to_its_name_and_key() {
    // The digest as `openssl req -noout -pubkey | openssl pkey -pubin -outform DER | sha256sum` prints it.
    let plain = parse(P256).unwrap();
    assert_eq!((plain.name(), &*plain.user()), ("alice", "granary:administrator:alice:f6b180db3ea8cbdc"));
    assert_eq!(parse(GREEDY).unwrap(), plain, "other parts of the request are ignored");
    for (text, digest) in [(P384, "26c80df60262760a"), (ED25519, "13aacbd52c52cf95"), (RSA_2048, "b0d8077f6451277e")] {
        assert_eq!(parse(text).unwrap().user(), format!("granary:administrator:alice:{digest}"));
    }
}

/// The certificate of a replaced key must not keep the rights of the name.
#[test]
fn another_key_is_another_user() {
    let [one, other] = [P256, P384].map(|text| parse(text).unwrap());
    assert_eq!(one.name(), other.name());
    assert_ne!(one.user(), other.user());
}

#[test]
fn weak_and_unknown_keys_are_rejected() {
    for text in [P521, RSA_1024] {
        assert_eq!(parse(text), Err(AdministratorError::Key), "{text}");
    }
}

#[test]
fn only_one_request_and_nothing_else_is_accepted() {
    let certificate = P256.replace("CERTIFICATE REQUEST", "CERTIFICATE");
    let key = KeyPair::generate().unwrap().serialize_pem();
    for (text, error) in [
        ("", AdministratorError::Pem),
        ("alice.csr", AdministratorError::Pem),
        (&*certificate, AdministratorError::Pem),
        (&*format!("{P256}{P384}"), AdministratorError::Pem),
        (&*key, AdministratorError::PrivateKey),
        (&*format!("{P256}{key}"), AdministratorError::PrivateKey),
        ("-----BEGIN CERTIFICATE REQUEST-----\nAQID\n-----END CERTIFICATE REQUEST-----\n", AdministratorError::Damaged),
    ] {
        assert_eq!(parse(text), Err(error), "{text}");
    }
    let old = P256.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST");
    assert_eq!(parse(&old), parse(P256), "the name in older programs");
    let with_text = format!("Certificate Request:\n    Data:\n{P256}");
    assert_eq!(parse(&with_text), parse(P256), "openssl req -text");
}

#[test]
fn the_name_is_one_label() {
    for name in ["alice", "a", "ops-1", &*"a".repeat(63)] {
        assert_eq!(parse(&named(name)).unwrap().name(), name);
    }
    for name in [
        "",
        "Alice",
        "alice smith",
        "alice@example.org",
        "../ca",
        "-a",
        "system:admin",
        "system:node:granary",
        "granary:admin",
        &*"a".repeat(64),
    ] {
        assert_eq!(parse(&named(name)), Err(AdministratorError::Name), "{name:?}");
    }
    assert_eq!(parse(&request(&[(DnType::OrganizationName, "alice")])), Err(AdministratorError::Name));
}

/// A certificate for the key of another person would give that person the rights of the administrator.
#[test]
fn a_request_that_its_key_did_not_sign_is_rejected() {
    let mut block = pem::parse(P256).unwrap().into_contents();
    let name = block.windows(5).position(|window| window == b"alice").unwrap();
    block[name..name + 5].copy_from_slice(b"mallo");
    let changed = pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", block));
    assert_eq!(parse(&changed), Err(AdministratorError::Signature));
}

proptest! {
    #[test]
    fn a_damaged_request_is_rejected_or_the_same(index in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut block = pem::parse(ED25519).unwrap().into_contents();
        *index.get_mut(&mut block) ^= 1 << bit;
        let found = parse(&pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", block)));
        prop_assert!(found.is_err() || found == parse(ED25519));
    }

    #[test]
    fn any_bytes_are_accepted_or_rejected(bytes: Vec<u8>) {
        let _ = parse(&pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", bytes)));
    }
}
