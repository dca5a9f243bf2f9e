//! The command line of `leveret perf`: names, defaults and help texts. The letters are those of RabbitMQ's
//! perf-test, so that its users need not learn new ones; what it writes as `-ad` or `-qa` is understood too.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Producers publish, consumers receive
    Send,
    /// Each consumer has a queue of its own, all bound to one fanout exchange
    Fanout,
    /// A topic exchange with --bindings N; each message matches one
    Topic,
    /// Requesters (-x) call servers (-y) over direct reply-to
    Rpc,
    /// Connections (-x at a time) are opened and closed
    Connections,
    /// Channels (on -x connections) are opened and closed
    Channels,
    /// Queues are declared (on -x connections), and deleted at the end
    Declare,
    /// Connections (-x in all) are opened and kept, with a channel each
    Idle,
}

/// Load generator for AMQP 0-9-1 brokers: rates, latencies, and what they cost the broker.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "leveret perf",
    bin_name = "leveret perf",
    override_usage = "leveret perf [MODE] [OPTIONS]",
    disable_help_flag = true,
    args_override_self = true,
    after_help = AFTER_HELP
)]
pub struct Options {
    /// What to measure
    #[arg(value_enum, default_value_t = Mode::Send)]
    pub mode: Mode,

    /// Where the broker is: amqp://user:password@host:port/vhost
    #[arg(short = 'h', long, value_name = "URI", default_value = "amqp://guest:guest@localhost:5672")]
    pub uri: String,
    /// Seconds to run; without it until every count is reached, or Ctrl-C
    #[arg(short = 'z', long, value_name = "S")]
    pub time: Option<f64>,
    /// Messages each producer publishes; calls, connections, channels or queues in the other modes
    #[arg(short = 'C', long = "pmessages", value_name = "N")]
    pub producer_count: Option<u64>,
    /// Messages each consumer takes
    #[arg(short = 'D', long = "cmessages", value_name = "N")]
    pub consumer_count: Option<u64>,

