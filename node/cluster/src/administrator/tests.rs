use proptest::prelude::*;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use super::*;

// Requests of openssl(1) with the subject CN=alice, each of a new key.

/// `openssl req -new -key KEY -subj /CN=alice`, as the documentation says.
const P256: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIHKMHICAQAwEDEOMAwGA1UEAwwFYWxpY2UwWTATBgcqhkjOPQIBBggqhkjOPQMB\n\
BwNCAATdlg5zcjhgOuPQEkowD2fZTRWKzC1hHJmOcfUKxzWqEmVbz7ofd3rX4tJV\n\
IpbSXz9HQNLCJU3gSK+3G0MFb5JFoAAwCgYIKoZIzj0EAwIDSAAwRQIgXbNnCvTg\n\
lcaND1bh3DIiNtjtwLTO/vzUqqlN+AZdjdoCIQCCuz7wKZ9L8jyxOAa4/zvQnBDV\n\
NRD3fDZCoECvrJn/ow==\n\
-----END CERTIFICATE REQUEST-----\n";

const P384: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIIBBzCBjwIBADAQMQ4wDAYDVQQDDAVhbGljZTB2MBAGByqGSM49AgEGBSuBBAAi\n\
A2IABAJOidp8zy7aZORyIcwqILfkqDUhaV7EUatGUSYFOWhD3zm6e6LVvF7COF81\n\
C0wgKQxwcXSBMyrOQyl2Ops0qYUH9CyUoLQoYbClkYApn152PSF6c8rxB0W/MjLI\n\
Z+XqoKAAMAoGCCqGSM49BAMCA2cAMGQCMAVCEZHYYKpxBfFIiU0LOxTs59GgK3H/\n\
etI9J1SqhPWIwYfG8eIVJWK1E6v4MEui8QIwB96C/nc1H4TcPcnRfezl7SmBY+vD\n\
knqpnufxgm0/MdK2DY2PvlG0iQclMEgYqr//\n\
-----END CERTIFICATE REQUEST-----\n";

const ED25519: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIGPMEMCAQAwEDEOMAwGA1UEAwwFYWxpY2UwKjAFBgMrZXADIQAiOugrXb5ChI8M\n\
iZK4qdqs6TNJNxEt0DoG/qMmwohwSaAAMAUGAytlcANBAGeDP2PjuvfvTMQtJ9k9\n\
RsP5klzSBZGFXY3wRrTX3xhUFg5D0ixK+etzWM+1oRlX3qkiM2g/Vy1rNfLmM1fB\n\
Qg0=\n\
-----END CERTIFICATE REQUEST-----\n";

const RSA_2048: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIICVTCCAT0CAQAwEDEOMAwGA1UEAwwFYWxpY2UwggEiMA0GCSqGSIb3DQEBAQUA\n\
A4IBDwAwggEKAoIBAQCegkU66tdZjrh9S0N8+Ca+MkpPwE8gE0x24Ed9+wkfzmo2\n\
+nCBaZShDHR0M21+lDKVYTsAADQCEg4V1ONTPeSFHFrQxlDtQvNCu0VMhXWcxPOr\n\
jJ9GSBkFK+fFgmzJBSYFGw+dDmkJHSG10V/K0Od858BoXkzQn1b4G10xzYwjbviU\n\
g6RpHqEFlkMxeSUoysNI/zvkXn3t1uHvQgIkzHjPs5Gqc/Lb9iDPJPrDlSPTrrLD\n\
KUGO2SP5vbUXjIYd8ARVVEtwkhJWLibmg/uglNVpG3E/keWJLz/wyxwl2L+Ahkme\n\
q980U5upDpKlPbBsBUvDj2vh/57WN9XEVSzfVDXdAgMBAAGgADANBgkqhkiG9w0B\n\
AQsFAAOCAQEAAMLjz55MgYUEo32N5MVG0kP5QNYQlCkJuqo6JGfZOnS0IMSF9R69\n\
qgYbFdOWMrnUNi0ygEiAjqBh5l3A0lRipY8uMVu8Iee+mlywkSdzHwgtdOVQ/SLT\n\
5+BjeICqBa0MyZJVGBp7CZZeDcxhvYK6wfrqMxxEwWPlJtsJS+XXHsJYQYu2b3ma\n\
h9iBz5Mk0hVjElcNBCksgy+uCQHHQmkCI23C2ofzzY4G26vXxTMFXWeuGo5FQlRQ\n\
qmGwGsbQ0CCOHn1uq3MFFFsbjPHVeCfIbCOnjgOQFIVNcMVSXml3gwxOe+iml77k\n\
/UCF6y6n2A+qOYymLia0G4MFESeF/TLLgg==\n\
-----END CERTIFICATE REQUEST-----\n";

