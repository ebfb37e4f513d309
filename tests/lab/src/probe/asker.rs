//! Asks the wire every 2 ms who has some addresses, and notes who answers.
//!
//! ARP for IPv4, neighbour solicitations to the solicited-node group for IPv6, both from a packet
//! socket: no kernel's neighbour cache stands between. The answers do reach the kernel of the
//! asker's host, which may learn from them; so put an asker on a host of its own, not on the client
//! whose recovery is measured.
//!
//! Replies carry nothing of the request. But hosts of the lab answer before the request's `send`
//! returns, and the asker reads everything that has arrived before it asks again; so on links
//! without a delay a reply belongs to the request before it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use socket2::{SockFilter, Socket};

use super::worker::{Pace, Worker, receive_until};
use crate::{
    clock, frame,
    frame::Claim,
    host::Host,
    mac::MacAddress,
    run::lock,
    syscall::{self, PacketOptions},
    wait::poll_until,
};

const PERIOD: Duration = Duration::from_millis(2);

/// A running asker.
#[derive(Debug)]
pub struct Asker {
    started: Instant,
    answers: Arc<Mutex<BTreeMap<IpAddr, Answers>>>,
    worker: Worker,
}

/// Who answered for one address.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// Requests sent.
    pub asked: u64,
    /// Requests that anyone answered.
    pub answered: u64,
    /// When the first answer came.
    pub first: Option<Instant>,
    /// When the last answer came, and from whom.
    pub last: Option<(Instant, MacAddress)>,
    /// The longest time between two answers, or from the last one to the report.
    pub longest_silence: Duration,
    /// When requests were sent that two or more stations answered.
    pub doubly: Vec<Instant>,
    /// Everyone who ever answered.
    pub macs: BTreeSet<MacAddress>,
    /// Who answered a request, each time that this was not who answered the one before.
    pub timeline: Vec<(Instant, BTreeSet<MacAddress>)>,
    /// Gratuitous ARP and unsolicited advertisements: when, and from whom.
    pub gratuitous: Vec<(Instant, MacAddress)>,
}

impl Asker {
    /// Starts to ask for `addresses` on a link of `host`, with the first address of each family
    /// that the link has (for IPv6 a link-local one).
    pub fn start(host: &Host, link: &str, addresses: &[IpAddr]) -> Result<Self> {
        let options = PacketOptions {
            filter: &claims_only(),
            ..PacketOptions::default()
        };
        let socket = host.inside(|| syscall::packet_socket(link, options))?;
        let socket =
            socket.with_context(|| format!("packet socket on {link} of {}", host.name()))?;
        let requests = requests(host, link, addresses)?;
        let none = addresses
            .iter()
            .map(|&address| (address, Answers::default()))
            .collect();
        let answers = Arc::new(Mutex::new(none));
        let shared = Arc::clone(&answers);
        let started = clock::now();
        let worker = Worker::start("asker", move |stop| {
            let mut pace = Pace::new(PERIOD);
            let mut buffer = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                ask(&socket, &requests, &shared, &mut pace, &mut buffer)?;
            }
            Ok(())
        })?;
        Ok(Self {
            started,
            answers,
            worker,
        })
    }

    /// When it started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Who has answered so far, for each address.
    pub fn snapshot(&self) -> BTreeMap<IpAddr, Answers> {
        let now = clock::now();
        let mut answers = lock(&self.answers).clone();
        for seen in answers.values_mut() {
            seen.note_silence(now);
        }
        answers
    }

    /// Who has answered so far for one address; nobody, for one that is not asked for.
    pub fn answers(&self, address: IpAddr) -> Answers {
        self.snapshot().remove(&address).unwrap_or_default()
    }

    /// Who answered last for the address.
    pub fn current_mac(&self, address: IpAddr) -> Option<MacAddress> {
        lock(&self.answers).get(&address)?.last.map(|(_, mac)| mac)
    }

    /// Waits for the first answer for the address.
    pub async fn wait_first(&self, address: IpAddr, within: Duration) -> Result<Instant> {
        let what = format!("answer for {address}");
        poll_until(within, &what, async || {
            Ok(lock(&self.answers)
                .get(&address)
                .and_then(|seen| seen.first))
        })
        .await
    }

    /// Waits until `mac` is the one that answers for the address.
    pub async fn wait_for_mac(
        &self,
        address: IpAddr,
        mac: MacAddress,
        within: Duration,
    ) -> Result<()> {
        let what = format!("answer for {address} from {mac}");
        poll_until(within, &what, async || {
            Ok((self.current_mac(address) == Some(mac)).then_some(()))
        })
        .await
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<BTreeMap<IpAddr, Answers>> {
        self.worker.stop()?;
        Ok(self.snapshot())
    }
}

