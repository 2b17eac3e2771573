use std::sync::atomic::{AtomicU32, Ordering};

use futures::FutureExt as _;
use hyper::{server::conn::http1, service::service_fn};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};

use super::*;

// Made for these tests: a certificate for 127.0.0.1, its key, the certificate that signs it, and another one.
const SERVER: &str = "\
-----BEGIN CERTIFICATE-----
MIIBhzCCAS2gAwIBAgIULdlARz4zr69m6qJsgFjgzApSLkwwCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHdGVzdC1jYTAgFw0yNjExMjcwNzU2NTBaGA8yMTI2MTEwMzA3
NTY1MFowEzERMA8GA1UEAwwIdGVzdC1hcGkwWTATBgcqhkjOPQIBBggqhkjOPQMB
BwNCAAQfEQDp/ReD0rTNzJhxA2O/q80epUbcIZY6iLI6bnJyAYOpJTdkO1bKy+Dk
ubkzelh97ucIuzC16NgTNGh40TVto14wXDAPBgNVHREECDAGhwR/AAABMAkGA1Ud
EwQCMAAwHQYDVR0OBBYEFJDaIbd+xNNbBeEtTkmczclurrPtMB8GA1UdIwQYMBaA
FK4F49VhWgmXQLxJ3uL+btlWVWgUMAoGCCqGSM49BAMCA0gAMEUCIQC8eXC69QXe
voEx4nsK+qoiu48CKEAg8B4WK9JorIEclAIgMjL+ZetWk2znI0DZJ4fgVcj8Abie
X60zGG/2nUgemMY=
-----END CERTIFICATE-----
";
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgnga0kWLhUK267+NB
2ghpLnGQoCT2y3qFyiqgVT5xzU2hRANCAAQfEQDp/ReD0rTNzJhxA2O/q80epUbc
IZY6iLI6bnJyAYOpJTdkO1bKy+Dkubkzelh97ucIuzC16NgTNGh40TVt
-----END PRIVATE KEY-----
";
const TRUSTED: &str = "\
-----BEGIN CERTIFICATE-----
MIIBezCCASGgAwIBAgIUMKwiv1gcwpPWSiU1pQuFrZFlkvcwCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHdGVzdC1jYTAgFw0yNjExMjcwNzU2NDlaGA8yMTI2MTEwMzA3
NTY0OVowEjEQMA4GA1UEAwwHdGVzdC1jYTBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABAhr777z2qjWr4GaK1BLf3Q9YHSvZsn8mOABmJXwW/7t1ENuQLyqUo/0F+a/
ppg+c475rv0t+lM/eaPGOOGRfpKjUzBRMB0GA1UdDgQWBBSuBePVYVoJl0C8Sd7i
/m7ZVlVoFDAfBgNVHSMEGDAWgBSuBePVYVoJl0C8Sd7i/m7ZVlVoFDAPBgNVHRMB
Af8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIH28bGfHjs5y+6khD+QdrN8aT8Qk
Dzd1fOqxmXFavwZTAiEAruM5bg54mNPmhvGHmBkA0HTCrOug5UqHKPaC2hIjQ+Q=
-----END CERTIFICATE-----
";
const OTHER: &str = "\
-----BEGIN CERTIFICATE-----
MIIBfDCCASOgAwIBAgIUG58KdG6MXpj/xlDtPK9js4eTBTMwCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIb3RoZXItY2EwIBcNMjYxMTI3MDc1NjUwWhgPMjEyNjExMDMw
NzU2NTBaMBMxETAPBgNVBAMMCG90aGVyLWNhMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEFMSuQwukvUD7hhMk7EVWRsLLoorJk7UZ6shuz77EH1hx82WxA9Rsu1nF
JacrPPcwlq43sxI6w0Ey04jVJTNuEqNTMFEwHQYDVR0OBBYEFPgThjJeD8m+s47W
d59w8C70sZxSMB8GA1UdIwQYMBaAFPgThjJeD8m+s47Wd59w8C70sZxSMA8GA1Ud
EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDRwAwRAIgToDQ2InuD8SQD6rI5Hd7HUA6
7CcicT5wdDFS8o9MCCYCIAmZlzv/IRzE+drRayUQAMDJJZ5gKBSGC2/xRRllYBjv
-----END CERTIFICATE-----
";

