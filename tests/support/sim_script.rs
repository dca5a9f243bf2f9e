//! The text in which simulations are written and printed: a line per step, words as AMQP has them.
//!
//! ```text
//! c0 open                                      a client connects; frame_max=4096 sets its frame size
//! c0.1 queue.declare q durable x-max-length=5  a method on channel 1; several with `;` reach the broker at once
//! c0.1 basic.publish key m1 exchange=x persistent CC=[a,b] size=5000
//! c0.1 basic.ack 3 multiple                    nack, reject: requeued unless `discard`
//! c0 lost                                      the socket is gone
//! poll c0 100                                  c0 reads up to 100 bytes or one frame more; `poll`: all read all
//! time 50 | clock 50                           50 ms pass, timers on time; the clock jumps and timers come late
//! page
//! store | store.take | store.write | store.fail | store.done
//! crash | stop                                 the broker starts again, after a crash or a clean stop
//! ```
//! A `name=value` that is no field of the method goes into its table, and for a publish into the headers.
//! Values: integers, `true`, `false`, `void`, arrays `[a,b]`, else text; `''` is the empty text.

use std::fmt;

use bytes::{Bytes, BytesMut};
use leveret_protocol::{
    FieldTable, FieldValue, Method, Properties, basic, channel, confirm, connection, exchange, put_content,
    put_method_frame, queue, tx,
};

/// A method with its content, in either direction.
#[derive(Clone, PartialEq)]
pub struct Wire {
    pub channel: u16,
    pub payload: Bytes,
    pub content: Option<(Properties, Bytes)>,
}

impl Wire {
    pub fn new(channel: u16, method: &Method<'_>) -> Self {
        let mut payload = BytesMut::new();
        method.encode(&mut payload);
        Self { channel, payload: payload.freeze(), content: None }
    }

    pub fn with_content(self, properties: Properties, body: Bytes) -> Self {
        Self { content: Some((properties, body)), ..self }
    }

