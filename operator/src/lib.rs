//! The operator: turns FanoutTopics and Subscriptions into Kafka topics, relays and consumers, and says how they are.
//!
//! It touches no event and holds no database connection. Workers outlive it.
//!
//! Rights it needs (the chart grants exactly these):
//!
//! | group | resource | verbs | where |
//! |---|---|---|---|
//! | fanout.dev | fanouttopics, subscriptions | get, list, watch, patch (the finalizer alone) | cluster |
//! | fanout.dev | fanouttopics/status, subscriptions/status | patch | cluster |
//! | apps | deployments | get, list, watch, create, patch, delete | cluster |
//! | "" | configmaps, secrets, serviceaccounts | get, list, watch, create, patch, delete | cluster |
//! | "" | pods | list, watch, patch | cluster |
//! | "" | namespaces | get | cluster |
//! | events.k8s.io | events | create, patch | cluster |
//! | "" | services | list, watch | namespace `default` |
//! | discovery.k8s.io | endpointslices | list, watch | namespace `default` |
//! | coordination.k8s.io | leases | get, create, update | its own namespace |

mod accesses;
mod api_client;
mod apply;
pub mod args;
pub mod check;
mod context;
mod controllers;
pub mod kafka;
mod leadership;
mod metrics;
pub mod observer;
mod placement;
mod pushes;
pub mod scaling;
mod served;
mod settings;
mod stores;
mod targets;
mod watches;

use anyhow::Context as _;
use args::Args;
use context::{Context, Retries};
use fanout_runtime::admin::{self, Admin};
use k8s_controller::LeaderElection;
use kafka::Clusters;
use kube::Config;
use kube::runtime::events::{Recorder, Reporter};
use leadership::Leadership;
use observer::{Observer, Timing};
use prometheus_client::registry::Registry;
use served::Served;
use std::sync::Arc;
use std::time::Duration;
use targets::Watched;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use watches::Watches;

pub use targets::{Addresses, pod_addresses};

/// Name in the audit log.
const USER_AGENT: &str = concat!("fanout-operator/", env!("CARGO_PKG_VERSION"));
/// Longest time for the passes under way to end after SIGTERM.
const DRAIN: Duration = Duration::from_secs(15);
/// Longest time for giving the Lease back.
const RELEASE: Duration = Duration::from_secs(5);

/// Runs the operator on the cluster it is in (or that the kubeconfig names) until `shutdown`.
///
/// # Errors
/// As [`run_on`], and when there is neither a cluster nor a kubeconfig.
pub async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let config = Config::infer()
        .await
        .context("configuration of the API server")?;
    Box::pin(run_on(config, pod_addresses(), args, shutdown)).await
}

/// Runs the operator on the API server that `config` names until `shutdown`; workers are asked at `addresses`.
///
/// # Errors
/// The admin server can't listen, or the Lease was lost: the process must end then, so that no pass outlives its
/// leadership.
pub async fn run_on(
    mut config: Config,
    addresses: Addresses,
    args: Args,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    config
        .headers
        .push(("user-agent".parse()?, USER_AGENT.parse()?));
    let leadership = Arc::new(Leadership::default());
    let elector = api_client::election(config.clone(), Arc::clone(&leadership))
        .context("client of the API server")?;
    let client =
        api_client::work(config, Arc::clone(&leadership)).context("client of the API server")?;

    let mut registry = Registry::default();
    let permit = Arc::clone(&leadership);
    let clusters = Arc::new(Clusters::permitted(Arc::new(move || permit.may_change())));
    let observer = Arc::new(Observer::new(
        Arc::clone(&clusters),
        Timing::default(),
        &mut registry,
    )?);
    let metrics = metrics::Metrics::new(&mut registry);
    let served = Arc::new(Served::new(&mut registry));
    let shown = Shown {
        leadership: Arc::clone(&leadership),
        served: Arc::clone(&served),
    };
    let admin = serve_admin(&args, registry, shown, shutdown.clone()).await?;

    let (watches, stores) = Watches::new(client.clone());
    let recorder = Recorder::new(
        client.clone(),
        Reporter {
            controller: apply::FIELD_MANAGER.to_owned(),
            instance: Some(args.instance.clone()),
        },
    );
    let election = LeaderElection::new(elector, &args.namespace, &args.lease_name, &args.instance)
        .with_lease_duration(leadership::LEASE)
        .with_renew_deadline(leadership::RENEW_DEADLINE)
        .with_retry_period(leadership::RETRY_PERIOD);
    let ctx = Arc::new(Context {
        client,
        recorder,
        settings: args.settings(),
        stores,
        clusters,
        observer,
        accesses: accesses::Accesses::default(),
        placements: placement::Recent::default(),
        pushes: pushes::Pushes::default(),
        metrics,
        retries: Retries::default(),
        served,
    });
    let work = Box::pin(lead(
        ctx,
        watches,
        addresses,
        Arc::clone(&leadership),
        shutdown.clone(),
    ));
    tokio::select! {
        led = election.with_lease(work) => {
            leadership.end();
            // On the way out it makes no difference to anybody: it expires, or somebody has it.
            if !shutdown.is_cancelled() {
                anyhow::ensure!(led.is_some(), "the Lease was lost");
                anyhow::bail!("the controllers ended");
            }
        }
        () = leadership.stopped_without_it(&shutdown) => {}
        served = admin => served.context("admin server")?.context("admin server")?,
    }
    leadership.end();
    // Another replica takes over at once instead of waiting for the Lease to expire.
    if tokio::time::timeout(RELEASE, election.release())
        .await
        .is_err()
    {
        tracing::warn!("Lease not given back in time; it expires");
    }
    Ok(())
}

