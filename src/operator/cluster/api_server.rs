//! The connections to the API server: HTTP/2, so that all calls share a few connections, and no retries: after a
//! failure the election decides the next step.
//!
//! kube's own client speaks HTTP/1.1 and opens a connection for each call under way. This one negotiates HTTP/2 and
//! falls back to HTTP/1.1 where the other side, perhaps a proxy, does not offer it.

use std::time::Duration;

use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
};
use tower::ServiceBuilder;

use crate::{operator::index::watch_health::READ_TIMEOUT, routing::PATIENCE};

/// How long a connection may take to be made, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the other side is asked for a sign of life, and how long the answer may take. Calls that wait for a
/// dead connection fail by their own time limits; this is how soon new calls get a new connection.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection for calls may be silent. HTTP/1.1 has no signs of life, so this must be longer than a write
/// waits: its end would leave it unknown whether the write took effect. Calls have shorter limits of their own.
const CALL_READ_TIMEOUT: Duration = PATIENCE.saturating_add(Duration::from_secs(5));

/// There is no cluster to work for: neither a service account nor a kubeconfig.
#[derive(Debug, thiserror::Error)]
#[error("no way to the API server: run inside a pod with a service account, or set KUBECONFIG ({0})")]
pub struct NoCluster(String);

/// The clients, each with connections of its own: a change of holder never waits behind a long list, or behind a
/// thousand reports, on the way.
pub struct ApiServer {
    /// For changes of holder, and for the question whether the API server answers. HTTP/2.
    pub changes: Client,
    /// For status, Events and deletions. HTTP/2.
    pub background: Client,
    /// For watches, one connection each. The API server allows 100 requests at a time on a connection of HTTP/2, and
    /// watches never end; and only a connection of its own tells that a watch was never answered.
    pub watches: Client,
}

impl ApiServer {
    /// From the service account of a pod, or a kubeconfig. Makes no connection yet.
    pub(in crate::operator) async fn find() -> Result<Self, NoCluster> {
        let no_cluster = |error: &dyn std::error::Error| NoCluster(error.to_string());
        let config = Config::infer().await.map_err(|error| no_cluster(&error))?;
        let shared = || shared(&config).map_err(|error| no_cluster(&*error));
        let watches = single(config.clone(), READ_TIMEOUT).map_err(|error| no_cluster(&error))?;
        Ok(Self { changes: shared()?, background: shared()?, watches })
    }
}

/// kube's own client: a connection for each call under way, which may be silent for this long.
fn single(mut config: Config, read_timeout: Duration) -> Result<Client, kube::Error> {
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // Counted from the last byte in either direction, so that a list, or the start of a watch, is given up if it never
    // arrives.
    config.read_timeout = Some(read_timeout);
    config.reset_reader_on_write = true;
    Client::try_from(config)
}

/// A client whose calls share a connection.
fn shared(config: &Config) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    if config.proxy_url.is_some() {
        return Ok(single(config.clone(), CALL_READ_TIMEOUT)?);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let mut tls =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name.clone().try_into()?));
    }
    let mut connector = TimeoutConnector::new(tls.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(Some(CALL_READ_TIMEOUT));
    connector.set_reset_reader_on_write(true);
    let service: legacy::Client<_, Body> = legacy::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(service);
    Ok(Client::new(service, config.default_namespace.clone()))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
        sync::mpsc,
        time::Duration,
    };

    use tokio::{sync::oneshot, task::spawn_blocking, time::advance};

    use super::*;

    /// A server that speaks HTTP/1.1, as some proxies do: there are no pings that show that the connection works.
    ///
    /// The clock stands still while the server runs, and moves only when the test says so.
    #[tokio::test(start_paused = true)]
    async fn a_call_without_http2_may_wait_as_long_as_a_write_waits_for_webhooks() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (asked, is_asked) = oneshot::channel();
        let (answers, is_answered) = mpsc::channel::<()>();
        let server = spawn_blocking(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut lines = BufReader::new(stream.try_clone().expect("the same stream")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            asked.send(()).expect("the test listens");
            is_answered.recv().expect("the test lives");
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            // A client that has given up does not listen.
            let _ = stream.write_all(answer.as_bytes());
        });
        let config = Config::new(format!("http://{address}").parse().expect("a URL"));
        let client = shared(&config).expect("a client");
        let request = http::Request::get("/version").body(Vec::new()).expect("a request");
        let call = tokio::spawn(async move { client.request_text(request).await });
        is_asked.await.expect("the server asks");
        for _ in 0..PATIENCE.as_secs() {
            advance(Duration::from_secs(1)).await;
        }
        answers.send(()).expect("the server waits");
        server.await.expect("the server ends");
        assert_eq!(call.await.expect("no panic").expect("an answer"), "{}");
    }
}
