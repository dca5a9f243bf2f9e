//! A connection that publishes: blocks of ready frames, as fast as the socket, the confirm window and the
//! rate allow.

use std::collections::VecDeque;
use std::future::Future as _;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use leveret_protocol::{Frame, FrameKind, Method, Properties, confirm};
use tokio::time::{Sleep, timeout};

use super::block::{Block, Route, STAMP_BYTES, Shape, encoded};
use super::error::PerfError;
use super::link::{Link, check};
use super::options::{Flag, Options};
use super::tally::{Clock, Tally, add};
use super::worker::Place;

/// Bytes written in a row before others of the thread get their turn.
const BYTES_IN_A_ROW_MAX: usize = 256 << 10;
/// A write costs as much as copying so many bytes, however few it writes.
const WRITE_COST_BYTES: usize = 16 << 10;
/// The finest that the timer can do: messages due in between go out together.
const TICK: Duration = Duration::from_millis(1);
/// How long a broker may take for what it has been sent.
const GOODBYE_PATIENCE: Duration = Duration::from_secs(120);
/// How long confirms may take once nothing more is published.
const CONFIRMS_PATIENCE: Duration = Duration::from_secs(10);

/// What one producer does.
#[derive(Clone, Debug)]
pub struct Order {
    pub routes: Vec<Route>,
    pub shape: Shape,
    /// Messages to publish; `None` for no end.
    pub count: Option<u64>,
    /// Messages a second; `None` for no limit.
    pub rate: Option<f64>,
    /// Unconfirmed messages at most; `None` for no confirms.
    pub window: Option<usize>,
    pub one_per_write: bool,
}

impl Order {
    /// What the options say, but for the routes.
    pub fn new(options: &Options, routes: Vec<Route>) -> Self {
        let channels = options.producer_channel_count;
        let properties = encoded(&Properties {
            content_type: options.body_content_type.clone().map(Into::into),
            delivery_mode: options.has(Flag::Persistent).then_some(2),
            ..Properties::default()
        });
        let mandatory = options.has(Flag::Mandatory);
        Self {
            routes,
            shape: Shape { size: options.size, mandatory, properties, channels, frame_max: 0 },
            count: options.producer_count,
            rate: options.rate,
            window: options.confirm.map(|window| window * usize::from(channels)),
            one_per_write: options.one_per_write,
        }
    }
}

/// Publishes until the count is reached and everything confirmed, or the run ends.
///
/// # Errors
/// The broker ends it.
pub async fn produce(mut order: Order, place: Place) -> Result<(), PerfError> {
    let mut link = place.open().await?;
    link.open_channels(order.shape.channels).await?;
    if order.window.is_some() {
        for number in 1..=order.shape.channels {
            link.call(number, confirm::Select { no_wait: false }).await?;
        }
    }
    order.shape.frame_max = link.frame_max;
    let mut producer = Producer::new(order, link, &place);
    place.start().await;
    producer.start_ns = place.clock.now_ns();
    place.until_stop(|context| producer.poll(context)).await?;
    // Stopped from outside: a frame that is half written must be finished, and confirms are worth waiting for.
    producer.count = Some(producer.published);
    place.finish(CONFIRMS_PATIENCE, |context| producer.poll(context)).await?;
    if place.is_stopping() {
        return place.close(&mut producer.link).await;
    }
    // Messages may still be on their way to the broker, and would be lost with the connection: its goodbye comes
    // after them.
    timeout(GOODBYE_PATIENCE, producer.link.close()).await.unwrap_or(Ok(()))?;
    place.done();
    Ok(())
}

struct Producer<'a> {
    link: Link,
    tally: &'a Tally,
    clock: Clock,
    block: Block,
    /// The message of the block that comes next.
    next: usize,
    /// Bytes of the block that are being written.
    writing: Range<usize>,
    published: u64,
    count: Option<u64>,
    rate: Option<f64>,
    window: Option<usize>,
    one_per_write: bool,
    stamps: bool,
    confirms: Vec<Confirms>,
    outstanding: usize,
    start_ns: u64,
    /// The broker kept us from sending since the last write: what is due by now counts from when it was due.
    stalled: bool,
    timer: Pin<Box<Sleep>>,
}

