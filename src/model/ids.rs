//! The model's ids. All are indices with a generation: a stale one finds nothing rather than a stranger.

slotmap::new_key_type! {
    /// A queue of one vhost.
    pub struct QueueKey;
    /// An exchange of one vhost.
    pub struct ExchangeKey;
    /// An open connection of one vhost.
    pub struct ConnectionKey;
    /// An open channel of any connection of one vhost.
    pub struct ChannelKey;
    /// A consumer of any channel of one vhost.
    pub struct ConsumerKey;
}

/// Who holds messages that the store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    Queue(QueueKey),
    /// One that delays messages.
    Exchange(ExchangeKey),
}

impl From<QueueKey> for Holder {
    fn from(key: QueueKey) -> Self {
        Self::Queue(key)
    }
}

/// Where a binding leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    Queue(QueueKey),
    Exchange(ExchangeKey),
}
