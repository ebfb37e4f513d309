//! Network namespaces for kernel tests: each belongs to the test that made it and ends with it.
//!
//! A namespace is a property of a thread, so work runs on threads of its own, each with a
//! current-thread runtime.
#![expect(unsafe_code, reason = "unshare and setns")]

use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use rtnetlink::{LinkUnspec, LinkVeth};

use super::link::{LinkIndex, MacAddress};
use crate::runtime::clock;

/// A network namespace that lives as long as this value and the work in it.
#[derive(Debug, Clone)]
pub(crate) struct Namespace(Arc<File>);

impl Namespace {
    /// `None`, and a printed reason, for those who may not.
    pub(crate) fn new() -> Option<Self> {
        let made = thread::spawn(|| {
            // SAFETY: unshare takes flags only; it moves this thread alone, which ends here.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        match made.join().expect("the thread does not panic") {
            Ok(file) => Some(Self(Arc::new(file))),
            Err(error) => {
                println!("skipped: cannot make a network namespace: {error}");
                None
            }
        }
    }

    /// Starts work on a thread inside.
    pub(crate) fn spawn<F, T>(&self, work: impl FnOnce() -> F + Send + 'static) -> JoinHandle<T>
    where
        F: Future<Output = T>,
        T: Send + 'static,
    {
        let namespace = Arc::clone(&self.0);
        thread::spawn(move || {
            // SAFETY: the descriptor is open and names a network namespace; the call moves this
            // thread alone, before it makes any socket.
            let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "{}", io::Error::last_os_error());
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be built")
                .block_on(async { work().await })
        })
    }

    /// Does work on a thread inside and waits for it.
    pub(crate) fn run<F, T>(&self, work: impl FnOnce() -> F + Send + 'static) -> T
    where
        F: Future<Output = T>,
        T: Send + 'static,
    {
        match self.spawn(work).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Links this namespace (`east`) to another (`west`); both ends are up.
    pub(crate) fn join(&self, other: &Self) -> (Wire, Wire) {
        let there = Arc::clone(&other.0);
        let east = self.run(move || async move {
            let netlink = raw();
            netlink
                .link()
                .add(LinkVeth::new("east", "west").build())
                .execute()
                .await
                .unwrap();
            let west = LinkUnspec::new_with_name("west").setns_by_fd(there.as_raw_fd());
            netlink.link().change(west.build()).execute().await.unwrap();
            raise("east").await
        });
        let west = other.run(|| raise("west"));
        (east, west)
    }
}

/// One end of a link between two namespaces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wire {
    pub(crate) index: LinkIndex,
    pub(crate) mac: MacAddress,
}

/// rtnetlink itself, for what the program has no verb for.
pub(crate) fn raw() -> rtnetlink::Handle {
    let (connection, handle, _) = rtnetlink::new_connection().expect("netlink opens");
    tokio::spawn(connection);
    handle
}

async fn raise(name: &str) -> Wire {
    let netlink = raw();
    let up = LinkUnspec::new_with_name(name).up().build();
    netlink.link().change(up).execute().await.unwrap();
    let (us, connection) = super::netlink::Netlink::connect().unwrap();
    tokio::spawn(connection);
    let all = us.snapshot().await.unwrap();
    let link = all.links.into_values().find(|l| l.name == name).unwrap();
    Wire {
        index: link.index,
        mac: link.mac.unwrap(),
    }
}

/// Polls until something is there, for five seconds at most.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = clock::now() + Duration::from_secs(5);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(clock::now() < deadline, "not within five seconds: {what}");
        clock::sleep(Duration::from_millis(2)).await;
    }
}