    /// Connections that publish
    #[arg(short = 'x', long, value_name = "N", default_value_t = 1, help_heading = "Producers")]
    pub producers: usize,
    /// Channels of each producer
    #[arg(short = 'X', long, value_name = "N", default_value_t = 1, help_heading = "Producers",
        value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub producer_channel_count: u16,
    /// Bytes of a message's body; latency needs 8
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 16, help_heading = "Producers")]
    pub size: usize,
    /// Messages a second of each producer; without it as fast as it goes
    #[arg(short = 'r', long, value_name = "N", help_heading = "Producers")]
    pub rate: Option<f64>,
    /// Publisher confirms, with at most N outstanding on each channel
    #[arg(short = 'c', long, value_name = "N", help_heading = "Producers")]
    pub confirm: Option<usize>,
    /// persistent (queues are durable then too), mandatory; may be repeated
    #[arg(short = 'f', long, value_name = "FLAG", value_delimiter = ',', help_heading = "Producers")]
    pub flag: Vec<Flag>,
    /// Content type of the messages
    #[arg(short = 'T', long, value_name = "TYPE", help_heading = "Producers")]
    pub body_content_type: Option<String>,
    /// A write for each message, where many would fit into one
    #[arg(long, help_heading = "Producers")]
    pub one_per_write: bool,

    /// Connections that consume
    #[arg(short = 'y', long, value_name = "N", help_heading = "Consumers")]
    pub consumers: Option<usize>,
    /// Channels of each consumer
    #[arg(short = 'Y', long, value_name = "N", default_value_t = 1, help_heading = "Consumers",
        value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub consumer_channel_count: u16,
    /// Acknowledge automatically
    #[arg(short = 'a', long, help_heading = "Consumers")]
    pub autoack: bool,
    /// Acknowledge every N messages with one ack [default: each on its own]
    #[arg(short = 'A', long, value_name = "N", default_value_t = 1, hide_default_value = true,
        value_parser = clap::value_parser!(u64).range(1..), help_heading = "Consumers")]
    pub multi_ack_every: u64,
    /// Prefetch of each consumer; 0 for no limit
    #[arg(short = 'q', long, value_name = "N", default_value_t = 0, help_heading = "Consumers")]
    pub qos: u16,
    /// Prefetch of each channel; 0 for no limit
    #[arg(short = 'Q', long, value_name = "N", default_value_t = 0, help_heading = "Consumers")]
    pub global_qos: u16,
    /// Messages a second that each consumer takes at most
    #[arg(short = 'R', long, value_name = "N", help_heading = "Consumers")]
    pub consumer_rate: Option<f64>,

    /// Queue to publish to and consume from [default: one of our own, deleted at the end]
    #[arg(short = 'u', long, value_name = "NAME", help_heading = "Queues and exchanges")]
    pub queue: Option<String>,
    /// Many queues: %d is replaced by numbers; producers and consumers share them out (-qp)
    #[arg(long, value_name = "PATTERN", conflicts_with = "queue", help_heading = "Queues and exchanges")]
    pub queue_pattern: Option<String>,
    /// The first number (-qpf)
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Queues and exchanges")]
    pub queue_pattern_from: u64,
    /// The last number (-qpt)
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Queues and exchanges")]
    pub queue_pattern_to: u64,
    /// Exchange [default: the default exchange, which needs no bindings]
    #[arg(short = 'e', long, value_name = "NAME", help_heading = "Queues and exchanges")]
    pub exchange: Option<String>,
    /// Type of the exchange
    #[arg(
        short = 't',
        long = "type",
        value_name = "TYPE",
        default_value = "direct",
        help_heading = "Queues and exchanges"
    )]
    pub exchange_type: String,
    /// Routing key [default: the queue's name]
    #[arg(short = 'k', long, value_name = "KEY", help_heading = "Queues and exchanges")]
    pub routing_key: Option<String>,
    /// Queues are there already: declare and delete nothing
    #[arg(short = 'p', long, help_heading = "Queues and exchanges")]
    pub predeclared: bool,
    /// Delete queues when their last consumer is gone (-ad)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = false, default_missing_value = "true",
        default_value_t = true, action = clap::ArgAction::Set, help_heading = "Queues and exchanges")]
    pub auto_delete: bool,
    /// Arguments of queues: x-max-length=10,x-queue-type=quorum (-qa)
    #[arg(long, value_name = "K=V,...", value_delimiter = ',', help_heading = "Queues and exchanges")]
    pub queue_args: Vec<String>,
    /// Quorum queues (-qq); persistent and no auto-delete with it
    #[arg(long, help_heading = "Queues and exchanges")]
    pub quorum_queue: bool,
    /// Bindings of the topic exchange
    #[arg(long, value_name = "N", default_value_t = 10_000, help_heading = "Queues and exchanges")]
    pub bindings: usize,
    /// Leave queues of our own behind
    #[arg(long, help_heading = "Queues and exchanges")]
    pub keep: bool,

    /// Calls (rpc) or declares that each connection has outstanding
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Running")]
    pub in_flight: usize,
    /// Seconds between lines; 0 for none
    #[arg(short = 'i', long, value_name = "S", default_value_t = 1.0, help_heading = "Running")]
    pub interval: f64,
    /// Threads of the generator [default: 1, or 2 with more than two cores]
    #[arg(long, value_name = "N", help_heading = "Running")]
    pub threads: Option<usize>,
    /// Process of a broker on this machine: adds its CPU time and memory
    #[arg(long, value_name = "PID", help_heading = "Running")]
    pub broker_pid: Option<u32>,
    /// The result as JSON, on stdout or into a file; the lines go to stderr
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Running")]
    pub json: Option<PathBuf>,
    /// Print help
    #[arg(long, short = '?', action = clap::ArgAction::Help, help_heading = "Running")]
    pub help: Option<bool>,
}

/// What messages may be marked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flag {
    Persistent,
    Mandatory,
}

