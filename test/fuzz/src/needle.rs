//! A parser with a bug that only a guided fuzzer finds, as the test of the rule itself.

/// Requires two words. Random inputs contain them once in 2^64 inputs; a fuzzer finds them soon, because it observes
/// the failing comparisons.
pub fn check(input: &[u8]) {
    let Some((first, rest)) = input.split_first_chunk() else { return };
    if u32::from_le_bytes(*first) != 0x6b63_7968 {
        return;
    }
    let Some((second, _)) = rest.split_first_chunk() else { return };
    assert!(u32::from_le_bytes(*second) != 0x6465_656e, "found the needle");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "found the needle")]
    fn it_has_its_bug() {
        check(b"hyckneed");
    }

    #[test]
    fn nothing_else_is_a_bug() {
        for input in [&b""[..], b"hyck", b"hycknee", b"hycknerd", b"hackneed", b"needhyck"] {
            check(input);
        }
    }
}