    pub fn method(&self) -> Method<'_> {
        Method::decode(&self.payload).expect("a payload that was encoded here or by the broker")
    }

    /// The body, up to the padding: what names a message.
    pub fn body_name(&self) -> String {
        self.content.as_ref().map_or_else(String::new, |(_, body)| body_name(body))
    }

    pub fn encode(&self, frame_max: u32, out: &mut BytesMut) {
        put_method_frame(out, self.channel, &self.method());
        if let Some((properties, body)) = &self.content {
            let mut encoded = BytesMut::new();
            properties.encode(&mut encoded);
            put_content(out, self.channel, frame_max, &encoded, body);
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.channel, self.method())?;
        if let Some((properties, body)) = &self.content {
            write!(f, " {} ({} bytes)", body_name(body), body.len())?;
            let all = format!("{properties:?}");
            let present = all.trim_start_matches("Properties { ").split(", ").filter(|field| !field.contains("None"));
            write!(f, " {}", present.collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }
}

pub fn body_name(body: &[u8]) -> String {
    let end = body.iter().position(|byte| *byte == b'.').unwrap_or(body.len());
    String::from_utf8_lossy(&body[..end]).into_owned()
}

/// Properties with their headers in the order of the names (§8.6).
pub fn canonical(properties: Properties) -> Properties {
    Properties { headers: properties.headers.as_ref().map(sorted), ..properties }
}

fn sorted(table: &FieldTable) -> FieldTable {
    let mut fields: Vec<_> = table.iter().map(|(name, value)| (name.clone(), sorted_value(value))).collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    FieldTable(fields)
}

fn sorted_value(value: &FieldValue) -> FieldValue {
    match value {
        FieldValue::Table(table) => FieldValue::Table(sorted(table)),
        FieldValue::Array(items) => FieldValue::Array(items.iter().map(sorted_value).collect()),
        other => other.clone(),
    }
}

/// One step of a simulation.
#[derive(Clone, Debug)]
pub enum Step {
    Open {
        connection: usize,
        frame_max: u32,
    },
    Lost {
        connection: usize,
    },
    /// In one turn of the broker.
    Send {
        connection: usize,
        commands: Vec<Wire>,
    },
    Poll {
        connection: usize,
        limit: usize,
    },
    PollAll,
    Time(u64),
    Clock(u64),
    /// The shell does one thing for messages that are away.
    Page,
    Store(StoreStep),
    Crash,
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreStep {
    /// The store takes what has gathered.
    Take,
    /// It writes what it has taken.
    Write,
    /// Its next write fails.
    Fail,
    /// The broker hears that it was written.
    Done,
    /// All of it, until nothing is left.
    All,
}

/// Reads a line; panics on what it does not understand, for scripts are ours.
pub fn parse(line: &str) -> Step {
    let (target, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let number = |text: &str| -> u64 { text.trim().parse().unwrap_or_else(|_| panic!("a number in '{line}'")) };
    match target {
        "time" => return Step::Time(number(rest)),
        "clock" => return Step::Clock(number(rest)),
        "poll" if rest.is_empty() => return Step::PollAll,
        "poll" => {
            let (connection, limit) = rest.split_once(' ').unwrap_or((rest, "1000000"));
            return Step::Poll { connection: number(&connection[1..]) as usize, limit: number(limit) as usize };
        }
        "page" => return Step::Page,
        "store" => return Step::Store(StoreStep::All),
        "store.take" => return Step::Store(StoreStep::Take),
        "store.write" => return Step::Store(StoreStep::Write),
        "store.fail" => return Step::Store(StoreStep::Fail),
        "store.done" => return Step::Store(StoreStep::Done),
        "crash" => return Step::Crash,
        "stop" => return Step::Stop,
        _ => {}
    }
    let Some(target) = target.strip_prefix('c') else { panic!("no step: '{line}'") };
    let (connection, channel) = target.split_once('.').unwrap_or((target, "0"));
    let (connection, channel) = (number(connection) as usize, number(channel) as u16);
    match Words::new(rest) {
        words if words.name == "open" => {
            let frame_max = words.option("frame_max").map_or(131_072, |text| number(text) as u32);
            Step::Open { connection, frame_max }
        }
        words if words.name == "lost" => Step::Lost { connection },
        _ => {
            let commands = rest.split(';').map(|command| client_command(channel, &Words::new(command))).collect();
            Step::Send { connection, commands }
        }
    }
}

const FLAGS: [&str; 16] = [
    "passive",
    "durable",
    "exclusive",
    "auto-delete",
    "internal",
    "no-wait",
    "if-unused",
    "if-empty",
    "persistent",
    "mandatory",
    "immediate",
    "no-ack",
    "global",
    "multiple",
    "discard",
    "inactive",
];
/// Options that are fields or properties and not part of a table.
const FIELDS: [&str; 9] =
    ["exchange", "tag", "size", "expiration", "priority", "frame_max", "user-id", "reply-to", "prefetch-size"];

/// A command taken apart.
struct Words<'a> {
    name: &'a str,
    positional: Vec<&'a str>,
    flags: Vec<&'a str>,
    options: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        let mut words = text.split_whitespace();
        let mut result =
            Self { name: words.next().unwrap_or(""), positional: Vec::new(), flags: Vec::new(), options: Vec::new() };
        for word in words {
            if let Some((name, value)) = word.split_once('=') {
                result.options.push((name, unquoted(value)));
            } else if FLAGS.contains(&word) {
                result.flags.push(word);
            } else {
                result.positional.push(unquoted(word));
            }
        }
        result
    }

    fn at(&self, index: usize) -> &'a str {
        self.positional.get(index).copied().unwrap_or("")
    }

    fn number_at(&self, index: usize) -> u64 {
        let text = self.positional.get(index).copied().unwrap_or("0");
        text.parse().unwrap_or_else(|_| panic!("'{text}' of {} is no number", self.name))
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    fn option(&self, name: &str) -> Option<&'a str> {
        self.options.iter().find(|(option, _)| *option == name).map(|(_, value)| *value)
    }

    fn table(&self) -> FieldTable {
        let options = self.options.iter().filter(|(name, _)| !FIELDS.contains(name));
        options.map(|(name, text)| (*name, value(text))).collect()
    }
}

fn unquoted(text: &str) -> &str {
    if text == "''" { "" } else { text }
}

fn value(text: &str) -> FieldValue {
    if let Some(items) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return FieldValue::Array(items.split(',').filter(|item| !item.is_empty()).map(value).collect());
    }
    match text {
        "true" => FieldValue::Bool(true),
        "false" => FieldValue::Bool(false),
        "void" => FieldValue::Void,
        _ => text.parse::<i32>().map_or_else(|_| FieldValue::from(text), FieldValue::from),
    }
}

/// What a client sends for a command.
fn client_command(channel: u16, words: &Words<'_>) -> Wire {
    let wire = Wire::new(channel, &method(words));
    if words.name != "basic.publish" {
        return wire;
    }
    let text = |name| words.option(name).map(|text| Bytes::copy_from_slice(text.as_bytes()));
    let headers = words.table();
    let properties = Properties {
        headers: (!headers.is_empty()).then_some(headers),
        delivery_mode: words.has("persistent").then_some(2),
        priority: words.option("priority").map(|text| text.parse().expect("a priority")),
        expiration: text("expiration"),
        user_id: text("user-id"),
        reply_to: text("reply-to"),
        ..Properties::default()
    };
    let mut body = words.at(1).as_bytes().to_vec();
    if let Some(size) = words.option("size") {
        body.resize(size.parse().expect("a size"), b'.');
    }
    wire.with_content(properties, body.into())
}

