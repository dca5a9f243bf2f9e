//! Every class and method of AMQP 0-9-1 as RabbitMQ speaks it (reference 2): one table, from which
//! a macro makes a struct per method, the [`Method`] enum, its decoder and its encoder.
//!
//! Nothing here knows who may send what, or when; that is for the broker model.

use bytes::{BufMut, BytesMut};
use nom::Parser;

use crate::arguments::{Arguments, Reader, Writer};
use crate::error::DecodeError;
use crate::parse::{Malformed, Parsed, be_u16};

/// Class and method number, as closes name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MethodId {
    /// Class number, such as 60 for basic.
    pub class: u16,
    /// Method number within the class.
    pub method: u16,
}

impl MethodId {
    /// 0/0, for a fault that no method caused.
    pub const NONE: Self = Self { class: 0, method: 0 };

    /// Whether a content follows methods of this kind: `basic.publish`, `return`, `deliver` and
    /// `get-ok`.
    pub fn has_content(self) -> bool {
        [basic::Publish::ID, basic::Return::ID, basic::Deliver::ID, basic::GetOk::ID].contains(&self)
    }

    /// The number at the start of a method payload, `NONE` if there is not even that.
    pub(crate) fn peek(payload: &[u8]) -> Self {
        Self::parse(payload).map_or(Self::NONE, |(_, id)| id)
    }

    fn parse(payload: &[u8]) -> Parsed<'_, Self> {
        (be_u16, be_u16).map(|(class, method)| Self { class, method }).parse(payload)
    }
}

