//! The connections to pods.

use std::{io, net::SocketAddr};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpSocket,
};

/// An open connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens connections to pods. A simulation has a network of its own.
pub trait Network: Send + Sync {
    /// Opens a connection. The first poll sends the request, so it returns the errors of this machine.
    fn connect(&self, pod: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Stream>>>;
}

/// The network of this machine.
pub(crate) struct Tcp;

impl Network for Tcp {
    fn connect(&self, pod: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        async move {
            let socket = if pod.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            let stream = socket.connect(pod).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        }
        .boxed()
    }
}
