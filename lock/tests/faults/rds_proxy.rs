//! Stands in for Amazon's RDS Proxy, in front of a real pooler: it refuses a connection that brings settings along, in
//! the words of its users' reports.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// The number of an `SSLRequest` in place of a version of the protocol.
const SSL_REQUEST: i32 = 80_877_103;
const REFUSAL: &str =
    "Feature not supported: RDS Proxy currently doesn\u{2019}t support command-line options.";

/// Starts it in front of this port of loopback, and returns its own. It ends with the test's runtime.
pub async fn start(backend: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // A client that goes away in the middle ends its own connection only.
            tokio::spawn(serve(client, backend));
        }
    });
    port
}

async fn serve(mut client: TcpStream, backend: u16) -> std::io::Result<()> {
    let startup = loop {
        let length = client.read_i32().await?;
        let mut rest = vec![0; usize::try_from(length - 4).unwrap()];
        client.read_exact(&mut rest).await?;
        if rest.starts_with(&SSL_REQUEST.to_be_bytes()) {
            client.write_all(b"N").await?;
            continue;
        }
        break [&length.to_be_bytes()[..], &rest].concat();
    };
    if startup.split(|byte| *byte == 0).any(|word| word == b"options") {
        let fields = format!("SFATAL\0VFATAL\0C0A000\0M{REFUSAL}\0\0");
        client.write_u8(b'E').await?;
        client.write_i32(i32::try_from(fields.len() + 4).unwrap()).await?;
        client.write_all(fields.as_bytes()).await?;
        return client.shutdown().await;
    }
    let mut server = TcpStream::connect(("127.0.0.1", backend)).await?;
    server.write_all(&startup).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
