//! The program of the pods: answers HTTP requests with the pod's name. For the baseline protocol it also contends for
//! the lock, and answers 503 while it does not hold it.

use std::{convert::Infallible, net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use sqlx::{
    Connection as _,
    postgres::{PgConnectOptions, PgConnection},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time,
};

use crate::{
    candidate::RIVALS_LABEL,
    rivals::{BASELINE_RELEASE, Outcome, baseline},
};

/// The port that it serves.
pub(crate) const PORT: u16 = 8080;
/// The argument with which the benchmark's executable is the pods' program.
pub(crate) const SERVE: &str = "serve";
/// The environment variable with the database for the baseline protocol.
pub(crate) const DATABASE: &str = "DATABASE_URL";

/// The time between two attempts of the baseline protocol, whose lock lasts 5 s.
const RETRY: Duration = Duration::from_secs(1);

/// Serves until SIGTERM.
pub(crate) async fn serve() -> Result<()> {
    let name = std::env::var("POD_NAME").context("POD_NAME is not set")?;
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
    let database = std::env::var(DATABASE).ok();
    let (leads, led) = watch::channel(database.is_none());
    let answering = answer_all(listener, name.clone().into(), led);
    let Some(url) = database else {
        tokio::select! {
            result = answering => return result,
            _ = terminate.recv() => return Ok(()),
        }
    };
    let key = std::env::var("APP").context("APP is not set")?;
    tokio::select! {
        result = answering => return result,
        result = contend(&url, &key, &name, &leads) => return result,
        _ = terminate.recv() => {}
    }
    let mut connection = PgConnection::connect(&url).await?;
    sqlx::query(BASELINE_RELEASE).bind(key).bind(name).execute(&mut connection).await?;
    Ok(())
}

async fn answer_all(listener: TcpListener, name: Arc<str>, leads: watch::Receiver<bool>) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let (name, leads) = (Arc::clone(&name), leads.clone());
        let answer = service_fn(move |request: Request<Incoming>| {
            let fit = *leads.borrow() || request.uri().path() != "/";
            let body = if fit { format!("{name}\n") } else { "not the holder\n".to_owned() };
            let status = if fit { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            let mut response = Response::new(Full::new(Bytes::from(body)));
            *response.status_mut() = status;
            async move { Ok::<_, Infallible>(response) }
        });
        // The error of one connection concerns nobody else.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// The loop of each pod: try, renew, and after each change of holder label the pods.
async fn contend(url: &str, key: &str, name: &str, leads: &watch::Sender<bool>) -> Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(kube::Client::try_default().await?);
    // A transaction of a pod that froze must not hold the table's lock for ever.
    let options: PgConnectOptions = url.parse()?;
    let options = options.options([("idle_in_transaction_session_timeout", "5s")]);
    let mut connection = PgConnection::connect_with(&options).await?;
    let mut rounds = time::interval(RETRY);
    let mut labelled = false;
    loop {
        rounds.tick().await;
        let outcome = time::timeout(RETRY, baseline(&mut connection, key, name)).await;
        let holds = outcome.context("no answer from the database")?? != Outcome::Held;
        leads.send_replace(holds);
        if holds && !labelled {
            take_over(&pods, key, name).await?;
        }
        labelled = holds;
    }
}

/// Labels every other active pod standby, and then this one active.
async fn take_over(pods: &Api<Pod>, app: &str, name: &str) -> Result<()> {
    let label = |role: &str| Patch::Merge(json!({ "metadata": { "labels": { RIVALS_LABEL: role } } }));
    let active = ListParams::default().labels(&format!("app={app},{RIVALS_LABEL}=active"));
    for pod in pods.list(&active).await?.items.iter().map(ResourceExt::name_any).filter(|pod| pod != name) {
        match pods.patch(&pod, &PatchParams::default(), &label("standby")).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            answer => drop(answer?),
        }
    }
    pods.patch(name, &PatchParams::default(), &label("active")).await?;
    Ok(())
}
