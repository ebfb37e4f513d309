//! What a request to the API server is about, in Kubernetes' own words.
//!
//! Pure. Follows `RequestInfoFactory` of k8s.io/apiserver: the verb comes from the method, from whether
//! the path names an object, and from `watch`; a subresource belongs to the resource
//! (`services/status`), as in RBAC.

use http::Method;

/// Verb, resource and object of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiRequest {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the method in
    /// lower case outside of resources.
    pub verb: String,
    /// `services`, `services/status`; the path outside of resources (`/readyz`).
    pub resource: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub path: String,
}

impl ApiRequest {
    /// Reads a request line.
    pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Self {
        let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let inside: &[&str] = match segments.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => &[],
        };
        // A namespace by itself is the resource; only what follows it lies within it.
        let (namespace, inside) = match inside {
            ["namespaces", namespace, subresource]
                if matches!(*subresource, "status" | "finalize") =>
            {
                (None, &["namespaces", namespace, subresource][..])
            }
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            other => (None, other),
        };
        let Some((&resource, rest)) = inside.split_first() else {
            return Self {
                verb: method.as_str().to_ascii_lowercase(),
                resource: path.to_owned(),
                namespace: None,
                name: None,
                path: path.to_owned(),
            };
        };
        let name = rest.first().map(|&name| name.to_owned());
        let resource = rest.get(1).map_or_else(
            || resource.to_owned(),
            |subresource| format!("{resource}/{subresource}"),
        );
        Self {
            verb: verb(method, name.is_some(), is_watch(query)).to_owned(),
            resource,
            namespace: namespace.map(str::to_owned),
            name,
            path: path.to_owned(),
        }
    }

    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }
}

fn verb(method: &Method, named: bool, watch: bool) -> &'static str {
    match (method.as_str(), named) {
        ("GET" | "HEAD", false) if watch => "watch",
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => "other",
    }
}

fn is_watch(query: Option<&str>) -> bool {
    query.is_some_and(|query| {
        query
            .split('&')
            .any(|it| matches!(it, "watch=true" | "watch=1"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method and target; verb, resource, namespace, name (`-` for none).
    const TABLE: &str = "
        GET    /api/v1/services?limit=500                      list   services - -
        GET    /api/v1/services?watch=true&x=y                 watch  services - -
        GET    /api/v1/namespaces/a/services/b                 get    services a b
        PATCH  /api/v1/namespaces/a/services/b/status          patch  services/status a b
        POST   /api/v1/namespaces/a/events                     create events a -
        GET    /api/v1/namespaces/a                            get    namespaces - a
        PUT    /api/v1/namespaces/a/finalize                   update namespaces/finalize - a
        POST   /api/v1/namespaces                              create namespaces - -
        PUT    /apis/coordination.k8s.io/v1/namespaces/a/leases/b  update leases a b
        DELETE /apis/coordination.k8s.io/v1/namespaces/a/leases/b  delete leases a b
        DELETE /api/v1/namespaces/a/pods                       deletecollection pods a -
        GET    /apis/discovery.k8s.io/v1/endpointslices?watch=1    watch endpointslices - -
        POST   /apis/authentication.k8s.io/v1/tokenreviews     create tokenreviews - -
        GET    /readyz                                         get    /readyz - -
        GET    /apis                                           get    /apis - -
        GET    /                                               get    / - -";

    #[test]
    fn requests_are_named_as_kubernetes_names_them() {
        for row in TABLE.lines().skip(1) {
            let words: Vec<&str> = row.split_whitespace().collect();
            let [method, target, verb, resource, namespace, name] = words[..] else {
                panic!("{row}");
            };
            let (path, query) = target
                .split_once('?')
                .map_or((target, None), |(path, query)| (path, Some(query)));
            let some = |word: &str| (word != "-").then(|| word.to_owned());
            let expected = ApiRequest {
                verb: verb.to_owned(),
                resource: resource.to_owned(),
                namespace: some(namespace),
                name: some(name),
                path: path.to_owned(),
            };
            assert_eq!(
                ApiRequest::parse(&method.parse().unwrap(), path, query),
                expected,
                "{row}"
            );
        }
    }
}
