//! The time that the model is given.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::model::timer::Millis;

/// Wall time read once, then carried on by the monotonic clock: deadlines neither jump nor run backwards
/// when somebody sets the machine's time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start_ms: Millis,
    start: Instant,
}

impl Clock {
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start_ms: since_epoch.as_millis() as Millis, start: Instant::now() }
    }

    /// Milliseconds since the Unix epoch.
    pub fn now(&self) -> Millis {
        self.start_ms + self.start.elapsed().as_millis() as Millis
    }

    /// How long until `at`.
    pub fn until(&self, at: Millis) -> Duration {
        Duration::from_millis(at.saturating_sub(self.now()))
    }
}