impl Answers {
    /// Notes who answered one request, sent at `asked`; the answers with their times.
    fn note_request(&mut self, asked: Instant, replies: &[(Instant, MacAddress)]) {
        self.asked += 1;
        let (Some(&(first, _)), Some(&last)) = (replies.first(), replies.last()) else {
            return;
        };
        self.answered += 1;
        self.note_silence(first);
        self.first.get_or_insert(first);
        self.last = Some(last);
        let macs: BTreeSet<MacAddress> = replies.iter().map(|(_, mac)| *mac).collect();
        self.macs.extend(&macs);
        if macs.len() > 1 {
            self.doubly.push(asked);
        }
        if self
            .timeline
            .last()
            .is_none_or(|(_, before)| *before != macs)
        {
            self.timeline.push((first, macs));
        }
    }

    fn note_silence(&mut self, now: Instant) {
        if let Some((last, _)) = self.last {
            self.longest_silence = self
                .longest_silence
                .max(now.saturating_duration_since(last));
        }
    }
}

/// One request for each address, and what arrives until the next.
fn ask(
    socket: &Socket,
    requests: &[(IpAddr, Vec<u8>)],
    answers: &Mutex<BTreeMap<IpAddr, Answers>>,
    pace: &mut Pace,
    buffer: &mut [u8],
) -> Result<()> {
    let asked = clock::now();
    for (_, request) in requests {
        // A link that is down loses the request.
        drop(socket.send(request));
    }
    let mut replies: BTreeMap<IpAddr, Vec<(Instant, MacAddress)>> = BTreeMap::new();
    receive_until(socket, pace.advance(), buffer, |bytes| {
        let now = clock::now();
        match frame::claim(bytes) {
            Some(Claim {
                address,
                mac,
                gratuitous: false,
            }) => {
                replies.entry(address).or_default().push((now, mac));
            }
            Some(Claim {
                address,
                mac,
                gratuitous: true,
            }) => {
                if let Some(seen) = lock(answers).get_mut(&address) {
                    seen.gratuitous.push((now, mac));
                }
            }
            None => {}
        }
    })?;
    for (address, seen) in lock(answers).iter_mut() {
        seen.note_request(asked, replies.get(address).map_or(&[], Vec::as_slice));
    }
    Ok(())
}

/// The frames to send, each with the address that it asks for.
fn requests(host: &Host, link: &str, addresses: &[IpAddr]) -> Result<Vec<(IpAddr, Vec<u8>)>> {
    let port = host
        .port(link)
        .with_context(|| format!("{} has no {link}", host.name()))?;
    let mac = port.mac();
    let own = port
        .addresses()
        .into_iter()
        .find_map(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
    ensure!(!addresses.is_empty(), "nothing to ask for");
    let frame = |&asked: &IpAddr| {
        let request = match asked {
            IpAddr::V4(asked) => {
                let own = own.with_context(|| format!("{link} has no IPv4 address to ask with"))?;
                frame::arp_request(mac, own, asked)
            }
            IpAddr::V6(asked) => {
                let own: Ipv6Addr = mac.link_local();
                frame::solicitation(mac, own, asked)
            }
        };
        Ok((asked, request))
    };
    addresses.iter().map(frame).collect()
}

/// Classic BPF that passes ARP and neighbour advertisements.
fn claims_only() -> [SockFilter; 9] {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    [
        SockFilter::new(LOAD_HALF, 0, 0, 12),
        SockFilter::new(JUMP_EQUAL, 5, 0, 0x0806),
        SockFilter::new(JUMP_EQUAL, 0, 5, 0x86dd),
        SockFilter::new(LOAD_BYTE, 0, 0, 20),
        SockFilter::new(JUMP_EQUAL, 0, 3, 58),
        SockFilter::new(LOAD_BYTE, 0, 0, 54),
        SockFilter::new(JUMP_EQUAL, 0, 1, 136),
        SockFilter::new(RETURN, 0, 0, 0xffff),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const B: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    #[test]
    fn the_report_tells_silence_double_answers_and_changes() {
        let start = clock::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut seen = Answers::default();
        seen.note_request(at(0), &[]);
        seen.note_request(at(2), &[(at(2), A)]);
        seen.note_request(at(4), &[(at(4), A), (at(5), B)]);
        seen.note_request(at(6), &[]);
        seen.note_request(at(30), &[(at(31), B)]);
        seen.note_silence(at(40));
        assert_eq!((seen.asked, seen.answered), (5, 3));
        assert_eq!((seen.first, seen.last), (Some(at(2)), Some((at(31), B))));
        assert_eq!(seen.longest_silence, Duration::from_millis(26));
        assert_eq!(seen.doubly, [at(4)]);
        assert_eq!(seen.macs, BTreeSet::from([A, B]));
        let turns = [
            (at(2), BTreeSet::from([A])),
            (at(4), BTreeSet::from([A, B])),
        ];
        let last = (at(31), BTreeSet::from([B]));
        assert_eq!(seen.timeline, [turns[0].clone(), turns[1].clone(), last]);
    }
}
