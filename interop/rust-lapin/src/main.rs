//! RabbitMQ's tutorial patterns and the features of `../FEATURES.md` with lapin, every result checked. See `../README.md`.

mod faults;
mod features;
mod harness;
mod messages;
mod patterns;

use std::process::ExitCode;

use harness::{Checked, Names, in_time};

#[rustfmt::skip]
const PATTERNS: [&str; 27] = [
    "work-queue", "publish-subscribe", "routing", "topics", "rpc", "confirms", "errors", "messages", "queues",
    "connect", "declare", "properties", "consume", "get", "tx", "large", "cancel-notify", "channel-errors", "connection-errors", "idle",
    "frozen", "stalled", "blocked", "restart", "kill", "consumer-timeout", "concurrency",
];

async fn run(pattern: &str, names: &Names) -> Checked {
    match pattern {
        "work-queue" => patterns::work_queue(names).await,
        "publish-subscribe" => patterns::publish_subscribe(names).await,
        "routing" => patterns::routing(names).await,
        "topics" => patterns::topics(names).await,
        "rpc" => patterns::rpc(names).await,
        "confirms" => messages::confirms(names).await,
        "errors" => faults::errors(names).await,
        "messages" => messages::messages(names).await,
        "queues" => faults::queues(names).await,
        "connect" => features::connecting(names).await,
        "declare" => features::declare(names).await,
        "properties" => messages::messages(names).await,
        "consume" => features::consume(names).await,
        "get" => features::get(names).await,
        "tx" => features::tx(names).await,
        "large" => features::large(names).await,
        "cancel-notify" => features::cancel_notify(names).await,
        "channel-errors" => features::channel_errors(names).await,
        "connection-errors" => features::connection_errors(names).await,
        "idle" => features::idle(names).await,
        "frozen" => features::frozen(names).await,
        "stalled" => features::stalled(names).await,
        "blocked" => features::blocked(names).await,
        "restart" => features::lost_broker(names, "restart").await,
        "kill" => features::lost_broker(names, "kill").await,
        "consumer-timeout" => features::consumer_timeout(names).await,
        "concurrency" => features::concurrency(names).await,
        other => unreachable!("no pattern {other}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for pattern in PATTERNS {
        let names = Names::new(pattern);
        let outcome = in_time(run(pattern, &names)).await;
        let cleaned = in_time(names.delete_all()).await;
        match outcome.and(cleaned) {
            Ok(()) => println!("ok {pattern}"),
            Err(failure) if failure.reason().is_some() => {
                println!("n/a {pattern}: {}", failure.reason().unwrap_or_default());
            }
            Err(failure) => {
                code = ExitCode::FAILURE;
                println!("fail {pattern}: {}", failure.0.replace('\n', " "));
            }
        }
    }
    println!("n/a tls: this program is built without TLS");
    code
}
