//! Reduces watched objects before they are kept.

use std::collections::BTreeMap;
use std::hash::Hash;

use futures::{Stream, TryStreamExt as _, stream};
use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};

/// Maximum length of the names in annotations: of nodes, snapshots and classes, and of IDs. The API server rejects
/// objects with longer names.
pub const VALUE_LEN: usize = 253;

/// Drops an object that is not to be kept. If it was kept before, it is deleted from the copies.
pub fn only<K>(event: Event<K>, keep: impl Fn(&K) -> bool) -> Option<Event<K>> {
    match event {
        Event::Apply(object) if !keep(&object) => Some(Event::Delete(object)),
        Event::InitApply(object) if !keep(&object) => None,
        event => Some(event),
    }
}

/// The objects that need a pass after `events`, which have updated `objects`. A later list has to be complete first: until
/// then, `objects` has the copies of before, and a pass would not find a new object or would read an old one.
pub fn changed<K>(
    objects: Store<K>,
    events: impl Stream<Item = watcher::Result<Event<K>>>,
) -> impl Stream<Item = watcher::Result<ObjectRef<K>>>
where
    K: Resource<DynamicType: Default + Eq + Hash + Clone> + Clone + 'static,
{
    events
        .map_ok(move |event| {
            let changed = match event {
                Event::Init | Event::InitApply(_) | Event::Delete(_) => Vec::new(),
                Event::InitDone => objects.state().iter().map(|object| ObjectRef::from_obj(&**object)).collect(),
                Event::Apply(object) => vec![ObjectRef::from_obj(&object)],
            };
            stream::iter(changed.into_iter().map(Ok))
        })
        .try_flatten()
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
    use futures::{FutureExt as _, StreamExt as _};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::{WatchStreamExt as _, reflector};

    use super::*;

    /// Regression: an object of an early page of a later list had its pass before the end of the list. The pass did not
    /// find the object, and none followed.
    #[test]
    fn objects_of_a_list_have_changed_when_it_is_complete() {
        let map = |name: &str| {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            ConfigMap { metadata, ..ConfigMap::default() }
        };
        let events = [
            Event::Init,
            Event::InitApply(map("a")),
            Event::InitDone,
            Event::Apply(map("b")),
            Event::Delete(map("b")),
            Event::Init,
            Event::InitApply(map("c")),
            Event::InitDone,
        ];
        for (count, expected) in [(2, ""), (3, "a"), (5, "ab"), (7, "ab"), (8, "abc")] {
            let (objects, writer) = reflector::store();
            let events = stream::iter(events.clone().into_iter().take(count).map(Ok)).reflect(writer);
            let changed = changed(objects, events).map(|object| object.expect("no error").name).collect::<String>();
            assert_eq!(changed.now_or_never().as_deref(), Some(expected), "{count} events");
        }
    }

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
