//! Conditions, their reasons, and the events that tell of them.

use crate::markdown::{code, join, page as start, table};
use fanout_crds::condition::reason::{Course, REASONS, Reason};
use fanout_crds::condition::{CONDITIONS, Polarity, READY, RECONCILING};

/// The page.
pub(crate) fn page() -> String {
    let mut page = start(
        "Conditions, reasons, events",
        "`kubectl get` shows status and reason of `Ready`; the other conditions say more:\n\n\
         ```sh\n\
         kubectl get fanouttopics.fanout.dev posts -n social -o jsonpath='{range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{\"\\n\"}{end}'\n\
         kubectl get subscriptions.fanout.dev search-index -n social -o jsonpath='{range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{\"\\n\"}{end}'\n\
         ```\n\n\
         A condition holds for the spec of `observedGeneration`. `Unknown` means not observed, and is never taken for a value. \
         Messages never contain a secret or a peer's text.",
    );
    page.push_str("\n## Conditions\n\n");
    page.push_str(&table(
        ["Condition", "Kind", "Good value", "True means", "Reasons"],
        CONDITIONS.iter().map(|condition| {
            let reasons = REASONS
                .iter()
                .filter(|reason| reason.conditions.contains(&condition.name));
            [
                code(condition.name),
                condition.kinds.join(", "),
                match condition.polarity {
                    Polarity::Normal => "True",
                    Polarity::Abnormal => "False",
                }
                .to_owned(),
                condition.meaning.trim().to_owned(),
                join(reasons.map(|reason| reason.name.to_owned()), ", "),
            ]
        }),
    ));
    page.push_str("\n## Reasons\n\n");
    page.push_str(
        "*Stalls* marks what only a human can mend: then `Stalled` is True. Once the cause is gone it goes on by \
         itself; nothing needs to be restarted. A reason with a link has a runbook.\n\n",
    );
    page.push_str(&table(
        ["Reason", "Meaning", "On", "Stalls", "What to do"],
        REASONS.iter().map(|reason| {
            [
                link(reason),
                reason.meaning.trim().to_owned(),
                reason.conditions.join(", "),
                if reason.needs_human() { "yes" } else { "" }.to_owned(),
                reason.next_step.to_owned(),
            ]
        }),
    ));
    page.push_str(&events());
    page
}

/// An event that tells of something else than a condition.
pub(crate) struct Other {
    /// Its reason; it has a runbook of that name.
    pub(crate) reason: &'static str,
    action: &'static str,
    kind: &'static str,
    about: &'static str,
    when: &'static str,
}

/// All of these, which `operator/src` makes one by one.
pub(crate) const OTHERS: &[Other] = &[
    Other {
        reason: "CleanupIncomplete",
        action: "Cleanup",
        kind: "Warning",
        about: "the FanoutTopic or Subscription that is gone",
        when: "something that `deletionPolicy: Delete` should have deleted stays",
    },
    Other {
        reason: "CrdOutdated",
        action: "Serve",
        kind: "Warning",
        about: "the CustomResourceDefinition",
        when: "it lacks fields that this version of the operator knows",
    },
    Other {
        reason: "Scaled",
        action: "ScaleOut, ScaleIn",
        kind: "Normal",
        about: "the Subscription",
        when: "the number of replicas of its worker was changed; the note says why",
    },
];

fn link(reason: &Reason) -> String {
    match reason.course {
        Course::Lasting => format!("[{0}](../runbooks/{0}.md)", reason.name),
        Course::Good | Course::Passing => reason.name.to_owned(),
    }
}

fn events() -> String {
    let rows = CONDITIONS
        .iter()
        .filter(|condition| condition.name != RECONCILING)
        .map(|condition| {
            let (good, bad) = match condition.polarity {
                Polarity::Normal => ("True", "False"),
                Polarity::Abnormal => ("False", "True"),
            };
            let first = if condition.name == READY {
                "also the first value"
            } else {
                "also the first value, when it is bad"
            };
            let kind = if condition.name == READY {
                "Normal".to_owned()
            } else {
                format!("Normal for {good} and Unknown, Warning for {bad}")
            };
            [
                code(condition.name),
                "the condition's".to_owned(),
                kind,
                format!("its value changed; {first}"),
            ]
        });
    format!(
        "\n## Events\n\nThe operator publishes one event (events.k8s.io/v1) for each condition that changed its value, about the object \
         that has it. The note is `<condition> is <value>: <message>`. Repeats are folded into one series. Nothing is published in \
         a namespace that is being deleted. Events expire; conditions are the truth.\n\n\
         ```sh\nkubectl get events -n social --field-selector involvedObject.kind=Subscription\n```\n\n{}",
        table(["Action", "Reason", "Type", "When"], rows)
    ) + &others()
}

fn others() -> String {
    let rows = OTHERS.iter().map(|other| {
        [
            format!("[{0}](../runbooks/{0}.md)", other.reason),
            code(other.action),
            other.kind.to_owned(),
            other.about.to_owned(),
            other.when.to_owned(),
        ]
    });
    format!(
        "\nOther events:\n\n{}",
        table(["Reason", "Action", "Type", "About", "When"], rows)
    )
}
