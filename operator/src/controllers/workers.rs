//! What a worker's Deployment and its pods' reports say together. Pure.

use super::conditions::{Finding, Truth};
use fanout_crds::condition::reason;
use k8s_openapi::api::apps::v1::Deployment;

/// What one ready pod of a worker answered on `/status`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report<S> {
    /// Name of the pod.
    pub(crate) pod: String,
    /// The document; `None` where it could not be read.
    pub(crate) status: Option<S>,
}

/// Counts of a Deployment's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pods {
    /// Wanted.
    pub(crate) wanted: i32,
    /// Ready and of the current template.
    pub(crate) ready: i32,
    /// True when every pod is of the current template and available, and no other is left.
    pub(crate) rolled_out: bool,
}

impl Pods {
    /// Of a Deployment; none where it does not exist.
    pub(crate) fn of(deployment: Option<&Deployment>) -> Self {
        let Some(deployment) = deployment else {
            return Self::default();
        };
        let wanted = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1);
        let Some(status) = &deployment.status else {
            return Self {
                wanted,
                ..Self::default()
            };
        };
        let seen = status.observed_generation >= deployment.metadata.generation;
        let count = |number: Option<i32>| number.unwrap_or(0);
        Self {
            wanted,
            ready: count(status.ready_replicas).min(wanted),
            rolled_out: seen
                && count(status.updated_replicas) == wanted
                && count(status.available_replicas) == wanted
                && count(status.replicas) == wanted,
        }
    }

    /// `ready/wanted`, as the printer columns show it.
    pub(crate) fn column(self) -> String {
        format!("{}/{}", self.ready, self.wanted)
    }
}

/// Whether a worker does what its configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Availability {
    /// For the condition.
    pub(crate) finding: Finding,
    /// True when every wanted pod is ready and runs the current configuration.
    pub(crate) settled: bool,
}

/// Judges a worker by its `pods` and by whether each report shows the current configuration (`current`).
pub(crate) fn availability<S>(
    pods: Pods,
    reports: &[Report<S>],
    current: impl Fn(&S) -> bool,
) -> Availability {
    let running = reports
        .iter()
        .filter(|report| report.status.as_ref().is_some_and(&current))
        .count();
    let unknown = reports
        .iter()
        .filter(|report| report.status.is_none())
        .count();
    let all = !reports.is_empty() && running == reports.len();
    let settled = pods.rolled_out && all;
    let finding = if pods.ready == 0 {
        Finding::no(
            reason::PODS_NOT_READY,
            format!("0 of {} pods are ready", pods.wanted),
        )
    } else if settled {
        Finding::yes(reason::SUCCEEDED, "")
    } else if running > 0 {
        let message = if pods.rolled_out {
            format!(
                "{running} of {} pods run the current configuration",
                reports.len()
            )
        } else {
            format!("{} of {} pods are ready", pods.ready, pods.wanted)
        };
        Finding::yes(reason::PROGRESSING, message)
    } else if reports.is_empty() || unknown > 0 {
        Finding::new(
            Truth::Unknown,
            reason::STATUS_UNKNOWN,
            "/status of the pods was not read yet",
        )
    } else {
        Finding::no(
            reason::CONFIGURATION_PENDING,
            "the pods do not run the current configuration yet",
        )
    };
    Availability { finding, settled }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::{DeploymentSpec, DeploymentStatus};
    use kube::api::ObjectMeta;
    use rstest::rstest;

    fn deployment(observed: i64, replicas: i32, updated: i32, ready: i32) -> Deployment {
        Deployment {
            metadata: ObjectMeta {
                generation: Some(2),
                ..ObjectMeta::default()
            },
            spec: Some(DeploymentSpec {
                replicas: Some(2),
                ..DeploymentSpec::default()
            }),
            status: Some(DeploymentStatus {
                observed_generation: Some(observed),
                replicas: Some(replicas),
                updated_replicas: Some(updated),
                ready_replicas: Some(ready),
                available_replicas: Some(ready),
                ..DeploymentStatus::default()
            }),
        }
    }

    #[rstest]
    #[case::all(deployment(2, 2, 2, 2), "2/2", true)]
    #[case::not_observed_yet(deployment(1, 2, 2, 2), "2/2", false)]
    #[case::an_old_pod_is_left(deployment(2, 3, 2, 3), "2/2", false)]
    #[case::one_not_ready(deployment(2, 2, 2, 1), "1/2", false)]
    fn a_rollout_ends_when_only_current_pods_are_left(
        #[case] deployment: Deployment,
        #[case] column: &str,
        #[case] rolled_out: bool,
    ) {
        let pods = Pods::of(Some(&deployment));
        assert_eq!(
            (pods.column().as_str(), pods.rolled_out),
            (column, rolled_out)
        );
    }

    fn report(status: Option<&'static str>) -> Report<&'static str> {
        Report {
            pod: "p".to_owned(),
            status,
        }
    }

    #[rstest]
    #[case::settled(2, true, vec![Some("new"), Some("new")], Truth::True, reason::SUCCEEDED, true)]
    #[case::one_pod_runs_the_old(2, true, vec![Some("new"), Some("old")], Truth::True, reason::PROGRESSING, false)]
    #[case::all_pods_run_the_old(2, true, vec![Some("old"), Some("old")], Truth::False, reason::CONFIGURATION_PENDING, false)]
    #[case::nothing_is_known(2, true, vec![None, None], Truth::Unknown, reason::STATUS_UNKNOWN, false)]
    #[case::nothing_was_asked(2, true, vec![], Truth::Unknown, reason::STATUS_UNKNOWN, false)]
    #[case::no_pod(0, false, vec![], Truth::False, reason::PODS_NOT_READY, false)]
    #[case::rolling(1, false, vec![Some("new")], Truth::True, reason::PROGRESSING, false)]
    fn a_worker_is_judged_by_pods_and_reports(
        #[case] ready: i32,
        #[case] rolled_out: bool,
        #[case] reports: Vec<Option<&'static str>>,
        #[case] truth: Truth,
        #[case] reason: &str,
        #[case] settled: bool,
    ) {
        let pods = Pods {
            wanted: 2,
            ready,
            rolled_out,
        };
        let reports: Vec<_> = reports.into_iter().map(report).collect();
        let found = availability(pods, &reports, |status| *status == "new");
        assert_eq!(
            (
                found.finding.truth,
                found.finding.reason.as_str(),
                found.settled
            ),
            (truth, reason, settled)
        );
    }
}
