//! A connection that consumes: counts what comes, reads the stamps, acknowledges in bulk.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use leveret_protocol::{FieldTable, Frame, FrameKind, basic, put_ack, put_method_frame};
use tokio::time::Sleep;

use super::block::STAMP_BYTES;
use super::error::PerfError;
use super::link::{Link, check};
use super::options::Options;
use super::tally::{Clock, Runs, Tally, add};
use super::worker::Place;

/// Reads in a row before others of the thread get their turn.
const READS_IN_A_ROW_MAX: usize = 4;
/// While more than this waits to be written, nothing is read.
const OUT_BYTES_MAX: usize = 1 << 20;
/// How long the last acks may take to be written.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);

/// What one consumer does.
#[derive(Clone, Debug)]
pub struct Order {
    pub queues: Vec<String>,
    pub channels: u16,
    pub autoack: bool,
    /// Deliveries that one ack covers.
    pub ack_every: u64,
    /// For each consumer; 0 for no limit.
    pub prefetch: u16,
    /// For the channel; 0 for no limit.
    pub prefetch_of_channel: u16,
    /// Messages to take; `None` for no end.
    pub count: Option<u64>,
    /// Messages a second at most.
    pub rate: Option<f64>,
}

impl Order {
    pub fn new(options: &Options, queues: Vec<String>) -> Self {
        Self {
            queues,
            channels: options.consumer_channel_count,
            autoack: options.autoack,
            ack_every: options.multi_ack_every,
            prefetch: options.qos,
            prefetch_of_channel: options.global_qos,
            count: options.consumer_count,
            rate: options.consumer_rate,
        }
    }
}

/// Consumes until the count is reached or the run ends.
///
/// # Errors
/// The broker ends it.
pub async fn consume(order: Order, place: Place) -> Result<(), PerfError> {
    let mut link = place.open().await?;
    link.open_channels(order.channels).await?;
    for channel in 1..=order.channels {
        for (prefetch_count, global) in [(order.prefetch, false), (order.prefetch_of_channel, true)] {
            if prefetch_count > 0 {
                link.call(channel, basic::Qos { prefetch_size: 0, prefetch_count, global }).await?;
            }
        }
    }
    place.start().await;
    for channel in 1..=order.channels {
        for queue in &order.queues {
            let consume = basic::Consume {
                queue,
                consumer_tag: "",
                no_local: false,
                no_ack: order.autoack,
                exclusive: false,
                no_wait: false,
                arguments: FieldTable::new(),
            };
            put_method_frame(&mut link.out, channel, &consume.into());
        }
    }
    let mut consumer = Consumer::new(&order, link, &place);
    place.until_stop(|context| consumer.poll(context)).await?;
    place.done();
    consumer.ack_the_rest();
    place.finish(FLUSH_PATIENCE, |context| consumer.link.poll_flush(context)).await?;
    place.close(&mut consumer.link).await
}

struct Consumer<'a> {
    link: Link,
    tally: &'a Tally,
    clock: Clock,
    channels: Vec<Channel>,
    /// 0: the broker does it.
    ack_every: u64,
    received: u64,
    count: Option<u64>,
    rate: Option<f64>,
    start_ns: u64,
    timer: Pin<Box<Sleep>>,
}

#[derive(Clone, Debug, Default)]
struct Channel {
    expect: Expect,
    delivery_tag: u64,
    unacked: u64,
}

/// What of a delivery comes next.
#[derive(Clone, Copy, Debug, Default)]
enum Expect {
    #[default]
    Method,
    Header,
    /// The body's first frame, then more; bytes left.
    Body {
        left: u64,
        first: bool,
    },
}

