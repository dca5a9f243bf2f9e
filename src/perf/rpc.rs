//! Request and reply over direct reply-to: requesters publish to a queue, servers send the body back.

use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use leveret_protocol::{
    ContentHeader, FieldTable, Frame, FrameKind, Method, Properties, basic, put_ack, put_content, put_method_frame,
};

use super::block::STAMP_BYTES;
use super::error::PerfError;
use super::link::{Link, check, unexpected};
use super::tally::add;
use super::worker::Place;

/// Where RabbitMQ and its like send replies without a queue.
const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// What one requester does.
#[derive(Clone, Debug)]
pub struct Requests {
    pub queue: String,
    /// Bytes of a request.
    pub size: usize,
    /// Calls without an answer at most.
    pub in_flight: u64,
    /// Calls to make; `None` for no end.
    pub count: Option<u64>,
}

/// What one server does.
#[derive(Clone, Debug)]
pub struct Serving {
    pub queue: String,
    pub autoack: bool,
    /// 0 for no limit.
    pub prefetch: u16,
}

fn consume(queue: &str, no_ack: bool) -> basic::Consume<'_> {
    basic::Consume {
        queue,
        consumer_tag: "",
        no_local: false,
        no_ack,
        exclusive: false,
        no_wait: false,
        arguments: FieldTable::new(),
    }
}

/// Calls until the count is reached or the run ends.
///
/// # Errors
/// The broker ends it.
pub async fn request(requests: Requests, place: Place) -> Result<(), PerfError> {
    let mut link = place.open().await?;
    link.open_channels(1).await?;
    link.call(1, consume(REPLY_TO, true)).await?;
    place.start().await;
    let mut properties = BytesMut::new();
    Properties { reply_to: Some(Bytes::from_static(REPLY_TO.as_bytes())), ..Properties::default() }
        .encode(&mut properties);
    let mut body = vec![b'.'; requests.size.max(STAMP_BYTES)];
    let (mut called, mut answered) = (0, 0);
    let mut reply = Content::default();
    place
        .until_stop(|context| {
            loop {
                while called < requests.count.unwrap_or(u64::MAX) && called - answered < requests.in_flight {
                    body[..STAMP_BYTES].copy_from_slice(&place.clock.now_ns().to_be_bytes());
                    let frame_max = link.frame_max;
                    publish(&mut link.out, &requests.queue, frame_max, &properties, &body);
                    called += 1;
                    add(&place.tally.published, 1);
                }
                if requests.count == Some(answered) {
                    return Poll::Ready(Ok(()));
                }
                ready!(exchange(&mut link, context))?;
                let now_ns = place.clock.now_ns();
                link.take_frames(|frame| {
                    if reply.take(frame)? {
                        answered += 1;
                        add(&place.tally.operations, 1);
                        if let Some(stamp) = reply.body.first_chunk() {
                            place.tally.latency.record_all(|runs| runs.add_stamp(*stamp, now_ns));
                        }
                    }
                    Ok(true)
                })?;
            }
        })
        .await?;
    place.done();
    place.close(&mut link).await
}

/// Answers until the run ends.
///
/// # Errors
/// The broker ends it.
pub async fn serve(serving: Serving, place: Place) -> Result<(), PerfError> {
    let mut link = place.open().await?;
    link.open_channels(1).await?;
    if serving.prefetch > 0 {
        let prefetch_count = serving.prefetch;
        link.call(1, basic::Qos { prefetch_size: 0, prefetch_count, global: false }).await?;
    }
    link.call(1, consume(&serving.queue, serving.autoack)).await?;
    place.start().await;
    let mut request = Content::default();
    place
        .until_stop(|context| {
            loop {
                ready!(exchange(&mut link, context))?;
                let frame_max = link.frame_max;
                let mut out = std::mem::take(&mut link.out);
                let taken = link.take_frames(|frame| {
                    if request.take(frame)? {
                        let properties = [0, 0];
                        publish(&mut out, &request.reply_to, frame_max, &properties, &request.body);
                        if !serving.autoack {
                            put_ack(&mut out, 1, request.delivery_tag, false);
                        }
                        add(&place.tally.received, 1);
                    }
                    Ok(true)
                });
                link.out = out;
                taken?;
            }
        })
        .await?;
    place.done();
    place.close(&mut link).await
}

/// Writes everything, then reads once.
fn exchange(link: &mut Link, context: &mut Context<'_>) -> Poll<Result<(), PerfError>> {
    ready!(link.poll_flush(context))?;
    link.poll_read(context)
}

fn publish(out: &mut BytesMut, routing_key: &str, frame_max: u32, properties: &[u8], body: &[u8]) {
    let method = basic::Publish { exchange: "", routing_key, mandatory: false, immediate: false };
    put_method_frame(out, 1, &method.into());
    put_content(out, 1, frame_max, properties, body);
}

/// A delivery, piece by piece. Its room is used again for the next.
#[derive(Debug, Default)]
struct Content {
    delivery_tag: u64,
    reply_to: String,
    body: Vec<u8>,
    body_size: u64,
}

impl Content {
    /// Whether the frame completes it.
    fn take(&mut self, frame: Frame<'_>) -> Result<bool, PerfError> {
        match frame.kind {
            FrameKind::Method => {
                match Method::decode(frame.payload) {
                    Ok(Method::BasicDeliver(deliver)) => self.delivery_tag = deliver.delivery_tag,
                    _ => {
                        check(frame.payload)?;
                        return Err(unexpected(frame.payload));
                    }
                }
                self.body.clear();
                Ok(false)
            }
            FrameKind::Header => {
                let header =
                    ContentHeader::decode(frame.payload).map_err(|error| PerfError::Protocol(error.explanation()))?;
                self.reply_to.clear();
                let reply_to = header.properties.reply_to().unwrap_or_default();
                self.reply_to.push_str(&String::from_utf8_lossy(reply_to));
                self.body_size = header.body_size;
                Ok(self.body_size == 0)
            }
            FrameKind::Body => {
                self.body.extend_from_slice(frame.payload);
                Ok(self.body.len() as u64 >= self.body_size)
            }
            FrameKind::Heartbeat => Ok(false),
        }
    }
}
