//! `fanout-operator check`: whether an installation works, asked from inside the cluster. The chart's test pod runs it with the
//! operator's own rights.

use crate::served;
use anyhow::{Context as _, ensure};
use clap::Parser;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, Config, ResourceExt};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Looks at an installation and fails with what is wrong.
#[derive(Clone, Debug, Parser)]
#[command(name = "fanout-operator check")]
pub struct CheckArgs {
    /// Namespace of the operator.
    #[arg(long)]
    pub namespace: String,
    /// Name of its Lease.
    #[arg(long, default_value = "fanout-operator")]
    pub lease_name: String,
    /// Port of its admin server.
    #[arg(long, default_value = "8080")]
    pub admin_port: u16,
    /// How long it may take until all is well, seconds.
    #[arg(long, default_value = "60")]
    pub limit_seconds: u64,
}

/// Time between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// One attempt, at most.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Checks the cluster it is in, or that the kubeconfig names.
///
/// # Errors
/// What is wrong.
pub async fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let config = Config::infer()
        .await
        .context("configuration of the API server")?;
    Box::pin(run_on(config, args)).await
}

/// Checks the installation on the API server that `config` names.
///
/// # Errors
/// What is wrong: the CRDs are missing or older than this program, nobody renews the Lease, or the leader does not work.
pub async fn run_on(config: Config, args: &CheckArgs) -> anyhow::Result<()> {
    let client = Client::try_from(config).context("client of the API server")?;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(args.limit_seconds);
    let mut seen = None;
    loop {
        let attempt = tokio::time::timeout(ATTEMPT, attempt(&client, args, &mut seen));
        let found = attempt
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the cluster does not answer in time")));
        match found {
            Ok(holder) => {
                tracing::info!(
                    leader = holder,
                    "the CRDs are current and the operator works"
                );
                return Ok(());
            }
            Err(error) if tokio::time::Instant::now() >= deadline => return Err(error),
            Err(error) => tracing::info!(error = format!("{error:#}"), "not yet"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// One look; returns the leader. `seen` is the Lease as the first look found it: only one that changes is renewed, whatever
/// the clocks say.
async fn attempt(
    client: &Client,
    args: &CheckArgs,
    seen: &mut Option<LeaseSpec>,
) -> anyhow::Result<String> {
    let missing = served::missing(client)
        .await
        .context("the API server does not serve fanout.dev/v1alpha1: are the CRDs installed?")?;
    if let Some((kind, fields)) = missing.first_key_value() {
        anyhow::bail!(
            "the CRD of {kind} is older than this operator and lacks {}",
            fields.join(", ")
        );
    }

    let leases: Api<Lease> = Api::namespaced(client.clone(), &args.namespace);
    let lease = leases
        .get(&args.lease_name)
        .await
        .context("no operator has taken the Lease")?;
    let lease = lease.spec.unwrap_or_default();
    let holder = lease.holder_identity.clone().unwrap_or_default();
    ensure!(!holder.is_empty(), "no operator holds the Lease");
    let before = seen.get_or_insert_with(|| lease.clone());
    ensure!(
        *before != lease,
        "{holder} holds the Lease and does not renew it"
    );

    let pods: Api<Pod> = Api::namespaced(client.clone(), &args.namespace);
    let pods = pods
        .list(&ListParams::default())
        .await
        .context("list pods")?;
    let address = pods
        .iter()
        .find(|pod| pod.name_any() == holder)
        .and_then(|pod| {
            pod.status
                .as_ref()?
                .pod_ip
                .as_deref()?
                .parse::<IpAddr>()
                .ok()
        })
        .with_context(|| format!("the leader {holder} is no pod with an address"))?;
    ready(SocketAddr::new(address, args.admin_port))
        .await
        .with_context(|| format!("the leader {holder}"))?;
    Ok(holder)
}

/// Asks the leader.
async fn ready(address: SocketAddr) -> anyhow::Result<()> {
    let client = reqwest::Client::builder()
        // Pod addresses are never behind the proxy that the environment may name.
        .no_proxy()
        .timeout(ATTEMPT / 2)
        .build()?;
    let answer = client
        .get(format!("http://{address}/readyz"))
        .send()
        .await
        .context("does not answer")?;
    let status = answer.status();
    let text = answer.text().await.unwrap_or_default();
    ensure!(status.is_success(), "is not ready: {}", text.trim());
    Ok(())
}
