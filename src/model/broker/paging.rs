//! Keeps what messages take in memory within a budget: what is needed last goes to the disk, and is read back
//! ahead of the consumers (`queue/paging.rs` has the rules for one queue).
//!
//! Dispatch stops at a message that is away and goes on when it is here. A basic.get of such a message holds
//! everything that its client sends after it, so that answers keep their order.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use leveret_protocol::{Event, Fault, Method, OwnedPublish, Publish, basic, put_method_frame};

use super::Broker;
use crate::model::ids::{ChannelKey, ConnectionKey, Holder, QueueKey};
use crate::model::queue::Queue;
use crate::model::queue::page::{PageAnswer, PageOp};
use crate::model::queue::paging::Eviction;
use crate::model::queue::segment::SEGMENT_BYTES;
use crate::model::quota::{NodeQuotas, Permit, Quota, Share};
use crate::model::timer::Millis;

/// Read ahead of the consumers of one queue at most.
const WINDOW_MAX: usize = 4 << 20;
/// After the paging log could not be written, it is left alone for so long.
const WRITE_PAUSE_MS: Millis = 1000;

/// How much memory messages may take before they go to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagingSettings {
    /// Bytes of full segments in memory, over all vhosts.
    pub budget: usize,
    /// Bytes of a full segment.
    pub segment_bytes: usize,
}

impl PagingSettings {
    pub fn with_budget(budget: usize) -> Self {
        Self { budget, segment_bytes: SEGMENT_BYTES }
    }
}

/// What is on its way, and when there is something to do.
#[derive(Debug)]
pub(super) struct Paging {
    pub ops: Vec<PageOp>,
    settings: Option<PagingSettings>,
    /// What this vhost has of the node's memory.
    memory: Share,
    node_memory: Arc<Quota>,
    vhosts: Arc<Quota>,
    /// Counts this vhost.
    _vhost: Permit,
    /// What was in memory when that was last compared with what may be; `usize::MAX`: to be compared again.
    seen: usize,
    /// Nothing more could go with so much in memory: not worth a look with less.
    in_vain: usize,
    /// Bytes read ahead of the consumers of one queue.
    window: usize,
    /// Bytes on their way to the paging log.
    leaving: usize,
    /// The paging log is not written before.
    paused_until: Millis,
    /// Connections with a basic.get that waits.
    pub deferred: Vec<ConnectionKey>,
}

impl Paging {
    pub fn new(settings: Option<PagingSettings>, node: &NodeQuotas) -> Self {
        let budget = settings.map_or(usize::MAX, |settings| settings.budget);
        Self {
            ops: Vec::new(),
            settings,
            memory: Share::new(&node.message_memory),
            node_memory: node.message_memory.clone(),
            vhosts: node.vhosts.clone(),
            _vhost: node.vhosts.join(),
            seen: 0,
            in_vain: 0,
            window: (budget / 8).min(WINDOW_MAX),
            leaving: 0,
            paused_until: 0,
            deferred: Vec::new(),
        }
    }

    /// Asks for what a consumer of a stream reads next.
    pub fn read_stream_ahead(&mut self, key: QueueKey, queue: &mut Queue, seq: u64) {
        let (holder, store_id, window) = (Holder::Queue(key), queue.store_id, self.window);
        queue.messages_mut().want_ahead(seq, window, holder, store_id, &mut self.ops);
    }

    /// Has something changed that makes [`Broker::look_for_room`] worth while?
    #[inline]
    pub fn is_to_look(&self, resident: usize) -> bool {
        self.seen != resident
    }

    /// More may go than before.
    pub fn look_again(&mut self) {
        (self.seen, self.in_vain) = (usize::MAX, 0);
    }

    /// Bytes that this vhost may have in memory: its part, or more while the others need less than theirs.
    fn allowed(&mut self, resident: usize) -> usize {
        let Some(PagingSettings { budget, .. }) = self.settings else { return usize::MAX };
        self.memory.set(resident);
        let others = self.node_memory.used().saturating_sub(resident as u64);
        let part = budget / (self.vhosts.used().max(1) as usize);
        part.max(budget.saturating_sub(others as usize))
    }

