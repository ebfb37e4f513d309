//! The way from one client to the API server, with faults at will and every request counted.
//!
//! A plain HTTP/1.1 listener, mostly on loopback inside a node's namespace, that forwards to the API
//! server over TLS on kept connections. One proxy per client, so that faults strike one client and
//! counts belong to one. Faults are switched at run time and add up; a fault that is lifted lets what
//! was held back pass, as TCP does when a link comes back.
//!
//! `Authorization` passes through. A request without it gets the proxy's token, because client-go sends
//! no credentials over plain HTTP.

mod counts;
mod faults;
mod request;
mod watch_body;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Error, Result};
use http::{HeaderValue, Request, Response, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use rustls::ClientConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use self::{
    counts::{Counted, Counts},
    faults::Failure,
    request::ApiRequest,
};
use self::{
    faults::{Failures, Garbling, Weather},
    watch_body::watch_body,
};
use crate::{clock, run::lock};

/// The API server as a proxy reaches it.
#[derive(Debug, Clone)]
pub struct Upstream {
    pub address: SocketAddr,
    pub tls: Arc<ClientConfig>,
    /// The identity of a client that brings none.
    pub token: String,
}

/// One client's way to the API server. Ends, with its connections, when dropped.
#[derive(Debug)]
pub struct ApiProxy {
    name: String,
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: Mutex<Option<DropGuard>>,
}

type Body = UnsyncBoxBody<Bytes, Error>;

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    authorization: HeaderValue,
    client: Client<HttpsConnector<HttpConnector>, Incoming>,
    weather: watch::Sender<Weather>,
    failures: Mutex<Failures>,
    garbling: Mutex<Option<Garbling>>,
    counts: Mutex<Counts>,
}

impl ApiProxy {
    /// Serves `listener`, which may belong to another network namespace.
    pub fn start(name: &str, listener: std::net::TcpListener, upstream: &Upstream) -> Result<Self> {
        let address = listener
            .local_addr()
            .context("asking for the address of a proxy")?;
        let mut authorization = HeaderValue::try_from(format!("Bearer {}", upstream.token))
            .context("the token does not fit into a header")?;
        authorization.set_sensitive(true);
        let shared = Arc::new(Shared {
            upstream: upstream.address,
            authorization,
            client: client(&upstream.tls),
            weather: watch::Sender::new(Weather::default()),
            failures: Mutex::default(),
            garbling: Mutex::default(),
            counts: Mutex::default(),
        });
        let proxy = Self {
            name: name.to_owned(),
            address,
            shared,
            serving: Mutex::default(),
        };
        proxy.listen(listener)?;
        Ok(proxy)
    }

    /// Goes on with another listener, the old one having ended with its host. Faults and counts stay.
    pub fn listen(&self, listener: std::net::TcpListener) -> Result<()> {
        listener
            .set_nonblocking(true)
            .context("preparing the listener of a proxy")?;
        let listener = TcpListener::from_std(listener).context("taking over a listener")?;
        let end = CancellationToken::new();
        tokio::spawn(accept(listener, Arc::clone(&self.shared), end.clone()));
        *lock(&self.serving) = Some(end.drop_guard());
        Ok(())
    }

    /// Ends the listener and every connection.
    pub fn close(&self) {
        lock(&self.serving).take();
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the client finds it, within its namespace.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client that goes this way, without retries of its own, for a proxy in the root namespace.
    pub fn client(&self) -> Result<kube::Client> {
        let mut config = kube::Config::new(self.url().parse().context("the address of a proxy")?);
        config.default_retry = false;
        kube::Client::try_from(config).context("making a client of a proxy")
    }

    /// Delays every request and every event of a watch.
    pub fn latency(&self, latency: Duration) {
        self.change(|weather| weather.latency = latency);
    }

    /// Closes all connections and resets new ones.
    pub fn refuse(&self) {
        self.change(|weather| {
            weather.refuse = true;
            weather.connection_epoch += 1;
        });
    }

    /// Ends the watches that run now, without the end mark: as a connection that broke.
    pub fn cut_watches(&self) {
        self.change(|weather| weather.watch_epoch += 1);
    }

    /// Lets nothing pass and closes nothing: requests hang, watches are silent.
    pub fn blackhole(&self) {
        self.change(|weather| weather.blackhole = true);
    }

    /// Answers in the server's place.
    pub fn fail(&self, failure: Failure) {
        lock(&self.shared.failures).add(failure);
    }

    /// Replaces `from` by `to`, of the same length, in every answer that is sent from now on, watches
    /// that run included: for a client that meets what it cannot read.
    pub fn garble(&self, from: &str, to: &str) {
        *lock(&self.shared.garbling) = Some(Garbling::new(from, to));
    }

    /// Lifts every fault; what was held back passes now.
    pub fn heal(&self) {
        lock(&self.shared.failures).clear();
        lock(&self.shared.garbling).take();
        self.change(|weather| {
            weather.latency = Duration::ZERO;
            weather.refuse = false;
            weather.blackhole = false;
        });
    }

    /// Follows the state of the client's host: unplugged, nothing passes, whatever else is in force.
    pub fn set_plugged(&self, plugged: bool) {
        self.change(|weather| weather.unplugged = !plugged);
    }

    /// The requests so far.
    pub fn counts(&self) -> Counts {
        lock(&self.shared.counts).clone()
    }

    /// Forgets the requests so far.
    pub fn reset_counts(&self) {
        *lock(&self.shared.counts) = Counts::default();
    }

    fn change(&self, change: impl FnOnce(&mut Weather)) {
        self.shared.weather.send_modify(change);
    }
}

fn client(tls: &ClientConfig) -> Client<HttpsConnector<HttpConnector>, Incoming> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls.clone())
        .https_only()
        .enable_http1()
        .wrap_connector(tcp);
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(None)
        .build(connector)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, end: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = end.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(serve(stream, Arc::clone(&shared), end.clone()));
            }
            // Out of descriptors, most likely: not worth more than another try.
            Err(_) => clock::sleep(Duration::from_millis(10)).await,
        }
    }
    connections.close();
    connections.wait().await;
}

