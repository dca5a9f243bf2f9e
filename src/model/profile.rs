//! Which RabbitMQ version we behave like where versions differ: one table of all the differences.

/// A RabbitMQ version whose behaviour can be chosen with `--compat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    V3_13,
    V4_0,
    V4_1,
    #[default]
    V4_2,
    V4_3,
}

impl Profile {
    pub const ALL: [Self; 5] = [Self::V3_13, Self::V4_0, Self::V4_1, Self::V4_2, Self::V4_3];

    /// Reads `3.13`, `4.0` … as on the command line.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V3_13 => "3.13",
            Self::V4_0 => "4.0",
            Self::V4_1 => "4.1",
            Self::V4_2 => "4.2",
            Self::V4_3 => "4.3",
        }
    }

    /// `version` in server-properties: clients parse it (kombu decides on global qos by it).
    pub fn server_version(self) -> &'static str {
        match self {
            Self::V3_13 => "3.13.7",
            Self::V4_0 => "4.0.9",
            Self::V4_1 => "4.1.8",
            Self::V4_2 => "4.2.6",
            Self::V4_3 => "4.3.6",
        }
    }

    /// Largest body in bytes unless configured.
    pub fn max_message_size(self) -> u64 {
        if self == Self::V3_13 { 128 << 20 } else { 16 << 20 }
    }

    /// Smallest frame_max that a client may choose (§3.4).
    pub fn frame_max_min(self) -> u32 {
        if self >= Self::V4_1 { 8192 } else { 4096 }
    }

    /// `basic.qos` with `global` sets a limit for the whole channel; later versions read it as not global.
    pub fn has_channel_prefetch(self) -> bool {
        self < Self::V4_3
    }

    /// Deliveries of every queue type time out, by closing the channel; later only quorum queues' do,
    /// by cancelling the consumer (§9.5).
    pub fn ack_timeout_closes_channel(self) -> bool {
        self < Self::V4_3
    }

    /// How often a quorum queue delivers a message again before it gives up, unless set.
    pub fn default_delivery_limit(self) -> Option<u64> {
        if self == Self::V3_13 { None } else { Some(20) }
    }

    /// Every return counts towards a quorum queue's delivery limit; later only failures do: reject, and
    /// the loss of a channel or connection (§12.1).
    pub fn every_return_counts(self) -> bool {
        self < Self::V4_3
    }

    /// Deliveries of a quorum queue carry `x-acquired-count`.
    pub fn has_acquired_count(self) -> bool {
        self >= Self::V4_3
    }

    /// How quorum queues treat priorities.
    pub fn quorum_priorities(self) -> QuorumPriorities {
        match self {
            Self::V3_13 => QuorumPriorities::None,
            Self::V4_0 | Self::V4_1 | Self::V4_2 => QuorumPriorities::HighAndNormal,
            Self::V4_3 => QuorumPriorities::Strict,
        }
    }

    /// The arguments of delayed retry and of a consumer's own timeout are known.
    pub fn has_delayed_retry(self) -> bool {
        self >= Self::V4_3
    }

    /// An `x-death` header that a publisher sends goes on counting.
    pub fn trusts_published_deaths(self) -> bool {
        self == Self::V3_13
    }

    /// A dead-lettered message that was refused with basic.reject says redelivered in its new queue.
    pub fn dead_letters_keep_redelivered(self) -> bool {
        self >= Self::V4_3
    }

    /// A mandatory reply to a requester that is gone comes back as unroutable (§13.1).
    pub fn returns_lost_replies(self) -> bool {
        self <= Self::V4_1
    }

    /// Direct replies have the next delivery tag but do not use it up, and count as unroutable even when they
    /// reach somebody (§13.1).
    pub fn has_old_replies(self) -> bool {
        self <= Self::V4_1
    }

    /// How a text names the type of a quorum queue.
    pub fn quorum_in_texts(self) -> &'static str {
        if self >= Self::V4_3 { "<<\"quorum\">>" } else { "quorum" }
    }

    /// `x-consumer-timeout` on a classic queue is checked; `x-initial-cluster-size` and
    /// `x-stream-filter-size-bytes` are known as arguments of streams only.
    pub fn knows_newer_arguments(self) -> bool {
        self >= Self::V4_1
    }

    /// `x-queue-mode` must be a known mode.
    pub fn checks_queue_mode(self) -> bool {
        self <= Self::V4_0
    }

    /// `x-queue-version` 1 is accepted.
    pub fn has_queue_version_1(self) -> bool {
        self < Self::V4_3
    }

    /// `x-max-age` is compared as the time it means, not as it is written.
    pub fn keeps_max_age_in_ms(self) -> bool {
        self >= Self::V4_3
    }

    /// Most `#` words that the key of a binding to a topic exchange may have.
    pub fn topic_hashes_max(self) -> usize {
        if self >= Self::V4_3 { 2 } else { usize::MAX }
    }

    /// A passive declare needs any one permission (§5.4); before, none.
    pub fn passive_declare_needs_access(self) -> bool {
        self >= Self::V4_3
    }

    /// A binding of a reply-to name is refused as such (403); before, there is no such queue.
    pub fn knows_reply_queues_in_bindings(self) -> bool {
        self >= Self::V4_3
    }

    /// `x-queue-master-locator` is refused (541).
    pub fn denies_master_locator(self) -> bool {
        self >= Self::V4_3
    }

    /// A quorum queue redeclared without a type is told `received none` instead of `received 'classic'` (§5.3).
    pub fn renders_missing_type_as_none(self) -> bool {
        self == Self::V3_13
    }
}

/// How quorum queues treat the priority of messages (§12.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuorumPriorities {
    None,
    /// Above 4 is high; two high ones go out for each other one.
    HighAndNormal,
    /// 32 levels; highest first.
    Strict,
}
