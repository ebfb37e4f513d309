use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1), 0.0);

fn queue() -> (Queue<u8>, Instant) {
    (Queue::new(BACKOFF), clock::now())
}

#[test]
fn a_key_added_twice_is_processed_once() {
    let (mut queue, now) = queue();
    queue.add(1);
    queue.add(1);
    assert_eq!(queue.take(now), Taken::Key(1));
    assert_eq!(queue.take(now), Taken::Wait(None));
}

#[test]
fn a_key_added_while_processed_comes_again_after_done_only() {
    let (mut queue, now) = queue();
    queue.add(1);
    assert_eq!(queue.take(now), Taken::Key(1));
    queue.add(1);
    queue.add(1);
    assert_eq!(queue.take(now), Taken::Wait(None));
    queue.done(&1);
    assert_eq!(queue.take(now), Taken::Key(1));
    queue.done(&1);
    assert_eq!(queue.take(now), Taken::Wait(None));
}

#[test]
fn the_earlier_of_two_delayed_adds_wins() {
    let (mut queue, now) = queue();
    let at = |ms| now + Duration::from_millis(ms);
    queue.add_at(1, at(50));
    queue.add_at(1, at(20));
    queue.add_at(1, at(80));
    assert_eq!(queue.take(at(19)), Taken::Wait(Some(at(20))));
    assert_eq!(queue.take(at(20)), Taken::Key(1));
    queue.done(&1);
    assert_eq!(queue.take(at(100)), Taken::Wait(None));
}

#[test]
fn retries_back_off_for_each_key_until_forgotten() {
    let (mut queue, now) = queue();
    let ms = Duration::from_millis;
    assert_eq!(queue.retry(1, now, 0.0), ms(5));
    assert_eq!(queue.retry(1, now, 0.0), ms(10));
    assert_eq!(queue.retry(2, now, 0.0), ms(5));
    assert_eq!(queue.failures(&1), 2);
    queue.forget(&1);
    assert_eq!(queue.retry(1, now, 0.0), ms(5));
}

#[test]
fn done_of_a_key_nobody_processes_changes_nothing() {
    let (mut queue, now) = queue();
    queue.add(1);
    queue.done(&1);
    assert_eq!(queue.take(now), Taken::Key(1));
    assert_eq!(queue.take(now), Taken::Wait(None));
}

#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    AddAt(u8, u64),
    Take,
    Done(u8),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..4_u8).prop_map(Step::Add),
        (0..4_u8, 0..50_u64).prop_map(|(key, ms)| Step::AddAt(key, ms)),
        Just(Step::Take),
        (0..4_u8).prop_map(Step::Done),
        (0..30_u64).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 0..120)
}

/// What the queue promises, as plainly as possible: a list of what waits and sets.
#[derive(Default)]
struct Plain {
    waiting: Vec<u8>,
    again: BTreeSet<u8>,
    busy: BTreeSet<u8>,
    delayed: BTreeMap<u8, u64>,
}

impl Plain {
    fn add(&mut self, key: u8) {
        if self.busy.contains(&key) {
            self.again.insert(key);
        } else if !self.waiting.contains(&key) {
            self.waiting.push(key);
        }
    }

    fn pass_to(&mut self, now: u64) {
        let mut due: Vec<(u64, u8)> = self.delayed.iter().map(|(k, at)| (*at, *k)).collect();
        due.sort_unstable();
        for (at, key) in due {
            if at <= now {
                self.delayed.remove(&key);
                self.add(key);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_queue_does_what_the_plain_model_does(steps in steps()) {
        let (mut queue, start) = queue();
        let mut plain = Plain::default();
        let mut elapsed = 0;
        for step in steps {
            match step {
                Step::Add(key) => { queue.add(key); plain.add(key); }
                Step::AddAt(key, ms) => {
                    queue.add_at(key, start + Duration::from_millis(elapsed + ms));
                    let at = plain.delayed.entry(key).or_insert(u64::MAX);
                    *at = (*at).min(elapsed + ms);
                }
                Step::Take => {
                    plain.pass_to(elapsed);
                    let taken = queue.take(start + Duration::from_millis(elapsed));
                    if plain.waiting.is_empty() {
                        let due = plain.delayed.values().min()
                            .map(|at| start + Duration::from_millis(*at));
                        prop_assert_eq!(taken, Taken::Wait(due));
                    } else {
                        let key = plain.waiting.remove(0);
                        plain.busy.insert(key);
                        prop_assert_eq!(taken, Taken::Key(key));
                    }
                }
                Step::Done(key) => {
                    queue.done(&key);
                    if plain.busy.remove(&key) && plain.again.remove(&key) {
                        plain.waiting.push(key);
                    }
                }
                Step::Pass(ms) => elapsed += ms,
            }
            prop_assert_eq!(queue.len(), plain.waiting.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_worker_is_woken_and_no_key_is_processed_twice_at_once() {
    let queue = WorkQueue::<u32>::new(BACKOFF);
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let queue = queue.clone();
        workers.spawn(async move {
            let mut taken = Vec::new();
            while let Some(key) = queue.next().await {
                clock::sleep(Duration::from_millis(10)).await;
                taken.push(key);
                queue.done(&key);
            }
            taken
        });
    }
    tokio::task::yield_now().await;
    let begun = clock::now();
    for key in 0..8 {
        queue.add(key);
    }
    queue.add_after(8, Duration::from_millis(5));
    clock::sleep(Duration::from_millis(200)).await;
    assert!(queue.is_empty(), "{:?} later", clock::now() - begun);
    queue.shut_down();
    let mut taken: Vec<u32> = workers.join_all().await.into_iter().flatten().collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..9).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_waiting_workers_and_drops_what_waits() {
    let queue = WorkQueue::<u32>::new(BACKOFF);
    queue.add_after(1, Duration::from_secs(3600));
    let waiting = queue.clone();
    let worker = tokio::spawn(async move { waiting.next().await });
    tokio::task::yield_now().await;
    queue.shut_down();
    assert_eq!(worker.await.unwrap(), None);
    queue.add(2);
    assert_eq!(queue.next().await, None);
}
