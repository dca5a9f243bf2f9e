//! Every error that the broker can answer to a client, with its reply code and its exact text.
//!
//! Only [`AmqpError::reply_code`] picks a code; only `ReplyCode::is_hard` picks channel or connection
//! (on channel 0 every error closes the connection). Texts are RabbitMQ's: clients match on them.

use std::fmt::Write as _;

use leveret_protocol::ReplyCode;

use super::NODE_NAME;
use super::record::Name;
use crate::auth::Access;

/// Something with a name in a vhost, as texts show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    Queue { vhost: Name, name: String },
    Exchange { vhost: Name, name: String },
}

impl Resource {
    pub fn queue(vhost: &Name, name: &str) -> Self {
        Self::Queue { vhost: vhost.clone(), name: name.to_owned() }
    }

    pub fn exchange(vhost: &Name, name: &str) -> Self {
        Self::Exchange { vhost: vhost.clone(), name: name.to_owned() }
    }
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Queue { vhost, name } => write!(f, "queue '{name}' in vhost '{vhost}'"),
            Self::Exchange { vhost, name } => write!(f, "exchange '{name}' in vhost '{vhost}'"),
        }
    }
}

/// An error for the client. Ends its channel or its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AmqpError {
    // 403, §14, §4, §5, §8
    AccessRefused {
        access: Access,
        resource: Resource,
        user: Name,
    },
    TopicAccessRefused {
        access: Access,
        routing_key: String,
        exchange: Resource,
        user: Name,
    },
    DefaultExchange,
    SystemExchange(Resource),
    /// `kind` is "queue" or "exchange".
    ReservedPrefix {
        kind: &'static str,
        name: String,
    },
    InternalExchange(Resource),
    ExclusiveUse(Resource),
    BindReplyQueue,
    // 404
    NotFound(Resource),
    NoPreviouslyDeclaredQueue,
    // 405
    LockedQueue(Resource),
    GetFromSingleActiveConsumer {
        queue: Resource,
        queue_type: &'static str,
    },
    // 406
    UnknownDeliveryTag(u64),
    InequivalentArgument {
        argument: String,
        resource: Resource,
        received: String,
        current: String,
    },
    /// `reason` is an Erlang term, as RabbitMQ shows it.
    InvalidArgument {
        argument: String,
        resource: Resource,
        reason: String,
    },
    /// Known to queues of another type only.
    ArgumentOfOtherType {
        argument: String,
        resource: Resource,
        queue_type: &'static str,
    },
    InvalidArgumentType {
        argument: &'static str,
        type_name: &'static str,
        resource: Resource,
    },
    InvalidProperty {
        property: &'static str,
        resource: Resource,
    },
    InUse(Resource),
    NotEmpty(Resource),
    MessageTooLarge {
        size: u64,
        max: u64,
    },
    InvalidExpiration {
        text: String,
        reason: String,
    },
    InvalidHeaderType {
        header: &'static str,
        type_name: &'static str,
    },
    WrongUserId {
        claimed: String,
        user: Name,
    },
    NoReplyConsumer,
    ReplyConsumerAcknowledges,
    ReplyConsumerSet,
    NotTransactional,
    TxAfterConfirm,
    ConfirmAfterTx,
    PartialTxCompletion,
    AckTimeout {
        channel: u16,
        timeout_ms: String,
    },
    QueueLimit {
        queue: String,
        vhost: Name,
        limit: u64,
    },
    NodeQueueLimit {
        queue: String,
        limit: u64,
    },
    ExchangeLimit {
        exchange: Resource,
        limit: u64,
    },
    /// A 406 whose whole text comes from the check of one type (exchange or queue arguments).
    Precondition(String),
    // hard
    NotImplemented(String),
    PrefetchSize(u32),
    TooManyChannels {
        open: usize,
        max: u16,
    },
    UserChannelLimit {
        user: Name,
        limit: u64,
    },
    NodeChannelLimit {
        limit: u64,
    },
    ReusedConsumerTag(String),
    TooManyConsumers(u32),
    ChannelNotOpen,
    ChannelAlreadyOpen,
    UnexpectedMethod {
        state: &'static str,
    },
    UnimplementedMethod,
    DuringCommit,
    /// Found by the decoder: code and text are its own.
    Decode {
        code: ReplyCode,
        explanation: String,
    },
    /// A feature that this version no longer permits.
    Deprecated(&'static str),
    /// By an operator or at shutdown.
    Forced(String),
}

