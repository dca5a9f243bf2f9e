//! Tests of the log, its readers and its retention.

use leveret_protocol::FieldTable;
use slotmap::SlotMap;

use super::super::message::{BodyRef, flag};
use super::super::{Declared, Returns};
use super::*;
use crate::model::arguments::QueueSettings;
use crate::model::profile::Profile;
use crate::model::record::Name;

struct Log {
    queue: Queue,
    pool: SegmentPool,
    consumers: SlotMap<ConsumerKey, ()>,
    commit: u64,
}

impl Log {
    fn new(settings: QueueSettings) -> Self {
        let priorities = Profile::V4_2.quorum_priorities();
        let arguments = FieldTable::new();
        let (name, queue_type) = (Name::from("s"), QueueType::Stream);
        let declared = Declared { name, queue_type, durable: true, auto_delete: false, arguments, settings };
        let queue = Queue::new(declared, priorities, 0);
        Self { queue, pool: SegmentPool::default(), consumers: SlotMap::with_key(), commit: 1 }
    }

    /// Messages of 100 bytes, head and all, that arrive at these times in one commit.
    fn append(&mut self, arrivals: impl IntoIterator<Item = Millis>) {
        self.append_uncommitted(arrivals);
        self.queue.stream_stored(self.commit);
    }

    fn append_uncommitted(&mut self, arrivals: impl IntoIterator<Item = Millis>) {
        self.commit += 1;
        for arrived in arrivals {
            let (exchange, routing_key, properties) = (b"".as_slice(), b"s".as_slice(), [0, 0].as_slice());
            let body = BodyRef::Slice(&[b'x'; 77]);
            let (persistent, priority, expires_at, bcc, died) = (false, 7, None, [].as_slice(), false);
            let message =
                NewMessage { exchange, routing_key, properties, body, persistent, priority, expires_at, bcc, died };
            self.queue.append(&message, Some(self.commit), arrived, &mut self.pool);
        }
    }

    fn retain(&mut self, now: Millis) -> Vec<(u64, u64)> {
        let mut taken = || self.queue.retain(now, &mut self.pool).map(|(first, last, _)| (first, last));
        std::iter::from_fn(&mut taken).collect()
    }

    fn reader(&mut self, offset: Offset) -> ConsumerKey {
        let consumer = self.consumers.insert(());
        self.queue.add_reader(consumer, offset, None);
        consumer
    }

    fn read(&mut self, consumer: ConsumerKey) -> Option<u64> {
        match self.queue.read(consumer, &mut 0) {
            Read::Away(seq) => panic!("{seq} is away"),
            Read::Message { seq, .. } => Some(seq),
            Read::End | Read::Pause => None,
        }
    }

    /// Where a new consumer begins.
    fn start(&mut self, offset: Offset) -> Option<u64> {
        let consumer = self.reader(offset);
        self.read(consumer)
    }
}

fn parts_of_250_bytes() -> QueueSettings {
    QueueSettings { segment_size_bytes: Some(250), ..QueueSettings::default() }
}

#[test]
fn s12_2_a_consumer_begins_where_it_asks_to() {
    let mut log = Log::new(QueueSettings::default());
    for offset in [Offset::First, Offset::Last, Offset::Next, Offset::Time(0)] {
        assert_eq!(log.start(offset), None, "{offset:?} of an empty stream");
    }
    log.append([100, 100, 200]);
    log.append([300, 300, 300]);
    let rows = [
        (Offset::First, Some(0)),
        // What came together with the newest message.
        (Offset::Last, Some(3)),
        (Offset::Next, None),
        (Offset::At(0), Some(0)),
        (Offset::At(4), Some(4)),
        (Offset::At(6), None),
        (Offset::Time(0), Some(0)),
        (Offset::Time(101), Some(2)),
        (Offset::Time(200), Some(2)),
        (Offset::Time(201), Some(3)),
        (Offset::Time(301), None),
    ];
    for (offset, start) in rows {
        assert_eq!(log.start(offset), start, "{offset:?}");
    }
}

/// §12.2: an offset that is not there yet is waited for.
#[test]
fn s12_2_an_offset_beyond_the_end_is_waited_for() {
    let mut log = Log::new(QueueSettings::default());
    log.append([1, 2]);
    let consumer = log.reader(Offset::At(4));
    log.append([3, 4]);
    assert_eq!(log.read(consumer), None);
    log.append([5, 6]);
    assert_eq!(log.read(consumer), Some(4));
}

#[test]
fn s12_2_everybody_reads_everything_in_order() {
    let mut log = Log::new(QueueSettings::default());
    let (a, b) = (log.reader(Offset::First), log.reader(Offset::First));
    log.append(0..20_000);
    for seq in 0..20_000 {
        assert_eq!(log.read(a), Some(seq));
    }
    assert_eq!(log.read(b), Some(0));
    assert_eq!(log.queue.ready_count(), 20_000);
}

