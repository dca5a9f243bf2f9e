//! Declaring, binding, deleting: the checks in their order, and the texts (§4, §5, §6).

use leveret_protocol::{FieldTable, FieldValue, ReplyCode, basic, exchange, queue};

use super::queue::Queue;
use super::{Binding, Exchange, Outcome, Reference, fault, of_exchange, of_queue};

type At = (usize, u16);

/// Arguments that are compared on redeclaration, in that order (§5.3).
const COMPARED: [&str; 9] = [
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-single-active-consumer",
];

impl Reference {
    fn find_exchange(&self, name: &str) -> Option<&Exchange> {
        self.exchanges.iter().find(|exchange| exchange.name == name)
    }

    /// §4.2
    pub(super) fn exchange_declare(&mut self, at: At, declare: &exchange::Declare<'_>) -> Outcome {
        let name = declare.exchange;
        let existing = self.find_exchange(name);
        if declare.passive {
            if name.is_empty() {
                return fault(ReplyCode::AccessRefused, "operation not permitted on the default exchange");
            }
            if existing.is_none() {
                return fault(ReplyCode::NotFound, format!("no {}", of_exchange(name)));
            }
        } else if !["direct", "fanout", "topic", "headers"].contains(&declare.type_) {
            return fault(ReplyCode::PreconditionFailed, format!("unknown exchange type '{}'", declare.type_));
        } else if name.is_empty() {
            return fault(ReplyCode::AccessRefused, "operation not permitted on the default exchange");
        } else if let Some(existing) = existing {
            let resource = of_exchange(name);
            same(&resource, "type", declare.type_, &existing.kind)?;
            same(&resource, "durable", declare.durable, existing.durable)?;
            same(&resource, "auto_delete", declare.auto_delete, existing.auto_delete)?;
            same(&resource, "internal", declare.internal, existing.internal)?;
            same_argument(&resource, "alternate-exchange", &declare.arguments, &existing.arguments)?;
        } else if name.starts_with("amq.") {
            let text = format!("exchange name '{name}' contains reserved prefix 'amq.*'");
            return fault(ReplyCode::AccessRefused, text);
        } else {
            self.exchanges.push(Exchange {
                name: name.to_owned(),
                kind: declare.type_.to_owned(),
                durable: declare.durable,
                auto_delete: declare.auto_delete,
                internal: declare.internal,
                arguments: declare.arguments.clone(),
            });
        }
        self.reply(at, exchange::DeclareOk {}.into());
        Ok(())
    }

    /// §4.3
    pub(super) fn exchange_delete(&mut self, at: At, delete: &exchange::Delete<'_>) -> Outcome {
        let name = delete.exchange;
        if name.is_empty() {
            return fault(ReplyCode::AccessRefused, "operation not permitted on the default exchange");
        }
        if name.starts_with("amq.") {
            return fault(ReplyCode::AccessRefused, format!("deletion of system {} not allowed", of_exchange(name)));
        }
        if self.find_exchange(name).is_some() {
            if delete.if_unused && self.bindings.iter().any(|binding| binding.source == name) {
                return fault(ReplyCode::PreconditionFailed, format!("{} in use", of_exchange(name)));
            }
            self.delete_exchange(name);
        }
        self.reply(at, exchange::DeleteOk {}.into());
        Ok(())
    }

    /// §6, of queues and exchanges.
    pub(super) fn bind(
        &mut self,
        at: At,
        source: &str,
        to_queue: bool,
        destination: &str,
        key: &str,
        arguments: &FieldTable,
    ) -> Outcome {
        if source.is_empty() || (!to_queue && destination.is_empty()) {
            return fault(ReplyCode::AccessRefused, "operation not permitted on the default exchange");
        }
        let Some(from) = self.find_exchange(source) else {
            return fault(ReplyCode::NotFound, format!("no {}", of_exchange(source)));
        };
        let of_headers = from.kind == "headers";
        if to_queue {
            self.usable_queue(at.0, destination)?;
        } else if self.find_exchange(destination).is_none() {
            return fault(ReplyCode::NotFound, format!("no {}", of_exchange(destination)));
        }
        if of_headers
            && let Some(FieldValue::LongString(how)) = arguments.get("x-match")
            && !["all", "any", "all-with-x", "any-with-x"].iter().any(|known| known.as_bytes() == how)
        {
            let how = String::from_utf8_lossy(how);
            let expected = "expected all, any, all-with-x, or any-with-x";
            let text = format!("Invalid x-match field value <<\"{how}\">>; {expected}");
            return fault(ReplyCode::PreconditionFailed, text);
        }
        let binding = binding(source, to_queue, destination, key, arguments);
        if !self.bindings.contains(&binding) {
            self.bindings.push(binding);
        }
        self.reply(at, if to_queue { queue::BindOk {}.into() } else { exchange::BindOk {}.into() });
        Ok(())
    }

