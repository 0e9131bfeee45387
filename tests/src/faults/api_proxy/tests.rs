//! What a request is called, and what is narrowed.

use super::*;

#[test]
fn a_write_has_a_name() {
    let label = |method: Method, uri: &str, body: &str| {
        let body = Bytes::copy_from_slice(body.as_bytes());
        write(&method, &uri.parse().unwrap(), &body).map(|write| write.label())
    };
    let status = "/apis/fanout.dev/v1alpha1/namespaces/a/subscriptions/plain/status?force=true";
    assert_eq!(
        label(Method::PATCH, status, "{}").as_deref(),
        Some("patch subscriptions/status.fanout.dev plain")
    );
    let lease = "/apis/coordination.k8s.io/v1/namespaces/a/leases";
    assert_eq!(
        label(Method::POST, lease, r#"{"metadata": {"name": "it"}}"#).as_deref(),
        Some("create leases.coordination.k8s.io it")
    );
    assert_eq!(
        label(
            Method::DELETE,
            "/api/v1/namespaces/a/configmaps/posts-relay",
            ""
        )
        .as_deref(),
        Some("delete configmaps posts-relay")
    );
    assert_eq!(label(Method::GET, status, ""), None);
}

#[test]
fn only_what_is_of_all_namespaces_is_narrowed() {
    let narrowed = |uri: &str| scoped(&uri.parse().unwrap(), "a").map(|uri| uri.to_string());
    assert_eq!(
        narrowed("/apis/fanout.dev/v1alpha1/fanouttopics?watch=true").as_deref(),
        Some("/apis/fanout.dev/v1alpha1/namespaces/a/fanouttopics?watch=true")
    );
    assert_eq!(
        narrowed("/api/v1/pods").as_deref(),
        Some("/api/v1/namespaces/a/pods")
    );
    assert_eq!(narrowed("/api/v1/namespaces/b/pods"), None);
    assert_eq!(narrowed("/api/v1/namespaces/b"), None);
    assert_eq!(
        narrowed("/apis/coordination.k8s.io/v1/namespaces/b/leases/it"),
        None
    );
}
