//! The API server, as far as the agent needs it: GET requests with the pod's service account.
//!
//! The agent is in every pod, so it has no general client. It looks up no names either: Kubernetes tells pods the
//! address of the API server.

use std::{fmt, fs, net::IpAddr, net::SocketAddr, path::PathBuf, str::FromStr, sync::Arc};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::{
    Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT},
};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
    rt::{Read, Write},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

/// The largest object that is read. etcd takes no larger one.
const LARGEST: usize = 4 << 20;
/// The files of a service account.
const CERTIFICATES: &str = "ca.crt";
const TOKEN: &str = "token";

/// Where the API server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiAddress {
    is_https: bool,
    address: SocketAddr,
}

/// A text that is not the address of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write https://ADDRESS:PORT; the address is an IP address, because the agent looks up no names")]
pub struct NoApiAddress;

impl FromStr for ApiAddress {
    type Err = NoApiAddress;

    fn from_str(text: &str) -> Result<Self, NoApiAddress> {
        let (scheme, address) = text.split_once("://").ok_or(NoApiAddress)?;
        let is_https = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(NoApiAddress),
        };
        Ok(Self { is_https, address: address.parse().map_err(|_| NoApiAddress)? })
    }
}

impl fmt::Display for ApiAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_https { "https" } else { "http" }, self.address)
    }
}

impl ApiAddress {
    /// The one that Kubernetes tells pods in these two variables.
    pub fn of_pod(host: &str, port: &str) -> Result<Self, NoApiAddress> {
        let host: IpAddr = host.parse().map_err(|_| NoApiAddress)?;
        let port = port.parse().map_err(|_| NoApiAddress)?;
        Ok(Self { is_https: true, address: (host, port).into() })
    }
}

/// The API server, and who asks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// Where it is.
    pub address: ApiAddress,
    /// The directory of the service account: the certificates that sign the server's one, and the token.
    pub service_account: PathBuf,
}

/// A connection to the API server, which is opened when it is needed.
pub(super) struct Connection<'a> {
    server: &'a ApiServer,
    open: Option<Open>,
}

/// A connection that no request uses. It is closed when this is dropped.
struct Open {
    requests: SendRequest<Empty<Bytes>>,
    _task: JoinSet<()>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(server: &'a ApiServer) -> Self {
        Self { server, open: None }
    }

    /// The whole answer to a GET request. If this is dropped before, the connection is not used again.
    pub(super) async fn get(&mut self, path: &str) -> Result<(StatusCode, Bytes)> {
        if let Some(open) = self.open.take()
            && let Ok(answer) = self.get_on(open, path).await
        {
            return Ok(answer);
        }
        // The server may have closed the other one, and a GET request may be sent twice.
        let open = self.server.connect().await?;
        self.get_on(open, path).await
    }

    async fn get_on(&mut self, mut open: Open, path: &str) -> Result<(StatusCode, Bytes)> {
        let answer = open.send(self.server, path, "application/json").await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("the answer was cut off: {error}"))?.to_bytes();
        self.open = Some(open);
        Ok((status, body))
    }

    /// The beginning of an answer that has no end.
    pub(super) async fn watch(&mut self, path: &str, kind: &'static str) -> Result<Incoming> {
        let mut open = self.server.connect().await?;
        let answer = open.send(self.server, path, kind).await?;
        self.open = Some(open);
        if !answer.status().is_success() {
            bail!("the API server answers with status {}", answer.status());
        }
        Ok(answer.into_body())
    }
}

impl ApiServer {
    async fn connect(&self) -> Result<Open> {
        let ApiAddress { is_https, address } = self.address;
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        if !is_https {
            return open(TokioIo::new(stream)).await;
        }
        let name = ServerName::IpAddress(address.ip().into());
        let stream = self.tls()?.connect(name, stream).await;
        open(TokioIo::new(stream.with_context(|| format!("TLS with {address}"))?)).await
    }

    /// Read again for each connection, because they may be replaced.
    fn tls(&self) -> Result<TlsConnector> {
        let path = self.service_account.join(CERTIFICATES);
        let reading = || format!("reading {}", path.display());
        let mut trusted = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&path).with_context(reading)? {
            trusted.add(certificate.with_context(reading)?).with_context(reading)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(trusted)
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// The header with the token, which the kubelet replaces from time to time. It is not sent in the clear.
    fn authorization(&self) -> Result<Option<HeaderValue>> {
        if !self.address.is_https {
            return Ok(None);
        }
        let path = self.service_account.join(TOKEN);
        let token = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut header = HeaderValue::from_str(&format!("Bearer {}", token.trim()))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

async fn open<S: Read + Write + Unpin + Send + 'static>(stream: S) -> Result<Open> {
    let (requests, connection) = handshake(stream).await?;
    let mut task = JoinSet::new();
    task.spawn(async { drop(connection.await) });
    Ok(Open { requests, _task: task })
}

impl Open {
    async fn send(&mut self, to: &ApiServer, path: &str, accept: &'static str) -> Result<Response<Incoming>> {
        let mut request = Request::get(path)
            .header(HOST, to.address.address.to_string())
            .header(USER_AGENT, concat!("leadergroup-agent/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, accept);
        if let Some(authorization) = to.authorization()? {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new())?;
        self.requests.ready().await?;
        Ok(self.requests.send_request(request).await?)
    }
}

#[cfg(test)]
mod tests;