    pub(super) fn unbind(
        &mut self,
        at: At,
        source: &str,
        to_queue: bool,
        destination: &str,
        key: &str,
        arguments: &FieldTable,
    ) -> Outcome {
        if source.is_empty() || (!to_queue && destination.is_empty()) {
            return fault(ReplyCode::AccessRefused, "operation not permitted on the default exchange");
        }
        let binding = binding(source, to_queue, destination, key, arguments);
        if self.bindings.contains(&binding) {
            if to_queue {
                self.usable_queue(at.0, destination)?;
            }
            self.remove_bindings(|other| *other == binding);
        }
        self.reply(at, if to_queue { queue::UnbindOk {}.into() } else { exchange::UnbindOk {}.into() });
        Ok(())
    }

    /// The queue's id, if it is there and not another connection's.
    pub(super) fn usable_queue(&self, connection: usize, name: &str) -> Result<u64, super::Fault> {
        match self.queues.iter().find(|queue| queue.name == name) {
            None => {
                let text = format!("no {}", of_queue(name));
                Err(super::Fault { code: ReplyCode::NotFound, text })
            }
            Some(queue) if queue.owner.is_some_and(|owner| owner != connection) => Err(locked(name)),
            Some(queue) => Ok(queue.id),
        }
    }

    /// §5.2 to §5.4
    pub(super) fn queue_declare(&mut self, at: At, declare: &queue::Declare<'_>) -> Outcome {
        let name = declare.queue;
        let (now, id) = (self.now, self.next_id());
        let queue = if declare.passive {
            let id = self.usable_queue(at.0, name)?;
            self.queue(id).expect("it is there")
        } else if name.starts_with("amq.") {
            let text = format!("queue name '{name}' contains reserved prefix 'amq.*'");
            return fault(ReplyCode::AccessRefused, text);
        } else if let Some(queue) = self.queues.iter_mut().find(|queue| queue.name == name) {
            if queue.owner != declare.exclusive.then_some(at.0) {
                return Err(locked(name));
            }
            let resource = of_queue(name);
            if !declare.exclusive {
                same(&resource, "durable", declare.durable, queue.durable)?;
            }
            same(&resource, "auto_delete", declare.auto_delete, queue.auto_delete)?;
            for argument in COMPARED {
                same_argument(&resource, argument, &declare.arguments, &queue.arguments)?;
            }
            queue
        } else {
            check_arguments(name, &declare.arguments)?;
            self.queues.push(Queue {
                id,
                name: name.to_owned(),
                durable: declare.durable && !declare.exclusive,
                owner: declare.exclusive.then_some(at.0),
                auto_delete: declare.auto_delete,
                arguments: declare.arguments.clone(),
                ready: Vec::new(),
                consumers: Vec::new(),
                active: None,
                last_used: now,
                places: 0,
            });
            self.queues.last_mut().expect("just pushed")
        };
        queue.last_used = now;
        let (message_count, consumer_count) = (queue.ready.len() as u32, queue.consumers.len() as u32);
        self.channel(at).last_queue = name.to_owned();
        self.reply(at, queue::DeclareOk { queue: name, message_count, consumer_count }.into());
        Ok(())
    }

    /// §5.7
    pub(super) fn queue_purge(&mut self, at: At, purge: &queue::Purge<'_>) -> Outcome {
        let id = self.usable_queue(at.0, purge.queue)?;
        let queue = self.queue(id).expect("it is there");
        let message_count = std::mem::take(&mut queue.ready).len() as u32;
        self.reply(at, queue::PurgeOk { message_count }.into());
        Ok(())
    }

