//! From options to what is there before the start (exchange, queues, bindings) and what each connection does.

use leveret_protocol::{FieldTable, FieldValue, Method, exchange, put_method_frame, queue};

use super::block::Route;
use super::error::PerfError;
use super::link::Link;
use super::options::{Flag, Mode, Options};
use super::worker::Order;
use super::{consumer, declare, producer, rpc};

/// Requests whose answers are waited for together.
const CALLS_AT_ONCE: usize = 100;

/// How queues are declared.
#[derive(Clone, Debug, Default)]
pub struct QueueShape {
    pub durable: bool,
    pub auto_delete: bool,
    pub arguments: FieldTable,
}

impl QueueShape {
    pub fn declare<'a>(&self, name: &'a str) -> queue::Declare<'a> {
        queue::Declare {
            queue: name,
            passive: false,
            durable: self.durable,
            exclusive: false,
            auto_delete: self.auto_delete,
            no_wait: false,
            arguments: self.arguments.clone(),
        }
    }

    fn new(options: &Options) -> Result<Self, PerfError> {
        let mut arguments = FieldTable::new();
        for pair in &options.queue_args {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| PerfError::Usage(format!("--queue-args {pair}: name=value is expected")))?;
            let value = match (value.parse::<i64>(), value) {
                (Ok(number), _) => FieldValue::I64(number),
                (_, "true" | "false") => FieldValue::Bool(value == "true"),
                _ => FieldValue::from(value),
            };
            arguments.insert(name, value);
        }
        if options.quorum_queue {
            arguments.insert("x-queue-type", "quorum");
            return Ok(Self { durable: true, auto_delete: false, arguments });
        }
        Ok(Self { durable: options.has(Flag::Persistent), auto_delete: options.auto_delete, arguments })
    }
}

/// What a run needs, and who does what.
#[derive(Debug, Default)]
pub struct Plan {
    shape: QueueShape,
    queues: Vec<String>,
    /// Name and type.
    exchange: Option<(String, String)>,
    /// Queue and binding key.
    bindings: Vec<(String, String)>,
    /// Nobody else knows the queues: they are deleted at the end.
    own_queues: bool,
    own_exchange: bool,
    pub orders: Vec<Order>,
}

impl Plan {
    /// `id` makes our own names differ from those of other runs.
    ///
    /// # Errors
    /// Options that do not fit together.
    pub fn new(options: &Options, id: u64) -> Result<Self, PerfError> {
        check(options)?;
        let shape = QueueShape::new(options)?;
        let mut plan = Self { shape, own_queues: true, ..Self::default() };
        let producers = options.producers;
        let one_queue = || options.queue.clone().unwrap_or_else(|| format!("leveret-perf-{id}"));
        match options.mode {
            Mode::Send => plan.send(options, one_queue()),
            Mode::Fanout => {
                let consumers = options.consumers.unwrap_or(10);
                plan.queues = (0..consumers).map(|number| format!("leveret-perf-{id}-{number}")).collect();
                plan.own_exchange(id, "fanout");
                plan.bindings = plan.queues.iter().map(|queue| (queue.clone(), String::new())).collect();
                let exchange = format!("leveret-perf-{id}");
                // It takes each message to every queue: one route is enough.
                let routes = vec![Route { exchange, routing_key: String::new() }];
                let order = Order::Produce(producer::Order::new(options, routes));
                plan.orders = vec![order; producers];
                plan.consumers(options, consumers);
            }
            Mode::Topic => {
                let consumers = options.consumers.unwrap_or(1);
                plan.queues = (0..consumers.max(1)).map(|number| format!("leveret-perf-{id}-{number}")).collect();
                plan.own_exchange(id, "topic");
                let queue = |number: usize| plan.queues[number % plan.queues.len()].clone();
                plan.bindings = (0..options.bindings).map(|at| (queue(at), format!("perf.{at}.*.event"))).collect();
                let routes = (0..options.bindings).map(|at| scattered(at, options.bindings));
                let exchange = format!("leveret-perf-{id}");
                let route = |at| Route { exchange: exchange.clone(), routing_key: format!("perf.{at}.new.event") };
                let routes: Vec<_> = routes.map(route).collect();
                plan.orders = vec![Order::Produce(producer::Order::new(options, routes)); producers];
                plan.consumers(options, consumers);
            }
            Mode::Rpc => {
                plan.queues = vec![one_queue()];
                plan.own_queues = options.queue.is_none();
                let queue = &plan.queues[0];
                let serving = rpc::Serving { queue: queue.clone(), autoack: options.autoack, prefetch: options.qos };
                let requests = rpc::Requests {
                    queue: queue.clone(),
                    size: options.size,
                    in_flight: options.in_flight as u64,
                    count: options.producer_count,
                };
                for _ in 0..options.consumers.unwrap_or(1) {
                    plan.orders.push(Order::Serve(serving.clone()));
                }
                plan.orders.extend((0..producers).map(|_| Order::Request(requests.clone())));
            }
            Mode::Connections => {
                plan.orders = vec![Order::ChurnConnections(options.producer_count); producers];
            }
            Mode::Channels => plan.orders = vec![Order::ChannelChurn(options.producer_count); producers],
            Mode::Idle => plan.orders = vec![Order::Idle; producers],
            Mode::Declare => {
                for number in 0..producers {
                    plan.orders.push(Order::Declare(declare::Order {
                        prefix: format!("leveret-perf-{id}-{number}-"),
                        shape: plan.shape.clone(),
                        count: options.producer_count,
                        in_flight: options.in_flight as u64,
                        keep: options.keep,
                    }));
                }
            }
        }
        if options.predeclared {
            (plan.own_queues, plan.exchange) = (false, None);
            plan.queues.clear();
            plan.bindings.clear();
        }
        plan.own_queues &= !options.keep;
        Ok(plan)
    }

