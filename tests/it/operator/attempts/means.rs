//! What whoever tries has: the rights, the addresses and the filters.

use super::USER;
use crate::operator::cluster::Cluster;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use kube::api::{Api, PostParams};
use serde_json::json;

/// Endpoints that nobody may name.
pub(super) const ADDRESSES: &[&str] = &[
    "http://127.0.0.1:8080/metrics",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://0.0.0.0/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://localhost/",
    "http://x.localhost./",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fe80::1]/",
    "http://[fd00:ec2::254]/",
    "http://metadata.google.internal/",
    "http://100.100.100.200/",
    "https://10.96.0.1/api/v1/secrets",
    "https://kubernetes.default.svc/api",
    "https://kubernetes.default.svc.cluster.local./api",
    "http://10.96.0.10:53/",
    "http://10.244.0.7:8080/status",
    "http://192.168.0.1/",
    "http://224.0.0.1/",
];

/// Filters that would cost more than a worker has.
pub(super) const FILTERS: &[&str] = &[
    "[event.id].map(a, a + a).map(b, b + b).map(c, c + c).size() > 0",
    "event.data.all(a, event.data.all(b, event.data.all(c, true)))",
    "event.id.matches('((a{1,100}){1,100}){1,100}')",
    "event.id.matches(event.data)",
    "secrets.all(s, true)",
];

/// The chart's rules for who may edit, for Subscriptions alone.
pub(super) async fn grant(cluster: &Cluster, namespace: &str) {
    let charts: Api<ClusterRole> = Api::all(cluster.client.clone());
    let mut rules = Vec::new();
    for name in ["fanout-operator-view", "fanout-operator-edit"] {
        for mut rule in charts.get(name).await.unwrap().rules.unwrap_or_default() {
            rule.resources = Some(vec!["subscriptions".to_owned()]);
            rules.push(rule);
        }
    }
    let role: Role =
        serde_json::from_value(json!({"metadata": {"name": USER}, "rules": rules})).unwrap();
    let bound: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }))
    .unwrap();
    let parameters = PostParams::default();
    let client = cluster.client.clone();
    let api: Api<Role> = Api::namespaced(client.clone(), namespace);
    api.create(&parameters, &role).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(client, namespace);
    bindings.create(&parameters, &bound).await.unwrap();
}
