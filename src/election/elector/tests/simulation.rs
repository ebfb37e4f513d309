//! Three electors over a simulated server: delays, lost requests and answers, stalled and broken
//! watches, frozen processes.

use std::{cmp::Reverse, collections::BinaryHeap};

use proptest::prelude::*;

use super::*;
use crate::election::view::same_version;

/// More happenings at one moment than that are a loop.
const MOST_AT_ONCE: usize = 10_000;
const ACTORS: usize = 3;
/// Faults end here, in milliseconds.
const QUIET: u64 = 90_000;
const END: u64 = 150_000;

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Calls of the actor get no answer; the second says whether they are carried out.
    Mute(usize, bool),
    /// The watch stalls unnoticed.
    Stall(usize),
    /// The watch is known to be down.
    Unwatch(usize),
    /// The process stands still.
    Freeze(usize),
    /// The actor retires at the beginning and contends again at the end.
    Retire(usize),
}

#[derive(Debug, Clone)]
struct Span {
    fault: Fault,
    from: u64,
    to: u64,
}

fn spans() -> impl Strategy<Value = Vec<Span>> {
    let fault = (0..5_u8, 0..ACTORS, any::<bool>()).prop_map(|(kind, actor, flag)| match kind {
        0 => Fault::Mute(actor, flag),
        1 => Fault::Stall(actor),
        2 => Fault::Unwatch(actor),
        3 => Fault::Freeze(actor),
        _ => Fault::Retire(actor),
    });
    let span = (fault, 0..QUIET, 100..40_000_u64).prop_map(|(fault, from, length)| Span {
        fault,
        from,
        to: (from + length).min(QUIET),
    });
    proptest::collection::vec(span, 0..12)
}

#[derive(Debug)]
enum What {
    /// The server carries out the call.
    Arrive(usize, Call, u64),
    Answer(usize, u64, Outcome),
    Watch(usize, Option<Arc<Lease>>),
    Begin(Fault),
    Finish(Fault),
    Wake(usize),
}

struct World {
    start: Instant,
    now: u64,
    seed: u64,
    electors: Vec<Elector>,
    /// Number of the call in flight; an answer to another one is a late one.
    calls: Vec<u64>,
    frozen: Vec<u64>,
    mute: Vec<Option<bool>>,
    stalled: Vec<u32>,
    unwatched: Vec<u32>,
    object: Option<Arc<Lease>>,
    version: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    agenda: std::collections::HashMap<u64, What>,
    serial: u64,
}

impl World {
    fn new(seed: u64, spans: &[Span]) -> Self {
        let start = clock::now();
        let electors = (0..ACTORS)
            .map(|actor| Elector::new(format!("n{actor}").into(), TIMINGS, true, start))
            .collect();
        let mut world = Self {
            start,
            now: 0,
            seed,
            electors,
            calls: vec![0; ACTORS],
            frozen: vec![0; ACTORS],
            mute: vec![None; ACTORS],
            stalled: vec![0; ACTORS],
            unwatched: vec![0; ACTORS],
            object: None,
            version: 0,
            queue: BinaryHeap::new(),
            agenda: std::collections::HashMap::new(),
            serial: 0,
        };
        for actor in 0..ACTORS {
            world.electors[actor].handle_gone(None, start);
            world.electors[actor].handle_contend(Duration::ZERO, start);
            world.schedule(0, What::Wake(actor));
        }
        for span in spans {
            world.schedule(span.from, What::Begin(span.fault));
            world.schedule(span.to, What::Finish(span.fault));
            if let Fault::Freeze(actor) = span.fault {
                world.schedule(span.to + 1, What::Wake(actor));
            }
        }
        world
    }