    fn send(&mut self, options: &Options, one_queue: String) {
        self.own_queues = options.queue.is_none() && options.queue_pattern.is_none();
        self.queues = match &options.queue_pattern {
            Some(pattern) => (options.queue_pattern_from..=options.queue_pattern_to)
                .map(|number| pattern.replacen("%d", &number.to_string(), 1))
                .collect(),
            None => vec![one_queue],
        };
        let key = |queue: &str| options.routing_key.clone().unwrap_or_else(|| queue.to_owned());
        if let Some(exchange) = options.exchange.clone().filter(|name| !name.is_empty()) {
            self.exchange = Some((exchange, options.exchange_type.clone()));
            self.bindings = self.queues.iter().map(|queue| (queue.clone(), key(queue))).collect();
        }
        let exchange = self.exchange.as_ref().map(|(name, _)| name.clone()).unwrap_or_default();
        let route = |queue: String| {
            let routing_key = if exchange.is_empty() { queue } else { key(&queue) };
            Route { exchange: exchange.clone(), routing_key }
        };
        for number in 0..options.producers {
            let routes = share(&self.queues, number, options.producers).into_iter().map(route).collect();
            self.orders.push(Order::Produce(producer::Order::new(options, routes)));
        }
        self.consumers(options, options.consumers.unwrap_or(1));
    }

    fn own_exchange(&mut self, id: u64, kind: &str) {
        self.exchange = Some((format!("leveret-perf-{id}"), kind.to_owned()));
        self.own_exchange = true;
    }

    /// Consumers who share out the queues.
    fn consumers(&mut self, options: &Options, consumers: usize) {
        for number in 0..consumers {
            let queues = share(&self.queues, number, consumers);
            self.orders.push(Order::Consume(consumer::Order::new(options, queues)));
        }
    }

    /// Declares and binds.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn set_up(&self, link: &mut Link) -> Result<(), PerfError> {
        link.open_channels(1).await?;
        if let Some((name, kind)) = &self.exchange
            && !name.starts_with("amq.")
        {
            let declare = exchange::Declare {
                exchange: name,
                type_: kind,
                passive: false,
                durable: self.shape.durable,
                auto_delete: false,
                internal: false,
                no_wait: false,
                arguments: FieldTable::new(),
            };
            link.call(1, declare).await?;
        }
        call_each(link, &self.queues, |queue| self.shape.declare(queue).into()).await?;
        let exchange = self.exchange.as_ref().map(|(name, _)| name.as_str()).unwrap_or_default();
        call_each(link, &self.bindings, |(queue, routing_key)| {
            queue::Bind { queue, exchange, routing_key, no_wait: false, arguments: FieldTable::new() }.into()
        })
        .await
    }

    /// Deletes what is our own.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn take_down(&self, link: &mut Link) -> Result<(), PerfError> {
        if self.own_exchange
            && let Some((name, _)) = &self.exchange
        {
            link.call(1, exchange::Delete { exchange: name, if_unused: false, no_wait: false }).await?;
        }
        if self.own_queues {
            call_each(link, &self.queues, |queue| {
                queue::Delete { queue, if_unused: false, if_empty: false, no_wait: false }.into()
            })
            .await?;
        }
        Ok(())
    }
}

