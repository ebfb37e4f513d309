//! One task per link: packet socket × witness × schedule × clock.
//!
//! Each turn takes commands first, so that a VIP that is silenced is silent at once; then frames,
//! so that an answer that is already here counts before a verdict; then the machines' deadlines,
//! and sends what they want sent. Events wait in a queue of the task's own: a slow receiver delays
//! no frame.
//!
//! On a link that is down nothing is lost: what could not be sent is tried again every 250 ms.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

use prometheus_client::metrics::{counter::Counter, family::Family};
use tokio::{sync::mpsc, time::timeout};

use super::{
    AnnouncerEvent, Command, Fence, LinkFacts, Settings,
    metrics::{COUNTERS, FamilyLabels, FrameLabels, Kind},
    schedule::Schedule,
    witness::{Finding, Notice, Witness},
};
use crate::{
    net::{
        frame::{self, Frame},
        packet_socket::{PacketSocket, SocketError},
    },
    runtime::clock,
};

/// How many VIPs are announced before commands get their turn again.
const BATCH: usize = 64;

/// How many frames are read before commands get their turn again: more than honest neighbours send
/// in a turn, and a few milliseconds' work.
const FRAMES: usize = 4096;
const COMMANDS: usize = 1024;

/// A link that takes no frame for so long is treated as down.
const SEND_LIMIT: Duration = Duration::from_millis(100);

/// Longer frames than any that matters are cut off.
const BUFFER: usize = 512;

/// Serves a link until the commands end, or the link does ([`AnnouncerEvent::Stopped`]).
///
/// It must run on a thread of the network namespace that the link is in.
pub async fn run(
    facts: LinkFacts,
    settings: Settings,
    mut commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<AnnouncerEvent>,
) {
    let link = facts.index;
    let mut announcer = Announcer::new(facts, &settings, clock::random());
    let Err(error) = serve(&mut announcer, &mut commands, &events).await else {
        return;
    };
    // Who still sends commands learns that nobody takes them, and goes on to read the events.
    drop(commands);
    tracing::info!(link = %link, name = announcer.facts.name, %error, "announcer stopped");
    announcer.events.push_back(AnnouncerEvent::Stopped {
        link,
        reason: error.to_string(),
    });
    for event in announcer.events {
        if events.send(event).await.is_err() {
            return;
        }
    }
}

async fn serve(
    announcer: &mut Announcer,
    commands: &mut mpsc::Receiver<Command>,
    events: &mpsc::Sender<AnnouncerEvent>,
) -> Result<(), SocketError> {
    let socket = PacketSocket::open(announcer.facts.index)?;
    let mut buffer = [0; BUFFER];
    let mut taken = Vec::new();
    loop {
        tokio::select! {
            biased;
            count = commands.recv_many(&mut taken, COMMANDS) => if count == 0 {
                return Ok(());
            },
            received = socket.recv(&mut buffer) => match received {
                Ok(length) => announcer.handle_frame(&buffer[..length], clock::now()),
                // The sender will notice, and try again.
                Err(SocketError::LinkDown) => {}
                Err(error) => return Err(error),
            },
            permit = events.reserve(), if !announcer.events.is_empty() => {
                let (Ok(permit), Some(event)) = (permit, announcer.events.pop_front()) else {
                    return Ok(());
                };
                permit.send(event);
                continue;
            }
            () = clock::sleep_until(announcer.next_deadline()) => {}
        }
        let now = clock::now();
        for command in taken.drain(..) {
            announcer.handle_command(command, now);
        }
        announcer.hear_and_judge(&socket, &mut buffer, now)?;
        let owned = announcer.fence.is_open(clock::now());
        // Whoever proved that what stands here is owned has sent what is not before.
        while let Ok(command) = commands.try_recv() {
            announcer.handle_command(command, now);
        }
        announcer.transmit(&socket, owned).await?;
    }
}

/// The two machines of a link and what joins them; everything but the waiting.
#[derive(Debug)]
struct Announcer {
    facts: LinkFacts,
    fence: Fence,
    schedule: Schedule,
    witness: Witness,
    /// Built once per VIP, until the link's facts change.
    frames: HashMap<IpAddr, Vec<Frame>>,
    /// Announced, but nothing has left yet.
    fresh: HashSet<IpAddr>,
    events: VecDeque<AnnouncerEvent>,
}

