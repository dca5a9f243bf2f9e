//! Connections and channels that come and go, or only come.

use bytes::BytesMut;
use leveret_protocol::{FrameKind, channel};

use super::error::PerfError;
use super::link::check;
use super::tally::add;
use super::worker::Place;

/// Opens and closes connections, each with a channel.
///
/// # Errors
/// The broker refuses one.
pub async fn connections(count: Option<u64>, place: Place) -> Result<(), PerfError> {
    place.start().await;
    let mut done = 0;
    while !place.is_stopping() && count != Some(done) {
        let start_ns = place.clock.now_ns();
        let mut link = place.open().await?;
        link.open_channels(1).await?;
        link.close().await?;
        note(&place, start_ns);
        done += 1;
    }
    place.done();
    Ok(())
}

/// Opens and closes channels of one connection.
///
/// # Errors
/// The broker refuses one.
pub async fn channels(count: Option<u64>, place: Place) -> Result<(), PerfError> {
    let mut link = place.open().await?;
    place.start().await;
    let mut done = 0;
    while !place.is_stopping() && count != Some(done) {
        let start_ns = place.clock.now_ns();
        link.open_channels(1).await?;
        link.call(1, channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 }).await?;
        note(&place, start_ns);
        done += 1;
    }
    place.done();
    place.close(&mut link).await
}

/// Opens a connection with a channel, and keeps it.
///
/// # Errors
/// The broker refuses it.
pub async fn idle(place: Place) -> Result<(), PerfError> {
    place.start().await;
    let start_ns = place.clock.now_ns();
    let mut link = place.open().await?;
    link.open_channels(1).await?;
    note(&place, start_ns);
    link.out = BytesMut::new();
    while !place.is_stopping() {
        place.until_stop(|context| link.poll_read(context)).await?;
        link.take_frames(|frame| match frame.kind {
            FrameKind::Method => check(frame.payload).map(|()| true),
            _ => Ok(true),
        })?;
    }
    place.done();
    place.close(&mut link).await
}

fn note(place: &Place, start_ns: u64) {
    add(&place.tally.operations, 1);
    place.tally.latency.record(place.clock.now_ns() - start_ns);
}
