//! Queues, declared one after the other.

use std::collections::VecDeque;
use std::task::{Poll, ready};
use std::time::Duration;

use leveret_protocol::{FrameKind, Method, put_method_frame, queue};

use super::error::PerfError;
use super::link::{check, unexpected};
use super::setup::QueueShape;
use super::tally::add;
use super::worker::Place;

/// How long the deletes at the end may take.
const DELETE_PATIENCE: Duration = Duration::from_secs(120);
/// Deletes whose answers are waited for together.
const DELETES_AT_ONCE: u64 = 1000;

/// What one connection does.
#[derive(Clone, Debug)]
pub struct Order {
    /// What the names start with; a number follows.
    pub prefix: String,
    pub shape: QueueShape,
    /// Queues to declare; `None` for no end.
    pub count: Option<u64>,
    /// Declares without an answer at most.
    pub in_flight: u64,
    /// Leave them there.
    pub keep: bool,
}

/// Declares queues until the count is reached or the run ends, then deletes them.
///
/// # Errors
/// The broker refuses.
pub async fn declare(order: Order, place: Place) -> Result<(), PerfError> {
    let mut link = place.open().await?;
    link.open_channels(1).await?;
    place.start().await;
    let (mut asked, mut declared) = (0, 0);
    let mut asked_ns = VecDeque::new();
    place
        .until_stop(|context| {
            loop {
                while asked < order.count.unwrap_or(u64::MAX) && asked - declared < order.in_flight {
                    let name = format!("{}{asked}", order.prefix);
                    put_method_frame(&mut link.out, 1, &order.shape.declare(&name).into());
                    asked_ns.push_back(place.clock.now_ns());
                    asked += 1;
                }
                if order.count == Some(declared) {
                    return Poll::Ready(Ok(()));
                }
                ready!(link.poll_flush(context))?;
                ready!(link.poll_read(context))?;
                let now_ns = place.clock.now_ns();
                link.take_frames(|frame| {
                    if frame.kind == FrameKind::Method {
                        check(frame.payload)?;
                        let Ok(Method::QueueDeclareOk(_)) = Method::decode(frame.payload) else {
                            return Err(unexpected(frame.payload));
                        };
                        declared += 1;
                        add(&place.tally.operations, 1);
                        place.tally.latency.record(now_ns - asked_ns.pop_front().unwrap_or(now_ns));
                    }
                    Ok(true)
                })?;
            }
        })
        .await?;
    place.done();
    // What the queues cost is looked at before they go.
    place.stop().await;
    if !order.keep {
        let deletes = async {
            for first in (0..asked).step_by(DELETES_AT_ONCE as usize) {
                for number in first..asked.min(first + DELETES_AT_ONCE) {
                    let name = format!("{}{number}", order.prefix);
                    let delete = queue::Delete { queue: &name, if_unused: false, if_empty: false, no_wait: true };
                    put_method_frame(&mut link.out, 1, &delete.into());
                }
                let name = format!("{}{first}", order.prefix);
                // One answer says that all before it are done; declares may still be answered before it.
                let delete = queue::Delete { queue: &name, if_unused: false, if_empty: false, no_wait: false };
                while !matches!(Method::decode(&link.call(1, delete.clone()).await?), Ok(Method::QueueDeleteOk(_))) {}
            }
            Ok(())
        };
        tokio::time::timeout(DELETE_PATIENCE, deletes).await.unwrap_or(Ok::<(), PerfError>(()))?;
    }
    place.close(&mut link).await
}
