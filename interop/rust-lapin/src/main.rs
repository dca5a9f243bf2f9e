//! RabbitMQ's tutorial patterns with lapin, every result checked. See `../README.md`.

mod faults;
mod harness;
mod messages;
mod patterns;

use std::process::ExitCode;

use harness::{Checked, Names, in_time};

const PATTERNS: [&str; 9] =
    ["work-queue", "publish-subscribe", "routing", "topics", "rpc", "confirms", "errors", "messages", "queues"];

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
            Err(failure) => {
                code = ExitCode::FAILURE;
                println!("fail {pattern}: {failure}");
            }
        }
    }
    code
}
