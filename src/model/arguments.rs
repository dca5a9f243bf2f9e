//! Queue arguments (`x-…`): which are known to which queue type, what values are valid, what they mean,
//! and when a redeclaration is equivalent (§5.3, §5.5).

use std::sync::{Arc, LazyLock};

use leveret_protocol::{FieldTable, FieldValue};

use super::error::{AmqpError, Resource};
use super::profile::Profile;
use super::record::Name;

/// 10 years: the longest TTL and expiry.
const DURATION_MS_MAX: i128 = 315_360_000_000;

/// The type of a queue (`x-queue-type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueType {
    #[default]
    Classic,
    Quorum,
    Stream,
}

impl QueueType {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "classic" => Some(Self::Classic),
            "quorum" => Some(Self::Quorum),
            "stream" => Some(Self::Stream),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
            Self::Stream => "stream",
        }
    }

    /// The name that error texts use.
    pub fn internal_name(self) -> &'static str {
        match self {
            Self::Classic => "rabbit_classic_queue",
            Self::Quorum => "rabbit_quorum_queue",
            Self::Stream => "rabbit_stream_queue",
        }
    }
}

/// What happens when a queue is at its length limit (`x-overflow`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    #[default]
    DropHead,
    RejectPublish,
    RejectPublishDlx,
}

/// What a queue's arguments mean.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueSettings {
    pub message_ttl_ms: Option<u64>,
    pub expires_ms: Option<u64>,
    /// Ready messages.
    pub max_length: Option<u64>,
    /// Bytes of the bodies of ready messages.
    pub max_length_bytes: Option<u64>,
    /// `None`: not set, which means drop-head.
    pub overflow: Option<Overflow>,
    pub dead_letter_exchange: Option<Name>,
    pub dead_letter_routing_key: Option<Name>,
    /// Highest level; `None`: not a priority queue.
    pub max_priority: Option<u8>,
    pub single_active_consumer: bool,
    pub consumer_timeout_ms: Option<u64>,
    /// Quorum only; negative: none.
    pub delivery_limit: Option<i64>,
    /// Quorum only: is it at-least-once? See [`Self::dead_letters_at_least_once`].
    pub dead_letter_strategy: Option<bool>,
    /// Quorum only, from 4.3 on.
    pub delayed_retry: DelayedRetry,
    /// Stream only.
    pub max_age_ms: Option<u64>,
    /// Stream only.
    pub segment_size_bytes: Option<u64>,
}

impl QueueSettings {
    /// To be held by many queues: most have no settings at all, and share one.
    pub fn shared(self) -> Arc<Self> {
        static NONE: LazyLock<Arc<QueueSettings>> = LazyLock::new(Arc::default);
        if self == **NONE { NONE.clone() } else { Arc::new(self) }
    }

    /// A dead letter that no queue takes stays and is tried again. Needs `reject-publish` (§11.3).
    pub fn dead_letters_at_least_once(&self) -> bool {
        self.dead_letter_strategy == Some(true) && self.overflow == Some(Overflow::RejectPublish)
    }
}

/// Which returned messages of a quorum queue wait before they are delivered again (§12.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryType {
    #[default]
    Disabled,
    All,
    /// Returns that count towards the delivery limit.
    Failed,
    /// Returns that do not.
    Returned,
}

impl RetryType {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "disabled" => Self::Disabled,
            "all" => Self::All,
            "failed" => Self::Failed,
            "returned" => Self::Returned,
            _ => return None,
        })
    }
}

/// `x-delayed-retry-*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayedRetry {
    pub kind: RetryType,
    pub min_ms: u64,
    /// `min_ms` if it is not set.
    pub max_ms: Option<u64>,
}

impl DelayedRetry {
    /// How long a message waits that was returned and has failed so often; `None`: not at all.
    pub fn delay_ms(&self, failed: bool, delivery_count: u32) -> Option<u64> {
        let applies = match self.kind {
            RetryType::Disabled => false,
            RetryType::All => true,
            RetryType::Failed => failed,
            RetryType::Returned => !failed,
        };
        if !applies || self.min_ms == 0 {
            return None;
        }
        let wanted = self.min_ms.saturating_mul(u64::from(delivery_count.max(1)));
        Some(wanted.min(self.max_ms.unwrap_or(self.min_ms)))
    }
}

