//! Exchanges, queues and bindings that come from definitions instead of a client (management reference 1.11): what is
//! there already is left alone, and a trial finds what would fail before anything changes.

use leveret_protocol::FieldTable;

use super::{Broker, Settings};
use crate::model::error::AmqpError;
use crate::model::exchange::{Binding, Exchange, ExchangeKind, Topology};
use crate::model::ids::Destination;
use crate::model::queue::{Declared, Queue};
use crate::model::quota::NodeQuotas;
use crate::model::record::Name;
use crate::model::timer::Millis;

/// What is to be in a vhost. `at` of each thing is its place in the file, for errors.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub exchanges: Vec<NewExchange>,
    pub queues: Vec<NewQueue>,
    pub bindings: Vec<NewBinding>,
}

impl Contents {
    /// The place of the first thing in the file.
    pub fn first_place(&self) -> &str {
        let exchange = self.exchanges.first().map(|new| &new.at);
        let queue = self.queues.first().map(|new| &new.at);
        let binding = self.bindings.first().map(|new| &new.at);
        exchange.or(queue).or(binding).map_or("$", String::as_str)
    }
}

#[derive(Clone, Debug)]
pub struct NewExchange {
    pub at: String,
    pub name: Name,
    pub kind: ExchangeKind,
    pub durable: bool,
    pub auto_delete: bool,
    pub internal: bool,
    pub arguments: FieldTable,
}

#[derive(Clone, Debug)]
pub struct NewQueue {
    pub at: String,
    pub name: Name,
    pub durable: bool,
    pub auto_delete: bool,
    pub arguments: FieldTable,
}

#[derive(Clone, Debug)]
pub struct NewBinding {
    pub at: String,
    pub source: Name,
    pub destination: Name,
    /// Else to an exchange.
    pub to_queue: bool,
    pub routing_key: String,
    pub arguments: FieldTable,
}

/// What cannot be made of some contents.
#[derive(Debug)]
pub struct ImportError {
    /// The place of the thing in the file.
    pub at: String,
    /// As a client would be told.
    pub reason: String,
}

impl Broker {
    /// Whether [`Self::import`] would succeed. Changes nothing.
    ///
    /// # Errors
    /// The first thing that cannot be made.
    pub fn check_import(&self, contents: &Contents, now: Millis) -> Result<(), ImportError> {
        // Counts of its own, which begin where the node's are.
        let node = NodeQuotas {
            channels: self.settings.node.channels.clone(),
            queues: self.settings.node.queues.without(self.queues.len()),
            exchanges: self.settings.node.exchanges.without(self.topology.len()),
            ..NodeQuotas::default()
        };
        let settings = Settings { persistent: false, lint_against: None, node, ..self.settings.clone() };
        let mut trial = Broker::new(self.vhost.clone(), settings, 0, [0; 32]);
        for (_, exchange) in self.topology.iter() {
            if trial.topology.find(&exchange.name).is_none() {
                trial.topology.declare(exchange.clone());
            }
        }
        for queue in self.queues.values() {
            trial.insert_queue(trial.new_queue(declared(queue), now));
        }
        trial.import(contents, now)
    }

    /// Makes what is not there yet.
    ///
    /// # Errors
    /// The first thing that cannot be made; those before it are.
    pub fn import(&mut self, contents: &Contents, now: Millis) -> Result<(), ImportError> {
        for new in &contents.exchanges {
            self.import_exchange(new).map_err(|error| failed(&new.at, &error))?;
        }
        for new in &contents.queues {
            self.import_queue(new, now).map_err(|error| failed(&new.at, &error))?;
        }
        for new in &contents.bindings {
            self.import_binding(new, now).map_err(|error| failed(&new.at, &error))?;
        }
        self.update_shares();
        Ok(())
    }

    fn import_exchange(&mut self, new: &NewExchange) -> Result<(), AmqpError> {
        if self.topology.find(&new.name).is_some() {
            return Ok(());
        }
        self.check_exchange_limit(&self.exchange_resource(&new.name))?;
        Topology::validate_declare(new.kind, &new.arguments).map_err(AmqpError::Precondition)?;
        self.insert_exchange(Exchange {
            name: new.name.clone(),
            kind: new.kind,
            durable: new.durable,
            auto_delete: new.auto_delete,
            internal: new.internal,
            alternate: Exchange::alternate_of(&new.arguments),
            arguments: new.arguments.clone(),
        });
        Ok(())
    }

    fn import_queue(&mut self, new: &NewQueue, now: Millis) -> Result<(), AmqpError> {
        if self.queues_by_name.contains_key(&new.name) {
            return Ok(());
        }
        let arguments = self.with_default_type(&new.arguments, new.durable && !new.auto_delete);
        self.create_queue(new.name.clone(), arguments, (new.durable, new.auto_delete), None, now)?;
        Ok(())
    }

