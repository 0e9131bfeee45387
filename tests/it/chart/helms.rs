//! Old and new Helm agree on the chart; values that an upgrade reuses are enough; the values for high availability and the test
//! pod fit what they belong to.

use super::{Helm, all_changed, chart, container, documents, of_kind, repository, template};
use clap::Parser as _;
use fanout_operator::check::CheckArgs;
use fanout_tests::services::{dirs, run};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const HELMS: [Helm; 2] = [Helm::Current, Helm::Old];

/// The chart before this version.
pub(super) fn previous() -> String {
    repository()
        .join("tests/cluster/previous/fanout-operator-0.1.0.tgz")
        .display()
        .to_string()
}

fn ha() -> String {
    format!("{}/values-ha.yaml", chart())
}

#[test]
fn old_and_new_helm_lint_the_chart_and_render_the_same() {
    let changed = all_changed();
    let changed: Vec<&str> = changed
        .iter()
        .flat_map(|value| ["--set-json", value])
        .collect();
    let ha = ha();
    let options: [&[&str]; 3] = [&[], &changed, &["--values", &ha]];
    for options in options {
        let [new, old] = HELMS.map(|helm| {
            let chart = chart();
            let lint = [&["lint", "--strict", &chart][..], options].concat();
            helm.run(&lint)
                .unwrap_or_else(|error| panic!("{helm:?}: {error}"));
            documents(&helm.template(&chart, options).unwrap())
        });
        assert!(
            new == old,
            "the two versions of Helm differ for {options:?}"
        );
    }
}

#[test]
fn an_upgrade_may_reuse_the_values_of_the_version_before() {
    let defaults = Helm::Current.run(&["show", "values", &previous()]).unwrap();
    // What --reuse-values does: the chart's defaults are those of the version that is installed.
    let folder = dirs::private("reused-values", 0o700).unwrap();
    run(Command::new("cp")
        .args(["--recursive", &chart()])
        .arg(&folder))
    .unwrap();
    let chart = folder.join("fanout-operator");
    std::fs::write(chart.join("values.yaml"), defaults).unwrap();
    let expected = documents(&template(&[]).unwrap());
    for helm in HELMS {
        let rendered = helm
            .template(&chart.display().to_string(), &[])
            .unwrap_or_else(|error| panic!("{helm:?}: {error}"));
        assert!(documents(&rendered) == expected, "{helm:?}: other objects");
    }
}

#[test]
fn the_values_for_high_availability_are_complete() {
    let ha = ha();
    let rendered = Helm::Current
        .template(&chart(), &["--values", &ha])
        .unwrap();
    let objects = documents(&rendered);
    let deployments: Vec<Deployment> = of_kind(&objects, "Deployment");
    let deployment = deployments[0].spec.as_ref().unwrap();
    assert!(deployment.replicas.unwrap() >= 2);
    let labels = deployment.template.metadata.as_ref().unwrap();
    let labels = labels.labels.as_ref().unwrap();
    let pod = deployment.template.spec.as_ref().unwrap();
    assert!(pod.priority_class_name.is_some());

    let spread = pod.topology_spread_constraints.as_ref().unwrap();
    let domains: BTreeSet<&str> = spread.iter().map(|it| it.topology_key.as_str()).collect();
    assert_eq!(
        domains.into_iter().collect::<Vec<_>>(),
        ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    );
    for constraint in spread {
        assert!(selects(constraint.label_selector.as_ref(), labels));
        let keys = constraint.match_label_keys.as_deref();
        assert_eq!(keys, Some(&["pod-template-hash".to_owned()][..]));
    }

    let budgets: Vec<PodDisruptionBudget> = of_kind(&objects, "PodDisruptionBudget");
    let budget = budgets[0].spec.as_ref().unwrap();
    assert_eq!(budget.max_unavailable, Some(IntOrString::Int(1)));
    assert_eq!(budget.min_available, None, "it would hold up a drain");
    assert_eq!(
        budget.unhealthy_pod_eviction_policy.as_deref(),
        Some("AlwaysAllow")
    );
    assert!(selects(budget.selector.as_ref(), labels));
    let check: Vec<Pod> = of_kind(&objects, "Pod");
    assert!(!selects(budget.selector.as_ref(), check[0].labels()));
    assert!(!selects(Some(&deployment.selector), check[0].labels()));

    let defaults = documents(&template(&[]).unwrap());
    let budgets: Vec<PodDisruptionBudget> = of_kind(&defaults, "PodDisruptionBudget");
    assert!(budgets.is_empty(), "one pod needs none");
}

#[test]
fn the_test_pod_asks_for_what_the_operator_is() {
    let objects = documents(&template(&["image.tag=\"9.9.9\""]).unwrap());
    let pods: Vec<Pod> = of_kind(&objects, "Pod");
    let pod = &pods[0];
    assert_eq!(pod.annotations()["helm.sh/hook"], "test");
    let operator = container(&objects);
    let spec = pod.spec.as_ref().unwrap();
    let check = &spec.containers[0];
    assert_eq!(check.image.as_deref(), operator["image"].as_str());
    assert_eq!(
        spec.service_account_name.as_deref(),
        Some("fanout-operator")
    );
    let mut arguments = check.args.clone().unwrap();
    assert_eq!(arguments.remove(0), "check");
    arguments.insert(0, "fanout-operator".to_owned());
    let args = CheckArgs::try_parse_from(arguments).unwrap();
    assert_eq!(args.namespace, "fanout-system");
    let lease = format!("--lease-name={}", args.lease_name);
    let given = operator["args"].as_array().unwrap();
    assert!(given.iter().any(|argument| *argument == *lease), "{lease}");
    assert_eq!(
        operator["ports"][0]["containerPort"],
        u32::from(args.admin_port)
    );
}

fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    let wanted = selector.and_then(|selector| selector.match_labels.as_ref());
    wanted.is_some_and(|wanted| {
        !wanted.is_empty()
            && wanted
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    })
}
