//! Redaction of secrets in program output.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex, RegexBuilder};

pub const REDACTED: &str = "REDACTED";

/// Maximum number of lines that are redacted after the beginning of a private key: an RSA key with 16384 bits has 200.
/// A line that only looks like the beginning of a key suppresses no more than that.
const LONGEST_KEY: usize = 256;

/// Alternatives of `(before, secret)`; the first match is used. The secret is replaced, the text before it is kept.
///
/// - Private keys (PEM), on a line of their own or with `\n` inside.
/// - The same keys in base64, as in a kubeconfig. [`replacement`] keeps certificates, which have the same prefix.
/// - JSON web tokens, such as those of service accounts.
/// - Headers: `Authorization: Bearer …`, `"Authorization":["Basic …"]`; and bearer tokens anywhere.
/// - Values after `password=`, `token=`, `"client_secret":"…"` and so on.
/// - Bootstrap tokens: `abcdef.0123456789abcdef`.
const SECRETS: &str = r#"(?x)
    (?P<pem> -----BEGIN\ [A-Z0-9\ ]*PRIVATE\ KEY-----
             (?s: .*? ) (?: -----END\ [A-Z0-9\ ]*PRIVATE\ KEY----- | \z ) )
  | (?P<base64> LS0tLS1CRUdJTi [A-Za-z0-9+/=_-]* )
  | (?P<jwt> eyJ [A-Za-z0-9_-]{6,} \. [A-Za-z0-9_-]{6,} (?: \. [A-Za-z0-9_-]* )? )
  | (?P<before_header> (?i: authorization ) ["']? \s* [:=] [\s"'\[{\\]*
             (?i: (?: basic | bearer | digest | negotiate | token ) \s+ )? ) [^\s"'\]}\\,;]+
  | (?P<before_bearer> (?i: bearer ) \s+ ) [A-Za-z0-9._~+/=-]{16,}
  | (?P<before_value>
        (?i: password | passwd | passphrase | client[_-]secret | private[_-]key | key-data | token )
        (?: \\?["'] \s* [:=] \s* \\?["'] | =\\?["']? ) ) [^\s"'\\,;&}\]]+
  | (?P<before_bootstrap> ^ | [^a-z0-9] ) [a-z0-9]{6} \. [a-z0-9]{16} (?P<after_bootstrap> [^a-z0-9] | $ )
"#;

/// Maximum size of the regex cache per thread, in bytes.
const CACHE: usize = 256 << 10;

static PATTERN: LazyLock<Regex> =
    LazyLock::new(|| RegexBuilder::new(SECRETS).dfa_size_limit(CACHE).build().expect("the pattern of secrets"));

/// Base64 of `-----BEGIN CERTIFICATE`, which is not secret.
const CERTIFICATE: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS";

/// Replaces all text that looks like a secret. False positives are accepted. A second redaction changes nothing.
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    // Adjacent tokens may share a delimiter, so that the first search does not match the second token.
    loop {
        match PATTERN.replace_all(&text, replacement) {
            Cow::Owned(changed) if changed != *text => text = Cow::Owned(changed),
            _ => return text,
        }
    }
}

fn replacement(found: &Captures<'_>) -> String {
    let group = |name| found.name(name).map_or("", |found| found.as_str());
    if let Some(encoded) = found.name("base64")
        && encoded.as_str().starts_with(CERTIFICATE)
    {
        return encoded.as_str().to_owned();
    }
    let before = ["before_header", "before_bearer", "before_value", "before_bootstrap"].map(group).concat();
    format!("{before}{REDACTED}{}", group("after_bootstrap"))
}

pub(crate) fn is_secret(name: &str) -> bool {
    ["authorization", "password", "passphrase", "secret", "token"].contains(&name)
}

/// Redacts consecutive lines of one program, because a private key has several lines.
#[derive(Debug, Default)]
pub struct Redactor {
    /// Number of lines since the beginning of a key without an end.
    key: Option<usize>,
}

impl Redactor {
    pub fn line<'a>(&mut self, line: &'a str) -> Cow<'a, str> {
        let rest = match self.key {
            None => line,
            Some(lines) => match end_of_key(line) {
                Some(after) => &line[after..],
                None => {
                    self.key = (lines < LONGEST_KEY).then_some(lines + 1);
                    return Cow::Borrowed(REDACTED);
                }
            },
        };
        let was_inside = self.key.take().is_some();
        if begins_key(rest) {
            self.key = Some(0);
        }
        match redact(rest) {
            text if was_inside => Cow::Owned(format!("{REDACTED}{text}")),
            text => text,
        }
    }
}

/// Whether a private key begins in the line and does not end in it.
fn begins_key(line: &str) -> bool {
    line.rmatch_indices("-----BEGIN ").any(|(at, _)| {
        let rest = &line[at..];
        rest["-----BEGIN ".len()..].split_once("-----").is_some_and(|(kind, _)| kind.ends_with("PRIVATE KEY"))
            && end_of_key(rest).is_none()
    })
}