/// Sends many requests at a time.
async fn call_each<'a, T>(
    link: &mut Link,
    items: &'a [T],
    request: impl Fn(&'a T) -> Method<'a>,
) -> Result<(), PerfError> {
    for items in items.chunks(CALLS_AT_ONCE) {
        let (last, others) = items.split_last().expect("chunks are not empty");
        for item in others {
            put_method_frame(&mut link.out, 1, &request(item));
        }
        link.call(1, request(last)).await?;
        for _ in others {
            link.reply(1).await?;
        }
    }
    Ok(())
}

/// The queues of one among several who share them: one each in turn, or several each.
fn share(queues: &[String], number: usize, sharers: usize) -> Vec<String> {
    match queues.len() {
        0 => Vec::new(),
        len if len <= sharers => vec![queues[number % len].clone()],
        _ => queues.iter().skip(number).step_by(sharers).cloned().collect(),
    }
}

/// A permutation of the numbers below `bound` without an obvious order.
fn scattered(number: usize, bound: usize) -> usize {
    // A prime larger than any bound is coprime with it.
    const PRIME: usize = 2_147_483_647;
    number.wrapping_mul(PRIME) % bound
}

fn check(options: &Options) -> Result<(), PerfError> {
    let usage = |text: &str| Err(PerfError::Usage(text.to_owned()));
    let prefetch = [options.qos, options.global_qos].into_iter().filter(|limit| *limit > 0).min();
    if !options.autoack && prefetch.is_some_and(|limit| u64::from(limit) < options.multi_ack_every) {
        return usage("an ack for more messages (-A) than the prefetch (-q, -Q) lets through would never come");
    }
    if options.confirm == Some(0) || options.in_flight == 0 {
        return usage("--confirm and --in-flight must be at least 1");
    }
    if [options.rate, options.consumer_rate, options.time].into_iter().flatten().any(|number| number <= 0.0) {
        return usage("--rate, --consumer-rate and --time must be more than 0");
    }
    if options.queue_pattern.as_ref().is_some_and(|pattern| !pattern.contains("%d")) {
        return usage("--queue-pattern has no %d to put the numbers");
    }
    if options.queue_pattern_from > options.queue_pattern_to {
        return usage("--queue-pattern-from is more than --queue-pattern-to");
    }
    if options.mode == Mode::Topic && options.bindings == 0 {
        return usage("--bindings must be at least 1");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;

    use super::*;

    fn plan(line: &str) -> Result<Plan, PerfError> {
        let args = std::iter::once("leveret perf").chain(line.split_whitespace()).map(OsString::from);
        Plan::new(&Options::read(args).expect("the options are right"), 7)
    }

    fn keys(order: &Order) -> Vec<&str> {
        match order {
            Order::Produce(order) => order.routes.iter().map(|route| route.routing_key.as_str()).collect(),
            Order::Consume(order) => order.queues.iter().map(String::as_str).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_queue_of_a_pattern_has_its_producer_and_its_consumer() {
        let many = plan("-x 2 -y 3 -qp q-%d -qpf 8 -qpt 11").unwrap();
        let shares: Vec<_> = many.orders.iter().map(keys).collect();
        let expected = [vec!["q-8", "q-10"], vec!["q-9", "q-11"], vec!["q-8", "q-11"], vec!["q-9"], vec!["q-10"]];
        assert_eq!(shares, expected);
        let few = plan("-x 3 -y 1 -qp q-%d -qpt 2").unwrap();
        let shares: Vec<_> = few.orders.iter().map(keys).collect();
        assert_eq!(shares, [vec!["q-1"], vec!["q-2"], vec!["q-1"], vec!["q-1", "q-2"]]);
    }

    #[test]
    fn topic_messages_take_turns_over_all_bindings() {
        let plan = plan("topic --bindings 1000").unwrap();
        let keys: BTreeSet<_> = keys(&plan.orders[0]).into_iter().collect();
        assert_eq!((keys.len(), plan.bindings.len()), (1000, 1000));
    }

    #[test]
    fn options_that_cannot_work_together_are_refused() {
        for (line, part) in [
            ("-q 5 -A 10", "would never come"),
            ("-c 0", "at least 1"),
            ("-r 0", "more than 0"),
            ("-qp q", "no %d"),
            ("-qp q%d -qpf 2 -qpt 1", "is more than"),
            ("-qa x", "name=value"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.to_string().contains(part) && error.exit_code() == 2, "{line}: {error}");
        }
        assert!(plan("-q 10 -A 10").is_ok() && plan("-a -q 5 -A 10").is_ok());
    }
}