    /// Is so much on its way out that nothing more should be taken in?
    pub fn is_far_behind(&self) -> bool {
        self.settings.is_some_and(|settings| self.leaving > settings.budget / 4)
    }
}

/// What a client sent after a basic.get that waits.
#[derive(Debug)]
pub enum Deferred {
    Method { channel: u16, payload: BytesMut },
    Publish { channel: u16, publish: Box<OwnedPublish> },
    Fault(Fault),
}

impl Deferred {
    pub fn of(event: Event<'_>) -> Option<Self> {
        Some(match event {
            Event::Method { channel, method } => {
                let mut frame = BytesMut::new();
                put_method_frame(&mut frame, channel, &method);
                // Less the frame's header and end.
                let payload = frame.split_off(7);
                let length = payload.len() - 1;
                Self::Method { channel, payload: { payload }.split_to(length) }
            }
            Event::Publish { channel, publish } => Self::Publish { channel, publish: Box::new(owned(&publish)) },
            Event::OwnedPublish { channel, publish } => Self::Publish { channel, publish },
            Event::Heartbeat => return None,
        })
    }
}

fn owned(publish: &Publish<'_>) -> OwnedPublish {
    use leveret_protocol::Body;
    let (body, oversized) = match &publish.body {
        Body::Slice(bytes) => (bytes::Bytes::copy_from_slice(bytes), None),
        Body::Owned(bytes) => (bytes.clone(), None),
        Body::Oversized(size) => (bytes::Bytes::new(), Some(*size)),
    };
    OwnedPublish {
        exchange: publish.exchange.to_owned(),
        routing_key: publish.routing_key.to_owned(),
        mandatory: publish.mandatory,
        immediate: publish.immediate,
        properties: bytes::Bytes::copy_from_slice(publish.properties.as_bytes()),
        body,
        oversized,
    }
}

impl Broker {
    /// What the shell is to do for the messages that go away and come back, in this order.
    pub fn take_page_ops(&mut self) -> Vec<PageOp> {
        std::mem::take(&mut self.paging.ops)
    }

    /// The shell has done it.
    pub fn paged(&mut self, answers: Vec<PageAnswer>, now: Millis) {
        for answer in answers {
            match answer {
                PageAnswer::Written { page, image, place } => {
                    self.paging.leaving = self.paging.leaving.saturating_sub(image.len());
                    let failed = place.is_none();
                    if failed {
                        self.paging.paused_until = now.saturating_add(WRITE_PAUSE_MS);
                    }
                    let (pool, ops) = (&mut self.pool, &mut self.paging.ops);
                    match page.holder {
                        Holder::Queue(key) if self.queues.contains_key(key) => {
                            self.queues[key].messages_mut().written(page, image, place, pool, ops);
                        }
                        Holder::Exchange(key) if self.delayed.contains_key(key) => {
                            self.delayed[key].messages.written(page, image, place, pool, ops);
                        }
                        _ => ops.extend(place.map(PageOp::Free)),
                    }
                    if failed {
                        self.page_is_back(page.holder, now);
                    }
                }
                PageAnswer::Read { page, image } => {
                    let returned = match page.holder {
                        Holder::Queue(key) => {
                            self.queues.get_mut(key).and_then(|queue| queue.page_read(page.base, image, &mut self.pool))
                        }
                        Holder::Exchange(key) => {
                            let delayed = self.delayed.get_mut(key);
                            delayed.and_then(|delayed| {
                                delayed.messages.bring_back(page.base, image, 0, None, &mut self.pool)
                            })
                        }
                    };
                    let Some(returned) = returned else { continue };
                    self.paging.ops.extend(returned.page.place().map(PageOp::Free));
                    if let (Some(first), Some(last)) = (returned.missing.first(), returned.missing.last()) {
                        let count = returned.missing.len();
                        let name = self.holder_name(page.holder);
                        tracing::error!(
                            vhost = %self.vhost, holder = name, first, last, count,
                            "messages cannot be read back: they are left out, and stay in the data folder"
                        );
                    }
                    self.page_is_back(page.holder, now);
                }
            }
        }
        self.paging.look_again();
    }

