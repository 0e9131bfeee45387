//! The chart on a real API server: pod security, rights, install and uninstall.

use super::{Helm, chart, documents, helm, of_kind, read, repository, template};
use fanout_tests::services::{api_server, dirs, run};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Everything the operator may do: namespace (`*` for the whole cluster), group (`-` for the core one), resource, verbs.
const GRANTED: &str = "\
    * fanout.dev fanouttopics get list watch patch
    * fanout.dev subscriptions get list watch patch
    * fanout.dev fanouttopics/status patch
    * fanout.dev subscriptions/status patch
    * apps deployments get list watch create patch delete
    * - secrets get list watch create patch delete
    * - configmaps get list watch create patch delete
    * - serviceaccounts get list watch create patch delete
    * - pods list watch patch
    * - namespaces get
    * events.k8s.io events create patch
    fanout-system coordination.k8s.io leases get create update
    default - services list watch
    default discovery.k8s.io endpointslices list watch";

/// Samples of what it may not do.
const REFUSED: &str = "\
    any fanout.dev fanouttopics create update delete
    any fanout.dev subscriptions create update delete
    any - pods get create delete
    any - pods/exec create
    any - serviceaccounts/token create
    any - secrets update deletecollection
    any - services list
    any discovery.k8s.io endpointslices list
    any coordination.k8s.io leases get create update
    any rbac.authorization.k8s.io roles get list create
    * rbac.authorization.k8s.io clusterroles get list create
    * - namespaces list create delete
    * apiextensions.k8s.io customresourcedefinitions list create patch";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    namespace: String,
    group: String,
    resource: String,
    verb: String,
}

#[test]
fn the_rendered_rights_are_those_listed_here() {
    let objects = documents(&template(&[]).unwrap());
    let mut rendered = BTreeSet::new();
    for role in of_kind::<ClusterRole>(&objects, "ClusterRole") {
        if role.name_any() == "fanout-operator" {
            rendered.extend(rights("*", role.rules.unwrap_or_default()));
        }
    }
    for role in of_kind::<Role>(&objects, "Role") {
        let namespace = role.namespace().expect("a namespace");
        rendered.extend(rights(&namespace, role.rules.unwrap_or_default()));
    }
    assert_eq!(rendered, listed(GRANTED).into_iter().collect());
}

