//! What a client sees over TCP: one test per rule of the project's description of RabbitMQ's behaviour, its
//! section in the name. Wrong input included.
//!
//! `LEVERET_TEST_AMQP=127.0.0.1:5672 cargo test --test wire` asks another broker the same questions.

#![forbid(unsafe_code)]

#[path = "support/broker.rs"]
mod broker;
#[path = "support/client.rs"]
mod client;

#[path = "wire/bindings.rs"]
mod bindings;
#[path = "wire/channels.rs"]
mod channels;
#[path = "wire/closing.rs"]
mod closing;
#[path = "wire/command_line.rs"]
mod command_line;
#[path = "wire/confirms.rs"]
mod confirms;
#[path = "wire/consume.rs"]
mod consume;
#[path = "wire/content.rs"]
mod content;
#[path = "wire/dead_letter.rs"]
mod dead_letter;
#[path = "wire/definitions.rs"]
mod definitions;
#[path = "wire/dispatch.rs"]
mod dispatch;
#[path = "wire/exchanges.rs"]
mod exchanges;
#[path = "wire/expiry.rs"]
mod expiry;
#[path = "wire/frames.rs"]
mod frames;
#[path = "wire/gotchas.rs"]
mod gotchas;
#[path = "wire/handshake.rs"]
mod handshake;
#[path = "wire/limits.rs"]
mod limits;
#[path = "wire/methods.rs"]
mod methods;
#[path = "wire/metrics.rs"]
mod metrics;
#[path = "wire/publish.rs"]
mod publish;
#[path = "wire/queue_arguments.rs"]
mod queue_arguments;
#[path = "wire/queues.rs"]
mod queues;
#[path = "wire/reply_to.rs"]
mod reply_to;
#[path = "wire/restart.rs"]
mod restart;
#[path = "wire/routing.rs"]
mod routing;
#[path = "wire/s12_stream_consumers.rs"]
mod s12_stream_consumers;
#[path = "wire/s12_streams.rs"]
mod s12_streams;
#[path = "wire/s14_limits.rs"]
mod s14_limits;
#[path = "wire/s15_vhosts.rs"]
mod s15_vhosts;
#[path = "wire/s3_8_alarms.rs"]
mod s3_8_alarms;
#[path = "wire/s7_plugin_exchanges.rs"]
mod s7_plugin_exchanges;
#[path = "wire/settle.rs"]
mod settle;
#[path = "wire/store_tool.rs"]
mod store_tool;
#[path = "wire/tx.rs"]
mod tx;
