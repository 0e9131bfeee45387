//! An operator that is newer than the cluster's CRDs works, says so, and notices when they are upgraded.

use crate::operator::cluster::{Cluster, LIMIT};
use crate::operator::played::Played;
use crate::operator::{posts, settled, subscription};
use clap::Parser as _;
use fanout_crds::Subscription;
use fanout_crds::condition::READY;
use fanout_operator::check::{self, CheckArgs};
use fanout_tests::eventually;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

const CRD: &str = "subscriptions.fanout.dev";
const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema/properties";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_works_with_older_crds_says_so_and_sees_them_upgraded() {
    let cluster = Cluster::start().await;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    the_check_says_what_is_missing(&cluster, &crds).await;
    let operator = cluster.operator("newer").await;
    let namespace = cluster.server.namespace("older-crds").await;
    posts(&cluster, &namespace).await;
    cluster
        .apply(&namespace, &subscription("plain", "posts", ""))
        .await;
    let pool = Played::start(&cluster, &namespace, "posts-pool-0").await;
    pool.consume(&cluster).await;
    let ready = cluster
        .subscription(&namespace, "plain", READY, "True/Succeeded")
        .await;
    assert_eq!(
        ready.status.unwrap().workers,
        None,
        "the CRD has no such field"
    );

    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    eventually(LIMIT, "an event on the CRD says so", async || {
        let all = events.list(&ListParams::default()).await?;
        let told = all.iter().find(|event| {
            event.reason.as_deref() == Some("CrdOutdated")
                && event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(CRD)
        });
        let note = told
            .and_then(|event| event.note.as_deref())
            .unwrap_or_default();
        anyhow::ensure!(note.contains("spec.isolation, status.workers"), "{note:?}");
        anyhow::Ok(())
    })
    .await;
    // A field that can't be stored is no reason to write again and again.
    settled(&cluster, &namespace).await;

    let [_, current] = fanout_crds::crds();
    let apply = PatchParams::apply("fanout-tests").force();
    crds.patch(CRD, &apply, &Patch::Apply(&current))
        .await
        .unwrap();
    cluster
        .until(
            &namespace,
            "plain",
            "the new field is shown",
            |found: &Subscription| match found.status.as_ref().and_then(|it| it.workers.as_deref())
            {
                Some("1/1") => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await;
    let said = check(&cluster).await;
    assert!(
        said.contains("newer") && said.contains("pod"),
        "all that is wrong now is that the operator runs in no pod: {said}"
    );
    operator.stop().await;

    for crd in [CRD, "fanouttopics.fanout.dev"] {
        crds.delete(crd, &DeleteParams::default()).await.unwrap();
    }
    eventually(LIMIT, "the check misses the CRDs", async || {
        let said = check(&cluster).await;
        anyhow::ensure!(said.contains("are the CRDs installed"), "{said}");
        anyhow::Ok(())
    })
    .await;
}

/// Takes two fields out of the CRD.
async fn the_check_says_what_is_missing(cluster: &Cluster, crds: &Api<CustomResourceDefinition>) {
    let fields = ["status/properties/workers", "spec/properties/isolation"];
    // A rule on a field goes with it.
    let older: Vec<Value> = fields
        .iter()
        .chain(&["spec/x-kubernetes-validations"])
        .map(|field| json!({"op": "remove", "path": format!("{SCHEMA}/{field}")}))
        .collect();
    let older: Patch<()> = Patch::Json(serde_json::from_value(json!(older)).unwrap());
    crds.patch(CRD, &PatchParams::default(), &older)
        .await
        .unwrap();
    let checked = eventually(LIMIT, "the check says what is missing", async || {
        let said = check(cluster).await;
        anyhow::ensure!(said.contains("older"), "{said}");
        anyhow::Ok(said)
    })
    .await;
    assert!(
        checked.contains("Subscription") && checked.contains("spec.isolation, status.workers"),
        "{checked}"
    );
}

/// What `fanout-operator check` says, with the rights of the operator.
async fn check(cluster: &Cluster) -> String {
    let kubeconfig = cluster
        .server
        .kubeconfig_of_service_account("fanout-system", "fanout-operator");
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let args = ["check", "--namespace=fanout-system", "--limit-seconds=8"];
    let args = CheckArgs::parse_from(args);
    let error = check::run_on(config, &args)
        .await
        .expect_err("no operator runs in a pod here");
    format!("{error:#}")
}