/// The Rust type of a field type of the table.
macro_rules! field_type {
    (octet) => { u8 };
    (short) => { u16 };
    (long) => { u32 };
    (longlong) => { u64 };
    (bit) => { bool };
    (shortstr) => { &'a str };
    (longstr) => { &'a [u8] };
    (table) => { crate::types::FieldTable };
}

/// Makes everything from the table below. A field is `name: type`; a type in brackets is a reserved
/// field, which is read and ignored and written as zero, and not part of the struct; those after the
/// last field follow a semicolon.
macro_rules! methods {
    ($(
        $(#[$class_doc:meta])*
        $class:ident = $class_id:literal {
            $(
                $(#[$doc:meta])*
                $method_id:literal $name:literal $variant:ident $method:ident $(<$lifetime:lifetime>)? {
                    $(
                        $(#[$field_doc:meta])*
                        $([$reserved:ident])* $field:ident: $kind:ident,
                    )*
                    $(; $([$reserved_last:ident])*)?
                }
            )*
        }
    )*) => {
        $(
            $(#[$class_doc])*
            pub mod $class {
                use super::{Arguments, Malformed, Method, MethodId, Reader, Writer};

                $(
                    $(#[$doc])*
                    #[derive(Debug, Clone, PartialEq)]
                    pub struct $method $(<$lifetime>)? {
                        $(
                            #[doc = concat!("Wire type ", stringify!($kind), ".")]
                            $(#[$field_doc])*
                            pub $field: field_type!($kind),
                        )*
                    }

                    impl $(<$lifetime>)? $method $(<$lifetime>)? {
                        #[doc = concat!("Class and method number of `", $name, "`.")]
                        pub const ID: MethodId = MethodId { class: $class_id, method: $method_id };
                    }

                    impl<'a> Arguments<'a> for $method $(<$lifetime>)? {
                        #[inline]
                        #[allow(unused_variables)] // some methods have no fields
                        fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
                            $(
                                $( reader.$reserved()?; )*
                                let $field = reader.$kind()?;
                            )*
                            $( $( reader.$reserved_last()?; )* )?
                            Ok(Self { $($field),* })
                        }

                        #[allow(unused_variables)]
                        fn write(&self, writer: &mut Writer<'_>) {
                            $(
                                $( writer.$reserved(&<field_type!($reserved)>::default()); )*
                                writer.$kind(&self.$field);
                            )*
                            $( $( writer.$reserved_last(&<field_type!($reserved_last)>::default()); )* )?
                        }
                    }

                    impl<'a> From<$method $(<$lifetime>)?> for Method<'a> {
                        fn from(method: $method $(<$lifetime>)?) -> Self {
                            Method::$variant(method)
                        }
                    }
                )*
            }
        )*

        /// A method with its arguments. Strings are borrowed from the read buffer, tables are owned.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)] // each variant is its struct
        pub enum Method<'a> {
            $($( $variant($class::$method $(<$lifetime>)?), )*)*
        }

        impl MethodId {
            /// The name of the method in the standard's spelling, such as `queue.declare-ok`;
            /// `None` when there is no such method.
            pub fn name(self) -> Option<&'static str> {
                match (self.class, self.method) {
                    $($( ($class_id, $method_id) => Some($name), )*)*
                    _ => None,
                }
            }

            /// Every method there is, in the order of the table.
            pub const ALL: &'static [MethodId] = &[$($( $class::$method::ID, )*)*];
        }

        impl<'a> Method<'a> {
            /// Class and method number.
            pub fn id(&self) -> MethodId {
                match self {
                    $($( Self::$variant(_) => $class::$method::ID, )*)*
                }
            }

            /// The name of the method in the standard's spelling, such as `queue.declare-ok`.
            pub fn name(&self) -> &'static str {
                match self {
                    $($( Self::$variant(_) => $name, )*)*
                }
            }

            /// `None` when there is no such method.
            fn decode_arguments(id: MethodId, arguments: &'a [u8]) -> Option<Result<Self, Malformed>> {
                match (id.class, id.method) {
                    $($( ($class_id, $method_id) => Some(whole(arguments).map(Self::$variant)), )*)*
                    _ => None,
                }
            }

            /// A method with fields that the tests choose.
            #[cfg(test)]
            fn sample(id: MethodId, source: &mut tests::Source<'a>) -> Self {
                match (id.class, id.method) {
                    $($( ($class_id, $method_id) => {
                        Self::$variant($class::$method { $($field: source.$kind()),* })
                    } )*)*
                    _ => panic!("no method {id:?}"),
                }
            }

            fn encode_arguments(&self, writer: &mut Writer<'_>) {
                match self {
                    $($( Self::$variant(method) => method.write(writer), )*)*
                }
            }
        }
    };
}

methods! {
    /// Class 10: the connection itself, on channel 0 only.
    connection = 10 {
        /// The server's greeting.
        10 "connection.start" ConnectionStart Start<'a> {
            /// Always 0.
            version_major: octet,
            /// Always 9.
            version_minor: octet,
            server_properties: table,
            /// Names of SASL mechanisms, separated by spaces.
            mechanisms: longstr,
            /// Names of locales, separated by spaces.
            locales: longstr,
        }
        /// The client's choice of mechanism, and its first response.
        11 "connection.start-ok" ConnectionStartOk StartOk<'a> {
            client_properties: table,
            mechanism: shortstr,
            response: longstr,
            locale: shortstr,
        }
        /// A further challenge of the SASL mechanism.
        20 "connection.secure" ConnectionSecure Secure<'a> { challenge: longstr, }
        /// The answer to a challenge.
        21 "connection.secure-ok" ConnectionSecureOk SecureOk<'a> { response: longstr, }
        /// The server's proposal of limits.
        30 "connection.tune" ConnectionTune Tune {
            /// Most channels, 0 for no limit.
            channel_max: short,
            /// Bytes of a whole frame, 0 for no limit.
            frame_max: long,
            /// Seconds, 0 for none.
            heartbeat: short,
        }
        /// The client's choice of limits.
        31 "connection.tune-ok" ConnectionTuneOk TuneOk {
            /// Most channels, 0 for no limit.
            channel_max: short,
            /// Bytes of a whole frame, 0 for no limit.
            frame_max: long,
            /// Seconds, 0 for none.
            heartbeat: short,
        }
        /// Enters a vhost.
        40 "connection.open" ConnectionOpen Open<'a> { virtual_host: shortstr, ; [shortstr] [bit] }
        /// Reply to [`Open`].
        41 "connection.open-ok" ConnectionOpenOk OpenOk { ; [shortstr] }
        /// Ends the connection; either side.
        50 "connection.close" ConnectionClose Close<'a> {
            reply_code: short,
            reply_text: shortstr,
            /// Class of the method at fault, or 0.
            class_id: short,
            /// Number of the method at fault, or 0.
            method_id: short,
        }
        /// Reply to [`Close`]; nothing may follow it.
        51 "connection.close-ok" ConnectionCloseOk CloseOk {}
        /// The server stops reading publishes.
        60 "connection.blocked" ConnectionBlocked Blocked<'a> { reason: shortstr, }
        /// The server reads again.
        61 "connection.unblocked" ConnectionUnblocked Unblocked {}
        /// Replaces the credentials of a running connection.
        70 "connection.update-secret" ConnectionUpdateSecret UpdateSecret<'a> {
            new_secret: longstr,
            reason: shortstr,
        }
        /// Reply to [`UpdateSecret`].
        71 "connection.update-secret-ok" ConnectionUpdateSecretOk UpdateSecretOk {}
    }

    /// Class 20: opening and closing channels.
    channel = 20 {
        /// Opens the channel whose number the frame has.
        10 "channel.open" ChannelOpen Open { ; [shortstr] }
        /// Reply to [`Open`].
        11 "channel.open-ok" ChannelOpenOk OpenOk { ; [longstr] }
        /// Asks to stop or go on sending contents.
        20 "channel.flow" ChannelFlow Flow { active: bit, }
        /// Reply to [`Flow`].
        21 "channel.flow-ok" ChannelFlowOk FlowOk { active: bit, }
        /// Ends the channel; either side.
        40 "channel.close" ChannelClose Close<'a> {
            reply_code: short,
            reply_text: shortstr,
            /// Class of the method at fault, or 0.
            class_id: short,
            /// Number of the method at fault, or 0.
            method_id: short,
        }
        /// Reply to [`Close`].
        41 "channel.close-ok" ChannelCloseOk CloseOk {}
    }

    /// Class 30: a relic; every request is granted.
    access = 30 {
        /// Asks for a ticket.
        10 "access.request" AccessRequest Request<'a> {
            realm: shortstr,
            exclusive: bit,
            passive: bit,
            active: bit,
            write: bit,
            read: bit,
        }
        /// Reply to [`Request`].
        11 "access.request-ok" AccessRequestOk RequestOk {
            /// Always 1.
            ticket: short,
        }
    }

    /// Class 40: exchanges and the bindings between them.
    exchange = 40 {
        /// Creates an exchange, or checks for one.
        10 "exchange.declare" ExchangeDeclare Declare<'a> {
            [short] exchange: shortstr,
            /// Exchange type, such as `topic`.
            type_: shortstr,
            passive: bit,
            durable: bit,
            auto_delete: bit,
            internal: bit,
            no_wait: bit,
            arguments: table,
        }
        /// Reply to [`Declare`].
        11 "exchange.declare-ok" ExchangeDeclareOk DeclareOk {}
        /// Removes an exchange.
        20 "exchange.delete" ExchangeDelete Delete<'a> {
            [short] exchange: shortstr,
            if_unused: bit,
            no_wait: bit,
        }
        /// Reply to [`Delete`].
        21 "exchange.delete-ok" ExchangeDeleteOk DeleteOk {}
        /// Binds an exchange to an exchange.
        30 "exchange.bind" ExchangeBind Bind<'a> {
            [short] destination: shortstr,
            source: shortstr,
            routing_key: shortstr,
            no_wait: bit,
            arguments: table,
        }
        /// Reply to [`Bind`].
        31 "exchange.bind-ok" ExchangeBindOk BindOk {}
        /// Removes a binding of an exchange to an exchange.
        40 "exchange.unbind" ExchangeUnbind Unbind<'a> {
            [short] destination: shortstr,
            source: shortstr,
            routing_key: shortstr,
            no_wait: bit,
            arguments: table,
        }
        /// Reply to [`Unbind`]. Its number is 51, not 41.
        51 "exchange.unbind-ok" ExchangeUnbindOk UnbindOk {}
    }

    /// Class 50: queues and their bindings.
    queue = 50 {
        /// Creates a queue, or checks for one.
        10 "queue.declare" QueueDeclare Declare<'a> {
            /// Empty: the server makes up a name.
            [short] queue: shortstr,
            passive: bit,
            durable: bit,
            exclusive: bit,
            auto_delete: bit,
            no_wait: bit,
            arguments: table,
        }
        /// Reply to [`Declare`].
        11 "queue.declare-ok" QueueDeclareOk DeclareOk<'a> {
            queue: shortstr,
            /// Ready messages.
            message_count: long,
            consumer_count: long,
        }
        /// Binds a queue to an exchange.
        20 "queue.bind" QueueBind Bind<'a> {
            [short] queue: shortstr,
            exchange: shortstr,
            routing_key: shortstr,
            no_wait: bit,
            arguments: table,
        }
        /// Reply to [`Bind`].
        21 "queue.bind-ok" QueueBindOk BindOk {}
        /// Removes every ready message.
        30 "queue.purge" QueuePurge Purge<'a> { [short] queue: shortstr, no_wait: bit, }
        /// Reply to [`Purge`].
        31 "queue.purge-ok" QueuePurgeOk PurgeOk {
            /// Messages removed.
            message_count: long,
        }
        /// Removes a queue.
        40 "queue.delete" QueueDelete Delete<'a> {
            [short] queue: shortstr,
            if_unused: bit,
            if_empty: bit,
            no_wait: bit,
        }
        /// Reply to [`Delete`].
        41 "queue.delete-ok" QueueDeleteOk DeleteOk {
            /// Messages removed.
            message_count: long,
        }
        /// Removes a binding; there is no no-wait bit.
        50 "queue.unbind" QueueUnbind Unbind<'a> {
            [short] queue: shortstr,
            exchange: shortstr,
            routing_key: shortstr,
            arguments: table,
        }
        /// Reply to [`Unbind`].
        51 "queue.unbind-ok" QueueUnbindOk UnbindOk {}
    }

    /// Class 60: messages; the only class with content.
    basic = 60 {
        /// Limits unacked deliveries.
        10 "basic.qos" BasicQos Qos {
            /// Bytes; only 0 is supported.
            prefetch_size: long,
            /// Messages, 0 for no limit.
            prefetch_count: short,
            global: bit,
        }
        /// Reply to [`Qos`].
        11 "basic.qos-ok" BasicQosOk QosOk {}
        /// Starts a consumer.
        20 "basic.consume" BasicConsume Consume<'a> {
            [short] queue: shortstr,
            /// Empty: the server makes up a tag.
            consumer_tag: shortstr,
            no_local: bit,
            no_ack: bit,
            exclusive: bit,
            no_wait: bit,
            arguments: table,
        }
        /// Reply to [`Consume`].
        21 "basic.consume-ok" BasicConsumeOk ConsumeOk<'a> { consumer_tag: shortstr, }
        /// Ends a consumer; from the server: the consumer's queue is gone.
        30 "basic.cancel" BasicCancel Cancel<'a> { consumer_tag: shortstr, no_wait: bit, }
        /// Reply to [`Cancel`].
        31 "basic.cancel-ok" BasicCancelOk CancelOk<'a> { consumer_tag: shortstr, }
        /// Publishes the content that follows.
        40 "basic.publish" BasicPublish Publish<'a> {
            [short] exchange: shortstr,
            routing_key: shortstr,
            mandatory: bit,
            immediate: bit,
        }
        /// Hands an unroutable message back; content follows.
        50 "basic.return" BasicReturn Return<'a> {
            reply_code: short,
            reply_text: shortstr,
            exchange: shortstr,
            routing_key: shortstr,
        }
        /// Hands a message to a consumer; content follows. [`put_deliver`](crate::put_deliver) is
        /// the fast encoder.
        60 "basic.deliver" BasicDeliver Deliver<'a> {
            consumer_tag: shortstr,
            delivery_tag: longlong,
            redelivered: bit,
            exchange: shortstr,
            routing_key: shortstr,
        }
        /// Asks for one message.
        70 "basic.get" BasicGet Get<'a> { [short] queue: shortstr, no_ack: bit, }
        /// Reply to [`Get`] with a message; content follows.
        71 "basic.get-ok" BasicGetOk GetOk<'a> {
            delivery_tag: longlong,
            redelivered: bit,
            exchange: shortstr,
            routing_key: shortstr,
            /// Ready messages left.
            message_count: long,
        }
        /// Reply to [`Get`] without a message.
        72 "basic.get-empty" BasicGetEmpty GetEmpty { ; [shortstr] }
        /// Settles deliveries; from the server: confirms publishes.
        80 "basic.ack" BasicAck Ack {
            delivery_tag: longlong,
            /// Up to and including the tag.
            multiple: bit,
        }
        /// Refuses a delivery.
        90 "basic.reject" BasicReject Reject { delivery_tag: longlong, requeue: bit, }
        /// [`Recover`] without a reply.
        100 "basic.recover-async" BasicRecoverAsync RecoverAsync { requeue: bit, }
        /// Asks for redelivery of everything unacked on the channel.
        110 "basic.recover" BasicRecover Recover { requeue: bit, }
        /// Reply to [`Recover`].
        111 "basic.recover-ok" BasicRecoverOk RecoverOk {}
        /// Refuses deliveries; from the server: publishes that failed.
        120 "basic.nack" BasicNack Nack {
            delivery_tag: longlong,
            /// Up to and including the tag.
            multiple: bit,
            requeue: bit,
        }
    }

    /// Class 85: publisher confirms.
    confirm = 85 {
        /// Turns confirms on.
        10 "confirm.select" ConfirmSelect Select { no_wait: bit, }
        /// Reply to [`Select`].
        11 "confirm.select-ok" ConfirmSelectOk SelectOk {}
    }

    /// Class 90: transactions.
    tx = 90 {
        /// Makes the channel transactional.
        10 "tx.select" TxSelect Select {}
        /// Reply to [`Select`].
        11 "tx.select-ok" TxSelectOk SelectOk {}
        /// Performs the publishes and acks since the last commit or rollback.
        20 "tx.commit" TxCommit Commit {}
        /// Reply to [`Commit`].
        21 "tx.commit-ok" TxCommitOk CommitOk {}
        /// Forgets them.
        30 "tx.rollback" TxRollback Rollback {}
        /// Reply to [`Rollback`].
        31 "tx.rollback-ok" TxRollbackOk RollbackOk {}
    }
}

