//! HTTP and HTTPS listeners, on a thread of their own.
//!
//! They answer also while the program's loops hang, which is when health is asked for. No client can
//! hold anything up: handshakes, request headers and whole connections have deadlines, and where too
//! many are open the oldest goes.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;

use super::{clock, shutdown::Shutdown};

/// Open connections per listener.
const CONNECTIONS: usize = 128;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// From the start of a request, or the end of the one before, until its headers are complete.
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);

/// A client that reads too slowly, or never, is cut off after this.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(600);

/// Bytes of one request's headers.
const HEADER_BYTES: usize = 64 * 1024;

/// A port that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct BindError {
    pub address: SocketAddr,
    #[source]
    source: io::Error,
}

/// The certificates that a TLS client showed; empty for none.
#[derive(Debug, Clone, Default)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// Opens a port. The unspecified address of either family is all addresses of both, where the host
/// has IPv6.
pub fn bind(address: SocketAddr, port_sharing: bool) -> Result<std::net::TcpListener, BindError> {
    let open = |address: SocketAddr| {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking().cloexec(),
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(port_sharing)?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        socket.bind(&address.into())?;
        socket.listen(128)?;
        Ok(socket.into())
    };
    both_families(address, open).map_err(|source| BindError { address, source })
}

/// What is opened for an address: for the unspecified one of either family `[::]`, and `0.0.0.0` where
/// the host has no IPv6, as Go listens on `:port`.
fn both_families<T>(
    address: SocketAddr,
    open: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    if !address.ip().is_unspecified() {
        return open(address);
    }
    let all = |ip: IpAddr| open(SocketAddr::new(ip, address.port()));
    all(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => all(Ipv4Addr::UNSPECIFIED.into()),
        _ => Err(error),
    })
}

/// Serves a port until `stop`; then the connections are dropped.
pub async fn serve(
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    stop: Shutdown,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = Connections::default();
    loop {
        tokio::select! {
            () = stop.requested() => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.add(connection(stream, tls.clone(), router.clone())),
                // Out of descriptors, or the client is gone already: neither ends the listener.
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot accept");
                    clock::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

/// Connections being served, the oldest first.
#[derive(Debug, Default)]
struct Connections {
    tasks: JoinSet<()>,
    handles: VecDeque<AbortHandle>,
}

impl Connections {
    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.handles.retain(|handle| !handle.is_finished());
        if self.handles.len() >= CONNECTIONS
            && let Some(oldest) = self.handles.pop_front()
        {
            oldest.abort();
        }
        self.handles.push_back(self.tasks.spawn(connection));
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router) {
    let served = async {
        let Some(acceptor) = tls else {
            return exchange(stream, router, PeerCertificates::default()).await;
        };
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
        let stream = match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                return tracing::debug!(error, "TLS handshake failed");
            }
            Err(_) => return tracing::debug!("TLS handshake took too long"),
        };
        let peer = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = PeerCertificates(peer.into());
        exchange(stream, router, peer).await;
    };
    if tokio::time::timeout(CONNECTION_LIFETIME, served)
        .await
        .is_err()
    {
        tracing::debug!("connection closed at the end of its lifetime");
    }
}

async fn exchange<S>(stream: S, router: Router, peer: PeerCertificates)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router.layer(Extension(peer)));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        let error: &(dyn std::error::Error + 'static) = &error;
        tracing::debug!(error, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn loopback() -> (std::net::TcpListener, SocketAddr) {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn the_unspecified_address_serves_both_families() {
        let listener = bind((Ipv4Addr::UNSPECIFIED, 0).into(), false).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            std::net::TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn without_ipv6_the_unspecified_address_of_either_family_is_ipv4s() {
        for (address, missing, expected) in [
            ("[::]:2112", libc::EAFNOSUPPORT, Some("0.0.0.0:2112")),
            ("0.0.0.0:2112", libc::EAFNOSUPPORT, Some("0.0.0.0:2112")),
            ("[::]:2112", libc::EADDRNOTAVAIL, Some("0.0.0.0:2112")),
            ("[::]:2112", libc::EADDRINUSE, None),
            ("[::1]:2112", libc::EADDRNOTAVAIL, None),
        ] {
            let opened = both_families(address.parse().unwrap(), |address| {
                if address.is_ipv6() {
                    return Err(io::Error::from_raw_os_error(missing));
                }
                Ok(address.to_string())
            });
            assert_eq!(opened.ok().as_deref(), expected, "{address} {missing}");
        }
    }

    #[test]
    fn a_port_in_use_is_an_error_that_names_it() {
        let (_listener, address) = loopback();
        let error = bind(address, false).unwrap_err();
        assert!(error.to_string().contains(&address.to_string()));
    }

    #[tokio::test]
    async fn a_crowd_of_silent_clients_does_not_keep_others_out() {
        let (listener, address) = loopback();
        let stop = Shutdown::new();
        let router = Router::new().route("/", get(|| async { "hello" }));
        let server = tokio::spawn(serve(listener, None, router, stop.clone()));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS + 10 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        // The oldest was closed for the newest.
        assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap_or(0), 0);
        stop.request();
        server.await.unwrap().unwrap();
    }
}