    /// §5.6
    pub(super) fn queue_delete(&mut self, at: At, delete: &queue::Delete<'_>) -> Outcome {
        let mut message_count = 0;
        if self.queues.iter().any(|queue| queue.name == delete.queue) {
            let id = self.usable_queue(at.0, delete.queue)?;
            let queue = self.queue(id).expect("it is there");
            message_count = queue.ready.len() as u32;
            if delete.if_empty && message_count > 0 {
                return fault(ReplyCode::PreconditionFailed, format!("{} not empty", of_queue(delete.queue)));
            }
            if delete.if_unused && !queue.consumers.is_empty() {
                return fault(ReplyCode::PreconditionFailed, format!("{} in use", of_queue(delete.queue)));
            }
            self.delete_queue(id);
        }
        self.reply(at, queue::DeleteOk { message_count }.into());
        Ok(())
    }

    /// The queue goes, with its messages and bindings; its consumers are told (§13.2).
    pub(super) fn delete_queue(&mut self, id: u64) {
        let index = self.queues.iter().position(|queue| queue.id == id).expect("it is there");
        let queue = self.queues.remove(index);
        for consumer in queue.consumers {
            let cancel = basic::Cancel { consumer_tag: &consumer.tag, no_wait: true };
            self.send(consumer.connection, consumer.channel, cancel.into());
        }
        self.remove_bindings(|binding| binding.to_queue && binding.destination == queue.name);
    }
}

fn locked(name: &str) -> super::Fault {
    let text = format!(
        "cannot obtain exclusive access to locked {}. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration.",
        of_queue(name)
    );
    super::Fault { code: ReplyCode::ResourceLocked, text }
}

fn binding(source: &str, to_queue: bool, destination: &str, key: &str, arguments: &FieldTable) -> Binding {
    let mut arguments = arguments.clone();
    arguments.0.sort_by(|a, b| a.0.cmp(&b.0));
    let (source, destination, key) = (source.to_owned(), destination.to_owned(), key.to_owned());
    Binding { source, to_queue, destination, key, arguments }
}

fn same<T: PartialEq + std::fmt::Display>(resource: &str, name: &str, new: T, current: T) -> Outcome {
    if new == current {
        return Ok(());
    }
    let text = format!("inequivalent arg '{name}' for {resource}: received '{new}' but current is '{current}'");
    fault(ReplyCode::PreconditionFailed, text)
}

fn same_argument(resource: &str, name: &str, new: &FieldTable, current: &FieldTable) -> Outcome {
    let plain = |value: &FieldValue| match value {
        FieldValue::LongString(text) => String::from_utf8_lossy(text).into_owned(),
        FieldValue::I32(number) => number.to_string(),
        FieldValue::Bool(on) => on.to_string(),
        other => panic!("the reference does not show {other:?}"),
    };
    let typed = |value: &FieldValue| format!("the value '{}' of type '{}'", plain(value), value.type_name());
    let (received, current) = match (new.get(name), current.get(name)) {
        (new, current) if new == current => return Ok(()),
        (Some(new), Some(current)) => (format!("'{}'", plain(new)), format!("'{}'", plain(current))),
        (new, current) => (new.map_or("none".to_owned(), typed), current.map_or("none".to_owned(), typed)),
    };
    let text = format!("inequivalent arg '{name}' for {resource}: received {received} but current is {current}");
    fault(ReplyCode::PreconditionFailed, text)
}

/// §5.5: the values that scripts give.
fn check_arguments(name: &str, arguments: &FieldTable) -> Outcome {
    for argument in COMPARED {
        let Some(value) = arguments.get(argument) else { continue };
        let reason = match (argument, value) {
            ("x-expires", FieldValue::I32(0)) => "{value_zero,0}".to_owned(),
            (
                "x-expires" | "x-message-ttl" | "x-max-length" | "x-max-length-bytes" | "x-max-priority",
                FieldValue::I32(n),
            ) if *n < 0 => {
                format!("{{value_negative,{n}}}")
            }
            ("x-max-priority", FieldValue::I32(n)) if *n > 255 => format!("{{max_value_exceeded,{n}}}"),
            ("x-overflow", FieldValue::LongString(text))
                if !["drop-head", "reject-publish", "reject-publish-dlx"]
                    .iter()
                    .any(|known| known.as_bytes() == text) =>
            {
                "invalid_overflow".to_owned()
            }
            ("x-dead-letter-routing-key", _) if arguments.get("x-dead-letter-exchange").is_none() => {
                "routing_key_but_no_dlx_defined".to_owned()
            }
            _ => continue,
        };
        let text = format!("invalid arg '{argument}' for {}: {reason}", of_queue(name));
        return fault(ReplyCode::PreconditionFailed, text);
    }
    Ok(())
}
