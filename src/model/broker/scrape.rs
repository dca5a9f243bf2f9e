//! What metrics show of a vhost: sums and figures of single queues, read in slices so that nobody waits long.

use super::{Broker, BrokerStats};
use crate::model::arguments::QueueType;
use crate::model::queue::{Queue, QueueStats};
use crate::model::record::Name;

/// What happens to messages that a queue gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeadLettering {
    Disabled,
    AtMostOnce,
    AtLeastOnce,
}

/// What global counters tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub queue_type: QueueType,
    pub dead_lettering: DeadLettering,
}

impl Kind {
    fn of(queue: &Queue) -> Self {
        let settings = &queue.settings;
        let dead_lettering = match (&settings.dead_letter_exchange, settings.dead_letters_at_least_once()) {
            (None, _) => DeadLettering::Disabled,
            (Some(_), false) => DeadLettering::AtMostOnce,
            (Some(_), true) => DeadLettering::AtLeastOnce,
        };
        Self { queue_type: queue.queue_type, dead_lettering }
    }
}

const TYPES: [QueueType; 3] = [QueueType::Classic, QueueType::Quorum, QueueType::Stream];
const STRATEGIES: [DeadLettering; 3] = [DeadLettering::Disabled, DeadLettering::AtMostOnce, DeadLettering::AtLeastOnce];

/// Counts of queues, summed by their kind.
#[derive(Clone, Debug, Default)]
pub struct ByKind([[QueueStats; 3]; 3]);

impl ByKind {
    pub(super) fn add(&mut self, queue: &Queue) {
        let Kind { queue_type, dead_lettering } = Kind::of(queue);
        let of_type = TYPES.into_iter().position(|known| known == queue_type).unwrap_or_default();
        self.0[of_type][dead_lettering as usize] += &queue.stats;
    }

    /// Every kind with its counts.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, &QueueStats)> {
        TYPES.into_iter().zip(&self.0).flat_map(|(queue_type, row)| {
            let kind = move |dead_lettering| Kind { queue_type, dead_lettering };
            STRATEGIES.into_iter().map(kind).zip(row)
        })
    }
}

impl std::ops::AddAssign<&Self> for ByKind {
    fn add_assign(&mut self, other: &Self) {
        for (own, more) in self.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            *own += more;
        }
    }
}

/// Figures of one queue at one moment.
#[derive(Clone, Debug)]
pub struct QueueFigures {
    pub name: Name,
    pub queue_type: QueueType,
    pub ready: u64,
    pub unacked: u64,
    pub ready_bytes: u64,
    /// Bytes of memory.
    pub memory: usize,
    pub consumers: usize,
    pub stats: QueueStats,
}

/// Sums over a vhost, but for its queues.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// With what channels that are open have confirmed.
    pub stats: BrokerStats,
    /// Of queues that are deleted.
    pub gone: ByKind,
    pub connections: usize,
    pub channels: usize,
    pub consumers: usize,
    /// Channels that have published.
    pub publishers: usize,
    pub queues: usize,
    pub exchanges: usize,
}

impl Broker {
    pub fn totals(&self) -> Totals {
        let mut stats = self.stats();
        for confirms in self.channels.values().filter_map(|channel| channel.confirms.as_ref()) {
            stats.confirmable += confirms.published();
            stats.confirmed += confirms.published() - confirms.outstanding();
        }
        Totals {
            stats,
            gone: self.gone.clone(),
            connections: self.connections.values().filter(|connection| connection.info.socket.is_some()).count(),
            channels: self.channels.len(),
            consumers: self.consumers.len(),
            publishers: self.channels.values().filter(|channel| channel.has_published()).count(),
            queues: self.queues.len(),
            exchanges: self.topology.len(),
        }
    }

    /// Figures of at most `limit` queues, leaving out the first `skip`; added to `sum` too. A queue that is declared
    /// or deleted between two slices may be missed.
    pub fn queue_figures(&self, skip: usize, limit: usize, sum: &mut ByKind) -> Vec<QueueFigures> {
        let slice = self.queues.values().skip(skip).take(limit);
        slice
            .map(|queue| {
                sum.add(queue);
                QueueFigures {
                    name: queue.name.clone(),
                    queue_type: queue.queue_type,
                    ready: queue.ready_count(),
                    unacked: queue.unacked_count,
                    ready_bytes: queue.ready_bytes(),
                    memory: queue.memory(),
                    consumers: queue.consumers.len(),
                    stats: queue.stats,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use leveret_protocol::{FieldTable, FieldValue, queue};

    use super::super::Settings;
    use super::super::testing::Rig;
    use super::*;

    fn counted(sum: &ByKind) -> Vec<(DeadLettering, u64)> {
        let all = sum.iter().filter(|(_, stats)| stats.entered > 0);
        all.map(|(kind, stats)| (kind.dead_lettering, stats.entered)).collect()
    }

    #[test]
    fn counts_of_a_queue_outlive_it() {
        let mut rig = Rig::new(Settings::default());
        rig.declare("q", FieldTable::new());
        rig.declare("d", FieldTable::from_iter([("x-dead-letter-exchange", FieldValue::from("x"))]));
        for queue in ["q", "q", "d"] {
            rig.publish("", queue, "m");
        }
        rig.publish("", "nowhere", "m");
        let mut sum = ByKind::default();
        assert_eq!(rig.broker.queue_figures(0, 1, &mut sum).len(), 1);
        let figures = rig.broker.queue_figures(1, 10, &mut sum);
        assert_eq!((figures.len(), figures[0].ready), (1, 1));
        let expected = [(DeadLettering::Disabled, 2), (DeadLettering::AtMostOnce, 1)];
        assert_eq!(counted(&sum), expected);
        for queue in ["q", "d"] {
            let delete = queue::Delete { queue, if_unused: false, if_empty: false, no_wait: false };
            rig.send(delete.into());
        }
        let totals = rig.broker.totals();
        assert_eq!(counted(&totals.gone), expected);
        let stats = totals.stats;
        assert_eq!((stats.published, stats.unroutable, stats.returned), (4, 1, 0));
        assert_eq!((stats.queues_declared, stats.queues_created, stats.queues_deleted), (2, 2, 2));
        assert_eq!((totals.queues, totals.channels, totals.publishers), (0, 1, 1));
    }
}
