//! Compares the `modalias` of a device with the patterns of modules, to find its drivers.

use crate::modules::catalog::ModuleName;

/// Name of the file with the devices of modules. Each line is one of depmod(8)'s `modules.alias` without the first
/// word: a pattern and the module's name.
pub const ALIASES: &str = "aliases";

/// A pattern of `modules.alias`, such as `pci:v00008086d000010D3sv*sd*bc*sc*i*`. The rules are those of fnmatch(3)
/// without flags, except that `\` escapes nothing: the kernel's tools write none. As for modprobe(8), `-` and `_` are
/// the same outside of brackets. The case of letters counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(Box<str>);

/// One element of a pattern other than `*`.
enum Element<'pattern> {
    /// `?`
    Any,
    Byte(u8),
    /// `[…]` or `[!…]`: the bytes and ranges between the brackets.
    Set {
        negated: bool,
        body: &'pattern [u8],
    },
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Whether the pattern matches the whole text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut at, mut read) = (0, 0);
        // Positions after the last `*`, and of the first byte that this `*` does not cover.
        let mut star = None;
        loop {
            if pattern.get(at) == Some(&b'*') {
                at += 1;
                star = Some((at, read));
                continue;
            }
            match (element(&pattern[at..]), text.get(read)) {
                (None, None) => return true,
                (Some((element, length)), Some(byte)) if element.matches(*byte) => {
                    at += length;
                    read += 1;
                }
                // Only the last `*` needs to cover more, because the part before it has matched.
                _ => match star {
                    Some((behind, covered)) if covered < text.len() => {
                        star = Some((behind, covered + 1));
                        (at, read) = (behind, covered + 1);
                    }
                    _ => return false,
                },
            }
        }
    }
}

/// The first element and its length; `None` at the end.
fn element(pattern: &[u8]) -> Option<(Element<'_>, usize)> {
    Some(match pattern {
        [] => return None,
        [b'?', ..] => (Element::Any, 1),
        [b'[', rest @ ..] => {
            let negated = matches!(rest, [b'!' | b'^', ..]);
            let from = usize::from(negated);
            // A `]` at the beginning is a byte of the set.
            match rest.iter().skip(from + 1).position(|byte| *byte == b']') {
                Some(length) => {
                    let end = from + 1 + length;
                    (Element::Set { negated, body: &rest[from..end] }, end + 2)
                }
                // The bracket is not closed.
                None => (Element::Byte(b'['), 1),
            }
        }
        [byte, ..] => (Element::Byte(*byte), 1),
    })
}

impl Element<'_> {
    fn matches(&self, byte: u8) -> bool {
        match *self {
            Self::Any => true,
            Self::Byte(wanted) => same(wanted) == same(byte),
            Self::Set { negated, mut body } => {
                let mut has = false;
                loop {
                    (has, body) = match body {
                        [] => return has != negated,
                        [first, b'-', last, rest @ ..] => (has || (*first..=*last).contains(&byte), rest),
                        [one, rest @ ..] => (has || *one == byte, rest),
                    };
                }
            }
        }
    }
}

const fn same(byte: u8) -> u8 {
    if byte == b'-' { b'_' } else { byte }
}

/// Parses a line of [`ALIASES`]. `None` for a line without a pattern or with an invalid name.
pub(crate) fn parse_line(line: &str) -> Option<(Pattern, ModuleName)> {
    let (pattern, name) = line.rsplit_once(' ')?;
    let name = name.parse().ok()?;
    (!pattern.is_empty()).then(|| (Pattern::new(pattern), name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Pattern::new(pattern).matches(text)
    }

    #[test]
    fn a_device_of_the_bus_matches_its_driver_only() {
        let card = "pci:v00008086d000010D3sv00001AF4sd00001100bc02sc00i00";
        assert!(matches("pci:v00008086d000010D3sv*sd*bc*sc*i*", card));
        assert!(matches("pci:v*d*sv*sd*bc02sc00i*", card));
        assert!(!matches("pci:v00008086d000010D4sv*sd*bc*sc*i*", card));
        assert!(!matches("pci:v00008086d000010d3sv*sd*bc*sc*i*", card), "the case counts");
        assert!(!matches("pci:v*d*sv*sd*bc01sc08i02*", card));
        assert!(matches(
            "usb:v0BDAp*d0[0-9]*dc*dsc*dp*ic08isc06ip50in*",
            "usb:v0BDAp0103d0123dc00dsc00dp00ic08isc06ip50in00"
        ));
        assert!(matches("acpi*:QEMU0002:*", "acpi:QEMU0002:"));
        assert!(matches("virtio:d00000001v*", "virtio:d00000001v00001AF4"));
    }

    #[test]
    fn corner_cases_of_patterns() {
        for (pattern, text, wanted) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("**", "ab", true),
            ("?", "", false),
            ("?", "a", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-c-", false),
            ("*ab", "aab", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("snd-*", "snd_hda", true),
            ("snd_hda", "snd-hda", true),
            ("[a-c]x", "bx", true),
            ("[a-c]x", "dx", false),
            ("[!a-c]x", "dx", true),
            ("[^a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[!]]", "]", false),
            ("[-a]", "-", true),
            ("[-a]", "_", false),
            ("[a-]", "-", true),
            ("[0-9A-F]", "C", true),
            ("[0-9A-F]", "c", false),
            ("[c-a]", "b", false),
            ("[ab", "[ab", true),
            ("[", "[", true),
            ("a]", "a]", true),
            ("[?]", "a", false),
            ("[*]", "*", true),
        ] {
            assert_eq!(matches(pattern, text), wanted, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn a_line_ends_with_the_name() {
        let (pattern, name) = parse_line("of:N*T*Ca b* sata-mv").unwrap();
        assert_eq!((&*pattern.0, name.as_str()), ("of:N*T*Ca b*", "sata_mv"));
        for wrong in ["", "pci:*", " nvme", "pci:* a/b", "pci:* "] {
            assert!(parse_line(wrong).is_none(), "{wrong:?}");
        }
    }

    /// Tries all ways to divide the text.
    fn model(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|from| model(rest, &text[from..])),
            ([b'?', rest @ ..], [_, text @ ..]) => model(rest, text),
            ([b'[', first, b'-', last, b']', rest @ ..], [byte, text @ ..]) => {
                (first..=last).contains(&byte) && model(rest, text)
            }
            ([b'-' | b'_', rest @ ..], [b'-' | b'_', text @ ..]) => model(rest, text),
            ([one, rest @ ..], [byte, text @ ..]) => one == byte && model(rest, text),
            (_, []) => false,
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_as_its_model(pattern in r"([ab_*?-]|\[a-[a-c]\]){0,8}", text in "[abc_-]{0,10}") {
            prop_assert_eq!(matches(&pattern, &text), model(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn any_text_matches_itself_with_a_star(text in r"[^*?\[]{0,20}") {
            prop_assert!(matches(&text, &text));
            let longer = format!("{text}*");
            prop_assert!(matches(&longer, &text));
        }

        #[test]
        fn any_pattern_is_read(pattern: String, text: String) {
            let _ = matches(&pattern, &text);
        }
    }
}
