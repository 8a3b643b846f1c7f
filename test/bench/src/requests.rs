//! Requests to the API server, by verb and resource.

use std::collections::BTreeMap;

use crate::table::number;

/// Name of a request as in a role: `create persistentvolumes`. `target` is the path with its query.
pub fn request_name(method: &str, target: &str) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let below = match segments.as_slice() {
        ["api", _, "namespaces", _, rest @ ..] | ["apis", _, _, "namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        other => other,
    };
    let (resource, named) = match below {
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, sub, ..] => (format!("{resource}/{sub}"), true),
        [] => (path.to_owned(), false),
    };
    let watches = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"));
    let verb = match method {
        "GET" if watches => "watch",
        "GET" if named => "get",
        "GET" => "list",
        "POST" => "create",
        "PATCH" => "patch",
        "PUT" => "update",
        "DELETE" => "delete",
        _ => "other",
    };
    format!("{verb} {resource}")
}

/// Number of requests for single claims and volumes. The count leaves out watches, objects about the node as a whole,
/// and the search for the CRDs of snapshots, which this API server lacks.
pub(crate) fn counted(requests: &BTreeMap<String, u64>) -> u64 {
    let counts = |name: &str| {
        let (verb, resource) = name.split_once(' ').unwrap_or((name, ""));
        let is_search = matches!(name, "list volumesnapshotcontents" | "list volumegroupsnapshotcontents");
        verb != "watch" && !is_search && !matches!(resource, "csistoragecapacities" | "leases")
    };
    requests.iter().filter(|(name, _)| counts(name)).map(|(_, count)| count).sum()
}

/// Formats counts: `1 create persistentvolumes, 2 create events`.
pub(crate) fn list(each: &BTreeMap<String, f64>) -> String {
    each.iter().map(|(name, each)| format!("{} {name}", number(*each))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_names_of_roles() {
        for (method, target, name) in [
            ("POST", "/api/v1/persistentvolumes", "create persistentvolumes"),
            ("GET", "/api/v1/namespaces/a/persistentvolumeclaims/b", "get persistentvolumeclaims"),
            ("PATCH", "/api/v1/namespaces/a/persistentvolumeclaims/b/status", "patch persistentvolumeclaims/status"),
            ("POST", "/apis/events.k8s.io/v1/namespaces/a/events", "create events"),
            ("GET", "/api/v1/namespaces?watch=false", "list namespaces"),
            ("GET", "/api/v1/persistentvolumes?timeoutSeconds=9&watch=true", "watch persistentvolumes"),
            ("GET", "/api/v1/persistentvolumes?watch=1", "watch persistentvolumes"),
        ] {
            assert_eq!(request_name(method, target), name);
        }
    }

    #[test]
    fn watches_and_capacities_are_not_of_a_claim() {
        let requests = [
            ("create events", 3),
            ("list persistentvolumes", 1),
            ("watch persistentvolumes", 5),
            ("patch csistoragecapacities", 7),
            ("list volumesnapshotcontents", 9),
        ];
        assert_eq!(counted(&requests.map(|(name, count)| (name.to_owned(), count)).into()), 4);
    }
}