impl AmqpError {
    /// The code on the wire. No `_` arm: a new error must choose its code.
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::AccessRefused { .. }
            | Self::TopicAccessRefused { .. }
            | Self::DefaultExchange
            | Self::SystemExchange(_)
            | Self::ReservedPrefix { .. }
            | Self::InternalExchange(_)
            | Self::ExclusiveUse(_)
            | Self::BindReplyQueue => ReplyCode::AccessRefused,
            Self::NotFound(_) | Self::NoPreviouslyDeclaredQueue => ReplyCode::NotFound,
            Self::LockedQueue(_) | Self::GetFromSingleActiveConsumer { .. } => ReplyCode::ResourceLocked,
            Self::UnknownDeliveryTag(_)
            | Self::InequivalentArgument { .. }
            | Self::InvalidArgument { .. }
            | Self::ArgumentOfOtherType { .. }
            | Self::InvalidArgumentType { .. }
            | Self::InvalidProperty { .. }
            | Self::InUse(_)
            | Self::NotEmpty(_)
            | Self::MessageTooLarge { .. }
            | Self::InvalidExpiration { .. }
            | Self::InvalidHeaderType { .. }
            | Self::WrongUserId { .. }
            | Self::NoReplyConsumer
            | Self::ReplyConsumerAcknowledges
            | Self::ReplyConsumerSet
            | Self::NotTransactional
            | Self::TxAfterConfirm
            | Self::ConfirmAfterTx
            | Self::PartialTxCompletion
            | Self::AckTimeout { .. }
            | Self::QueueLimit { .. }
            | Self::NodeQueueLimit { .. }
            | Self::ExchangeLimit { .. }
            | Self::Precondition(_) => ReplyCode::PreconditionFailed,
            Self::NotImplemented(_) | Self::PrefetchSize(_) => ReplyCode::NotImplemented,
            Self::TooManyChannels { .. }
            | Self::UserChannelLimit { .. }
            | Self::NodeChannelLimit { .. }
            | Self::ReusedConsumerTag(_)
            | Self::TooManyConsumers(_) => ReplyCode::NotAllowed,
            Self::ChannelNotOpen | Self::ChannelAlreadyOpen | Self::UnexpectedMethod { .. } | Self::DuringCommit => {
                ReplyCode::ChannelError
            }
            Self::UnimplementedMethod => ReplyCode::CommandInvalid,
            Self::Decode { code, .. } => *code,
            Self::Deprecated(_) => ReplyCode::InternalError,
            Self::Forced(_) => ReplyCode::ConnectionForced,
        }
    }

    /// The text after `NAME - `.
    pub fn explanation(&self) -> String {
        match self {
            Self::AccessRefused { access, resource, user } => {
                // The default exchange has a name here only (§14.1).
                let resource = match resource {
                    Resource::Exchange { vhost, name } if name.is_empty() => Resource::exchange(vhost, "amq.default"),
                    other => other.clone(),
                };
                format!("{} access to {resource} refused for user '{user}'", access.name())
            }
            Self::TopicAccessRefused { access, routing_key, exchange, user } => {
                format!("{} access to topic '{routing_key}' in {exchange} refused for user '{user}'", access.name())
            }
            Self::DefaultExchange => "operation not permitted on the default exchange".to_owned(),
            Self::SystemExchange(exchange) => format!("deletion of system {exchange} not allowed"),
            Self::ReservedPrefix { kind, name } => format!("{kind} name '{name}' contains reserved prefix 'amq.*'"),
            Self::InternalExchange(exchange) => {
                let mut text = String::from("cannot publish to internal ");
                let _ = write!(text, "{exchange}");
                text
            }
            Self::ExclusiveUse(queue) => format!("{queue} in exclusive use"),
            Self::BindReplyQueue => "cannot bind or unbind to a volatile (direct reply-to) queue".to_owned(),
            Self::NotFound(resource) => format!("no {resource}"),
            Self::NoPreviouslyDeclaredQueue => "no previously declared queue".to_owned(),
            Self::LockedQueue(queue) => format!(
                "cannot obtain exclusive access to locked {queue}. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration."
            ),
            Self::GetFromSingleActiveConsumer { queue, queue_type } => format!(
                "cannot obtain access to locked {queue}. basic.get operations are not supported by {queue_type} queues with single active consumer"
            ),
            Self::UnknownDeliveryTag(tag) => format!("unknown delivery tag {tag}"),
            Self::InequivalentArgument { argument, resource, received, current } => {
                format!("inequivalent arg '{argument}' for {resource}: received {received} but current is {current}")
            }
            Self::InvalidArgument { argument, resource, reason } => {
                format!("invalid arg '{argument}' for {resource}: {reason}")
            }
            Self::ArgumentOfOtherType { argument, resource, queue_type } => {
                format!("invalid arg '{argument}' for {resource} of queue type {queue_type}")
            }
            Self::InvalidArgumentType { argument, type_name, resource } => {
                format!("invalid type '{type_name}' for arg '{argument}' in {resource}")
            }
            Self::InvalidProperty { property, resource } => format!("invalid property '{property}' for {resource}"),
            Self::InUse(resource) => format!("{resource} in use"),
            Self::NotEmpty(resource) => format!("{resource} not empty"),
            Self::MessageTooLarge { size, max } if *max == 536_870_912 => {
                format!("message size {size} is larger than max size {max}")
            }
            Self::MessageTooLarge { size, max } => {
                format!("message size {size} is larger than configured max size {max}")
            }
            Self::InvalidExpiration { text, reason } => format!("invalid expiration '{text}': {reason}"),
            Self::InvalidHeaderType { header, type_name } => {
                format!("invalid message: {{unacceptable_type_in_header,\"{header}\",{type_name}}}")
            }
            Self::WrongUserId { claimed, user } => {
                format!("user_id property set to '{claimed}' but authenticated user was '{user}'")
            }
            Self::NoReplyConsumer => "fast reply consumer does not exist".to_owned(),
            Self::ReplyConsumerAcknowledges => "reply consumer cannot acknowledge".to_owned(),
            Self::ReplyConsumerSet => "reply consumer already set".to_owned(),
            Self::NotTransactional => "channel is not transactional".to_owned(),
            Self::TxAfterConfirm => "cannot switch from confirm to tx mode".to_owned(),
            Self::ConfirmAfterTx => "cannot switch from tx to confirm mode".to_owned(),
            Self::PartialTxCompletion => "partial tx completion".to_owned(),
            Self::AckTimeout { channel, timeout_ms } => format!(
                "delivery acknowledgement on channel {channel} timed out. Timeout value used: {timeout_ms} ms. This timeout value can be configured, see consumers doc guide to learn more"
            ),
            Self::QueueLimit { queue, vhost, limit } => {
                format!("cannot declare queue '{queue}': queue limit in vhost '{vhost}' ({limit}) is reached")
            }
            Self::NodeQueueLimit { queue, limit } => {
                format!("cannot declare queue '{queue}': queue limit in cluster ({limit}) is reached")
            }
            Self::ExchangeLimit { exchange, limit } => {
                format!("cannot declare {exchange}: exchange limit of {limit} is reached")
            }
            Self::Precondition(text) | Self::NotImplemented(text) | Self::Forced(text) => text.clone(),
            Self::PrefetchSize(size) => format!("prefetch_size!=0 ({size})"),
            Self::TooManyChannels { open, max } => {
                format!("number of channels opened ({open}) has reached the negotiated channel_max ({max})")
            }
            Self::UserChannelLimit { user, limit } => format!(
                "number of channels opened for user '{user}' has reached the maximum allowed user limit of {limit}"
            ),
            Self::NodeChannelLimit { limit } => format!(
                "number of channels opened on node '{NODE_NAME}' has reached the maximum allowed limit of {limit}"
            ),
            Self::ReusedConsumerTag(tag) => format!("attempt to reuse consumer tag '{tag}'"),
            Self::TooManyConsumers(max) => format!("reached maximum ({max}) of consumers per channel"),
            Self::ChannelNotOpen => "expected 'channel.open'".to_owned(),
            Self::ChannelAlreadyOpen => "second 'channel.open' seen".to_owned(),
            Self::UnexpectedMethod { state } => format!("unexpected method in connection state {state}"),
            Self::UnimplementedMethod => "unimplemented method".to_owned(),
            Self::DuringCommit => "unexpected command while processing 'tx.commit'".to_owned(),
            Self::Decode { explanation, .. } => explanation.clone(),
            Self::Deprecated(feature) => format!(
                "Feature `{feature}` is deprecated.\nBy default, this feature is not permitted anymore.\nThe feature will be removed from a future major RabbitMQ version, regardless of the configuration; actual version to be determined.\nTo continue using this feature when it is not permitted by default, set the following parameter in your configuration:\n    \"deprecated_features.permit.{feature} = true\""
            ),
        }
    }
}
