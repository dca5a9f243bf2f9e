//! Rates and latencies as lines for people and as JSON for programs.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::options::Mode;
use super::process::Usage;
use super::tally::Counts;

/// What is counted as one operation, in words.
fn operation(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Send | Mode::Fanout | Mode::Topic => None,
        Mode::Rpc => Some("calls"),
        Mode::Connections | Mode::Idle => Some("connections"),
        Mode::Channels => Some("channels"),
        Mode::Declare => Some("queues"),
    }
}

/// One line for the time since the last.
pub fn line(mode: Mode, at_s: f64, took_s: f64, counts: Counts, latency: &Histogram<u64>) -> String {
    let mut line = format!("{at_s:6.1} s");
    for (name, count) in named(mode, counts) {
        let _ = write!(line, "  {name} {}/s", grouped(count as f64 / took_s));
    }
    if !latency.is_empty() {
        let ms = |quantile| millis(latency.value_at_quantile(quantile));
        let _ = write!(line, "  p50 {} p99 {} max {} ms", ms(0.5), ms(0.99), millis(latency.max()));
    }
    line
}

/// The counts that say something in this mode. Refusals are named only where there are any.
fn named(mode: Mode, counts: Counts) -> Vec<(&'static str, u64)> {
    if let Some(operation) = operation(mode) {
        return vec![(operation, counts.operations)];
    }
    let always = [("sent", counts.published), ("received", counts.received)];
    let seldom = [("confirmed", counts.confirmed), ("nacked", counts.nacked), ("returned", counts.returned)];
    always.into_iter().chain(seldom.into_iter().filter(|(_, count)| *count > 0)).collect()
}

/// Everything about a run that has ended.
#[derive(Debug)]
pub struct Outcome {
    pub mode: Mode,
    /// From the start to the end, or to the last message.
    pub seconds: f64,
    pub counts: Counts,
    pub latency: Histogram<u64>,
    pub confirm_latency: Histogram<u64>,
    /// Of the broker, before and after.
    pub broker: Option<(Usage, Usage)>,
    /// CPU time of this process.
    pub own_cpu_s: f64,
    /// What the broker says it is.
    pub product: String,
}

impl Outcome {
    /// Publishes and deliveries, or the operations of the mode.
    fn operations(&self) -> u64 {
        match operation(self.mode) {
            Some(_) => self.counts.operations,
            None => self.counts.published + self.counts.received,
        }
    }

    fn per_operation_us(&self, cpu_s: f64) -> Option<f64> {
        (self.operations() > 0).then(|| cpu_s * 1e6 / self.operations() as f64)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("{} at {}, {:.2} s\n", self.product, self.mode_name(), self.seconds);
        for (name, count) in named(self.mode, self.counts) {
            let rate = grouped(count as f64 / self.seconds);
            let _ = writeln!(text, "  {name:<12}{:>14}   {rate}/s", grouped(count as f64));
        }
        for (name, latency) in [("latency", &self.latency), ("confirms", &self.confirm_latency)] {
            if !latency.is_empty() {
                let _ = write!(text, "  {name:<12}");
                for (name, quantile) in QUANTILES {
                    let _ = write!(text, "{name} {}  ", millis(latency.value_at_quantile(quantile)));
                }
                let _ = writeln!(text, "max {} ms", millis(latency.max()));
            }
        }
        if let Some((before, after)) = self.broker {
            let cpu_s = after.cpu_s - before.cpu_s;
            let _ = write!(text, "  {:<12}{cpu_s:.2} s CPU", "broker");
            if let Some(us) = self.per_operation_us(cpu_s) {
                let _ = write!(text, ", {us:.3} us per operation");
            }
            let mib = |kib: u64| kib as f64 / 1024.0;
            let _ = writeln!(text, ", {:.1} MiB, before {:.1}", mib(after.resident_kib), mib(before.resident_kib));
        }
        let _ = write!(text, "  {:<12}{:.2} s CPU", "generator", self.own_cpu_s);
        if let Some(us) = self.per_operation_us(self.own_cpu_s) {
            let _ = write!(text, ", {us:.3} us per operation");
        }
        text
    }