const AFTER_HELP: &str = "\
Examples:
  leveret perf -z 10 -a                 one producer, one consumer, as fast as it goes
  leveret perf -z 10 -r 20000 -q 100    latency at a fixed rate, every message acked
  leveret perf -f persistent -c 100 -u jobs -ad false -C 100000 -y 0
                                        fill a durable queue, at most 100 unconfirmed
  leveret perf -u jobs -p -x 0 -D 100000
                                        drain it again
  leveret perf -x 100 -y 100 -qp q-%d -qpt 100 -r 50 -z 30
                                        a hundred queues with a pair each
  leveret perf fanout -y 10 -a -z 10    one message in, ten out
  leveret perf rpc -z 5                 request and reply, one in flight
  leveret perf idle -x 5000 -z 5 --broker-pid $(pidof leveret)
                                        what an idle connection costs
At a fixed rate a latency counts from when the message was due, where the broker kept it from being sent.";

/// Spellings of perf-test with more than one letter behind one dash.
const LONG_FORMS: [(&str, &str); 6] = [
    ("-ad", "--auto-delete"),
    ("-qa", "--queue-args"),
    ("-qq", "--quorum-queue"),
    ("-qp", "--queue-pattern"),
    ("-qpf", "--queue-pattern-from"),
    ("-qpt", "--queue-pattern-to"),
];

impl Options {
    /// Reads the arguments, the program's name (`leveret perf`, one word) first.
    ///
    /// # Errors
    /// clap's: help asked for, or a usage error.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let args = args.into_iter().map(|arg| {
            let known = LONG_FORMS.iter().find(|(short, _)| arg == *short);
            known.map_or(arg, |(_, long)| OsString::from(long))
        });
        Self::try_parse_from(args)
    }

    pub fn has(&self, flag: Flag) -> bool {
        self.flag.contains(&flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Options {
        let args = std::iter::once("leveret perf").chain(line.split_whitespace()).map(OsString::from);
        Options::read(args).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn options_of_perf_test_are_understood() {
        let options =
            read("-h amqp://h -x 2 -y 3 -u q -e x -t topic -k key -s 99 -c 10 -q 20 -Q 30 -A 5 -z 7 -r 1.5 -R 2");
        assert_eq!((options.producers, options.consumers, options.queue.as_deref()), (2, Some(3), Some("q")));
        assert_eq!((options.exchange.as_deref(), options.exchange_type.as_str()), (Some("x"), "topic"));
        assert_eq!((options.routing_key.as_deref(), options.size, options.confirm), (Some("key"), 99, Some(10)));
        assert_eq!((options.qos, options.global_qos, options.multi_ack_every), (20, 30, 5));
        assert_eq!((options.time, options.rate, options.consumer_rate), (Some(7.0), Some(1.5), Some(2.0)));
        let options = read("-a -p -f persistent -f mandatory -C 1 -D 2 -X 3 -Y 4 -i 5 -T text/plain");
        assert!(
            options.autoack && options.predeclared && options.has(Flag::Persistent) && options.has(Flag::Mandatory)
        );
        assert_eq!((options.producer_count, options.consumer_count), (Some(1), Some(2)));
        assert_eq!((options.producer_channel_count, options.consumer_channel_count), (3, 4));
    }

    #[test]
    fn two_letters_behind_one_dash_are_understood() {
        let options =
            read("rpc -ad false -qa x-max-length=5,x-overflow=reject-publish -qp q%d -qpf 3 -qpt 9 -qq --json");
        assert_eq!((options.mode, options.auto_delete, options.quorum_queue), (Mode::Rpc, false, true));
        assert_eq!(options.queue_args, ["x-max-length=5", "x-overflow=reject-publish"]);
        assert_eq!(options.queue_pattern.as_deref(), Some("q%d"));
        assert_eq!((options.queue_pattern_from, options.queue_pattern_to), (3, 9));
        assert_eq!(options.json.as_deref(), Some(std::path::Path::new("-")));
        assert!(read("-x 2").auto_delete && read("-ad").auto_delete && !read("--auto-delete false").auto_delete);
    }
}