/// Which types know an argument.
struct Known {
    name: &'static str,
    classic: bool,
    quorum: bool,
    stream: bool,
    check: fn(&FieldValue, &FieldTable) -> Result<(), String>,
}

const fn known(
    name: &'static str,
    types: [bool; 3],
    check: fn(&FieldValue, &FieldTable) -> Result<(), String>,
) -> Known {
    Known { name, classic: types[0], quorum: types[1], stream: types[2], check }
}

const ALL: [bool; 3] = [true, true, true];
const CLASSIC: [bool; 3] = [true, false, false];
const QUORUM: [bool; 3] = [false, true, false];
const STREAM: [bool; 3] = [false, false, true];
const NOT_STREAM: [bool; 3] = [true, true, false];

/// §5.5, in the order in which values are checked.
const KNOWN: &[Known] = &[
    known("x-expires", NOT_STREAM, check_expires),
    known("x-message-ttl", NOT_STREAM, check_ttl),
    known("x-dead-letter-exchange", NOT_STREAM, check_string),
    known("x-dead-letter-routing-key", NOT_STREAM, check_dead_letter_routing_key),
    known("x-dead-letter-strategy", QUORUM, check_dead_letter_strategy),
    known("x-max-length", NOT_STREAM, check_non_negative),
    known("x-max-length-bytes", ALL, check_non_negative),
    known("x-max-in-memory-length", QUORUM, check_non_negative),
    known("x-max-in-memory-bytes", QUORUM, check_non_negative),
    known("x-max-priority", CLASSIC, check_max_priority),
    known("x-overflow", NOT_STREAM, check_overflow),
    known("x-queue-mode", CLASSIC, accept),
    known("x-queue-version", CLASSIC, check_queue_version),
    known("x-single-active-consumer", NOT_STREAM, check_bool),
    known("x-queue-type", ALL, accept),
    known("x-quorum-initial-group-size", QUORUM, check_positive),
    known("x-consumer-timeout", ALL, check_non_negative),
    known("x-consumer-disconnected-timeout", QUORUM, check_non_negative),
    // RabbitMQ takes anything, and reads what is no integer as absent.
    known("x-delivery-limit", QUORUM, accept),
    known("x-member-placement-tag", QUORUM, check_member_placement_tag),
    known("x-delayed-retry-type", QUORUM, accept),
    known("x-delayed-retry-min", QUORUM, check_non_negative),
    known("x-delayed-retry-max", QUORUM, check_non_negative),
    known("x-queue-leader-locator", ALL, check_leader_locator),
    known("x-max-age", STREAM, check_max_age),
    known("x-initial-cluster-size", STREAM, check_positive),
    known("x-stream-max-segment-size-bytes", STREAM, check_non_negative),
    known("x-stream-filter-size-bytes", STREAM, check_integer),
];

impl Known {
    /// Does this version look at the argument at all, on a queue of this type?
    fn exists(&self, queue_type: QueueType, profile: Profile) -> bool {
        match self.name {
            "x-delayed-retry-type"
            | "x-delayed-retry-min"
            | "x-delayed-retry-max"
            | "x-consumer-disconnected-timeout" => profile.has_delayed_retry(),
            "x-initial-cluster-size" | "x-stream-filter-size-bytes" => {
                queue_type == QueueType::Stream || profile.knows_newer_arguments()
            }
            "x-consumer-timeout" => queue_type != QueueType::Classic || profile.knows_newer_arguments(),
            _ => true,
        }
    }

    fn serves(&self, queue_type: QueueType, profile: Profile) -> bool {
        if self.name == "x-consumer-timeout" && !profile.ack_timeout_closes_channel() {
            return queue_type == QueueType::Quorum;
        }
        match queue_type {
            QueueType::Classic => self.classic,
            QueueType::Quorum => self.quorum,
            QueueType::Stream => self.stream,
        }
    }
}

