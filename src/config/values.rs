//! The values that settings take: each function reads one kind, or says what was expected instead.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use leveret_protocol::FRAME_MIN_SIZE;
use tracing_subscriber::EnvFilter;

use super::{LogFormat, MESSAGE_SIZE_MAX};
use crate::auth::Pattern;
use crate::model::arguments::QueueType;
use crate::model::profile::Profile;
use crate::storage::Fsync;

/// What a value should have been, for the sentence "expected …".
pub(super) type Expected = String;

/// Where to listen, before the addresses to bind are known.
#[derive(Clone, Copy)]
pub(super) enum ListenOn {
    Port(u16),
    Address(SocketAddr),
}

impl ListenOn {
    pub(super) fn port(self) -> u16 {
        match self {
            Self::Port(port) => port,
            Self::Address(address) => address.port(),
        }
    }
}

pub(super) fn number<N>(text: &str, range: RangeInclusive<N>, expected: &str) -> Result<N, Expected>
where
    N: FromStr + PartialOrd,
{
    text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| expected.to_owned())
}

pub(super) fn boolean(text: &str) -> Result<bool, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

pub(super) fn not_empty(text: &str) -> Result<String, Expected> {
    if text.is_empty() { Err("a text that is not empty".to_owned()) } else { Ok(text.to_owned()) }
}

pub(super) fn pattern(text: &str) -> Result<Pattern, Expected> {
    Pattern::new(text).map_err(|error| format!("a regular expression ({error})"))
}

pub(super) fn profile(text: &str) -> Result<Profile, Expected> {
    Profile::parse(text).ok_or_else(|| format!("one of {}", Profile::ALL.map(Profile::as_str).join(", ")))
}

pub(super) fn queue_type(text: &str) -> Result<QueueType, Expected> {
    QueueType::parse(text).ok_or_else(|| "classic, quorum or stream".to_owned())
}

/// The most there may be of something; `None` for any number.
pub(super) fn limit<N>(text: &str, range: RangeInclusive<N>) -> Result<Option<N>, Expected>
where
    N: FromStr + PartialOrd + fmt::Display,
{
    if text == "infinity" {
        return Ok(None);
    }
    let expected = format!("a number, {} or more, or infinity for no limit", range.start());
    number(text, range, &expected).map(Some)
}

/// A limit that a new vhost gets.
pub(super) fn vhost_limit(text: &str) -> Result<i64, Expected> {
    number(text, 1..=i64::MAX, "a number, 1 or more")
}

pub(super) fn port(text: &str) -> Result<u16, Expected> {
    text.parse().map_err(|_| "a port from 0 (any free one) to 65535".to_owned())
}

/// Loopback in both families: to many clients `localhost` is `::1` first.
pub(super) fn localhost(required: bool) -> Vec<(IpAddr, bool)> {
    vec![(Ipv4Addr::LOCALHOST.into(), true), (Ipv6Addr::LOCALHOST.into(), required)]
}

/// `None`: off.
pub(super) fn port_or_off(text: &str) -> Result<Option<u16>, Expected> {
    match text {
        "off" | "none" => Ok(None),
        _ => port(text).map(Some).map_err(|expected| format!("{expected}, or off")),
    }
}

pub(super) fn address(text: &str) -> Result<IpAddr, Expected> {
    ip_address(text).ok_or_else(|| "an IP address such as 127.0.0.1 or ::1".to_owned())
}

/// A path in URLs.
pub(super) fn url_path(text: &str) -> Result<String, Expected> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
    let path = text.trim_end_matches('/');
    match path.starts_with('/') && path.chars().all(is_plain) {
        true => Ok(path.to_owned()),
        false => Err("a path such as /metrics".to_owned()),
    }
}

pub(super) fn addresses(text: &str) -> Result<Vec<(IpAddr, bool)>, Expected> {
    let mut found = Vec::new();
    for word in text.split(',').map(str::trim) {
        match word {
            "localhost" => found.extend(localhost(false)),
            _ => found.push((ip_address(word).ok_or("an IP address such as 0.0.0.0 or ::1, without a port")?, true)),
        }
    }
    Ok(found)
}

fn ip_address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok()
}

/// `5672`, `127.0.0.1:5672`, `[::1]:5672`, and `::1:5672` as RabbitMQ's manual has it.
pub(super) fn listen_on(text: &str) -> Result<ListenOn, Expected> {
    let found = match text.rsplit_once(':') {
        None => text.parse().ok().map(ListenOn::Port),
        Some((ip, port)) => ip_address(ip).zip(port.parse().ok()).map(|at| ListenOn::Address(at.into())),
    };
    found.ok_or_else(|| "a port, or an IP address and a port such as 0.0.0.0:5672".to_owned())
}

pub(super) fn fsync(text: &str) -> Result<Fsync, Expected> {
    const INTERVAL_MS_MAX: u64 = 3_600_000;
    let expected = "always, never, or interval:MS with 1 to 3600000 milliseconds";
    match text {
        "always" => Ok(Fsync::Always),
        "never" => Ok(Fsync::Never),
        _ => {
            let ms = text.strip_prefix("interval:").ok_or(expected)?;
            Ok(Fsync::Interval(Duration::from_millis(number(ms, 1..=INTERVAL_MS_MAX, expected)?)))
        }
    }
}

