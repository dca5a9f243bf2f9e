//! A client that is fast enough to fill and drain at the broker's speed, and a watch on the broker's memory.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use leveret_protocol::{
    FieldTable, FieldValue, FrameKind, Method, PROTOCOL_HEADER, Properties, basic, channel, confirm, connection,
    exchange, put_ack, put_content, put_method_frame, queue, split_frame,
};

/// Bytes that are written at once.
const WRITE: usize = 128 << 10;

/// One channel of one connection.
pub struct Load {
    stream: TcpStream,
    input: Vec<u8>,
    start: usize,
    out: BytesMut,
    /// Published on this channel before.
    published: u64,
    /// What a consumer may hold unacked.
    pub prefetch: u16,
}

/// What to publish: each body begins with its number.
#[derive(Clone)]
pub struct Messages {
    pub exchange: &'static str,
    pub key: &'static str,
    pub count: u64,
    pub bytes: usize,
    pub persistent: bool,
    pub properties: fn(u64) -> Properties,
}

impl Messages {
    pub fn new(key: &'static str, count: u64, bytes: usize, persistent: bool) -> Self {
        Self { exchange: "", key, count, bytes, persistent, properties: |_| Properties::default() }
    }
}

impl Load {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the broker listens");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        let mut load = Self { stream, input: Vec::new(), start: 0, out: BytesMut::new(), published: 0, prefetch: 2000 };
        load.out.extend_from_slice(&PROTOCOL_HEADER);
        load.flush();
        load.expect("connection.start");
        let start_ok = connection::StartOk {
            client_properties: FieldTable::new(),
            mechanism: "PLAIN",
            response: b"\0guest\0guest",
            locale: "en_US",
        };
        load.send(0, start_ok.into());
        load.expect("connection.tune");
        load.send(0, connection::TuneOk { channel_max: 8, frame_max: 131_072, heartbeat: 0 }.into());
        load.send(0, connection::Open { virtual_host: "/" }.into());
        load.expect("connection.open-ok");
        load.call(channel::Open {}.into(), "channel.open-ok");
        load
    }

    fn send(&mut self, channel: u16, method: Method<'_>) {
        put_method_frame(&mut self.out, channel, &method);
        self.flush();
    }

    fn flush(&mut self) {
        self.stream.write_all(&self.out).expect("the broker reads");
        self.out.clear();
    }

    pub fn call(&mut self, method: Method<'_>, reply: &str) {
        self.send(1, method);
        self.expect(reply);
    }

    fn expect(&mut self, name: &str) {
        self.frame(|kind, payload| {
            assert_eq!(kind, FrameKind::Method);
            let method = Method::decode(payload).expect("a method");
            assert_eq!(method.name(), name, "{method:?}");
        });
    }

    /// Reads the next frame, whatever it is.
    fn frame<T>(&mut self, look: impl FnOnce(FrameKind, &[u8]) -> T) -> T {
        loop {
            if let Some((frame, used)) = split_frame(&self.input[self.start..], 0).expect("frames") {
                let found = look(frame.kind, frame.payload);
                self.start += used;
                return found;
            }
            self.input.drain(..self.start);
            self.start = 0;
            let length = self.input.len();
            self.input.resize(length + (256 << 10), 0);
            let read = self.stream.read(&mut self.input[length..]).expect("the broker answers in time");
            assert!(read > 0, "the broker has closed the connection");
            self.input.truncate(length + read);
        }
    }

    pub fn declare(&mut self, queue: &str, arguments: &[(&str, FieldValue)]) {
        let arguments = FieldTable::from_iter(arguments.iter().cloned());
        let (passive, durable, exclusive, auto_delete, no_wait) = (false, true, false, false, false);
        let declare = queue::Declare { queue, passive, durable, exclusive, auto_delete, no_wait, arguments };
        self.call(declare.into(), "queue.declare-ok");
    }

    /// An `x-delayed-message` exchange, and a queue bound to it under its own name.
    pub fn declare_delayed(&mut self, exchange: &str, queue: &str) {
        let arguments = FieldTable::from_iter([("x-delayed-type", FieldValue::from("direct"))]);
        let (passive, durable, auto_delete, internal, no_wait) = (false, true, false, false, false);
        let type_ = "x-delayed-message";
        let declare =
            exchange::Declare { exchange, type_, passive, durable, auto_delete, internal, no_wait, arguments };
        self.call(declare.into(), "exchange.declare-ok");
        self.declare(queue, &[]);
        let arguments = FieldTable::new();
        self.call(queue::Bind { queue, exchange, routing_key: queue, no_wait, arguments }.into(), "queue.bind-ok");
    }

    /// Messages that the queue says are ready.
    pub fn ready(&mut self, queue: &str) -> u32 {
        let (passive, durable, exclusive, auto_delete, no_wait) = (true, true, false, false, false);
        let arguments = FieldTable::new();
        self.send(1, queue::Declare { queue, passive, durable, exclusive, auto_delete, no_wait, arguments }.into());
        self.frame(|_, payload| match Method::decode(payload) {
            Ok(Method::QueueDeclareOk(ok)) => ok.message_count,
            other => panic!("not declare-ok: {other:?}"),
        })
    }

    /// Publishes with confirms, so many on their way at once; returns when all are confirmed.
    pub fn fill(&mut self, messages: &Messages, window: u64) -> Duration {
        let since = Instant::now();
        self.call(confirm::Select { no_wait: false }.into(), "confirm.select-ok");
        let before = self.published;
        let (mut sent, mut confirmed) = (0, 0);
        let mut body = vec![b'x'; messages.bytes.max(8)];
        let mut encoded = BytesMut::new();
        while confirmed < messages.count {
            while sent < messages.count && sent - confirmed < window && self.out.len() < WRITE {
                let publish = basic::Publish {
                    exchange: messages.exchange,
                    routing_key: messages.key,
                    mandatory: false,
                    immediate: false,
                };
                put_method_frame(&mut self.out, 1, &publish.into());
                let mut properties = (messages.properties)(sent);
                properties.delivery_mode = Some(if messages.persistent { 2 } else { 1 });
                encoded.clear();
                properties.encode(&mut encoded);
                body[..8].copy_from_slice(&sent.to_be_bytes());
                put_content(&mut self.out, 1, 131_072, &encoded, &body);
                sent += 1;
            }
            let all_out = sent == messages.count || sent - confirmed >= window;
            self.flush();
            if all_out {
                confirmed = self.frame(|_, payload| match Method::decode(payload) {
                    Ok(Method::BasicAck(ack)) => ack.delivery_tag,
                    other => panic!("not an ack: {other:?}"),
                }) - before;
            }
        }
        self.published += messages.count;
        since.elapsed()
    }

    /// Consumes so many messages (a queue `stream` from its beginning) with acks in groups; gives each number and whether it says redelivered to
    /// `look`. Returns how long it took, and how long until the first one.
    pub fn drain(&mut self, queue: &str, count: u64, mut look: impl FnMut(u64, bool)) -> (Duration, Duration) {
        let since = Instant::now();
        let mut first = None;
        self.call(basic::Qos { prefetch_size: 0, prefetch_count: self.prefetch, global: false }.into(), "basic.qos-ok");
        let (no_local, no_ack, exclusive, no_wait) = (false, false, false, false);
        let offset = ("x-stream-offset", FieldValue::from("first"));
        let arguments = FieldTable::from_iter((queue == "stream").then_some(offset));
        let consume = basic::Consume { queue, consumer_tag: "c", no_local, no_ack, exclusive, no_wait, arguments };
        self.call(consume.into(), "basic.consume-ok");
        let (mut got, mut tag, mut redelivered, mut begins) = (0, 0, false, false);
        while got < count {
            let number = self.frame(|kind, payload| match kind {
                FrameKind::Method => match Method::decode(payload) {
                    Ok(Method::BasicDeliver(deliver)) => {
                        (tag, redelivered) = (deliver.delivery_tag, deliver.redelivered);
                        None
                    }
                    other => panic!("not a delivery: {other:?}"),
                },
                FrameKind::Header => {
                    begins = true;
                    None
                }
                FrameKind::Body => std::mem::take(&mut begins)
                    .then(|| u64::from_be_bytes(payload[..8].try_into().expect("eight bytes"))),
                FrameKind::Heartbeat => None,
            });
            let Some(number) = number else { continue };
            first.get_or_insert_with(|| since.elapsed());
            look(number, redelivered);
            got += 1;
            if got % u64::from(self.prefetch / 4) == 0 || got == count {
                put_ack(&mut self.out, 1, tag, true);
                self.flush();
            }
        }
        let took = since.elapsed();
        self.send(1, basic::Cancel { consumer_tag: "c", no_wait: false }.into());
        // What was sent ahead stays unacked.
        while !self.frame(|kind, payload| {
            kind == FrameKind::Method && matches!(Method::decode(payload), Ok(Method::BasicCancelOk(_)))
        }) {}
        (took, first.unwrap_or_default())
    }

    /// One basic.get: the number of the message, `None` if the queue is empty.
    pub fn get(&mut self, queue: &str) -> Option<u64> {
        self.send(1, basic::Get { queue, no_ack: true }.into());
        let there = self.frame(|_, payload| matches!(Method::decode(payload), Ok(Method::BasicGetOk(_))));
        there.then(|| {
            self.frame(|kind, _| assert_eq!(kind, FrameKind::Header));
            self.frame(|_, payload| u64::from_be_bytes(payload[..8].try_into().expect("eight bytes")))
        })
    }

    pub fn purge(&mut self, queue: &str) -> u32 {
        self.send(1, queue::Purge { queue, no_wait: false }.into());
        self.frame(|_, payload| match Method::decode(payload) {
            Ok(Method::QueuePurgeOk(ok)) => ok.message_count,
            other => panic!("not purge-ok: {other:?}"),
        })
    }
}

/// Looks at a process's memory until it is dropped.
pub struct Watch {
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn on(pid: u32) -> Self {
        let (peak, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, ended) = (peak.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                seen.fetch_max(resident(pid), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { peak, stop, thread: Some(thread) }
    }

    /// The most since this was asked last, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Processor time that a process has used.
pub fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    // In ticks, of which there are 100 a second.
    Duration::from_millis(fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10)
}

/// Bytes of memory that a process has.
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}