    /// For programs. Times in microseconds where the name says `us`, memory in KiB.
    pub fn json(&self) -> Value {
        let rate = |count: u64| count as f64 / self.seconds;
        let counts = self.counts;
        let mut value = json!({
            "mode": self.mode_name(),
            "product": self.product,
            "seconds": self.seconds,
            "sent": counts.published,
            "received": counts.received,
            "confirmed": counts.confirmed,
            "nacked": counts.nacked,
            "returned": counts.returned,
            "operations": self.operations(),
            "sent_per_second": rate(counts.published),
            "received_per_second": rate(counts.received),
            "operations_per_second": rate(self.operations()),
            "latency_us": quantiles(&self.latency),
            "confirm_latency_us": quantiles(&self.confirm_latency),
            "generator": { "cpu_seconds": self.own_cpu_s },
        });
        if let Some((before, after)) = self.broker {
            let cpu_s = after.cpu_s - before.cpu_s;
            value["broker"] = json!({
                "cpu_seconds": cpu_s,
                "cpu_us_per_operation": self.per_operation_us(cpu_s),
                "resident_kib_before": before.resident_kib,
                "resident_kib": after.resident_kib,
                "resident_kib_peak": after.resident_peak_kib,
            });
        }
        value
    }

    fn mode_name(&self) -> &'static str {
        match self.mode {
            Mode::Send => "send",
            Mode::Fanout => "fanout",
            Mode::Topic => "topic",
            Mode::Rpc => "rpc",
            Mode::Connections => "connections",
            Mode::Channels => "channels",
            Mode::Declare => "declare",
            Mode::Idle => "idle",
        }
    }
}

const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p75", 0.75), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)];

/// Null when nothing was measured.
fn quantiles(latency: &Histogram<u64>) -> Value {
    if latency.is_empty() {
        return Value::Null;
    }
    let us = |ns: u64| ns as f64 / 1000.0;
    let mut map = Map::new();
    map.insert("min".to_owned(), us(latency.min()).into());
    for (name, quantile) in QUANTILES {
        map.insert(name.to_owned(), us(latency.value_at_quantile(quantile)).into());
    }
    map.insert("max".to_owned(), us(latency.max()).into());
    map.insert("count".to_owned(), latency.len().into());
    Value::Object(map)
}

fn millis(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// A whole number with commas.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::tally::histogram;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(["0", "999", "1,000", "1,234,567"], [0.0, 999.4, 1000.0, 1_234_567.0].map(grouped)[..]);
    }

    #[test]
    fn the_cost_is_per_publish_and_delivery() {
        let usage = |cpu_s, resident_kib| Usage { cpu_s, resident_kib, resident_peak_kib: resident_kib };
        let mut latency = histogram();
        latency.record_n(2_000_000, 100).unwrap();
        let outcome = Outcome {
            mode: Mode::Send,
            seconds: 2.0,
            counts: Counts { published: 600_000, received: 400_000, ..Counts::default() },
            latency,
            confirm_latency: histogram(),
            broker: Some((usage(1.0, 1024), usage(1.5, 2048))),
            own_cpu_s: 0.25,
            product: "X 1".to_owned(),
        };
        let json = outcome.json();
        assert_eq!(json["broker"]["cpu_us_per_operation"], 0.5);
        assert_eq!(json["sent_per_second"], 300_000.0);
        assert_eq!(json["latency_us"]["count"], 100);
        assert_eq!(json["confirm_latency_us"], Value::Null);
        let text = outcome.text();
        assert!(text.contains("received           400,000   200,000/s"), "{text}");
        assert!(text.contains("0.50 s CPU, 0.500 us per operation, 2.0 MiB, before 1.0"), "{text}");
    }
}