impl<'a> Producer<'a> {
    fn new(order: Order, link: Link, place: &'a Place) -> Self {
        let Order { routes, shape, count, rate, window, one_per_write } = order;
        let confirms = if window.is_some() { usize::from(shape.channels) } else { 0 };
        Self {
            link,
            tally: &place.tally,
            clock: place.clock,
            block: Block::new(&routes, &shape),
            next: 0,
            writing: 0..0,
            published: 0,
            count,
            rate,
            window,
            one_per_write,
            stamps: shape.size >= STAMP_BYTES,
            confirms: (0..confirms).map(|_| Confirms::default()).collect(),
            outstanding: 0,
            start_ns: 0,
            stalled: false,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), PerfError>> {
        self.read_confirms(context)?;
        let mut left = BYTES_IN_A_ROW_MAX;
        while left > 0 {
            if self.writing.is_empty() {
                let now_ns = self.clock.now_ns();
                let number = self.allowed(now_ns);
                if number == 0 {
                    if self.count == Some(self.published) && self.outstanding == 0 {
                        return Poll::Ready(Ok(()));
                    }
                    return self.wait(now_ns, context);
                }
                self.prepare(number, now_ns);
            }
            let piece = self.writing.start..self.writing.end.min(self.writing.start + left);
            match self.link.poll_write(context, self.block.bytes(piece))? {
                Poll::Ready(written) => {
                    self.writing.start += written;
                    left = left.saturating_sub(written.max(WRITE_COST_BYTES));
                }
                Poll::Pending => {
                    self.stalled = true;
                    return Poll::Pending;
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// How many messages may go out now, all in one piece of the block.
    fn allowed(&mut self, now_ns: u64) -> usize {
        let mut number = if self.one_per_write { 1 } else { self.block.len() - self.next };
        let limit = |number: usize, limit: u64| number.min(usize::try_from(limit).unwrap_or(usize::MAX));
        if let Some(count) = self.count {
            number = limit(number, count - self.published);
        }
        if let Some(rate) = self.rate {
            let due = (now_ns.saturating_sub(self.start_ns) as f64 * 1e-9 * rate) as u64 + 1;
            number = limit(number, due.saturating_sub(self.published));
        }
        if let Some(window) = self.window {
            let left = window.saturating_sub(self.outstanding);
            // With a rate, what is due but has no place in the window was kept back by the broker.
            self.stalled |= number > left && left == 0;
            number = number.min(left);
        }
        number
    }

    fn prepare(&mut self, number: usize, now_ns: u64) {
        let messages = self.next..self.next + number;
        if self.stamps {
            match self.rate {
                Some(rate) if self.stalled => {
                    let (start_ns, first) = (self.start_ns, self.published);
                    let due_ns = |at: usize| start_ns + ((first + at as u64) as f64 / rate * 1e9) as u64;
                    self.block.stamp(messages.clone(), |at| due_ns(at).min(now_ns));
                }
                _ => self.block.stamp(messages.clone(), |_| now_ns),
            }
        }
        self.stalled = false;
        let channels = self.confirms.len();
        if channels > 0 {
            for message in messages.clone() {
                self.confirms[message % channels].sent(now_ns);
            }
            self.outstanding += number;
        }
        self.writing = self.block.range(messages);
        self.next = (self.next + number) % self.block.len();
        self.published += number as u64;
        add(&self.tally.published, number as u64);
    }

    /// Until a message is due. Confirms wake by themselves.
    fn wait(&mut self, now_ns: u64, context: &mut Context<'_>) -> Poll<Result<(), PerfError>> {
        let window_full = self.window.is_some_and(|window| self.outstanding >= window);
        if let Some(rate) = self.rate
            && self.count != Some(self.published)
            && !window_full
        {
            let due_ns = self.start_ns + (self.published as f64 / rate * 1e9) as u64;
            let at = self.clock.instant(due_ns.max(now_ns + TICK.as_nanos() as u64));
            self.timer.as_mut().reset(at.into());
            if self.timer.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    fn read_confirms(&mut self, context: &mut Context<'_>) -> Result<(), PerfError> {
        while let Poll::Ready(read) = self.link.poll_read(context) {
            read?;
            let now_ns = self.clock.now_ns();
            let Self { link, tally, confirms, outstanding, .. } = self;
            let (mut confirmed, mut nacked, mut returned) = (0, 0, 0);
            let mut result = Ok(());
            tally.confirm_latency.record_all(|runs| {
                result = link.take_frames(|frame| {
                    match Answer::read(frame)? {
                        Answer::Confirm { tag, multiple, ack } => {
                            let channel = usize::from(frame.channel).checked_sub(1);
                            let Some(confirms) = channel.and_then(|at| confirms.get_mut(at)) else {
                                return Err(PerfError::Protocol("a confirm that nobody asked for".to_owned()));
                            };
                            let settled = confirms.settle(tag, multiple, |sent_ns| runs.add(now_ns - sent_ns));
                            *outstanding -= settled as usize;
                            *(if ack { &mut confirmed } else { &mut nacked }) += settled;
                        }
                        Answer::Return => returned += 1,
                        Answer::Other => {}
                    }
                    Ok(true)
                });
            });
            add(&tally.confirmed, confirmed);
            add(&tally.nacked, nacked);
            add(&tally.returned, returned);
            result?;
        }
        Ok(())
    }
}

/// What comes back to a publisher.
enum Answer {
    Confirm { tag: u64, multiple: bool, ack: bool },
    Return,
    Other,
}

impl Answer {
    fn read(frame: Frame<'_>) -> Result<Self, PerfError> {
        if frame.kind != FrameKind::Method {
            return Ok(Self::Other);
        }
        match Method::decode(frame.payload) {
            Ok(Method::BasicAck(ack)) => Ok(Self::Confirm { tag: ack.delivery_tag, multiple: ack.multiple, ack: true }),
            Ok(Method::BasicNack(nack)) => {
                Ok(Self::Confirm { tag: nack.delivery_tag, multiple: nack.multiple, ack: false })
            }
            Ok(Method::BasicReturn(_)) => Ok(Self::Return),
            _ => check(frame.payload).map(|()| Self::Other),
        }
    }
}

/// The unconfirmed messages of a channel.
#[derive(Debug, Default)]
struct Confirms {
    /// Times of sending in order of tags; 0 for what is confirmed already.
    sent_ns: VecDeque<u64>,
    /// Tags before the first.
    before: u64,
}

impl Confirms {
    fn sent(&mut self, now_ns: u64) {
        self.sent_ns.push_back(now_ns);
    }

    /// Takes out a tag, or all up to it: how many there were.
    fn settle(&mut self, tag: u64, multiple: bool, mut each: impl FnMut(u64)) -> u64 {
        let mut settled = 0;
        let mut take = |sent_ns: u64| {
            if sent_ns != 0 {
                each(sent_ns);
                settled += 1;
            }
        };
        if multiple {
            while self.before < tag {
                let Some(sent_ns) = self.sent_ns.pop_front() else { break };
                self.before += 1;
                take(sent_ns);
            }
        } else if let Some(at) = tag.checked_sub(self.before + 1)
            && let Some(sent_ns) = self.sent_ns.get_mut(at as usize)
        {
            take(std::mem::take(sent_ns));
        }
        while self.sent_ns.front() == Some(&0) {
            self.sent_ns.pop_front();
            self.before += 1;
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirms_settle_once_in_any_order() {
        let mut confirms = Confirms::default();
        (1..=6).for_each(|time| confirms.sent(time));
        let mut times = Vec::new();
        assert_eq!(confirms.settle(3, false, |time| times.push(time)), 1);
        assert_eq!(confirms.settle(3, false, |time| times.push(time)), 0);
        assert_eq!(confirms.settle(4, true, |time| times.push(time)), 3);
        assert_eq!(confirms.settle(4, true, |time| times.push(time)), 0);
        assert_eq!(confirms.settle(6, false, |time| times.push(time)), 1);
        assert_eq!(confirms.settle(9, true, |time| times.push(time)), 1);
        assert_eq!(times, [3, 1, 2, 4, 6, 5]);
    }
}
