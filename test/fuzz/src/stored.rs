//! The node's files on its data disk: volume records and the counter of project IDs, on a damaged or foreign disk.

use fsquota::{Counter, ProjectId};
use volume::{Record, State};

/// A record must be parsed again from its own text, and must reserve at least its size or be thin. A counter must be
/// parsed only from its own text.
pub fn check(input: &[u8]) {
    for state in [State::Staged, State::Announced] {
        let Ok(record) = Record::parse(input, state) else { continue };
        let again = Record::parse(&record.to_bytes().expect("a parsed record can be written"), record.state);
        assert_eq!(again.expect("what was written here"), record);
        assert!(record.reserved() >= record.size || record.mode.is_thin(), "{record:?}");
    }
    match Counter::parse(input, ProjectId::FIRST) {
        Some(counter) if !input.is_empty() => assert_eq!(counter.text(), input),
        Some(counter) => assert_eq!(Counter::parse(&counter.text(), ProjectId::FIRST), Some(counter)),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_what_their_names_say() {
        for (name, seed) in crate::seeds("stored") {
            check(&seed);
            let is_record = Record::parse(&seed, State::Announced).is_ok();
            let is_counter = Counter::parse(&seed, ProjectId::FIRST).is_some();
            match name.as_str() {
                "block" | "filesystem" => assert!(is_record, "{name}"),
                "version-1" => assert!(!is_record, "{name}"),
                "counter" => assert!(is_counter, "{name}"),
                _ => {} // The fuzzer has found this seed.
            }
        }
    }
}