fn method<'a>(words: &Words<'a>) -> Method<'a> {
    let has = |flag| words.has(flag);
    match words.name {
        "connection.close" => connection::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 }.into(),
        "connection.close-ok" => connection::CloseOk {}.into(),
        "channel.open" => channel::Open {}.into(),
        "channel.close" => channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 }.into(),
        "channel.close-ok" => channel::CloseOk {}.into(),
        "channel.flow" => channel::Flow { active: !has("inactive") }.into(),
        "exchange.declare" => exchange::Declare {
            exchange: words.at(0),
            type_: if words.positional.len() > 1 { words.at(1) } else { "direct" },
            passive: has("passive"),
            durable: has("durable"),
            auto_delete: has("auto-delete"),
            internal: has("internal"),
            no_wait: has("no-wait"),
            arguments: words.table(),
        }
        .into(),
        "exchange.delete" => {
            exchange::Delete { exchange: words.at(0), if_unused: has("if-unused"), no_wait: has("no-wait") }.into()
        }
        "exchange.bind" => exchange::Bind {
            destination: words.at(0),
            source: words.at(1),
            routing_key: words.at(2),
            no_wait: has("no-wait"),
            arguments: words.table(),
        }
        .into(),
        "exchange.unbind" => exchange::Unbind {
            destination: words.at(0),
            source: words.at(1),
            routing_key: words.at(2),
            no_wait: has("no-wait"),
            arguments: words.table(),
        }
        .into(),
        "confirm.select" => confirm::Select { no_wait: has("no-wait") }.into(),
        "tx.select" => tx::Select {}.into(),
        "tx.commit" => tx::Commit {}.into(),
        "tx.rollback" => tx::Rollback {}.into(),
        name if name.starts_with("queue.") => queue_method(words),
        _ => basic_method(words),
    }
}

fn queue_method<'a>(words: &Words<'a>) -> Method<'a> {
    let has = |flag| words.has(flag);
    let (queue, exchange, routing_key) = (words.at(0), words.at(1), words.at(2));
    match words.name {
        "queue.declare" => queue::Declare {
            queue,
            passive: has("passive"),
            durable: has("durable"),
            exclusive: has("exclusive"),
            auto_delete: has("auto-delete"),
            no_wait: has("no-wait"),
            arguments: words.table(),
        }
        .into(),
        "queue.bind" => {
            queue::Bind { queue, exchange, routing_key, no_wait: has("no-wait"), arguments: words.table() }.into()
        }
        "queue.unbind" => queue::Unbind { queue, exchange, routing_key, arguments: words.table() }.into(),
        "queue.purge" => queue::Purge { queue, no_wait: has("no-wait") }.into(),
        "queue.delete" => {
            let (if_unused, if_empty) = (has("if-unused"), has("if-empty"));
            queue::Delete { queue, if_unused, if_empty, no_wait: has("no-wait") }.into()
        }
        other => panic!("no method of a script: '{other}'"),
    }
}

fn basic_method<'a>(words: &Words<'a>) -> Method<'a> {
    let has = |flag| words.has(flag);
    let (delivery_tag, multiple, requeue) = (|| words.number_at(0), has("multiple"), !has("discard"));
    match words.name {
        "basic.qos" => basic::Qos {
            prefetch_size: words.option("prefetch-size").map_or(0, |text| text.parse().expect("a size")),
            prefetch_count: words.number_at(0) as u16,
            global: has("global"),
        }
        .into(),
        "basic.consume" => basic::Consume {
            queue: words.at(0),
            consumer_tag: words.option("tag").unwrap_or(""),
            no_local: false,
            no_ack: has("no-ack"),
            exclusive: has("exclusive"),
            no_wait: has("no-wait"),
            arguments: words.table(),
        }
        .into(),
        "basic.cancel" => basic::Cancel { consumer_tag: words.at(0), no_wait: has("no-wait") }.into(),
        "basic.publish" => basic::Publish {
            exchange: words.option("exchange").unwrap_or(""),
            routing_key: words.at(0),
            mandatory: has("mandatory"),
            immediate: has("immediate"),
        }
        .into(),
        "basic.get" => basic::Get { queue: words.at(0), no_ack: has("no-ack") }.into(),
        "basic.ack" => basic::Ack { delivery_tag: delivery_tag(), multiple }.into(),
        "basic.nack" => basic::Nack { delivery_tag: delivery_tag(), multiple, requeue }.into(),
        "basic.reject" => basic::Reject { delivery_tag: delivery_tag(), requeue }.into(),
        "basic.recover" => basic::Recover { requeue }.into(),
        "basic.recover-async" => basic::RecoverAsync { requeue }.into(),
        other => panic!("no method of a script: '{other}'"),
    }
}
