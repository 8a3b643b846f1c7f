//! Kinds of requests, which differ in the duration of their responses.

use http::{Method, Request, Uri, header};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    List,
    /// A response without an end: a watch, a followed log, or an upgraded connection.
    Stream,
}

impl Kind {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let uri = request.uri();
        let streams = |parameter: &str| matches!(parameter, "watch=true" | "watch=1" | "follow=true" | "follow=1");
        if uri.query().is_some_and(|query| query.split('&').any(streams))
            || request.headers().contains_key(header::UPGRADE)
        {
            Self::Stream
        } else if matches!(*request.method(), Method::GET | Method::DELETE) && is_collection(uri) {
            Self::List
        } else {
            Self::Object
        }
    }
}

/// Whether the path is that of a collection: `/api/v1/RESOURCE` or `/apis/GROUP/VERSION/RESOURCE`, where
/// `namespaces/NAME/` may precede the resource.
fn is_collection(uri: &Uri) -> bool {
    let path: Vec<_> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let resource = match path.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => return false,
    };
    matches!(resource, [_] | ["namespaces", _, _])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_method_and_the_uri_decide_on_the_kind() {
        for (method, uri, kind) in [
            ("GET", "/api/v1/persistentvolumes/pvc-1", Kind::Object),
            ("GET", "/api/v1/persistentvolumes?limit=500", Kind::List),
            ("GET", "/api/v1/namespaces/default/persistentvolumeclaims", Kind::List),
            ("GET", "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities?", Kind::List),
            ("DELETE", "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities", Kind::List),
            ("GET", "/apis/storage.k8s.io/v1/storageclasses/local", Kind::Object),
            ("POST", "/api/v1/persistentvolumes?", Kind::Object),
            ("PATCH", "/api/v1/persistentvolumes/pvc-1?fieldManager=granary", Kind::Object),
            ("GET", "/api/v1/namespaces/default", Kind::Object),
            ("GET", "/api/v1/namespaces", Kind::List),
            ("GET", "/version", Kind::Object),
            ("GET", "/api/v1/persistentvolumes?&watch=true&allowWatchBookmarks=true", Kind::Stream),
            ("GET", "/api/v1/namespaces/default/pods/one/log?follow=true", Kind::Stream),
            ("GET", "/api/v1/persistentvolumes/watch", Kind::Object),
        ] {
            let request = Request::builder().method(method).uri(uri).body(()).unwrap();
            assert_eq!(Kind::of(&request), kind, "{method} {uri}");
        }
        let upgraded =
            Request::builder().uri("/api/v1/namespaces/default/pods/one/exec").header("upgrade", "websocket");
        assert_eq!(Kind::of(&upgraded.body(()).unwrap()), Kind::Stream);
    }
}