fn end_of_key(line: &str) -> Option<usize> {
    let at = line.find("-----END ")? + "-----END ".len();
    let (kind, _) = line[at..].split_once("-----")?;
    kind.ends_with("PRIVATE KEY").then_some(at + kind.len() + "-----".len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_output_is_kept() {
        for text in [
            "\"Started kubelet\" node=\"granary\"",
            "resource=validatingadmissionpolicybindings.admissionregistration.k8s.io",
            "volume=pvc-fe4591b7-3ec7-470e-9cf6-02a824ec73ba limit=64 MiB",
            "err=\"[invalid bearer token, token lookup failed]\"",
            "Bearer authentication is on, authorization-mode=Node,RBAC",
            "x509: basic constraints of \"ca\" are not valid",
            "secret=\"kube-system/bootstrap\" token expired",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "-----BEGIN CERTIFICATE-----",
            "certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUI=",
        ] {
            assert!(matches!(redact(text), Cow::Borrowed(same) if same == text), "{text} became {}", redact(text));
        }
    }

    #[test]
    fn only_the_secret_is_replaced() {
        for (text, redacted) in [
            ("token abcdef.0123456789abcdef is used", "token REDACTED is used"),
            ("abcdef.0123456789abcdef,ghijkl.0123456789abcdef", "REDACTED,REDACTED"),
            ("-H 'Authorization: Bearer abc' -v", "-H 'Authorization: Bearer REDACTED' -v"),
            (r#"{"Authorization":["Basic dXNlcjpwYXNz"]}"#, r#"{"Authorization":["Basic REDACTED"]}"#),
            ("got Bearer abcdefghijklmnop!", "got Bearer REDACTED!"),
            ("--password=hunter2 --user=me", "--password=REDACTED --user=me"),
            (r#"{"access_token": "x1", "n": 1}"#, r#"{"access_token": "REDACTED", "n": 1}"#),
            ("key: LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCk0=\n", "key: REDACTED\n"),
            ("a -----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY----- b", "a REDACTED b"),
            ("a -----BEGIN PRIVATE KEY-----\\nMHc and no end", "a REDACTED"),
            ("x eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln y", "x REDACTED y"),
        ] {
            assert_eq!(redact(text), redacted);
        }
    }

    #[test]
    fn a_key_of_several_lines_is_redacted() {
        let mut redactor = Redactor::default();
        let said = ["a", "b -----BEGIN RSA PRIVATE KEY-----", "MHc", "x=", "-----END RSA PRIVATE KEY----- c", "d"];
        let found: Vec<_> = said.iter().map(|line| redactor.line(line).into_owned()).collect();
        assert_eq!(found, ["a", "b REDACTED", "REDACTED", "REDACTED", "REDACTED c", "d"]);
    }

    #[test]
    fn an_incomplete_key_suppresses_a_limited_number_of_lines() {
        let mut redactor = Redactor::default();
        redactor.line("-----BEGIN PRIVATE KEY-----");
        let shown = (0..1000).find(|_| redactor.line("still here") == "still here");
        assert!(shown.is_some_and(|lines| lines >= 200), "{shown:?}");
    }

    /// A text with a secret, and the part that must be redacted.
    fn secrets() -> impl Strategy<Value = (String, String)> {
        let bare = prop_oneof![
            "[a-z0-9]{6}\\.[a-z0-9]{16}",
            "eyJ[A-Za-z0-9_-]{8,40}\\.[A-Za-z0-9_-]{8,80}\\.[A-Za-z0-9_-]{8,40}",
            "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t[A-Za-z0-9+/]{20,80}={0,2}",
        ]
        .prop_map(|secret| (secret.clone(), secret));
        let named = (
            prop_oneof![
                Just("Authorization: Bearer "),
                Just("authorization=Basic "),
                Just("\"Authorization\":[\"Bearer "),
                Just("Authorization: "),
                Just("bearer "),
                Just("password="),
                Just("\"token\": \""),
                Just("client_secret='"),
            ],
            "[A-Za-z0-9._~+/-]{20,60}",
        )
            .prop_map(|(name, secret)| (format!("{name}{secret}"), secret));
        let pem = ("(EC |RSA |ENCRYPTED |)", "[A-Za-z0-9+/]{24,64}", "(\n|\\\\n)").prop_map(|(kind, body, end)| {
            let text = format!("-----BEGIN {kind}PRIVATE KEY-----{end}{body}{end}-----END {kind}PRIVATE KEY-----");
            (text, body)
        });
        prop_oneof![bare, named, pem]
    }

    proptest! {
        #[test]
        fn a_secret_in_any_text_is_redacted(
            before in "(.{0,60}[^a-z0-9])?", (text, secret) in secrets(), after in "([^a-z0-9](?s:.{0,60}))?",
        ) {
            let redacted = redact(&format!("{before}{text}{after}")).into_owned();
            prop_assert!(!redacted.contains(&secret), "{redacted}");
            prop_assert!(redacted.contains(REDACTED));
        }

        #[test]
        fn a_key_across_lines_is_redacted(
            kind in "(EC |RSA |)", body in prop::collection::vec("[A-Za-z0-9+/]{32,64}", 1..60), before in ".{0,20}",
        ) {
            let mut redactor = Redactor::default();
            let begin = format!("{before}-----BEGIN {kind}PRIVATE KEY-----");
            let end = format!("-----END {kind}PRIVATE KEY-----");
            let lines = [&begin].into_iter().chain(&body).chain([&end]);
            let said: String = lines.map(|line| redactor.line(line).into_owned()).collect();
            for line in &body {
                prop_assert!(!said.contains(line));
            }
            prop_assert_eq!(redactor.line("afterwards"), "afterwards");
        }

        #[test]
        fn redaction_is_idempotent(
            text in prop::collection::vec(prop_oneof![
                secrets().prop_map(|(text, _)| text), "[a-z0-9 .:=\"'-]{0,20}", ".{0,10}",
            ], 0..5),
        ) {
            let once = redact(&text.concat()).into_owned();
            prop_assert_eq!(redact(&once), once.as_str());
        }
    }
}