    fn page_is_back(&mut self, holder: Holder, now: Millis) {
        match holder {
            Holder::Queue(key) => {
                self.mark_dirty(key);
                if let Some(queue) = self.queues.get_mut(key) {
                    queue.end_stall();
                }
                if self.queues.get(key).is_some_and(|queue| queue.trim_waits) {
                    // Whoever can takes one first (§11.4).
                    self.dispatch(key, now);
                    self.trim(key);
                }
            }
            Holder::Exchange(key) => self.delayed_page_is_back(key, now),
        }
    }

    fn holder_name(&self, holder: Holder) -> String {
        match holder {
            Holder::Queue(key) => {
                self.queues.get(key).map_or_else(String::new, |queue| format!("queue '{}'", queue.name))
            }
            Holder::Exchange(key) => {
                let exchange = self.topology.get(key);
                exchange.map_or_else(String::new, |exchange| format!("exchange '{}'", exchange.name))
            }
        }
    }

    /// Compares what is in memory with what may be.
    #[cold]
    pub(super) fn look_for_room(&mut self, now: Millis) {
        let resident = self.pool.resident();
        let allowed = self.paging.allowed(resident);
        self.paging.seen = resident;
        if resident > allowed.max(self.paging.in_vain) {
            self.make_room(allowed, now);
            let resident = self.pool.resident();
            self.paging.memory.set(resident);
            (self.paging.seen, self.paging.in_vain) = (resident, resident + allowed / 8);
        }
    }

    /// More is in memory than the budget allows: sends away what is needed last, of those who have most.
    fn make_room(&mut self, allowed: usize, now: Millis) {
        let Some(PagingSettings { budget, segment_bytes }) = self.paging.settings else { return };
        let target = allowed - allowed / 8;
        let mut need = self.pool.resident().saturating_sub(target);
        let mut holders: Vec<(usize, Holder)> = Vec::new();
        let mut readers = 0;
        for (key, queue) in &self.queues {
            readers += usize::from(queue.has_pages() && !queue.consumers.is_empty());
            holders.push((queue.messages().here(), Holder::Queue(key)));
        }
        holders.extend(self.delayed.iter().map(|(key, delayed)| (delayed.messages.here(), Holder::Exchange(key))));
        holders.retain(|(here, _)| *here > 1);
        holders.sort_unstable_by(|a, b| b.cmp(a));
        self.paging.window =
            (allowed.min(budget) / 4 / readers.max(1)).clamp(2 * segment_bytes, WINDOW_MAX.max(2 * segment_bytes));
        let can_write = now >= self.paging.paused_until;
        let before = self.paging.ops.len();
        for (_, holder) in holders {
            if need == 0 {
                break;
            }
            let window = self.paging.window;
            let eviction = |store_id, durable_below| Eviction { holder, store_id, durable_below, window, can_write };
            let (pool, ops) = (&mut self.pool, &mut self.paging.ops);
            let freed = match holder {
                Holder::Queue(key) => {
                    let pinned = if self.queues[key].is_stream() { self.pinned(key) } else { Vec::new() };
                    let (pool, ops) = (&mut self.pool, &mut self.paging.ops);
                    let queue = &mut self.queues[key];
                    let durable_below = queue.on_disk.below(self.stored, queue.stored_below);
                    let eviction = eviction(queue.store_id, durable_below);
                    if queue.is_stream() {
                        queue.evict_from_stream(need, &eviction, &pinned, pool, ops)
                    } else {
                        queue.evict(need, &eviction, pool, ops)
                    }
                }
                Holder::Exchange(key) => {
                    let delayed = &mut self.delayed[key];
                    let durable_below = delayed.on_disk.below(self.stored, delayed.stored_below);
                    delayed.evict(need, &eviction(delayed.store_id, durable_below), pool, ops)
                }
            };
            need = need.saturating_sub(freed);
        }
        let leaving = self.paging.ops[before..].iter().map(|op| match op {
            PageOp::Write { image, .. } => image.len(),
            _ => 0,
        });
        self.paging.leaving += leaving.sum::<usize>();
    }

    /// While messages are recovered: those that were seen may go again.
    pub fn keep_within_budget(&mut self, now: Millis) {
        self.look_for_room(now);
    }