impl<'a> Consumer<'a> {
    fn new(order: &Order, link: Link, place: &'a Place) -> Self {
        Self {
            link,
            tally: &place.tally,
            clock: place.clock,
            channels: vec![Channel::default(); usize::from(order.channels) + 1],
            ack_every: if order.autoack { 0 } else { order.ack_every },
            received: 0,
            count: order.count,
            rate: order.rate,
            start_ns: place.clock.now_ns(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), PerfError>> {
        for _ in 0..READS_IN_A_ROW_MAX {
            if let Poll::Ready(Err(error)) = self.link.poll_flush(context) {
                return Poll::Ready(Err(error));
            }
            if self.count.is_some_and(|count| self.received >= count) {
                return Poll::Ready(Ok(()));
            }
            if self.link.out.len() > OUT_BYTES_MAX || !self.may_read(context) {
                return Poll::Pending;
            }
            match self.link.poll_read(context)? {
                Poll::Ready(()) => self.take()?,
                Poll::Pending => return Poll::Pending,
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// False while more has come than the rate allows; then the timer wakes.
    fn may_read(&mut self, context: &mut Context<'_>) -> bool {
        let Some(rate) = self.rate else { return true };
        let due_ns = self.start_ns + (self.received as f64 / rate * 1e9) as u64;
        if due_ns <= self.clock.now_ns() {
            return true;
        }
        self.timer.as_mut().reset(self.clock.instant(due_ns).into());
        self.timer.as_mut().poll(context).is_ready()
    }

    /// Everything that has been read.
    fn take(&mut self) -> Result<(), PerfError> {
        let now_ns = self.clock.now_ns();
        let Self { link, tally, channels, ack_every, received, count, .. } = self;
        let count = count.unwrap_or(u64::MAX);
        let before = *received;
        let mut acks = std::mem::take(&mut link.out);
        let mut result = Ok(());
        tally.latency.record_all(|runs| {
            result = link.take_frames(|frame| {
                let Some(channel) = channels.get_mut(usize::from(frame.channel)) else {
                    return Err(PerfError::Protocol(format!("a frame on channel {}", frame.channel)));
                };
                if channel.take(frame, now_ns, runs)? {
                    *received += 1;
                    channel.unacked += 1;
                    if channel.unacked == *ack_every {
                        put_ack(&mut acks, frame.channel, channel.delivery_tag, channel.unacked > 1);
                        channel.unacked = 0;
                    }
                }
                Ok(*received < count)
            });
        });
        self.link.out = acks;
        add(&tally.received, *received - before);
        result
    }

    /// What one ack for many has not covered yet.
    fn ack_the_rest(&mut self) {
        if self.ack_every == 0 {
            return;
        }
        for (number, channel) in self.channels.iter_mut().enumerate() {
            if std::mem::take(&mut channel.unacked) > 0 {
                put_ack(&mut self.link.out, number as u16, channel.delivery_tag, true);
            }
        }
    }
}

impl Channel {
    /// Whether the frame completes a delivery.
    #[inline]
    fn take(&mut self, frame: Frame<'_>, now_ns: u64, runs: &mut Runs<'_>) -> Result<bool, PerfError> {
        match (self.expect, frame.kind) {
            (Expect::Method, FrameKind::Method) => {
                match delivery_tag(frame.payload) {
                    Some(tag) => {
                        self.delivery_tag = tag;
                        self.expect = Expect::Header;
                    }
                    None => check(frame.payload)?,
                }
                Ok(false)
            }
            (Expect::Header, FrameKind::Header) => {
                // Class and weight, then the size.
                let size = frame.payload.get(4..12).and_then(|size| size.try_into().ok());
                let left = u64::from_be_bytes(size.ok_or_else(|| broken("a content header"))?);
                self.expect = if left == 0 { Expect::Method } else { Expect::Body { left, first: true } };
                Ok(left == 0)
            }
            (Expect::Body { left, first }, FrameKind::Body) => {
                if first && let Some(stamp) = frame.payload.first_chunk::<STAMP_BYTES>() {
                    runs.add_stamp(*stamp, now_ns);
                }
                let left = left.checked_sub(frame.payload.len() as u64).ok_or_else(|| broken("a body"))?;
                self.expect = if left == 0 { Expect::Method } else { Expect::Body { left, first: false } };
                Ok(left == 0)
            }
            (_, FrameKind::Heartbeat) => Ok(false),
            (Expect::Header | Expect::Body { .. }, FrameKind::Method) => {
                check(frame.payload)?;
                Err(broken("a method inside a content"))
            }
            _ => Err(broken("a frame of a content that nobody expects")),
        }
    }
}

/// The tag of a `basic.deliver`; `None` for any other method.
#[inline]
fn delivery_tag(payload: &[u8]) -> Option<u64> {
    let [0, 60, 0, 60, tag_len, rest @ ..] = payload else { return None };
    let tag = rest.get(usize::from(*tag_len)..)?.first_chunk()?;
    Some(u64::from_be_bytes(*tag))
}

#[cold]
fn broken(what: &str) -> PerfError {
    PerfError::Protocol(what.to_owned())
}
