//! What a scenario sets on its host: how slow, how broken, how old it is.

use std::{ops::Range, sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::clock;

/// The release that the host behaves as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    #[default]
    Head,
    /// Overwrites the network of a LoadBalancer at every write, by the names of VMs.
    V1_8,
    /// As 1.8, and wants a VM of the cluster for every new LoadBalancer.
    V1_8_0,
    /// As 1.8, and knows nothing of clusters that are being removed.
    V1_7,
    /// One global pool per network.
    V1_9Rc,
}

impl Profile {
    pub(super) fn overwrites_network(self) -> bool {
        matches!(self, Self::V1_8 | Self::V1_8_0 | Self::V1_7)
    }

    /// Whether the load balancers of a cluster go with it.
    pub(super) fn cleans_up(self) -> bool {
        self != Self::V1_7
    }
}

/// When something happens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pace {
    #[default]
    AtOnce,
    After(Duration),
    Within(Range<Duration>),
    /// Not before the knob is turned.
    Held,
}

/// How a webhook answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Webhook {
    #[default]
    Works,
    /// Refuses what a guest asks, with this text.
    Denies(String),
    /// Breaks every connection: the API server takes it for down.
    Fails,
    /// Answers, rightly, after this long; the API server waits for 10 s.
    Hangs(Duration),
}

/// In which order the host sees the VMs of a namespace, where it takes the first that fits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MachineOrder {
    #[default]
    ByName,
    Reversed,
    /// These first.
    First(Vec<String>),
}

/// The knobs of one host; turned while it works.
#[derive(Debug, Clone)]
pub struct Knobs {
    settings: Arc<watch::Sender<Settings>>,
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) profile: Profile,
    pub(super) allocation: Pace,
    pub(super) between_writes: Duration,
    pub(super) finalizer_removal: Pace,
    pub(super) mutator: Webhook,
    pub(super) validator: Webhook,
    pub(super) machine_order: MachineOrder,
    pub(super) controller_runs: bool,
    pub(super) time_scale: f64,
    pub(super) lost_status_writes: u32,
}

impl Settings {
    fn new(profile: Profile) -> Self {
        Self {
            profile,
            allocation: Pace::AtOnce,
            between_writes: Duration::ZERO,
            finalizer_removal: Pace::AtOnce,
            mutator: Webhook::Works,
            validator: Webhook::Works,
            machine_order: MachineOrder::ByName,
            controller_runs: true,
            time_scale: 1.0,
            lost_status_writes: 0,
        }
    }
}

impl Knobs {
    pub(super) fn new(profile: Profile) -> Self {
        Self {
            settings: Arc::new(watch::Sender::new(Settings::new(profile))),
        }
    }

    /// K1: when the host looks at a new LoadBalancer.
    pub fn allocation(&self, pace: Pace) {
        self.turn(|it| it.allocation = pace);
    }

    /// K2: time between the booking, the write of the status and that of the finalizer.
    pub fn between_writes(&self, pause: Duration) {
        self.turn(|it| it.between_writes = pause);
    }

    /// K3: when the finalizer of a deleted LoadBalancer goes.
    pub fn finalizer_removal(&self, pace: Pace) {
        self.turn(|it| it.finalizer_removal = pace);
    }

    /// K4: as which release it behaves.
    pub fn profile(&self, profile: Profile) {
        self.turn(|it| it.profile = profile);
    }

    /// K5: the webhook that changes. The API server goes on without it.
    pub fn mutator(&self, webhook: Webhook) {
        self.turn(|it| it.mutator = webhook);
    }

    /// K5: the webhook that refuses. The API server does not go on without it.
    pub fn validator(&self, webhook: Webhook) {
        self.turn(|it| it.validator = webhook);
    }

    /// K7: which VM is seen first.
    pub fn machine_order(&self, order: MachineOrder) {
        self.turn(|it| it.machine_order = order);
    }

    /// K8: objects are accepted, and nothing happens to them.
    pub fn stop_controllers(&self) {
        self.turn(|it| it.controller_runs = false);
    }

    /// Ends [`Self::stop_controllers`].
    pub fn start_controllers(&self) {
        self.turn(|it| it.controller_runs = true);
    }

    /// K9: the host's retries come after this part of their time.
    pub fn time_scale(&self, scale: f64) {
        self.turn(|it| it.time_scale = scale);
    }

    /// The next writes of a status are lost after the address was booked.
    pub fn lose_status_writes(&self, times: u32) {
        self.turn(|it| it.lost_status_writes = times);
    }

    /// All knobs as at the start, the profile included.
    pub fn reset(&self) {
        self.turn(|it| *it = Settings::new(Profile::default()));
    }

    pub(super) fn now(&self) -> Settings {
        self.settings.borrow().clone()
    }

    /// Waits while the controllers are stopped.
    pub(super) async fn controller_runs(&self) {
        let mut settings = self.settings.subscribe();
        // The sender lives in `self`.
        let _ = settings.wait_for(|it| it.controller_runs).await;
    }

    /// Waits as long as the pace says, and goes by the new one when it is changed.
    pub(super) async fn pace(&self, pace_of: impl Fn(&Settings) -> &Pace) {
        let begun = clock::now();
        let mut settings = self.settings.subscribe();
        loop {
            let pace = pace_of(&settings.borrow_and_update()).clone();
            let pause = match &pace {
                Pace::AtOnce => return,
                Pace::After(pause) => Some(*pause),
                Pace::Within(range) => {
                    let span = range.end.saturating_sub(range.start);
                    Some(range.start + span.mul_f64(clock::random_fraction()))
                }
                Pace::Held => None,
            };
            let over = async {
                match pause {
                    Some(pause) => clock::sleep(pause.saturating_sub(begun.elapsed())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = over => return,
                _ = settings.wait_for(|it| *pace_of(it) != pace) => {}
            }
        }
    }

    /// Uses one of the lost writes up.
    pub(super) fn loses_status_write(&self) -> bool {
        self.settings.send_if_modified(|it| {
            let loses = it.lost_status_writes > 0;
            it.lost_status_writes = it.lost_status_writes.saturating_sub(1);
            loses
        })
    }

    fn turn(&self, turn: impl FnOnce(&mut Settings)) {
        self.settings.send_modify(turn);
    }
}