/// Answers each request with the token that it had. Closes each connection after so many answers.
async fn server(answers: u32) -> (ApiAddress, Arc<AtomicU32>) {
    let certificate = CertificateDer::from_pem_slice(SERVER.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![certificate], key));
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("a configuration")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let connections = Arc::new(AtomicU32::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            counted.fetch_add(1, Ordering::SeqCst);
            let answered = AtomicU32::new(0);
            let service = service_fn(move |request: Request<Incoming>| {
                let token = request.headers().get(AUTHORIZATION).cloned();
                let answer =
                    http_body_util::Full::new(Bytes::from_owner(token.expect("a token").as_bytes().to_vec()));
                // The server does not say before that it closes the connection.
                let is_over = answered.fetch_add(1, Ordering::SeqCst) >= answers;
                async move { if is_over { Err("closed") } else { Ok(Response::new(answer)) } }
            });
            tokio::spawn(async move {
                drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    (ApiAddress { is_https: true, address }, connections)
}

fn service_account(certificates: &str, token: &str) -> TempDir {
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join(CERTIFICATES), certificates).expect("a file");
    fs::write(directory.path().join(TOKEN), token).expect("a file");
    directory
}

#[tokio::test]
async fn the_token_of_the_moment_is_sent_over_one_connection() {
    let (address, connections) = server(u32::MAX).await;
    let account = service_account(TRUSTED, "first\n");
    let server = ApiServer { address, service_account: account.path().to_owned() };
    let mut connection = Connection::new(&server);
    for token in ["first", "second"] {
        fs::write(account.path().join(TOKEN), token).expect("a file");
        let (status, body) = connection.get("/").await.expect("an answer");
        assert_eq!((status, &body[..]), (StatusCode::OK, format!("Bearer {token}").as_bytes()));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    // What was not read to its end says nothing about where the next answer begins.
    drop(connection.get("/").now_or_never());
    connection.get("/").await.expect("an answer");
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_is_no_failure() {
    let (address, connections) = server(1).await;
    let account = service_account(TRUSTED, "token");
    let server = ApiServer { address, service_account: account.path().to_owned() };
    let mut connection = Connection::new(&server);
    for expected in 1..4 {
        connection.get("/").await.expect("an answer");
        assert_eq!(connections.load(Ordering::SeqCst), expected);
    }
}

#[tokio::test]
async fn only_a_server_that_the_service_account_trusts_gets_the_token() {
    let (address, connections) = server(1).await;
    let account = service_account(OTHER, "token");
    let server = ApiServer { address, service_account: account.path().to_owned() };
    let error = Connection::new(&server).get("/").await.expect_err("not trusted");
    assert!(format!("{error:#}").contains("TLS with 127.0.0.1"), "{error:#}");
    assert_eq!(connections.load(Ordering::SeqCst), 0);
}

#[test]
fn addresses_are_read_as_they_are_written() {
    for text in ["https://10.0.0.1:443", "http://127.0.0.1:8001", "https://[fd00::1]:6443"] {
        assert_eq!(text.parse::<ApiAddress>().expect("an address").to_string(), text);
    }
    for wrong in ["", "10.0.0.1:443", "https://10.0.0.1", "https://kubernetes:443", "ftp://10.0.0.1:1"] {
        assert_eq!(wrong.parse::<ApiAddress>(), Err(NoApiAddress), "{wrong}");
    }
    let of_pod = |host| ApiAddress::of_pod(host, "443").map(|address| address.to_string());
    assert_eq!(of_pod("fd00::1"), Ok("https://[fd00::1]:443".to_owned()));
    assert_eq!(of_pod("kubernetes.default"), Err(NoApiAddress));
}