/// The type that the arguments ask for; classic if they do not say.
///
/// # Errors
/// 406 for a value that is no string or no type.
pub fn queue_type(arguments: &FieldTable, queue: &Resource) -> Result<QueueType, AmqpError> {
    let Some(value) = arguments.get("x-queue-type") else { return Ok(QueueType::Classic) };
    let invalid = |reason: String| invalid("x-queue-type", queue, reason);
    let FieldValue::LongString(text) = value else {
        return Err(invalid(format!("{{unacceptable_type,{}}}", value.type_name())));
    };
    let text = String::from_utf8_lossy(text);
    QueueType::parse(&text).ok_or_else(|| invalid(format!("\"unsupported queue type '{text}'\"")))
}

/// Checks every argument for the type and reads what they mean (§5.2 step 7).
///
/// # Errors
/// 406: an argument of another type, or a bad value.
pub fn queue_settings(
    arguments: &FieldTable,
    queue_type: QueueType,
    profile: Profile,
    queue: &Resource,
) -> Result<QueueSettings, AmqpError> {
    let table = || KNOWN.iter().filter(|known| known.exists(queue_type, profile));
    for known in table() {
        if arguments.get(known.name).is_some() && !known.serves(queue_type, profile) {
            return Err(AmqpError::ArgumentOfOtherType {
                argument: known.name.to_owned(),
                resource: queue.clone(),
                queue_type: queue_type.internal_name(),
            });
        }
    }
    for known in table() {
        // Versions that do not check the type of this one check it with its range.
        let later = known.name == "x-stream-filter-size-bytes" && !profile.knows_newer_arguments();
        if let Some(value) = arguments.get(known.name).filter(|_| !later) {
            (known.check)(value, arguments).map_err(|reason| invalid(known.name, queue, reason))?;
        }
    }
    if queue_type == QueueType::Classic {
        check_by_version(arguments, profile).map_err(|(name, reason)| invalid(name, queue, reason))?;
    }
    let number = |name: &str| arguments.get(name).and_then(FieldValue::as_integer);
    let unsigned = |name: &str| number(name).and_then(|n| u64::try_from(n).ok());
    let word = |name: &str| arguments.get(name).and_then(FieldValue::as_str);
    let name = |name: &str| word(name).map(Name::from);
    Ok(QueueSettings {
        message_ttl_ms: unsigned("x-message-ttl"),
        expires_ms: unsigned("x-expires"),
        max_length: unsigned("x-max-length"),
        max_length_bytes: unsigned("x-max-length-bytes"),
        overflow: word("x-overflow").map(|word| match word {
            "reject-publish" => Overflow::RejectPublish,
            // Quorum queues accept the word and drop the head.
            "reject-publish-dlx" if queue_type == QueueType::Classic => Overflow::RejectPublishDlx,
            _ => Overflow::DropHead,
        }),
        dead_letter_exchange: name("x-dead-letter-exchange"),
        dead_letter_routing_key: name("x-dead-letter-routing-key"),
        max_priority: unsigned("x-max-priority").map(|n| n.clamp(1, 255) as u8),
        single_active_consumer: matches!(arguments.get("x-single-active-consumer"), Some(FieldValue::Bool(true))),
        consumer_timeout_ms: unsigned("x-consumer-timeout"),
        delivery_limit: number("x-delivery-limit").map(|n| n as i64),
        dead_letter_strategy: word("x-dead-letter-strategy").map(|word| word == "at-least-once"),
        delayed_retry: DelayedRetry {
            kind: word("x-delayed-retry-type")
                .filter(|_| profile.has_delayed_retry())
                .and_then(RetryType::parse)
                .unwrap_or_default(),
            min_ms: unsigned("x-delayed-retry-min").unwrap_or(0),
            max_ms: unsigned("x-delayed-retry-max"),
        },
        max_age_ms: word("x-max-age").and_then(duration_ms),
        segment_size_bytes: unsigned("x-stream-max-segment-size-bytes"),
    })
}