async fn serve(stream: TcpStream, shared: Arc<Shared>, end: CancellationToken) {
    let mut weather = shared.weather.subscribe();
    let now = *weather.borrow_and_update();
    if now.refuse {
        // Closing with a linger of zero sends a reset. There is nobody to tell if it fails.
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        return;
    }
    // A connection without it is slower, not wrong.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(Arc::clone(&shared), request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        () = end.cancelled() => {}
        _ = weather.wait_for(|it| it.connection_epoch != now.connection_epoch) => {}
        // A connection that broke is the client's to notice.
        _ = connection => {}
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>> {
    let asked = ApiRequest::parse(
        request.method(),
        request.uri().path(),
        request.uri().query(),
    );
    let mut counting = Counting {
        shared: &shared,
        asked: &asked,
        code: None,
    };
    let mut weather = shared.weather.subscribe();
    let latency = weather.borrow().latency;
    if !latency.is_zero() {
        clock::sleep(latency).await;
    }
    weather.wait_for(|it| !it.is_silent()).await?;
    let struck = lock(&shared.failures).strike(&asked);
    if let Some(failure) = struck {
        counting.code = Some(failure.code());
        return Ok(failure
            .response()
            .map(|it| Full::new(it).map_err(|no| match no {}).boxed_unsync()));
    }
    let mut response = shared.client.request(shared.forwarded(request)?).await?;
    counting.code = Some(response.status().as_u16());
    weather.wait_for(|it| !it.is_silent()).await?;
    response.headers_mut().remove(header::CONNECTION);
    let watched = asked.is_watch() && response.status().is_success();
    let garbled = Arc::clone(&shared);
    Ok(response.map(|body| {
        let body = if watched {
            watch_body(body, weather)
        } else {
            body.map_err(Error::from).boxed_unsync()
        };
        body.map_frame(move |frame| frame.map_data(|data| garbled.garbled(data)))
            .boxed_unsync()
    }))
}

impl Shared {
    fn garbled(&self, data: Bytes) -> Bytes {
        match &*lock(&self.garbling) {
            Some(garbling) => garbling.apply(data),
            None => data,
        }
    }

    /// The request as the API server gets it.
    fn forwarded(&self, mut request: Request<Incoming>) -> Result<Request<Incoming>> {
        let target = request
            .uri()
            .path_and_query()
            .map_or("/", PathAndQuery::as_str);
        *request.uri_mut() = Uri::builder()
            .scheme("https")
            .authority(self.upstream.to_string())
            .path_and_query(target)
            .build()
            .context("addressing the API server")?;
        let headers = request.headers_mut();
        headers.remove(header::CONNECTION);
        headers.remove(header::HOST);
        if !headers.contains_key(header::AUTHORIZATION) {
            headers.insert(header::AUTHORIZATION, self.authorization.clone());
        }
        Ok(request)
    }
}

/// Counts a request when its answer is known, or when the client went away without one.
struct Counting<'a> {
    shared: &'a Shared,
    asked: &'a ApiRequest,
    code: Option<u16>,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        lock(&self.shared.counts).add(Counted {
            resource: self.asked.resource.clone(),
            verb: self.asked.verb.clone(),
            code: self.code,
        });
    }
}
