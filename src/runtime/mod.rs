//! Process plumbing: clocks, shutdown, supervised tasks, logging, metrics, health, HTTP servers,
//! informers and work queues. It knows no Service, Node or VIP.

pub mod clock;
pub mod health;
pub mod logging;
pub mod metrics;
pub mod shutdown;
pub mod tasks;
pub mod tls;