impl Announcer {
    fn new(facts: LinkFacts, settings: &Settings, seed: u64) -> Self {
        let mut witness = Witness::new(facts.mac, &facts.neighbours);
        witness.handle_host(&facts.host_macs);
        Self {
            schedule: Schedule::new(settings.interval, seed),
            witness,
            facts,
            fence: settings.fence.clone(),
            frames: HashMap::new(),
            fresh: HashSet::new(),
            events: VecDeque::new(),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.schedule.next_deadline(), self.witness.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    fn handle_command(&mut self, command: Command, now: Instant) {
        tracing::debug!(name = self.facts.name, ?command, "announcer");
        match command {
            Command::Ask { vip, question } => self.witness.handle_ask(vip, question, now),
            Command::Forget { vip } => self.witness.handle_forget(vip),
            Command::Announce {
                vip,
                predecessor_may_answer,
            } => {
                self.fresh.insert(vip);
                self.witness.handle_announcing(vip);
                self.schedule
                    .handle_announce(vip, predecessor_may_answer, now);
            }
            Command::Silence { vip } => {
                self.fresh.remove(&vip);
                self.frames.remove(&vip);
                self.witness.handle_silenced(vip);
                self.schedule.handle_silence(vip);
            }
            Command::Facts(facts) => {
                self.frames.clear();
                self.witness.handle_facts(facts.mac, &facts.neighbours);
                self.witness.handle_host(&facts.host_macs);
                if facts.mac != self.facts.mac {
                    self.schedule.handle_mac_change(now);
                }
                self.facts = facts;
            }
        }
    }

    /// A verdict needs all that was said before it. Behind a flood it waits for another turn.
    fn hear_and_judge(
        &mut self,
        socket: &PacketSocket,
        buffer: &mut [u8],
        now: Instant,
    ) -> Result<(), SocketError> {
        for _ in 0..FRAMES {
            match socket.try_recv(buffer) {
                Ok(Some(length)) => {
                    self.handle_frame(buffer.get(..length).unwrap_or_default(), now);
                }
                Ok(None) | Err(SocketError::LinkDown) => {
                    self.handle_deadline(now);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        tracing::debug!(name = self.facts.name, "a flood of frames");
        Ok(())
    }

    fn handle_frame(&mut self, bytes: &[u8], now: Instant) {
        // What is not understood is not for us: the filter is coarser than the parser.
        let Ok(heard) = frame::parse(bytes) else {
            return;
        };
        let counter = match self.witness.handle_heard(&heard, now) {
            Notice::Answer => &COUNTERS.answers,
            Notice::Rival => &COUNTERS.conflicts,
            Notice::Nothing | Notice::Own | Notice::Node => return,
        };
        if let Some(claim) = heard.claim() {
            let family = claim.address.into();
            counter.get_or_create(&FamilyLabels { family }).inc();
        }
        tracing::debug!(name = self.facts.name, ?heard, "claim of another host");
    }

    fn handle_deadline(&mut self, now: Instant) {
        self.witness.handle_deadline(now);
        let link = self.facts.index;
        while let Some(finding) = self.witness.poll_event() {
            tracing::debug!(name = self.facts.name, ?finding, "witness");
            self.events.push_back(match finding {
                Finding::Clear { vip } => AnnouncerEvent::Clear { link, vip },
                Finding::Answered { vip, by, node } => AnnouncerEvent::Answered {
                    link,
                    vip,
                    by,
                    node,
                },
                Finding::Conflict { vip, by, node } => AnnouncerEvent::Conflict {
                    link,
                    vip,
                    by,
                    node,
                },
                Finding::Defend { vip } => {
                    let family = vip.into();
                    COUNTERS
                        .defences
                        .get_or_create(&FamilyLabels { family })
                        .inc();
                    self.schedule.handle_defence(vip, now);
                    continue;
                }
            });
        }
    }

    /// Sends what is due; announcements only if it is known that their VIPs are owned. Fails only if the link is gone for good.
    async fn transmit(&mut self, socket: &PacketSocket, owned: bool) -> Result<(), SocketError> {
        let now = clock::now();
        let asked: Vec<IpAddr> = std::iter::from_fn(|| self.witness.poll_transmit()).collect();
        let mut due: Vec<IpAddr> = std::iter::from_fn(|| self.schedule.poll_transmit(now))
            .take(BATCH)
            .collect();
        if !owned {
            for vip in due.drain(..) {
                self.schedule.handle_failure(vip, now);
            }
        }
        let (purposes, frames) = self.compose(&due, &asked);
        if frames.is_empty() {
            return Ok(());
        }
        let (sent, result) = match timeout(SEND_LIMIT, socket.send_batch(&frames)).await {
            Ok((_, Err(SocketError::LinkGone))) => return Err(SocketError::LinkGone),
            Ok(sent) => sent,
            Err(_) => (0, Err(SocketError::LinkDown)),
        };
        if let Err(error) = result {
            tracing::debug!(name = self.facts.name, %error, "frames not sent");
        }
        // The clock may have moved by the limit.
        self.settle(&due, &purposes, sent, clock::now());
        Ok(())
    }

    /// The frames in the order in which the socket sends them, and what each is for.
    fn compose(&mut self, due: &[IpAddr], asked: &[IpAddr]) -> (Vec<Purpose>, Vec<Frame>) {
        let mut all: Vec<(Purpose, Frame)> = Vec::with_capacity(2 * due.len() + asked.len());
        for vip in due {
            let built = self.frames.entry(*vip);
            let built = built.or_insert_with(|| announcement(&self.facts, *vip));
            let purpose = (Kind::announcement, *vip);
            all.extend(built.iter().map(|frame| (purpose, *frame)));
        }
        let ask = |vip: &IpAddr| ((Kind::question, *vip), question(&self.facts, *vip));
        all.extend(asked.iter().map(ask));
        all.sort_by_key(|(_, frame)| !frame.is_arp());
        all.into_iter().unzip()
    }

    /// Of the frames as many have left as were sent; the rest is tried again.
    fn settle(&mut self, due: &[IpAddr], purposes: &[Purpose], sent: usize, now: Instant) {
        let (left, stayed) = purposes.split_at(sent.min(purposes.len()));
        count(&COUNTERS.frames, left);
        count(&COUNTERS.failures, stayed);
        let unsent: HashSet<Purpose> = stayed.iter().copied().collect();
        for vip in due {
            if !unsent.contains(&(Kind::announcement, *vip)) {
                self.tell_first(*vip);
            }
        }
        for (kind, vip) in unsent {
            match kind {
                Kind::announcement => self.schedule.handle_failure(vip, now),
                Kind::question => self.witness.handle_unsent(vip, now),
            }
        }
    }

    fn tell_first(&mut self, vip: IpAddr) {
        let link = self.facts.index;
        if self.fresh.remove(&vip) {
            self.events
                .push_back(AnnouncerEvent::FirstAnnounced { link, vip });
        }
    }
}

/// What a frame is for.
type Purpose = (Kind, IpAddr);

fn count(counter: &Family<FrameLabels, Counter>, frames: &[Purpose]) {
    for (kind, vip) in frames {
        let labels = FrameLabels {
            family: (*vip).into(),
            kind: *kind,
        };
        counter.get_or_create(&labels).inc();
    }
}

/// The gratuitous frames of a VIP. Some stacks heed only requests, others only replies.
fn announcement(facts: &LinkFacts, vip: IpAddr) -> Vec<Frame> {
    match vip {
        IpAddr::V4(vip) => vec![
            frame::gratuitous_request(facts.mac, vip),
            frame::gratuitous_reply(facts.mac, vip),
        ],
        IpAddr::V6(vip) => {
            let source = facts.link_local.unwrap_or(vip);
            vec![frame::unsolicited_advertisement(facts.mac, source, vip)]
        }
    }
}

/// A question that teaches no neighbour anything about the address asked for. Without a link-local
/// address only the form of duplicate address detection is left; its answer goes to all nodes.
fn question(facts: &LinkFacts, target: IpAddr) -> Frame {
    match target {
        IpAddr::V4(target) => frame::arp_question(facts.mac, target),
        IpAddr::V6(target) => {
            let source = facts.link_local.unwrap_or(Ipv6Addr::UNSPECIFIED);
            frame::multicast_solicitation(facts.mac, source, target)
        }
    }
}

#[cfg(test)]
mod tests;