fn invalid(argument: &str, resource: &Resource, reason: String) -> AmqpError {
    AmqpError::InvalidArgument { argument: argument.to_owned(), resource: resource.clone(), reason }
}

type Check = Result<(), String>;

/// What only some versions check.
fn check_by_version(arguments: &FieldTable, profile: Profile) -> Result<(), (&'static str, String)> {
    const MODE: &str = "x-queue-mode";
    const VERSION: &str = "x-queue-version";
    if let Some(mode) = arguments.get(MODE).filter(|_| profile.checks_queue_mode()) {
        let word = string(mode).map_err(|reason| (MODE, reason))?;
        if !["default", "lazy"].contains(&word.as_ref()) {
            return Err((MODE, format!("\"unsupported queue mode '{word}'\"")));
        }
    }
    let version = arguments.get(VERSION).and_then(FieldValue::as_integer);
    if version == Some(1) && !profile.has_queue_version_1() {
        return Err((VERSION, "\"unsupported queue version '1'\"".to_owned()));
    }
    Ok(())
}

fn accept(_: &FieldValue, _: &FieldTable) -> Check {
    Ok(())
}

fn integer(value: &FieldValue) -> Result<i128, String> {
    value.as_integer().ok_or_else(|| format!("\"expected integer, got {}\"", value.type_name()))
}

fn check_integer(value: &FieldValue, _: &FieldTable) -> Check {
    integer(value).map(drop)
}

fn check_non_negative(value: &FieldValue, _: &FieldTable) -> Check {
    match integer(value)? {
        n if n < 0 => Err(format!("{{value_negative,{n}}}")),
        _ => Ok(()),
    }
}

fn check_positive(value: &FieldValue, arguments: &FieldTable) -> Check {
    check_non_negative(value, arguments)?;
    if integer(value)? == 0 { Err("{value_zero,0}".to_owned()) } else { Ok(()) }
}

fn check_ttl(value: &FieldValue, arguments: &FieldTable) -> Check {
    check_non_negative(value, arguments)?;
    match integer(value)? {
        n if n > DURATION_MS_MAX => Err(format!("{{value_too_large,{n}}}")),
        _ => Ok(()),
    }
}

fn check_expires(value: &FieldValue, arguments: &FieldTable) -> Check {
    check_positive(value, arguments)?;
    check_ttl(value, arguments)
}

fn check_max_priority(value: &FieldValue, arguments: &FieldTable) -> Check {
    check_non_negative(value, arguments)?;
    match integer(value)? {
        n if n > 255 => Err(format!("{{max_value_exceeded,{n}}}")),
        _ => Ok(()),
    }
}

fn check_queue_version(value: &FieldValue, _: &FieldTable) -> Check {
    match integer(value)? {
        1 | 2 => Ok(()),
        n => Err(format!("\"unsupported queue version '{n}'\"")),
    }
}

fn unacceptable(value: &FieldValue) -> String {
    format!("{{unacceptable_type,{}}}", value.type_name())
}

fn string(value: &FieldValue) -> Result<std::borrow::Cow<'_, str>, String> {
    match value {
        FieldValue::LongString(text) => Ok(String::from_utf8_lossy(text)),
        _ => Err(unacceptable(value)),
    }
}

fn check_string(value: &FieldValue, _: &FieldTable) -> Check {
    string(value).map(drop)
}

fn check_bool(value: &FieldValue, _: &FieldTable) -> Check {
    if matches!(value, FieldValue::Bool(_)) { Ok(()) } else { Err(unacceptable(value)) }
}