impl<'a> Method<'a> {
    /// Reads the payload of a method frame.
    ///
    /// Errors: [`UnknownMethod`](DecodeError::UnknownMethod) (503); malformed arguments or bytes left
    /// over are [`Arguments`](DecodeError::Arguments), a short string that is not UTF-8 is
    /// [`ShortStringUtf8`](DecodeError::ShortStringUtf8) (both 501); a table with an unknown field type
    /// or over a limit gives that error (502).
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        // The two methods that come by the million.
        match payload {
            [0, 60, 0, 40, arguments @ ..] => {
                if let Some(publish) = publish_arguments(arguments) {
                    return Ok(Self::BasicPublish(publish));
                }
            }
            &[0, 60, 0, 80, t0, t1, t2, t3, t4, t5, t6, t7, bits] => {
                let delivery_tag = u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
                return Ok(Self::BasicAck(basic::Ack { delivery_tag, multiple: bits & 1 == 1 }));
            }
            _ => {}
        }
        Self::decode_any(payload)
    }

    #[inline(never)]
    fn decode_any(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let (arguments, id) =
            MethodId::parse(payload).map_err(|error| DecodeError::in_arguments(error.into(), payload))?;
        match Self::decode_arguments(id, arguments) {
            Some(Ok(method)) => Ok(method),
            Some(Err(error)) => Err(DecodeError::in_arguments(error, payload)),
            None => Err(DecodeError::UnknownMethod(id)),
        }
    }

    /// Appends class, method and arguments: the payload of a method frame. Short strings over 255
    /// bytes are cut, see [`put_short_string`](crate::put_short_string).
    pub fn encode(&self, out: &mut BytesMut) {
        let MethodId { class, method } = self.id();
        out.put_u16(class);
        out.put_u16(method);
        let mut writer = Writer::new(out);
        self.encode_arguments(&mut writer);
        writer.finish();
    }

    /// Whether a content follows: `basic.publish`, `return`, `deliver` and `get-ok`.
    pub fn has_content(&self) -> bool {
        self.id().has_content()
    }
}

