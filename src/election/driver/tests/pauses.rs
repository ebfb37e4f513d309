//! Pauses that the monotonic clock does not show.

use k8s_openapi::jiff::SignedDuration;

use super::*;
use crate::election::elector::Outcome;

/// Whether a holder that renews gives up when, after so many seconds each, wall time has run ahead
/// by so many.
fn gives_up(steps: &[(f64, f64)]) -> bool {
    let (client, _server) = dialogue::pair();
    let mut driver = Driver::new(client, "us".into(), TIMINGS);
    (driver.synced, driver.connected) = (true, true);
    let (mut now, mut wall) = driver.last;
    let mut version = 0;
    let mut written = || {
        version += 1;
        Arc::new(serde_json::from_value(lease("l", version, "us")).unwrap())
    };
    driver.touch(key("l"), now, |elector| {
        elector.handle_object(&written(), Origin::Any, now);
        elector.handle_contend(Duration::ZERO, now);
    });
    for (seconds, ahead) in [(0.0, 0.0)].iter().chain(steps) {
        now += Duration::from_secs_f64(*seconds);
        wall += SignedDuration::from_secs_f64(seconds + ahead);
        driver.pass_time(now, wall);
        driver.dispatch(now);
        driver.touch(key("l"), now, |elector| {
            elector.handle_outcome(&Outcome::Object(written()), now, 0.5);
        });
    }
    let acquired = |notice: &Notice| matches!(notice, Notice::Acquired { .. });
    assert!(driver.outbox.iter().any(acquired));
    let (lease, why) = (key("l"), Loss::Paused);
    driver.outbox.contains(&Notice::Lost { lease, why })
}

#[tokio::test(start_paused = true)]
async fn pauses_that_only_wall_time_shows_are_a_loss_once_others_may_have_taken_over() {
    assert!(!gives_up(&[(1.0, 4.9)]));
    assert!(gives_up(&[(1.0, 5.1)]));
    // Nothing but a clock that was set back.
    assert!(!gives_up(&[(1.0, -60.0), (1.0, 4.9)]));
    // A hold may have lived through all pauses of the last ten seconds.
    assert!(gives_up(&[(1.0, 3.0), (2.5, 3.0)]));
    let apart = [(1.0, 3.0), (3.0, 0.0), (3.0, 0.0), (3.0, 0.0), (3.0, 3.0)];
    assert!(!gives_up(&apart));
}
