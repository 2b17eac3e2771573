//! The way between a process and the API server: requests are carried out in the server's runtime, by its clock, even
//! if the process is stopped or killed in the meantime.

use std::{io, time::Duration};

use bytes::Bytes;
use futures::stream::poll_fn;
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use tokio::{runtime::Handle, sync::mpsc, time::timeout};
use tower::{BoxError, service_fn};

use crate::api_server::ApiServer;

/// The operator's client gives a connection up on which nothing has arrived for so long.
const SILENCE: Duration = Duration::from_secs(30);
/// How many parts of an answer may be on their way.
const WINDOW: usize = 16;

/// A client in the process whose runtime is `process`, of an API server in the runtime `server`.
pub fn client(api: &ApiServer, name: &str, server: &Handle, process: &Handle) -> Client {
    let inner = {
        let _entered = server.enter();
        api.client(name)
    };
    let server = server.clone();
    let _entered = process.enter();
    let service = service_fn(move |request: Request<Body>| {
        let (inner, way) = (inner.clone(), server.clone());
        async move {
            let answered = server_side(&way, inner, request);
            let (parts, mut frames) = answered.await?;
            let frames = poll_fn(move |context| frames.poll_recv(context));
            Ok::<_, BoxError>(Response::from_parts(parts, StreamBody::new(frames)))
        }
    });
    Client::new(service, "default")
}

type Frames = mpsc::Receiver<io::Result<Frame<Bytes>>>;

async fn server_side(
    server: &Handle,
    inner: Client,
    request: Request<Body>,
) -> Result<(http::response::Parts, Frames), BoxError> {
    let carried_out = server.spawn(async move {
        let answered = timeout(SILENCE, inner.send(request)).await.map_err(io::Error::from)?;
        let (parts, mut body) = answered?.into_parts();
        let (sender, frames) = mpsc::channel(WINDOW);
        tokio::spawn(async move {
            while let Ok(sent) = timeout(SILENCE, next(&sender, &mut body)).await {
                if !sent {
                    return;
                }
            }
            let _ = sender.send(Err(io::ErrorKind::TimedOut.into())).await;
        });
        Ok((parts, frames))
    });
    carried_out.await.map_err(BoxError::from)?
}

/// Passes the next part on. Returns whether there may be more.
async fn next(sender: &mpsc::Sender<io::Result<Frame<Bytes>>>, body: &mut Body) -> bool {
    tokio::select! {
        biased;
        () = sender.closed() => false,
        frame = body.frame() => match frame {
            None => false,
            Some(frame) => sender.send(frame.map_err(io::Error::other)).await.is_ok(),
        },
    }
}