#[test]
fn view_and_edit_add_to_the_roles_of_a_namespace_user() {
    let objects = documents(&template(&[]).unwrap());
    for (name, aggregated, verbs) in [
        ("fanout-operator-view", "admin edit view", "get list watch"),
        (
            "fanout-operator-edit",
            "admin edit",
            "create delete deletecollection patch update",
        ),
    ] {
        let role = of_kind::<ClusterRole>(&objects, "ClusterRole")
            .into_iter()
            .find(|role| role.name_any() == name)
            .unwrap();
        let into: Vec<&str> = role
            .labels()
            .iter()
            .filter(|(_, value)| *value == "true")
            .filter_map(|(key, _)| key.strip_prefix("rbac.authorization.k8s.io/aggregate-to-"))
            .collect();
        assert_eq!(into.join(" "), aggregated);
        let found = rights("*", role.rules.unwrap_or_default());
        let expected: BTreeSet<Right> = ["fanouttopics", "subscriptions"]
            .iter()
            .flat_map(|resource| listed(&format!("* fanout.dev {resource} {verbs}")))
            .collect();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn the_operator_may_do_what_is_granted_and_nothing_else() {
    let server = api_server();
    let namespace = install(&server.client().await).await;
    let kubeconfig = server.kubeconfig_of_service_account(&namespace, "fanout-operator");
    let client = server.client_of(&kubeconfig, "fanout-tests").await;
    let mut wrong = Vec::new();
    for (list, expected) in [(GRANTED, true), (REFUSED, false)] {
        for right in listed(list) {
            if may(&client, &right).await != expected {
                wrong.push(format!("allowed must be {expected}: {right:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn an_api_server_takes_the_manifests_and_the_pod_fits_the_restricted_policy() {
    let server = api_server();
    let client = server.client().await;
    let namespace = install(&client).await;
    assert_eq!(namespace, "fanout-system");
    let found = Api::<Namespace>::all(client.clone())
        .get(&namespace)
        .await
        .unwrap();
    assert_eq!(
        found.labels()["pod-security.kubernetes.io/enforce"],
        "restricted"
    );

    // What the Deployment controller would do; the policy judges pods.
    let deployment: Deployment = Api::namespaced(client.clone(), &namespace)
        .get("fanout-operator")
        .await
        .unwrap();
    let check: Vec<Pod> = of_kind(&documents(&template(&[]).unwrap()), "Pod");
    let template = deployment.spec.unwrap().template;
    let pod = |change: &dyn Fn(&mut Value)| -> Pod {
        let mut pod = json!({"metadata": {"name": "operator"}, "spec": template.spec});
        change(&mut pod["spec"]["containers"][0]["securityContext"]);
        serde_json::from_value(pod).unwrap()
    };
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let accepted = pods.create(&dry_run, &pod(&|_| {})).await.unwrap();
    let context =
        serde_json::to_value(accepted.spec.unwrap()).unwrap()["containers"][0]["securityContext"]
            .take();
    assert_eq!(
        context["readOnlyRootFilesystem"], true,
        "the policy does not ask for it"
    );
    pods.create(&dry_run, &check[0]).await.unwrap();
    let refused = pods
        .create(
            &dry_run,
            &pod(&|context| context["capabilities"] = Value::Null),
        )
        .await
        .expect_err("the policy is in force");
    assert!(refused.to_string().contains("restricted"), "{refused}");
}

#[tokio::test]
async fn an_api_server_takes_what_the_values_for_high_availability_render() {
    let server = api_server();
    install(&server.client().await).await;
    let ha = format!("{}/values-ha.yaml", chart());
    // The CRDs are there.
    let options = ["--values", &ha, "--set", "crds.install=false"];
    let rendered = Helm::Current.template(&chart(), &options).unwrap();
    let file = dirs::private("ha", 0o700).unwrap().join("rendered.yaml");
    std::fs::write(&file, rendered).unwrap();
    let said = run(server
        .kubectl()
        .args(["apply", "--server-side", "--dry-run=server"])
        .args(["--force-conflicts", "--validate=strict", "--filename"])
        .arg(&file))
    .unwrap();
    for object in [
        "poddisruptionbudget.policy/fanout-operator",
        "pod/fanout-operator-check",
    ] {
        assert!(said.contains(object), "{said}");
    }
}

#[tokio::test]
async fn helm_installs_warns_of_another_plural_and_uninstalls() {
    let server = api_server();
    let client = server.client().await;
    let other: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "subscriptions.other.example.com"},
        "spec": {
            "group": "other.example.com", "scope": "Namespaced",
            "names": {"plural": "subscriptions", "singular": "subscription", "kind": "Subscription", "listKind": "SubscriptionList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    }))
    .unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &other).await.unwrap();
    let namespace = server.namespace("helm").await;
    let kubeconfig = server.kubeconfig().display().to_string();
    let release = format!("fanout-{namespace}");
    let place = ["--kubeconfig", &kubeconfig, "--namespace", &namespace];
    let chart = chart();

    // The harness installed the CRDs, and Helm adopts nothing that it did not make.
    let install = ["install", &release, &chart, "--set", "crds.install=false"];
    let said = helm(&[&install[..], &place].concat()).unwrap();
    assert!(said.contains("subscriptions.other.example.com"), "{said}");
    assert!(
        said.contains("kubectl get fanouttopics.fanout.dev,subscriptions.fanout.dev"),
        "{said}"
    );
    let name = format!("{release}-fanout-operator");
    let deployments: Api<Deployment> = Api::namespaced(client, &namespace);
    assert!(deployments.get_opt(&name).await.unwrap().is_some());

    let uninstall = ["uninstall", &release, "--cascade", "background"];
    helm(&[&uninstall[..], &place].concat()).unwrap();
    assert!(deployments.get_opt(&name).await.unwrap().is_none());
    assert!(
        crds.get_opt("subscriptions.fanout.dev")
            .await
            .unwrap()
            .is_some()
    );
    crds.delete(&other.name_any(), &DeleteParams::default())
        .await
        .unwrap();
}

/// Applies manifests/install.yaml as its users do and returns the operator's namespace.
async fn install(client: &Client) -> String {
    api_server()
        .apply(client, &repository().join("manifests/install.yaml"))
        .await;
    let objects = documents(&read("manifests/install.yaml"));
    of_kind::<Namespace>(&objects, "Namespace")
        .first()
        .unwrap()
        .name_any()
}

/// One right per verb of the rules; resource names narrow them and are not shown.
fn rights(namespace: &str, rules: Vec<PolicyRule>) -> BTreeSet<Right> {
    let mut all = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                all.extend(rule.verbs.iter().map(|verb| Right {
                    namespace: namespace.to_owned(),
                    group: group.clone(),
                    resource: resource.clone(),
                    verb: verb.clone(),
                }));
            }
        }
    }
    all
}

fn listed(text: &str) -> Vec<Right> {
    let mut all = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [namespace, group, resource, verbs @ ..] = words.as_slice() else {
            panic!("not a right: {line:?}");
        };
        all.extend(verbs.iter().map(|verb| Right {
            namespace: (*namespace).to_owned(),
            group: group.trim_start_matches('-').to_owned(),
            resource: (*resource).to_owned(),
            verb: (*verb).to_owned(),
        }));
    }
    all
}

async fn may(client: &Client, right: &Right) -> bool {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, below)) => (resource, Some(below.to_owned())),
        None => (right.resource.as_str(), None),
    };
    // The names that its Roles are narrowed to.
    let name = match resource {
        "leases" if right.verb != "create" => Some("fanout-operator"),
        "services" => Some("kubernetes"),
        _ => None,
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(right.verb.clone()),
                group: Some(right.group.clone()),
                resource: Some(resource.to_owned()),
                subresource,
                name: name.map(str::to_owned),
                // The empty one asks for the whole cluster.
                namespace: Some(right.namespace.trim_start_matches('*').to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::all(client.clone())
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    answer.status.is_some_and(|status| status.allowed)
}