const P521: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIIBUjCBtQIBADAQMQ4wDAYDVQQDDAVhbGljZTCBmzAQBgcqhkjOPQIBBgUrgQQA\n\
IwOBhgAEAOoNoSgjQNBNaXmIPnU7I6IEyS22ztlQdQHo/8FmsB6r60IjBS1tKXuu\n\
7gQk9dKDSl01/8onOv9PZHiCKWvG1fzOAY2FMMf3O8hMljTzI8bsLNkQQK6IO8I+\n\
Aw8+yOW7erCeKOw9uQPKH2ggLo7896G5UaF3uWiLfZV95rqPtxIfY+ypoAAwCgYI\n\
KoZIzj0EAwIDgYsAMIGHAkEGJrtFr7WeQgsdP0ZI/O2HYIasZp1FIL7F0IlUF995\n\
Dydigga3RKfS6y5kTzabaVZ6w/PPoY0RST2rJCIh0nTwigJCAOJR0MOOq9vRFjPO\n\
qG1UiZFHEB5mUROa/+NR2648yee0kYQ3ax0XMI3XrSNrHjzF1Hr1LTmtIxV7tm2C\n\
tom3Kdcw\n\
-----END CERTIFICATE REQUEST-----\n";

const RSA_1024: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIIBTzCBuQIBADAQMQ4wDAYDVQQDDAVhbGljZTCBnzANBgkqhkiG9w0BAQEFAAOB\n\
jQAwgYkCgYEA6YJCMKJkw7YHP4camn5/TpkPcTTMDmV/Hl74XARyMPVRoMai83Cu\n\
85gUdl13FwU71uH/yhn1Xxcqz8oPM7tl/Bw9+E9nfx3Kwt0jp/KZZRLia0OrUrk6\n\
rkqrXVKiiy1iexQlMP6rWAKXNs6QA6IKrHrGDaIhu8vj8wBPbo+M500CAwEAAaAA\n\
MA0GCSqGSIb3DQEBCwUAA4GBAEkr8O49FjSlLFSF7kLGibRcRJIwpEOk4njbcg/1\n\
bjzKHXPXIrBY5Ic0hAtqvOP6Ro2RnfLzUBVehw/G5jCllg27dp4XYn9koFntNcHv\n\
OarwHWBfb8hjuN1xEedL+RrgyImbd3O7nTf9drsj1C9Bk97XtcnNtYi/W4agUrnI\n\
vFyY\n\
-----END CERTIFICATE REQUEST-----\n";

/// The key of [`P256`]. The subject has O=system:masters, and the extensions ask for a CA that may serve, with etcd's name for clients.
const GREEDY: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIIBWjCCAQECAQAwKTEXMBUGA1UECgwOc3lzdGVtOm1hc3RlcnMxDjAMBgNVBAMM\n\
BWFsaWNlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE3ZYOc3I4YDrj0BJKMA9n\n\
2U0ViswtYRyZjnH1Csc1qhJlW8+6H3d61+LSVSKW0l8/R0DSwiVN4EivtxtDBW+S\n\
RaB2MHQGCSqGSIb3DQEJDjFnMGUwJgYDVR0RBB8wHYIbZXRjZC1jbGllbnQuZ3Jh\n\
bmFyeS5pbnZhbGlkMA8GA1UdEwEB/wQFMAMBAf8wCwYDVR0PBAQDAgIEMB0GA1Ud\n\
JQQWMBQGCCsGAQUFBwMBBggrBgEFBQcDAjAKBggqhkjOPQQDAgNHADBEAh8YN89Z\n\
cdRMRP70u00sVTqDhTbzHBWWTo8XSUhYMozxAiEAh3EgaSbjZGAz4HtSQjWU7y3i\n\
Gnjkx4YpR43+msLqfog=\n\
-----END CERTIFICATE REQUEST-----\n";

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

/// Otherwise the certificate of a key that was replaced would keep the rights of the name.
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

/// A request of another key would give its owner, who is not the administrator, a certificate.
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
