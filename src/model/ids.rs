//! The model's ids. All are indices with a generation: a stale one finds nothing rather than a stranger.

slotmap::new_key_type! {
    /// A queue of one vhost.
    pub struct QueueKey;
    /// An exchange of one vhost.
    pub struct ExchangeKey;
    /// An open connection of one vhost.
    pub struct ConnectionKey;
}

/// A channel number, 1 to 65535, as the client chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u16);

/// Where a binding leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    Queue(QueueKey),
    Exchange(ExchangeKey),
}