/// Arguments that fill their payload exactly.
#[inline]
fn whole<'a, T: Arguments<'a>>(arguments: &'a [u8]) -> Result<T, Malformed> {
    let mut reader = Reader::new(arguments);
    let method = T::read(&mut reader)?;
    reader.finish()?;
    Ok(method)
}

/// The arguments of `basic.ack`, or `None` when there are too few or too many bytes.
#[inline]
pub(crate) fn ack_arguments(arguments: &[u8]) -> Option<basic::Ack> {
    let (delivery_tag, &[bits]) = arguments.split_first_chunk()? else { return None };
    let delivery_tag = u64::from_be_bytes(*delivery_tag);
    Some(basic::Ack { delivery_tag, multiple: bits & 1 != 0 })
}

/// The arguments of `basic.publish`, or `None` when anything is wrong with them; the general reader
/// then finds out what.
#[inline(always)]
pub(crate) fn publish_arguments(arguments: &[u8]) -> Option<basic::Publish<'_>> {
    let [_, _, exchange_len, strings @ .., bits] = arguments else { return None };
    let (exchange, routing_key) = two_short_strings(usize::from(*exchange_len), strings)?;
    let (mandatory, immediate) = (bits & 1 != 0, bits & 2 != 0);
    Some(basic::Publish { exchange, routing_key, mandatory, immediate })
}

/// A string of `first_len` bytes and a short string, which fill `bytes`.
#[inline(always)]
fn two_short_strings(first_len: usize, bytes: &[u8]) -> Option<(&str, &str)> {
    let second_len = *bytes.get(first_len)?;
    if first_len + 1 + usize::from(second_len) != bytes.len() {
        return None;
    }
    if second_len.is_ascii() {
        // Then the length is itself a character, and both strings are UTF-8 if all of it is. Two
        // checks would cost 8 ns more.
        let text = std::str::from_utf8(bytes).ok()?;
        let (first, second) = text.split_at_checked(first_len)?;
        return Some((first, second.get(1..)?));
    }
    let (first, second) = bytes.split_at(first_len);
    Some((std::str::from_utf8(first).ok()?, std::str::from_utf8(&second[1..]).ok()?))
}

#[cfg(test)]
mod tests;