    fn schedule(&mut self, at: u64, what: What) {
        self.serial += 1;
        self.queue.push(Reverse((at.max(self.now), self.serial)));
        self.agenda.insert(self.serial, what);
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    fn fraction(&mut self) -> f64 {
        f64::from(u32::try_from(self.random(1000)).unwrap()) / 1000.0
    }

    fn run(&mut self) -> Result<(), TestCaseError> {
        let mut at_once = 0;
        while let Some(Reverse((at, serial))) = self.queue.pop() {
            if at > END {
                break;
            }
            // A deadline that stays in the past would be kept for ever, without time going on.
            at_once = if at == self.now { at_once + 1 } else { 0 };
            prop_assert!(
                at_once < MOST_AT_ONCE,
                "the clock stands still at {} ms",
                at
            );
            self.now = at;
            if let Some(what) = self.agenda.remove(&serial) {
                self.happen(what);
            }
            self.check()?;
        }
        let holders = self.holders();
        prop_assert_eq!(holders.len(), 1, "holders at the end: {:?}", holders);
        Ok(())
    }

    fn holders(&self) -> Vec<usize> {
        let now = self.instant();
        let holds = |actor: &usize| {
            self.electors[*actor]
                .held_until()
                .is_some_and(|until| until > now)
        };
        (0..ACTORS).filter(holds).collect()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let holders = self.holders();
        prop_assert!(holders.len() <= 1, "{:?} hold at {} ms", holders, self.now);
        Ok(())
    }

    fn happen(&mut self, what: What) {
        let now = self.instant();
        let actor = match what {
            What::Arrive(actor, call, number) => return self.arrive(actor, call, number),
            What::Begin(fault) => return self.fault(fault, true),
            What::Finish(fault) => return self.fault(fault, false),
            What::Answer(actor, ..) | What::Watch(actor, _) | What::Wake(actor) => actor,
        };
        if self.frozen[actor] > self.now {
            return self.schedule(self.frozen[actor], what);
        }
        // As the driver does: deadlines before anything else.
        self.electors[actor].handle_deadline(now);
        match what {
            What::Answer(_, number, outcome) if number == self.calls[actor] => {
                self.calls[actor] = 0;
                let jitter = self.fraction();
                self.electors[actor].handle_outcome(&outcome, now, jitter);
            }
            What::Watch(_, object) if self.stalled[actor] == 0 && self.unwatched[actor] == 0 => {
                match object {
                    Some(object) => self.electors[actor].handle_object(&object, Origin::Any, now),
                    None => self.electors[actor].handle_gone(None, now),
                }
            }
            _ => {}
        }
        self.act(actor);
    }

    fn act(&mut self, actor: usize) {
        let now = self.instant();
        if let Some(call) =
            self.electors[actor].poll_call(now, wall(i64::try_from(self.now).unwrap()))
        {
            self.serial += 1;
            let number = self.serial;
            self.calls[actor] = number;
            let limit = u64::try_from(self.electors[actor].call_deadline(now).as_millis()).unwrap();
            let mute = self.mute[actor];
            if mute != Some(false) {
                // Once in a while a request takes longer than its caller waits.
                let delay = if self.now < QUIET && self.random(20) == 0 {
                    self.random(9000)
                } else {
                    1 + self.random(30)
                };
                self.schedule(self.now + delay, What::Arrive(actor, call, number));
            }
            self.schedule(
                self.now + limit,
                What::Answer(actor, number, Outcome::Failed { after: None }),
            );
        }
        while self.electors[actor].poll_event().is_some() {}
        let elector = &self.electors[actor];
        if let Some(next) = elector
            .next_call()
            .into_iter()
            .chain(elector.next_change())
            .min()
        {
            let at = u64::try_from(
                next.saturating_duration_since(self.start)
                    .as_micros()
                    .div_ceil(1000),
            )
            .unwrap();
            self.schedule(at.max(self.now + 1), What::Wake(actor));
        }
    }

    fn arrive(&mut self, actor: usize, call: Call, number: u64) {
        let current = self.object.clone();
        let outcome = match (call, current) {
            (Call::Get, Some(object)) => Outcome::Object(object),
            (Call::Get | Call::Replace { .. } | Call::Delete { .. }, None) => Outcome::Gone,
            (Call::Create { record }, None) => self.write(&record),
            (Call::Replace { base, record }, Some(object)) if same_version(&base, &object) => {
                self.write(&record)
            }
            (Call::Create { .. } | Call::Replace { .. }, Some(_)) => Outcome::Conflict,
            (Call::Delete { .. }, Some(_)) => unreachable!("nobody deletes here"),
        };
        if self.mute[actor].is_none() {
            let delay = 1 + self.random(30);
            self.schedule(self.now + delay, What::Answer(actor, number, outcome));
        }
    }

    fn write(&mut self, record: &LeaseRecord) -> Outcome {
        self.version += 1;
        let object = lease(self.version, record);
        self.object = Some(Arc::clone(&object));
        for actor in 0..ACTORS {
            let delay = 1 + self.random(60);
            self.schedule(
                self.now + delay,
                What::Watch(actor, Some(Arc::clone(&object))),
            );
        }
        Outcome::Object(object)
    }

    fn fault(&mut self, fault: Fault, begins: bool) {
        let now = self.instant();
        match (fault, begins) {
            (Fault::Mute(actor, carried_out), true) => self.mute[actor] = Some(carried_out),
            (Fault::Mute(actor, _), false) => self.mute[actor] = None,
            (Fault::Stall(actor), true) => self.stalled[actor] += 1,
            (Fault::Stall(actor), false) => {
                self.stalled[actor] -= 1;
                self.rewatch(actor);
            }
            (Fault::Unwatch(actor), true) => {
                self.unwatched[actor] += 1;
                self.electors[actor].handle_watching(false, now);
            }
            (Fault::Unwatch(actor), false) => {
                self.unwatched[actor] -= 1;
                self.rewatch(actor);
            }
            // A freeze ends by itself; it is noticed when the actor wakes.
            (Fault::Freeze(actor), true) => {
                self.frozen[actor] = self.now + 5000 + self.random(30_000);
            }
            (Fault::Freeze(actor), false) => self.frozen[actor] = 0,
            (Fault::Retire(actor), true) => self.electors[actor].handle_retire(false, now),
            (Fault::Retire(actor), false) => {
                self.electors[actor].handle_contend(Duration::ZERO, now);
            }
        }
        let (Fault::Mute(actor, _)
        | Fault::Stall(actor)
        | Fault::Unwatch(actor)
        | Fault::Freeze(actor)
        | Fault::Retire(actor)) = fault;
        self.schedule(self.now + 1, What::Wake(actor));
    }

    /// The watch is back, with whatever was missed.
    fn rewatch(&mut self, actor: usize) {
        if self.stalled[actor] == 0 && self.unwatched[actor] == 0 {
            let now = self.instant();
            self.electors[actor].handle_watching(true, now);
            let object = self.object.clone();
            self.schedule(self.now + 1, What::Watch(actor, object));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn never_do_two_hold_the_lease_and_one_does_when_all_is_well_again(seed: u64, spans in spans()) {
        World::new(seed, &spans).run()?;
    }
}
