//! Says what a newer RabbitMQ would refuse or do differently, while the chosen version is served (§0.1).
//!
//! Each kind is logged once per user, client program and object; every occurrence is counted.

use std::collections::BTreeMap;

use leveret_protocol::FieldValue;

use super::Broker;
use crate::model::ids::ChannelKey;
use crate::model::profile::Profile;
use crate::model::record::Name;

/// Something that a newer version treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// `basic.qos` with `global`: read as a limit per consumer.
    ChannelPrefetch,
    /// `x-queue-master-locator`: the declare is refused (541).
    MasterLocator,
    /// `x-consumer-timeout` on a queue that is no quorum queue: the declare is refused (406).
    ConsumerTimeoutArgument,
    /// A delivery was unacked for too long: only quorum queues time deliveries, and cancel the consumer.
    AckTimeout,
    /// A basic.nack with requeue on a quorum queue: it no longer counts towards the delivery limit.
    NackCounts,
    /// A message published with an `x-death` header: it no longer goes on counting.
    PublishedDeaths,
    /// A mandatory reply to a requester that is gone: it is no longer returned.
    LostReply,
}

impl Finding {
    /// Is it different between these two versions?
    fn differs(self, served: Profile, newer: Profile) -> bool {
        let differs = |of: fn(Profile) -> bool| of(served) != of(newer);
        match self {
            Self::ChannelPrefetch => differs(Profile::has_channel_prefetch),
            Self::MasterLocator => differs(Profile::denies_master_locator),
            Self::ConsumerTimeoutArgument | Self::AckTimeout => differs(Profile::ack_timeout_closes_channel),
            Self::NackCounts => differs(Profile::every_return_counts),
            Self::PublishedDeaths => differs(Profile::trusts_published_deaths),
            Self::LostReply => differs(Profile::returns_lost_replies),
        }
    }

    /// A short name of it, for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::ChannelPrefetch => "channel_prefetch",
            Self::MasterLocator => "master_locator",
            Self::ConsumerTimeoutArgument => "consumer_timeout_argument",
            Self::AckTimeout => "ack_timeout",
            Self::NackCounts => "nack_counts",
            Self::PublishedDeaths => "published_deaths",
            Self::LostReply => "lost_reply",
        }
    }

    /// What the newer version does.
    fn advice(self) -> &'static str {
        match self {
            Self::ChannelPrefetch => {
                "basic.qos with global=true will be a limit for each consumer, not for the channel"
            }
            Self::MasterLocator => "queue argument x-queue-master-locator will be refused with 541",
            Self::ConsumerTimeoutArgument => {
                "x-consumer-timeout will be refused with 406 on queues that are not quorum queues"
            }
            Self::AckTimeout => "an unacked delivery will time out on quorum queues only, and cancel the consumer",
            Self::NackCounts => "basic.nack with requeue will not count towards the delivery limit of a quorum queue",
            Self::PublishedDeaths => "an x-death header that a client publishes will not go on counting",
            Self::LostReply => "a mandatory reply to a requester that is gone will not be returned",
        }
    }
}

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Lint {
    counts: BTreeMap<(Finding, Name, String), u64>,
}

impl Broker {
    /// How often what was found: the finding, the user, the object.
    pub fn lint_findings(&self) -> impl Iterator<Item = (Finding, &Name, &str, u64)> {
        self.lint.counts.iter().map(|((finding, user, object), count)| (*finding, user, object.as_str(), *count))
    }

    /// Notes a finding, if a newer version is looked out for and treats it differently.
    pub(super) fn lint(&mut self, channel: ChannelKey, finding: Finding, object: &str) {
        let Some(newer) = self.settings.lint_against else { return };
        if !finding.differs(self.settings.profile, newer) {
            return;
        }
        /// Enough to see what is there; a client that makes up names must not fill the memory.
        const FINDINGS_MAX: usize = 10_000;
        let Some(channel) = self.channels.get(channel) else { return };
        let info = &self.connections[channel.connection].info;
        let key = (finding, info.user.name.clone(), object.to_owned());
        if self.lint.counts.len() >= FINDINGS_MAX && !self.lint.counts.contains_key(&key) {
            return;
        }
        let count = self.lint.counts.entry(key).or_insert(0);
        *count += 1;
        if *count == 1 {
            let client = match info.client_properties.get("product") {
                Some(FieldValue::LongString(product)) => String::from_utf8_lossy(product).into_owned(),
                _ => String::new(),
            };
            tracing::warn!(
                vhost = %self.vhost,
                connection = %info.name,
                user = %info.user.name,
                client,
                object,
                "RabbitMQ {}: {}",
                newer.as_str(),
                finding.advice()
            );
        }
    }
}