    fn import_binding(&mut self, new: &NewBinding, now: Millis) -> Result<(), AmqpError> {
        let exchange = |name: &Name| {
            let found = self.topology.find(name);
            found.ok_or_else(|| AmqpError::NotFound(self.exchange_resource(name)))
        };
        let source = exchange(&new.source)?;
        let destination = if new.to_queue {
            let found = self.queues_by_name.get(&new.destination);
            let found = found.ok_or_else(|| AmqpError::NotFound(self.queue_resource(&new.destination)))?;
            Destination::Queue(*found)
        } else {
            Destination::Exchange(exchange(&new.destination)?)
        };
        let binding = Binding::new(source, destination, new.routing_key.as_bytes(), new.arguments.clone());
        self.add_binding(binding, now)
    }
}

fn failed(at: &str, error: &AmqpError) -> ImportError {
    ImportError { at: at.to_owned(), reason: error.explanation() }
}

/// A queue as it was declared.
fn declared(queue: &Queue) -> Declared {
    Declared {
        name: queue.name.clone(),
        queue_type: queue.queue_type,
        durable: queue.durable,
        auto_delete: queue.auto_delete,
        arguments: queue.arguments.clone(),
        settings: (*queue.declared).clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::quota::Quota;

    fn queue(name: &str) -> NewQueue {
        let (at, arguments) = (format!("$.{name}"), FieldTable::new());
        NewQueue { at, name: name.into(), durable: true, auto_delete: false, arguments }
    }

    fn binding(source: &str, destination: &str) -> NewBinding {
        NewBinding {
            at: "$.b".into(),
            source: source.into(),
            destination: destination.into(),
            to_queue: true,
            routing_key: "k".into(),
            arguments: FieldTable::new(),
        }
    }

    fn broker(settings: Settings) -> Broker {
        Broker::new(Name::from("/"), settings, 0, [0; 32])
    }

    #[test]
    fn what_is_there_stays_and_a_trial_changes_nothing() {
        let mut broker = broker(Settings::default());
        broker.import(&Contents { queues: vec![queue("a")], ..Contents::default() }, 0).unwrap();
        let more = Contents {
            queues: vec![NewQueue { durable: false, ..queue("a") }, queue("b")],
            bindings: vec![binding("amq.direct", "a"), binding("amq.direct", "b"), binding("amq.direct", "b")],
            ..Contents::default()
        };
        broker.check_import(&more, 0).unwrap();
        assert!(broker.queue("b").is_none());
        broker.import(&more, 0).unwrap();
        assert!(broker.queue("b").is_some() && broker.queue("a").unwrap().durable);
    }

    #[test]
    fn a_trial_names_the_first_thing_that_cannot_be() {
        let broker = broker(Settings { queues_max: Some(2), ..Settings::default() });
        let check = |contents: Contents| {
            let error = broker.check_import(&contents, 0).unwrap_err();
            (error.at, error.reason)
        };
        let bindings = vec![binding("amq.direct", "gone")];
        let found = check(Contents { bindings, ..Contents::default() });
        assert_eq!(found, ("$.b".into(), "no queue 'gone' in vhost '/'".into()));
        let (at, _) = check(Contents { queues: vec![queue("a"), queue("b"), queue("c")], ..Contents::default() });
        assert_eq!(at, "$.c", "the limit of the vhost counts in a trial too");
        let arguments = FieldTable::from_iter([("x-max-length", "ten".into())]);
        let (at, _) = check(Contents { queues: vec![NewQueue { arguments, ..queue("a") }], ..Contents::default() });
        assert_eq!(at, "$.a");
        assert_eq!(broker.queues().count(), 0);
    }

    #[test]
    fn a_trial_leaves_the_counts_of_the_node_alone() {
        let node = NodeQuotas { queues: Quota::new(Some(2)), ..NodeQuotas::default() };
        let mut broker = broker(Settings { node: node.clone(), ..Settings::default() });
        let two = Contents { queues: vec![queue("a"), queue("b")], ..Contents::default() };
        broker.check_import(&two, 0).unwrap();
        assert_eq!(node.queues.used(), 0);
        broker.import(&two, 0).unwrap();
        assert_eq!(node.queues.used(), 2);
        let three = Contents { queues: vec![queue("a"), queue("c")], ..Contents::default() };
        assert_eq!(broker.check_import(&three, 0).unwrap_err().at, "$.c");
        assert_eq!(node.queues.used(), 2);
    }
}