    /// Asks for what the consumers of this queue receive next.
    #[cold]
    pub(super) fn read_ahead(&mut self, key: QueueKey) {
        let queue = &mut self.queues[key];
        if !queue.consumers.is_empty() {
            queue.read_ahead(Holder::Queue(key), self.paging.window, &mut self.paging.ops);
        }
    }

    /// Asks for the head of this queue, if that is away.
    pub(super) fn want_head(&mut self, key: QueueKey) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.want_head(Holder::Queue(key), &mut self.paging.ops);
        }
    }

    /// Drops the ready messages that are away, or the one page with this first sequence, without a look at them.
    /// Returns how many.
    pub(super) fn drop_pages(&mut self, key: QueueKey, only: Option<u64>) -> u64 {
        let queue = &mut self.queues[key];
        let (store_id, mut count) = (queue.store_id, 0);
        // Neighbours are settled as one.
        let mut settled: Option<(u64, u64)> = None;
        for (base, live, page) in queue.drop_pages(only) {
            count += u64::from(live);
            self.paging.ops.extend(page.place().map(PageOp::Free));
            let Some(store_id) = store_id.filter(|_| page.persistent) else { continue };
            let last = base + u64::from(page.count) - 1;
            match &mut settled {
                Some((_, end)) if *end + 1 == base => *end = last,
                _ => {
                    if let Some((first, last)) = settled.replace((base, last)) {
                        self.pending.settle_range(store_id, first, last);
                    }
                }
            }
        }
        if let (Some(store_id), Some((first, last))) = (store_id, settled) {
            self.pending.settle_range(store_id, first, last);
        }
        count
    }

    /// The messages of a queue that is gone.
    pub(super) fn drop_messages(&mut self, mut queue: Queue) {
        let places = queue.drop_messages(&mut self.pool);
        self.paging.ops.extend(places.into_iter().map(PageOp::Free));
    }

    /// Must this basic.get wait, because what it is to get is away? Then it is kept, and what comes after it.
    pub(super) fn defer_get(
        &mut self,
        connection: ConnectionKey,
        number: u16,
        channel: ChannelKey,
        get: &basic::Get<'_>,
        now: Millis,
    ) -> bool {
        let Ok(name) = self.expand_queue_name(channel, get.queue) else { return false };
        let Some(&key) = self.queues_by_name.get(&name) else { return false };
        if !self.queues[key].has_pages() || self.queues[key].is_stream() {
            return false;
        }
        self.expire_heads(key, now);
        if self.queues[key].head_away().is_none() {
            return false;
        }
        self.want_head(key);
        let get = Event::Method { channel: number, method: basic::Get { queue: get.queue, ..*get }.into() };
        self.defer(connection, Deferred::of(get));
        true
    }

    /// Does what this connection sends wait for a message to come from the disk?
    pub fn is_deferred(&self, connection: ConnectionKey) -> bool {
        self.connections.get(connection).is_some_and(|state| !state.deferred.is_empty())
    }

    pub(super) fn defer(&mut self, connection: ConnectionKey, deferred: Option<Deferred>) {
        let state = &mut self.connections[connection];
        if state.deferred.is_empty() {
            self.paging.deferred.push(connection);
        }
        state.deferred.extend(deferred);
    }

    /// Goes on with what clients sent after a basic.get that had to wait, as far as it can.
    #[cold]
    pub(super) fn resume_deferred(&mut self, now: Millis) {
        for connection in std::mem::take(&mut self.paging.deferred) {
            let Some(state) = self.connections.get_mut(connection) else { continue };
            let mut deferred: VecDeque<Deferred> = std::mem::take(&mut state.deferred);
            let before = deferred.len();
            while let Some(one) = deferred.pop_front() {
                match one {
                    Deferred::Method { channel, payload } => match Method::decode(&payload) {
                        Ok(method) => self.client(connection, Event::Method { channel, method }, now),
                        Err(error) => debug_assert!(false, "a method that was decoded once: {error}"),
                    },
                    Deferred::Publish { channel, publish } => {
                        self.client(connection, Event::OwnedPublish { channel, publish }, now);
                    }
                    Deferred::Fault(fault) => self.decode_fault(connection, &fault, now),
                }
                let Some(state) = self.connections.get_mut(connection) else { break };
                if !state.deferred.is_empty() {
                    // Another one has to wait, or the same again: what follows comes behind it.
                    state.deferred.append(&mut deferred);
                }
            }
            if self.connections.get(connection).is_some_and(|state| state.deferred.len() < before) {
                // It may be read from again.
                self.wake(connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::{FieldTable, FieldValue};

    use super::*;
    use crate::model::broker::Settings;
    use crate::model::broker::testing::{Rig, Sent};
    use crate::model::queue::page::{Image, PagePlace};

    /// A broker that keeps hardly anything in memory, without a store.
    fn rig() -> Rig {
        let paging = Some(PagingSettings { budget: 2000, segment_bytes: 200 });
        Rig::new(Settings { paging, persistent: false, ..Settings::default() })
    }

    fn fill(rig: &mut Rig, count: u32) {
        for number in 0..count {
            rig.publish("", "q", &number.to_string());
        }
    }

    /// What the shell would do; gives the images that are in the log.
    #[derive(Default)]
    struct Log(Vec<Option<Image>>);

    impl Log {
        /// Does all that is asked for; returns how many pages were read.
        fn serve(&mut self, rig: &mut Rig, readable: impl Fn(u64) -> bool) -> usize {
            let mut read = 0;
            for op in rig.broker.take_page_ops() {
                let answer = match op {
                    PageOp::Write { page, image } => {
                        let kept =
                            Image { entries: image.entries.clone(), bytes: image.bytes.clone(), ..Image::default() };
                        self.0.push(Some(kept));
                        let place = Some(PagePlace { file: self.0.len() as u32 - 1, offset: 0, len: 0 });
                        PageAnswer::Written { page, image, place }
                    }
                    PageOp::ReadLog { page, place } => {
                        read += 1;
                        let kept = self.0[place.file as usize].as_ref().expect("not freed");
                        let image =
                            Image { entries: kept.entries.clone(), bytes: kept.bytes.clone(), ..Image::default() };
                        PageAnswer::Read { page, image: if readable(page.base) { image } else { Image::default() } }
                    }
                    PageOp::Free(place) => {
                        assert!(self.0[place.file as usize].take().is_some(), "freed twice");
                        continue;
                    }
                    PageOp::ReadStore { .. } => panic!("there is no store"),
                };
                rig.broker.paged(vec![answer], rig.now);
            }
            read
        }

        fn kept(&self) -> usize {
            self.0.iter().flatten().count()
        }
    }

    fn bodies(sent: &[Sent]) -> Vec<String> {
        let body = |sent: &Sent| match sent {
            Sent::Content(_, body) => Some(String::from_utf8_lossy(body).into_owned()),
            Sent::Method(_) => None,
        };
        sent.iter().filter_map(body).collect()
    }

    fn consume(rig: &mut Rig) -> Vec<Sent> {
        let (no_local, no_ack, exclusive, no_wait) = (false, true, false, true);
        let arguments = FieldTable::new();
        rig.send(
            basic::Consume { queue: "q", consumer_tag: "c", no_local, no_ack, exclusive, no_wait, arguments }.into(),
        )
    }

    #[test]
    fn what_is_away_comes_back_in_order_and_leaves_nothing_behind() {
        let (mut rig, mut log) = (rig(), Log::default());
        rig.declare("q", FieldTable::new());
        fill(&mut rig, 500);
        assert!(log.serve(&mut rig, |_| true) == 0 && log.kept() > 30, "{} pages", log.kept());
        let mut got = bodies(&consume(&mut rig));
        assert!(got.len() < 100, "{} came without a look at the disk", got.len());
        while log.serve(&mut rig, |_| true) > 0 {
            got.extend(bodies(&rig.take()));
        }
        assert_eq!(got, (0..500).map(|number| number.to_string()).collect::<Vec<_>>());
        log.serve(&mut rig, |_| true);
        assert_eq!(log.kept(), 0);
    }

    /// §3.11, pipelining: what is sent after a basic.get that waits for the disk is answered after it.
    #[test]
    fn s8_4_a_get_that_waits_for_the_disk_keeps_its_place() {
        let (mut rig, mut log) = (rig(), Log::default());
        rig.declare("q", FieldTable::new());
        fill(&mut rig, 200);
        log.serve(&mut rig, |_| true);
        let get = || basic::Get { queue: "q", no_ack: true }.into();
        let mut number = 0;
        while !rig.broker.is_deferred(rig.connection) {
            assert!(number < 200, "everything is in memory");
            let answer = rig.send(get());
            if !rig.broker.is_deferred(rig.connection) {
                assert_eq!(bodies(&answer), [number.to_string()]);
                number += 1;
            }
        }
        assert!(rig.publish("", "q", "last").is_empty());
        assert!(rig.send(leveret_protocol::queue::Purge { queue: "q", no_wait: false }.into()).is_empty());
        assert!(rig.send(get()).is_empty());
        log.serve(&mut rig, |_| true);
        // The turn ends, and the client is woken.
        assert!(rig.take().is_empty());
        let sent = rig.take();
        let [Sent::Method(get_ok), Sent::Content(_, body), Sent::Method(purge_ok), Sent::Method(empty)] = &sent[..]
        else {
            panic!("{sent:?}")
        };
        assert!(get_ok.contains("GetOk") && empty.contains("GetEmpty"), "{sent:?}");
        assert_eq!(body, number.to_string().as_bytes());
        assert!(
            purge_ok.contains(&format!("message_count: {}", 200 - number)),
            "the one published after the get, too: {purge_ok}"
        );
        log.serve(&mut rig, |_| true);
        assert_eq!(log.kept(), 0, "what was purged needs no place");
    }

    /// What cannot be read is left out and counted; everything else arrives.
    #[test]
    fn an_unreadable_page_stops_nobody() {
        let (mut rig, mut log) = (rig(), Log::default());
        rig.declare("q", FieldTable::new());
        fill(&mut rig, 300);
        log.serve(&mut rig, |_| true);
        let mut got = bodies(&consume(&mut rig));
        let bad = got.len() as u64 + 20;
        while log.serve(&mut rig, |base| base < bad || base > bad + 20) > 0 {
            got.extend(bodies(&rig.take()));
        }
        let queue = rig.broker.queue("q").unwrap();
        let lost = queue.stats.unreadable;
        assert!(lost > 0, "no page began there");
        assert_eq!((queue.ready_count(), queue.ready_bytes(), got.len() as u64), (0, 0, 300 - lost));
        assert!(got.is_sorted_by_key(|body| body.parse::<u32>().unwrap()));
    }

    /// A paging log that cannot be written costs memory, and no message.
    #[test]
    fn what_cannot_be_written_stays_in_memory() {
        let mut rig = rig();
        rig.declare("q", FieldTable::new());
        fill(&mut rig, 300);
        let ops = rig.broker.take_page_ops();
        assert!(!ops.is_empty());
        for op in ops {
            let PageOp::Write { page, image } = op else { panic!("{op:?}") };
            rig.broker.paged(vec![PageAnswer::Written { page, image, place: None }], rig.now);
        }
        assert_eq!(bodies(&consume(&mut rig)).len(), 300);
        assert!(rig.broker.take_page_ops().iter().all(|op| !matches!(op, PageOp::Write { .. })), "tried again at once");
    }

    /// §11.4: the queue drops its oldest messages also where those are on disk.
    #[test]
    fn s11_4_a_limit_drops_what_is_away() {
        let (mut rig, mut log) = (rig(), Log::default());
        rig.declare("q", FieldTable::from_iter([("x-max-length", FieldValue::I32(200))]));
        for number in 0..600 {
            rig.publish("", "q", &number.to_string());
            while log.serve(&mut rig, |_| true) > 0 {}
        }
        assert_eq!(rig.broker.queue("q").unwrap().ready_count(), 200);
        let mut got = bodies(&consume(&mut rig));
        while log.serve(&mut rig, |_| true) > 0 {
            got.extend(bodies(&rig.take()));
        }
        assert_eq!(got, (400..600).map(|number| number.to_string()).collect::<Vec<_>>());
    }
}
