//! The release of the chart: installed, changed to another version and back, tested.

use super::{OPERATOR_NAMESPACE, RANGES, RELEASE, System};
use crate::command::output;
use crate::node;
use fanout_tests::services::dirs::tests_dir;
use std::path::PathBuf;
use std::process::Command;

/// A version of the product.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    chart: PathBuf,
    /// Image, with its tag.
    pub(crate) image: String,
}

impl Version {
    /// What is in the repository.
    pub(super) fn current(image: &str) -> Self {
        Self {
            chart: tests_dir().join("../charts/fanout-operator"),
            image: image.to_owned(),
        }
    }

    /// The chart before it, see previous/README.md. Its programs are those of the current version under another name, unless
    /// `FANOUT_PREVIOUS_IMAGE` holds what `pack.sh product` printed for older ones.
    fn previous(current: &str) -> Self {
        let image = std::env::var_os("FANOUT_PREVIOUS_IMAGE").map_or_else(
            || node::tag_image(current, "localhost/fanout-operator:previous"),
            |packed| node::import_image(packed.to_str().expect("UTF-8")),
        );
        Self {
            chart: tests_dir().join("cluster/previous/fanout-operator-0.1.0.tgz"),
            image,
        }
    }

    /// Values that name the image.
    fn image_values(&self) -> [String; 3] {
        let (repository, tag) = self.image.rsplit_once(':').unwrap();
        [
            "image.registry=".to_owned(),
            format!("image.repository={repository}"),
            format!("image.tag={tag}"),
        ]
    }
}

impl System {
    /// Installs the current version, unless somebody else has.
    pub(super) fn install_chart(&mut self) {
        let listed = output(self.node.helm().args([
            "list",
            "--namespace",
            OPERATOR_NAMESPACE,
            "--short",
            "--filter",
            "^fanout$",
        ]));
        self.installed_here = listed.trim().is_empty();
        self.install_current();
    }

    /// Installs the current version.
    pub(crate) fn install_current(&self) {
        change(
            self.node.helm(),
            &["upgrade", "--install", "--create-namespace"],
            &self.current,
        );
    }

    /// Uninstalls the release: there is no operator any more. False where it is somebody else's, and nothing is done.
    pub(crate) fn uninstall(&self) -> bool {
        if self.installed_here {
            output(self.node.helm().args([
                "uninstall",
                RELEASE,
                "--namespace",
                OPERATOR_NAMESPACE,
                "--wait",
            ]));
        }
        self.installed_here
    }

    /// Puts the version before in the place of the current one, with the oldest Helm that the chart supports, as whoever
    /// installed it long ago would have had.
    pub(crate) fn install_previous(&self) -> Version {
        let previous = Version::previous(&self.current.image);
        change(
            self.node.old_helm(),
            &["upgrade", "--reset-values"],
            &previous,
        );
        previous
    }

    /// Upgrades to the current version and keeps the release's values.
    pub(crate) fn upgrade(&self) -> &Version {
        let mut helm = self.node.helm();
        helm.args(["upgrade", RELEASE])
            .arg(&self.current.chart)
            .args(["--namespace", OPERATOR_NAMESPACE, "--reuse-values"]);
        for value in self.current.image_values() {
            helm.args(["--set", &value]);
        }
        // With one pod a budget must hold up nobody.
        helm.args(["--set", "podDisruptionBudget.enabled=true"]);
        output(helm.args(["--wait", "--timeout", "300s"]));
        &self.current
    }

    /// Goes back to the revision before.
    pub(crate) fn roll_back(&self) {
        output(self.node.helm().args([
            "rollback",
            RELEASE,
            "--namespace",
            OPERATOR_NAMESPACE,
            "--wait",
            "--timeout",
            "300s",
        ]));
    }

    /// Runs the chart's test pod.
    pub(crate) fn test_release(&self) {
        output(self.node.helm().args([
            "test",
            RELEASE,
            "--namespace",
            OPERATOR_NAMESPACE,
            "--timeout",
            "300s",
        ]));
    }
}

fn change(mut helm: Command, how: &[&str], version: &Version) {
    helm.args(how)
        .arg(RELEASE)
        .arg(&version.chart)
        .args(["--namespace", OPERATOR_NAMESPACE])
        .args(["--set", &format!("egress.allowedCIDRs={RANGES}")]);
    for value in version.image_values() {
        helm.args(["--set", &value]);
    }
    output(helm.args(["--wait", "--timeout", "300s"]));
}