fn one_of(value: &FieldValue, words: &[&str], otherwise: &str) -> Check {
    if words.contains(&string(value)?.as_ref()) { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn check_dead_letter_routing_key(value: &FieldValue, arguments: &FieldTable) -> Check {
    string(value)?;
    if arguments.get("x-dead-letter-exchange").is_none() {
        return Err("routing_key_but_no_dlx_defined".to_owned());
    }
    Ok(())
}

fn check_dead_letter_strategy(value: &FieldValue, _: &FieldTable) -> Check {
    one_of(value, &["at-most-once", "at-least-once"], "invalid_dlx_strategy")
}

fn check_overflow(value: &FieldValue, _: &FieldTable) -> Check {
    one_of(value, &["drop-head", "reject-publish", "reject-publish-dlx"], "invalid_overflow")
}

fn check_leader_locator(value: &FieldValue, _: &FieldTable) -> Check {
    one_of(value, &["client-local", "balanced", "random", "least-leaders"], "invalid_queue_locator_arg")
}

fn check_member_placement_tag(value: &FieldValue, _: &FieldTable) -> Check {
    if string(value)?.is_empty() { Err("invalid_member_placement_tag_arg".to_owned()) } else { Ok(()) }
}

fn check_max_age(value: &FieldValue, _: &FieldTable) -> Check {
    duration_ms(&string(value)?).map(drop).ok_or_else(|| "invalid_max_age".to_owned())
}

/// Reads `{n}{unit}` with unit Y, M, D, h, m or s, as `x-max-age` and stream offsets give it.
pub fn duration_ms(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let seconds: u64 = match unit {
        'Y' => 365 * 86_400,
        'M' => 30 * 86_400,
        'D' => 86_400,
        'h' => 3_600,
        'm' => 60,
        's' => 1,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // More digits than a number has are as good as for ever.
    let count: u64 = digits.parse().unwrap_or(u64::MAX);
    (count > 0).then(|| count.saturating_mul(seconds * 1000))
}

/// Compares the arguments known to the type (§5.3); unknown ones are not looked at.
///
/// # Errors
/// 406 `inequivalent arg`, naming the first argument that differs.
pub fn check_equivalent(
    queue_type: QueueType,
    profile: Profile,
    new: &FieldTable,
    current: &FieldTable,
    queue: &Resource,
) -> Result<(), AmqpError> {
    let order = match queue_type {
        QueueType::Classic => CLASSIC_ORDER,
        QueueType::Quorum => QUORUM_ORDER,
        QueueType::Stream => STREAM_ORDER,
    };
    let rest = KNOWN.iter().map(|known| known.name).filter(|name| !order.contains(name));
    for name in order.iter().copied().chain(rest) {
        if name == QUEUE_TYPE {
            check_type_equivalent(profile, new, current, queue)?;
            continue;
        }
        let known = KNOWN.iter().find(|known| known.name == name);
        if known.is_some_and(|known| known.exists(queue_type, profile) && known.serves(queue_type, profile)) {
            let (new, current) = (compared(name, new, profile), compared(name, current, profile));
            check_argument_equivalent(name, new.as_ref(), current.as_ref(), queue)?;
        }
    }
    Ok(())
}

const QUEUE_TYPE: &str = "x-queue-type";

/// In which order RabbitMQ compares the arguments of each type; what is not named here comes after.
const CLASSIC_ORDER: &[&str] = &[
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    QUEUE_TYPE,
];
const QUORUM_ORDER: &[&str] = &[
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-overflow",
    "x-single-active-consumer",
    QUEUE_TYPE,
    "x-quorum-initial-group-size",
    "x-delivery-limit",
    "x-message-ttl",
];
const STREAM_ORDER: &[&str] =
    &["x-max-length-bytes", QUEUE_TYPE, "x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"];

/// A value as the version keeps it.
fn compared(name: &str, arguments: &FieldTable, profile: Profile) -> Option<FieldValue> {
    let value = arguments.get(name)?;
    if name == "x-max-age" && profile.keeps_max_age_in_ms() {
        return value.as_str().and_then(duration_ms).map(|ms| FieldValue::from(ms.to_string().as_str()));
    }
    Some(value.clone())
}

fn check_type_equivalent(
    profile: Profile,
    new: &FieldTable,
    current: &FieldTable,
    queue: &Resource,
) -> Result<(), AmqpError> {
    let type_of =
        |table: &FieldTable| table.get(QUEUE_TYPE).map_or_else(|| QueueType::Classic.as_str().to_owned(), render);
    let (new_type, current_type) = (type_of(new), type_of(current));
    if new_type == current_type {
        return Ok(());
    }
    if profile.renders_missing_type_as_none() {
        return check_argument_equivalent(QUEUE_TYPE, new.get(QUEUE_TYPE), current.get(QUEUE_TYPE), queue);
    }
    Err(AmqpError::InequivalentArgument {
        argument: QUEUE_TYPE.to_owned(),
        resource: queue.clone(),
        received: format!("'{new_type}'"),
        current: format!("'{current_type}'"),
    })
}

/// A quorum queue is redeclared as a classic one, and may be (§5.3): these alone are compared.
const RELAXED: [&str; 7] = [
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-single-active-consumer",
];

/// Does a declare with these arguments want a classic queue where a quorum queue is?
pub fn redeclares_quorum_as_classic(current: QueueType, new: &FieldTable) -> bool {
    let classic = |value: &FieldValue| value.as_str() == Some(QueueType::Classic.as_str());
    current == QueueType::Quorum && new.get("x-queue-type").is_none_or(classic)
}

/// Compares what a quorum queue redeclared as a classic one must still agree in (§5.3).
///
/// # Errors
/// 406 `inequivalent arg`, naming the first argument that differs.
pub fn check_equivalent_relaxed(new: &FieldTable, current: &FieldTable, queue: &Resource) -> Result<(), AmqpError> {
    RELAXED.iter().try_for_each(|name| check_argument_equivalent(name, new.get(name), current.get(name), queue))
}

/// Compares one argument, rendering both values as §4.2 says.
///
/// # Errors
/// 406 `inequivalent arg`.
pub fn check_argument_equivalent(
    argument: &str,
    new: Option<&FieldValue>,
    current: Option<&FieldValue>,
    resource: &Resource,
) -> Result<(), AmqpError> {
    let (received, current) = match (new, current) {
        (None, None) => return Ok(()),
        (Some(new), Some(current)) if same_value(new, current) => return Ok(()),
        (Some(new), Some(current)) => (format!("'{}'", render(new)), format!("'{}'", render(current))),
        (Some(new), None) => (render_typed(new), "none".to_owned()),
        (None, Some(current)) => ("none".to_owned(), render_typed(current)),
    };
    Err(AmqpError::InequivalentArgument {
        argument: argument.to_owned(),
        resource: resource.clone(),
        received,
        current,
    })
}

/// All integer tags are one class, both floats another; everything else must have the same type.
fn same_value(a: &FieldValue, b: &FieldValue) -> bool {
    match (a.as_integer(), b.as_integer()) {
        (Some(a), Some(b)) => return a == b,
        (None, None) => {}
        _ => return false,
    }
    match (a, b) {
        (FieldValue::F32(a), FieldValue::F64(b)) | (FieldValue::F64(b), FieldValue::F32(a)) => f64::from(*a) == *b,
        _ => a == b,
    }
}

fn render_typed(value: &FieldValue) -> String {
    format!("the value '{}' of type '{}'", render(value), value.type_name())
}

fn render(value: &FieldValue) -> String {
    if let Some(number) = value.as_integer() {
        return number.to_string();
    }
    match value {
        FieldValue::Bool(on) => on.to_string(),
        FieldValue::LongString(text) | FieldValue::ByteArray(text) => String::from_utf8_lossy(text).into_owned(),
        FieldValue::F32(number) => number.to_string(),
        FieldValue::F64(number) => number.to_string(),
        FieldValue::Timestamp(seconds) => seconds.to_string(),
        FieldValue::Void => "undefined".to_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Resource {
        Resource::queue(&Name::from("/"), "q")
    }

    fn text(value: &str) -> FieldValue {
        FieldValue::LongString(value.as_bytes().to_vec().into())
    }

    fn refusal(arguments: &[(&str, FieldValue)]) -> String {
        let table = FieldTable::from_iter(arguments.iter().cloned());
        let result =
            queue_type(&table, &queue()).and_then(|kind| queue_settings(&table, kind, Profile::V4_2, &queue()));
        result.unwrap_err().explanation()
    }

    /// §5.5: the error terms.
    #[test]
    fn s5_5_bad_values_name_the_argument_and_the_reason() {
        let rows = [
            ("x-expires", text("1"), "\"expected integer, got longstr\""),
            ("x-expires", FieldValue::I32(0), "{value_zero,0}"),
            ("x-message-ttl", FieldValue::I32(-5), "{value_negative,-5}"),
            ("x-message-ttl", FieldValue::I64(315_360_000_001), "{value_too_large,315360000001}"),
            ("x-max-priority", FieldValue::I32(256), "{max_value_exceeded,256}"),
            ("x-dead-letter-exchange", FieldValue::I32(1), "{unacceptable_type,signedint}"),
            ("x-dead-letter-routing-key", text("k"), "routing_key_but_no_dlx_defined"),
            ("x-overflow", text("explode"), "invalid_overflow"),
            ("x-single-active-consumer", text("yes"), "{unacceptable_type,longstr}"),
            ("x-queue-type", text("paper"), "\"unsupported queue type 'paper'\""),
            ("x-queue-leader-locator", text("moon"), "invalid_queue_locator_arg"),
        ];
        for (name, value, reason) in rows {
            assert_eq!(refusal(&[(name, value)]), format!("invalid arg '{name}' for queue 'q' in vhost '/': {reason}"));
        }
    }

    /// §5.5: known to another type.
    #[test]
    fn s5_5_an_argument_of_another_type_is_refused() {
        assert_eq!(
            refusal(&[("x-max-age", text("1D"))]),
            "invalid arg 'x-max-age' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"
        );
        assert_eq!(
            refusal(&[("x-queue-type", text("quorum")), ("x-max-priority", FieldValue::I32(5))]),
            "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"
        );
    }

    /// §5.5: unknown arguments are kept and ignored; every integer tag counts.
    #[test]
    fn s5_5_integer_tags_are_one_class_and_unknown_arguments_pass() {
        for value in [FieldValue::I8(7), FieldValue::I16(7), FieldValue::U32(7), FieldValue::I64(7)] {
            let table = FieldTable::from_iter([("x-message-ttl", value), ("x-ha-policy", text("all"))]);
            let settings = queue_settings(&table, QueueType::Classic, Profile::V4_2, &queue()).unwrap();
            assert_eq!(settings.message_ttl_ms, Some(7));
        }
    }

    /// §5.3 with the renderings of §4.2.
    #[test]
    fn s5_3_inequivalent_arguments_are_rendered_as_rabbitmq_does() {
        let with = |name: &str, value: FieldValue| FieldTable::from_iter([(name, value)]);
        let none = FieldTable::default();
        let check = |new: &FieldTable, current: &FieldTable| {
            check_equivalent(QueueType::Classic, Profile::V4_2, new, current, &queue())
                .map_err(|error| error.explanation())
        };
        let a = with("x-expires", FieldValue::I32(5000));
        assert_eq!(check(&a, &with("x-expires", FieldValue::I64(5000))), Ok(()));
        assert_eq!(check(&with("x-other", FieldValue::I32(1)), &none), Ok(()));
        assert_eq!(check(&with("x-queue-type", text("classic")), &none), Ok(()));
        assert_eq!(
            check(&a, &none).unwrap_err(),
            "inequivalent arg 'x-expires' for queue 'q' in vhost '/': received the value '5000' of type 'signedint' but current is none"
        );
        assert_eq!(
            check(&a, &with("x-expires", FieldValue::I32(6000))).unwrap_err(),
            "inequivalent arg 'x-expires' for queue 'q' in vhost '/': received '5000' but current is '6000'"
        );
        assert_eq!(
            check(&with("x-queue-type", text("quorum")), &none).unwrap_err(),
            "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is 'classic'"
        );
    }

    #[test]
    fn s5_5_durations_have_a_number_and_a_unit() {
        assert_eq!(duration_ms("7D"), Some(7 * 86_400_000));
        assert_eq!(duration_ms("1h"), Some(3_600_000));
        for bad in ["", "D", "7", "7d", "-1D", "1.5h"] {
            assert_eq!(duration_ms(bad), None, "{bad}");
        }
    }
}