/// Every metric of the operator, with a series for each value of its closed labels: what docs/reference/metrics.md is made
/// from.
///
/// # Errors
/// The metrics can't be encoded.
pub fn sample_metrics() -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    observer::sample_metrics(&mut registry);
    metrics::Metrics::new(&mut registry).sample();
    Served::new(&mut registry).sample();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// What the admin server shows of this process.
struct Shown {
    leadership: Arc<Leadership>,
    served: Arc<Served>,
}

/// Starts the admin server. Its task ends when it can't serve; after `shutdown` it waits for the work to end.
async fn serve_admin(
    args: &Args,
    registry: Registry,
    Shown { leadership, served }: Shown,
    shutdown: CancellationToken,
) -> anyhow::Result<tokio::task::JoinHandle<std::io::Result<()>>> {
    let listener = TcpListener::bind(args.admin_addr)
        .await
        .context("admin server")?;
    let address = listener.local_addr().context("admin server")?;
    if let Some(path) = &args.admin_addr_file {
        tokio::fs::write(path, address.to_string())
            .await
            .context("write the admin server's address")?;
    }
    tracing::info!(admin_addr = %address, "admin server listens");
    let led = Arc::clone(&leadership);
    let admin = Admin {
        registry,
        ready: Arc::new(move || leadership.ready()),
        live: Arc::new(|| Ok(())),
        status: Arc::new(
            move || serde_json::json!({"leader": led.is_leader(), "missingFields": *served.missing()}),
        ),
    };
    Ok(tokio::spawn(async move {
        admin::serve(listener, admin, shutdown.clone()).await?;
        if shutdown.is_cancelled() {
            std::future::pending::<()>().await;
        }
        Ok(())
    }))
}

/// What the leader does, until `shutdown` and the passes under way have ended.
async fn lead(
    ctx: Arc<Context>,
    watches: Watches,
    addresses: Addresses,
    leadership: Arc<Leadership>,
    shutdown: CancellationToken,
) {
    leadership.begin();
    // Before the first status: one with a field that the CRD lacks would be refused.
    ctx.served.look(&ctx.client, &ctx.recorder).await;
    let described = {
        let ctx = Arc::clone(&ctx);
        async move { ctx.served.follow(&ctx.client, &ctx.recorder).await }
    };
    let targets = Watched {
        stores: ctx.stores.clone(),
        settings: ctx.settings.clone(),
        addresses,
    };
    let observer = Arc::clone(&ctx.observer);
    let observation = async {
        observer.run(&targets, shutdown.clone()).await;
        // It stops with `shutdown`, while passes under way still end.
        std::future::pending::<()>().await;
    };
    let overtime = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        () = controllers::run(ctx, watches, &leadership, shutdown.clone()) => {}
        () = observation => {}
        () = described => {}
        () = overtime => tracing::warn!("passes under way did not end in time"),
    }
    // The Lease is given back next.
    leadership.end();
}
