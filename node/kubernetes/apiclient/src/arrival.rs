//! Reduces watched objects before they are kept.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;

/// Maximum length of the names in annotations: of nodes, snapshots and classes, and of IDs. The API server rejects
/// objects with longer names.
const VALUE_LEN: usize = 253;

/// Drops an object that is not to be kept. If it was kept before, it is deleted from the copies.
pub fn only<K>(event: Event<K>, keep: impl Fn(&K) -> bool) -> Option<Event<K>> {
    match event {
        Event::Apply(object) if !keep(&object) => Some(Event::Delete(object)),
        Event::InitApply(object) if !keep(&object) => None,
        event => Some(event),
    }
}

/// Removes unused metadata. Keeps the annotations that `keep` accepts, with values that are cut: users may write up to
/// 256 KiB into the annotations of an object.
pub fn trim_metadata(metadata: &mut ObjectMeta, keep: impl Fn(&str) -> bool) {
    metadata.managed_fields = None;
    metadata.labels = None;
    metadata.owner_references = None;
    let kept = metadata.annotations.take().map(|mut all| {
        all.retain(|key, _| keep(key));
        all.values_mut().filter(|value| value.len() > VALUE_LEN).for_each(cut);
        all
    });
    metadata.annotations = kept.filter(|kept: &BTreeMap<_, _>| !kept.is_empty());
}

/// Cuts a value to one byte more than the longest name: a valid name could be that of another object.
fn cut(value: &mut String) {
    value.truncate(value.ceil_char_boundary(VALUE_LEN + 1));
    value.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_not_kept_is_deleted_or_dropped() {
        let kept = |event: Event<u8>| only(event, |object| *object == 1).map(|event| format!("{event:?}"));
        assert_eq!(kept(Event::Apply(1)).as_deref(), Some("Apply(1)"));
        assert_eq!(kept(Event::Apply(2)).as_deref(), Some("Delete(2)"));
        assert_eq!(kept(Event::InitApply(1)).as_deref(), Some("InitApply(1)"));
        assert_eq!(kept(Event::InitApply(2)), None);
        assert_eq!(kept(Event::InitDone).as_deref(), Some("InitDone"));
        assert_eq!(kept(Event::Delete(2)).as_deref(), Some("Delete(2)"));
    }

    #[test]
    fn the_longest_name_is_not_cut() {
        for (length, kept) in [(VALUE_LEN, VALUE_LEN), (VALUE_LEN + 1, VALUE_LEN + 1), (64 << 10, VALUE_LEN + 1)] {
            let annotations = [("a", length), ("b", 1)].map(|(key, length)| (key.to_owned(), "a".repeat(length)));
            let mut metadata = ObjectMeta { annotations: Some(annotations.into()), ..ObjectMeta::default() };
            trim_metadata(&mut metadata, |key| key == "a");
            let annotations = metadata.annotations.expect("an annotation");
            assert_eq!(annotations.into_values().map(|value| value.len()).collect::<Vec<_>>(), [kept]);
        }
    }
}