#[test]
fn s12_2_retention_takes_whole_parts_and_never_the_last() {
    let mut log = Log::new(QueueSettings { max_length_bytes: Some(500), ..parts_of_250_bytes() });
    // Parts of three messages: the third one passes 250 bytes.
    log.append([0; 6]);
    assert_eq!(log.retain(0), [(0, 2)], "600 bytes are over 500");
    assert_eq!(log.queue.ready_count(), 3);
    assert_eq!(log.queue.ready_bytes(), 3 * 77);
    let late = log.reader(Offset::First);
    assert_eq!(log.read(late), Some(3));
    std::sync::Arc::make_mut(&mut log.queue.settings).max_length_bytes = Some(0);
    assert_eq!(log.retain(0), [], "it is the last");
    log.append([0]);
    assert_eq!(log.retain(0), [(3, 5)]);
    assert_eq!(log.read(late), Some(6), "what is gone is skipped");
    assert_eq!(log.start(Offset::At(0)), Some(6));
}

#[test]
fn s12_2_retention_gives_memory_back() {
    let settings =
        QueueSettings { max_length_bytes: Some(0), segment_size_bytes: Some(1_000_000), ..Default::default() };
    let mut log = Log::new(settings);
    log.append((0..30_000).map(|_| 0));
    let before = log.queue.memory();
    assert_eq!(log.retain(0), [(0, 9_999), (10_000, 19_999)]);
    assert!(log.queue.memory() < before / 2, "{} of {before}", log.queue.memory());
    assert_eq!(log.queue.messages().next_live(0), Some(20_000));
}

#[test]
fn s12_2_a_part_is_too_old_when_its_newest_message_is() {
    let mut log = Log::new(QueueSettings { max_age_ms: Some(1000), ..parts_of_250_bytes() });
    log.append([0, 100, 500, 600]);
    assert_eq!(log.queue.retention_due(), Some(1501));
    assert_eq!(log.retain(1500), []);
    assert_eq!(log.retain(1501), [(0, 2)]);
    assert_eq!(log.queue.retention_due(), None);
    assert_eq!(log.retain(1_000_000), [], "the last part stays");
}

#[test]
fn s12_2_nothing_is_read_or_retained_before_it_is_committed() {
    let mut log = Log::new(QueueSettings { max_length_bytes: Some(0), ..parts_of_250_bytes() });
    let consumer = log.reader(Offset::First);
    log.append_uncommitted([0; 2]);
    log.append_uncommitted([0; 5]);
    assert_eq!((log.read(consumer), log.retain(0)), (None, vec![]));
    log.queue.stream_stored(log.commit - 1);
    assert_eq!([log.read(consumer), log.read(consumer), log.read(consumer)], [Some(0), Some(1), None]);
    assert_eq!(log.retain(0), [], "the first part has one more that is not committed");
    log.queue.stream_stored(log.commit);
    assert_eq!(log.read(consumer), Some(2));
    assert_eq!(log.retain(0), [(0, 2), (3, 5)]);
    assert_eq!(log.read(consumer), Some(6));
}

#[test]
fn s12_2_a_chunk_has_a_limit() {
    let mut log = Log::new(QueueSettings::default());
    log.append((0..CHUNK_MAX + 10).map(|_| 0));
    assert_eq!(log.start(Offset::Last), Some(CHUNK_MAX));
}

/// §16: offsets, times and parts are the same after a restart, and the clock may have been set back.
#[test]
fn s16_a_stream_goes_on_where_it_ended() {
    let mut log = Log::new(QueueSettings { max_length_bytes: Some(700), ..parts_of_250_bytes() });
    log.append([100, 200, 300, 400, 500, 600, 700]);
    log.append([800, 900, 1000]);
    assert_eq!(log.retain(0), [(0, 2)]);
    let mut again = Log::new((*log.queue.settings).clone());
    for seq in 3..10 {
        let (record, body) = log.queue.messages().raw(seq).unwrap();
        let (record, body) = (record.to_vec(), body.cloned());
        assert!(again.queue.restore(seq, &record, body, Returns::default(), &mut again.pool));
        again.queue.mark_redelivered(seq);
    }
    // What the store says of all queues does not concern a stream.
    again.queue.skip_sequences(1_000_000);
    assert_eq!(again.queue.ready_count(), 7);
    assert_eq!((again.start(Offset::Time(450)), again.start(Offset::Last)), (Some(4), Some(7)));
    again.append([50, 60]);
    assert_eq!(again.start(Offset::Time(1000)), Some(9), "an earlier time counts as that of the newest message");
    assert_eq!(again.start(Offset::Last), Some(10));
    assert_eq!(again.retain(0), [(3, 5)], "the part that was the oldest before");
    let redelivered = again.queue.messages().get(7).unwrap().0.is(flag::REDELIVERED);
    assert!(!redelivered);
}
