//! Process plumbing: clocks, shutdown, supervised tasks, logging, metrics, health, HTTP servers,
//! informers and work queues. It knows no Service, Node or VIP.

pub mod backoff;
pub mod clock;
pub mod informer;
pub mod workqueue;