pub(super) fn log_filter(text: &str) -> Result<String, Expected> {
    let expected = "error, warn, info, debug, trace, off, or a filter such as info,leveret::storage=debug";
    // EnvFilter takes any single word for the name of a module: `--log verbose` would silence the log.
    let single_word = text.chars().all(|c| c.is_ascii_alphanumeric());
    let level = ["error", "warn", "info", "debug", "trace", "off"].into_iter().find(|l| text.eq_ignore_ascii_case(l));
    match level {
        Some(level) => Ok(level.to_owned()),
        None if !single_word && EnvFilter::try_new(text).is_ok() => Ok(text.to_owned()),
        None => Err(expected.to_owned()),
    }
}

/// RabbitMQ's levels in ours.
pub(super) fn console_level(text: &str) -> Result<&'static str, Expected> {
    Ok(match text {
        "debug" => "debug",
        "info" | "notice" => "info",
        "warning" => "warn",
        "error" | "critical" | "alert" | "emergency" => "error",
        "none" => "off",
        _ => return Err("one of debug, info, notice, warning, error, critical, alert, emergency, none".to_owned()),
    })
}

/// RabbitMQ's names of the formats.
pub(super) fn log_formatter(text: &str) -> Result<LogFormat, Expected> {
    match text {
        "plaintext" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("plaintext or json".to_owned()),
    }
}

/// There is one: users are our own. Another would let in whom the operator means to keep out.
pub(super) fn auth_backend(text: &str) -> Result<(), Expected> {
    match text {
        "internal" | "rabbit_auth_backend_internal" => Ok(()),
        _ => Err("internal, leveret has no other: import the users with load_definitions instead".to_owned()),
    }
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, Expected> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("text or json".to_owned()),
    }
}

pub(super) fn consumer_timeout(text: &str) -> Result<Option<Duration>, Expected> {
    match text {
        "false" | "undefined" | "infinity" => Ok(None),
        _ => {
            let ms = number(text, 1..=u32::MAX, "milliseconds, 1 or more, or false for no time limit")?;
            Ok(Some(Duration::from_millis(ms.into())))
        }
    }
}

pub(super) fn frame_size(text: &str, may_be_unlimited: bool) -> Result<u32, Expected> {
    let fits = |size: &u32| *size >= FRAME_MIN_SIZE || (may_be_unlimited && *size == 0);
    let found = bytes(text).and_then(|size| u32::try_from(size).ok()).filter(fits);
    let or = if may_be_unlimited { ", or 0 for no limit" } else { "" };
    found.ok_or_else(|| format!("bytes from {FRAME_MIN_SIZE} to {}{or}", u32::MAX))
}

pub(super) fn message_size(text: &str) -> Result<u64, Expected> {
    let found = bytes(text).filter(|size| (1..=MESSAGE_SIZE_MAX).contains(size));
    found.ok_or_else(|| format!("bytes from 1 to {MESSAGE_SIZE_MAX}, or with a unit such as 64MiB"))
}

/// Any number of bytes.
pub(super) fn size(text: &str) -> Result<u64, Expected> {
    bytes(text).ok_or_else(|| "bytes, or a size with a unit such as 2GiB".to_owned())
}

pub(super) fn share(text: &str, max: f64) -> Result<f64, Expected> {
    let found = text.parse().ok().filter(|share| (0.0..=max).contains(share));
    found.ok_or_else(|| format!("a number from 0 to {max}, such as 0.6"))
}

/// Two full segments of a vhost with one queue.
const QUEUE_MEMORY_MIN: u64 = 256 << 10;

pub(super) fn queue_memory(text: &str) -> Result<u64, Expected> {
    let found = bytes(text).filter(|size| (QUEUE_MEMORY_MIN..=1 << 46).contains(size));
    found.ok_or_else(|| format!("bytes from {QUEUE_MEMORY_MIN} on, or with a unit such as 64MiB"))
}

/// A size, with the units of RabbitMQ's `disk_free_limit`: `16MiB` and `16Mi` count by 1024, `16MB` and `16M` by 1000.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let (base, prefix) = match unit.strip_suffix("ib").or(unit.strip_suffix('i')) {
        Some(prefix) => (1024_u64, prefix),
        None => (1000, unit.strip_suffix('b').unwrap_or(&unit)),
    };
    let power = match prefix {
        "" if unit.is_empty() => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    count.parse::<u64>().ok()?.checked_mul(base.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, size) in [
            ("0", Some(0)),
            ("17", Some(17)),
            ("1k", Some(1000)),
            ("1KB", Some(1000)),
            ("1Ki", Some(1024)),
            ("2MiB", Some(2 << 20)),
            ("3m", Some(3_000_000)),
            ("1Gi", Some(1 << 30)),
            ("1T", Some(1_000_000_000_000)),
            ("1PiB", Some(1 << 50)),
            ("", None),
            ("MB", None),
            ("1B", None),
            ("1iB", None),
            ("1x", None),
            ("1 MB", None),
            ("-1", None),
            ("99999999PB", None),
        ] {
            assert_eq!(bytes(text), size, "{text}");
        }
    }
}
