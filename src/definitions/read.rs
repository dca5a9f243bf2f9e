//! From JSON to [`Definitions`].

use std::collections::BTreeSet;

use leveret_protocol::FieldTable;
use serde_json::Value;

use super::cursor::Cursor;
use super::{
    DefinitionError, Definitions, Located, PermissionDefinition, PolicyDefinition, TopicPermissionDefinition,
    VhostDefinition,
};
use crate::auth::{HashAlgorithm, PasswordHash, Pattern, Permissions, User, UserLimits};
use crate::model::arguments::QueueType;
use crate::model::broker::{NewBinding, NewExchange, NewQueue};
use crate::model::exchange::ExchangeKind;
use crate::model::policy::{ApplyTo, Policy};
use crate::model::record::Name;
use crate::model::vhost::VhostLimits;

type Read<T> = Result<T, DefinitionError>;

/// What a file says of itself.
const HEADER: [&str; 12] = [
    "rabbit_version",
    "rabbitmq_version",
    "product_name",
    "product_version",
    "rabbitmq_definition_format",
    "original_cluster_name",
    "original_vhost_name",
    "explanation",
    "metadata",
    "description",
    "limits",
    "default_queue_type",
];
/// What only the definitions of a whole broker have.
const OF_THE_BROKER: [&str; 5] = ["users", "vhosts", "permissions", "topic_permissions", "global_parameters"];
const OF_VHOSTS: [&str; 5] = ["parameters", "policies", "exchanges", "queues", "bindings"];

/// Reads the definitions of a whole broker.
///
/// # Errors
/// What is wrong, and where.
pub fn read(text: &str) -> Read<Definitions> {
    let json = parse(text)?;
    let mut reader = Reader { of_vhost: None, out: Definitions::default() };
    reader.everything(Cursor::root(&json))?;
    Ok(reader.out)
}

/// Reads definitions into one vhost: it gets all there are, whatever vhost they are of in the file.
///
/// # Errors
/// What is wrong, and where.
pub fn read_vhost(text: &str, vhost: &str) -> Read<Definitions> {
    let json = parse(text)?;
    let mut reader = Reader { of_vhost: Some(Name::from(vhost)), out: Definitions::default() };
    reader.everything(Cursor::root(&json))?;
    Ok(reader.out)
}

fn parse(text: &str) -> Read<Value> {
    serde_json::from_str(text.trim_start_matches('\u{feff}'))
        .map_err(|error| DefinitionError::new(format!("line {}", error.line()), format!("not JSON: {error}")))
}

struct Reader {
    of_vhost: Option<Name>,
    out: Definitions,
}

impl Reader {
    fn everything(&mut self, root: Cursor<'_>) -> Read<()> {
        let known: Vec<&str> = HEADER.into_iter().chain(OF_THE_BROKER).chain(OF_VHOSTS).collect();
        root.note_unknown(&known, &mut self.out.notes)?;
        if self.of_vhost.is_none() {
            self.each(&root, "users", Self::user)?;
            self.each(&root, "vhosts", Self::vhost)?;
            self.each(&root, "permissions", Self::permission)?;
            self.each(&root, "topic_permissions", Self::topic_permission)?;
            self.each(&root, "global_parameters", Self::global_parameter)?;
        } else {
            for name in OF_THE_BROKER.into_iter().filter(|name| root.field(name).is_some_and(|f| !f.is_empty_list())) {
                self.out.notes.push(format!("$.{name} has no effect in the definitions of one vhost"));
            }
        }
        self.each(&root, "policies", |reader, entry| reader.policy(entry, entry, false))?;
        self.each(&root, "parameters", Self::parameter)?;
        self.each(&root, "exchanges", Self::exchange)?;
        self.each(&root, "queues", Self::queue)?;
        self.each(&root, "bindings", Self::binding)
    }

    fn each(&mut self, root: &Cursor<'_>, list: &str, read: impl Fn(&mut Self, &Cursor<'_>) -> Read<()>) -> Read<()> {
        let Some(list) = root.field(list) else { return Ok(()) };
        let mut entries = list.entries()?;
        entries.try_for_each(|entry| read(self, &entry))
    }

    fn user(&mut self, user: &Cursor<'_>) -> Read<()> {
        let known = ["name", "password_hash", "hashing_algorithm", "tags", "limits", "password"];
        user.note_unknown(&known, &mut self.out.notes)?;
        let name = Name::from(user.need("name")?.name()?);
        // Files of RabbitMQ 3.5 and older do not name the algorithm.
        let algorithm = match user.field("hashing_algorithm") {
            Some(field) => HashAlgorithm::parse(field.text()?).ok_or_else(|| {
                let all = HashAlgorithm::ALL.map(HashAlgorithm::name).join(", ");
                field.wrong(format!("expected one of {all}"))
            })?,
            None => HashAlgorithm::Md5,
        };
        let password = match (user.field("password_hash"), user.field("password")) {
            (Some(hash), _) if hash.text()?.is_empty() => None,
            (Some(hash), _) => Some(PasswordHash::from_base64(algorithm, hash.text()?).ok_or_else(|| {
                hash.wrong(format!("expected {} bytes in base64: salt and {}", algorithm.len(), algorithm.name()))
            })?),
            (None, Some(plain)) => {
                return Err(plain.wrong("expected password_hash instead: leveret ctl hash_password makes one"));
            }
            (None, None) => None,
        };
        let tags = user.field("tags").map(|tags| tags.tags()).transpose()?.unwrap_or_default();
        let mut limits = UserLimits::default();
        if let Some(given) = user.field("limits").filter(|limits| !limits.is_empty_list()) {
            given.note_unknown(&["max-connections", "max-channels"], &mut self.out.notes)?;
            limits.max_connections = given.field("max-connections").map(|limit| limit.integer()).transpose()?;
            limits.max_channels = given.field("max-channels").map(|limit| limit.integer()).transpose()?;
        }
        self.out.users.push(User { name, password, tags, limits });
        Ok(())
    }

    fn vhost(&mut self, vhost: &Cursor<'_>) -> Read<()> {
        let known = [
            "name",
            "description",
            "tags",
            "default_queue_type",
            "metadata",
            "limits",
            "tracing",
            "cluster_state",
            "protected_from_deletion",
        ];
        vhost.note_unknown(&known, &mut self.out.notes)?;
        // Old files have at the top what later ones have in `metadata`.
        let metadata = vhost.field("metadata").filter(|metadata| !metadata.is_empty_list());
        let at = metadata.as_ref().unwrap_or(vhost);
        if let Some(metadata) = &metadata {
            let known = ["description", "tags", "default_queue_type", "tracing", "protected_from_deletion"];
            metadata.note_unknown(&known, &mut self.out.notes)?;
        }
        let field = |name| at.field(name).or_else(|| vhost.field(name));
        let description = field("description").map(|text| text.text()).transpose()?.unwrap_or_default().to_owned();
        let tags = field("tags").map(|tags| tags.tags()).transpose()?.unwrap_or_default();
        let default_queue_type = match field("default_queue_type") {
            // What RabbitMQ writes for "not set".
            Some(field) if field.text()? == "undefined" => None,
            Some(field) => {
                Some(queue_type(field.text()?).ok_or_else(|| field.wrong("expected classic, quorum or stream"))?)
            }
            None => None,
        };
        let limits = vhost.field("limits").filter(|limits| !limits.is_empty_list());
        let limits = limits.map(|limits| self.vhost_limits(&limits)).transpose()?;
        let name = Name::from(vhost.need("name")?.name()?);
        self.out.vhosts.push(VhostDefinition { name, description, tags, default_queue_type, limits });
        Ok(())
    }

    fn vhost_limits(&mut self, limits: &Cursor<'_>) -> Read<VhostLimits> {
        limits.note_unknown(&["max-connections", "max-queues"], &mut self.out.notes)?;
        Ok(VhostLimits {
            max_connections: limits.field("max-connections").map(|limit| limit.integer()).transpose()?,
            max_queues: limits.field("max-queues").map(|limit| limit.integer()).transpose()?,
        })
    }

    fn permission(&mut self, permission: &Cursor<'_>) -> Read<()> {
        permission.note_unknown(&["user", "vhost", "configure", "write", "read"], &mut self.out.notes)?;
        let pattern = |name| {
            let field = permission.need(name)?;
            Pattern::new(field.text()?).map_err(|error| field.wrong(error.to_string()))
        };
        let permissions =
            Permissions { configure: pattern("configure")?, write: pattern("write")?, read: pattern("read")? };
        let (user, vhost) = user_and_vhost(permission)?;
        self.out.permissions.push(PermissionDefinition { at: permission.path(), user, vhost, permissions });
        Ok(())
    }

    fn topic_permission(&mut self, permission: &Cursor<'_>) -> Read<()> {
        permission.note_unknown(&["user", "vhost", "exchange", "write", "read"], &mut self.out.notes)?;
        let pattern = |name| {
            let field = permission.need(name)?;
            let text = field.text()?;
            // With names in their places it is checked again; this finds what is no pattern at all.
            Pattern::new(&text.replace(['{', '}'], "")).map_err(|error| field.wrong(error.to_string()))?;
            Ok::<_, DefinitionError>(text.to_owned())
        };
        let (write, read) = (pattern("write")?, pattern("read")?);
        let (user, vhost) = user_and_vhost(permission)?;
        let exchange = Name::from(permission.need("exchange")?.name()?);
        let definition = TopicPermissionDefinition { at: permission.path(), user, vhost, exchange, write, read };
        self.out.topic_permissions.push(definition);
        Ok(())
    }

    fn global_parameter(&mut self, parameter: &Cursor<'_>) -> Read<()> {
        let name = parameter.need("name")?.name()?;
        parameter.need("value")?;
        // These RabbitMQ makes itself.
        if !matches!(name, "cluster_name" | "internal_cluster_id" | "cluster_tags") {
            self.out.notes.push(format!("{parameter}: the global parameter '{name}' has no effect"));
        }
        Ok(())
    }

    /// The vhost of an entry: that which everything is for, or the one it names.
    fn vhost_of(&self, entry: &Cursor<'_>) -> Read<Name> {
        match (&self.of_vhost, entry.field("vhost")) {
            (Some(vhost), _) => Ok(vhost.clone()),
            (None, Some(vhost)) => Ok(Name::from(vhost.name()?)),
            (None, None) => {
                Err(entry.wrong("vhost is missing: definitions of one vhost are imported into a vhost, not as a whole"))
            }
        }
    }

    /// `entry` has the place, `policy` the fields.
    fn policy(&mut self, entry: &Cursor<'_>, policy: &Cursor<'_>, operator: bool) -> Read<()> {
        let known = ["vhost", "name", "pattern", "apply-to", "definition", "priority"];
        policy.note_unknown(&known, &mut self.out.notes)?;
        let vhost = self.vhost_of(entry)?;
        let name = entry.need("name")?.name()?;
        let given = policy.need("definition")?;
        let mut definition = FieldTable::new();
        for (key, value) in given.table()?.iter() {
            let key = key.as_str().unwrap_or_default();
            // Mirrored queues are gone, also from RabbitMQ.
            if key.starts_with("ha-") {
                self.out.notes.push(format!("{given}.{key} has no effect: there is one node, not a cluster"));
            } else {
                definition.insert(key, value.clone());
            }
        }
        if definition.is_empty() && !given.object()?.is_empty() {
            self.out.notes.push(format!("{entry}: the policy '{name}' is left out: nothing of it has an effect"));
            return Ok(());
        }
        let pattern = policy.need("pattern")?;
        let apply_to = match policy.field("apply-to") {
            Some(field) => ApplyTo::parse(field.text()?).ok_or_else(|| {
                field.wrong("expected all, queues, classic_queues, quorum_queues, streams or exchanges")
            })?,
            None => ApplyTo::default(),
        };
        let priority = policy.field("priority").map(|priority| priority.integer()).transpose()?.unwrap_or(0);
        let policy = Policy::new(name, pattern.text()?, definition, priority, apply_to, operator)
            .map_err(|error| policy.wrong(error.0))?;
        self.out.policies.push(PolicyDefinition { at: entry.path(), vhost, operator, policy });
        Ok(())
    }

    fn parameter(&mut self, parameter: &Cursor<'_>) -> Read<()> {
        parameter.note_unknown(&["vhost", "component", "name", "value"], &mut self.out.notes)?;
        let value = parameter.need("value")?;
        match parameter.need("component")?.text()? {
            "operator_policy" => self.policy(parameter, &value, true)?,
            "policy" => self.policy(parameter, &value, false)?,
            "vhost-limits" => {
                let vhost = self.vhost_of(parameter)?;
                if !value.is_empty_list() {
                    let limits = self.vhost_limits(&value)?;
                    self.out.vhost_limits.push(Located { at: parameter.path(), what: (vhost, limits) });
                }
            }
            component => {
                let note = format!("{parameter} has no effect: leveret does not have what '{component}' is for");
                self.out.notes.push(note);
            }
        }
        Ok(())
    }

    fn exchange(&mut self, exchange: &Cursor<'_>) -> Read<()> {
        let known = ["name", "vhost", "type", "durable", "auto_delete", "internal", "arguments", "policy"];
        exchange.note_unknown(&known, &mut self.out.notes)?;
        let vhost = self.vhost_of(exchange)?;
        let name = exchange.need("name")?.name()?;
        let field = exchange.need("type")?;
        let kind = field.text()?;
        let kind = ExchangeKind::parse(kind).ok_or_else(|| field.wrong(format!("unknown exchange type '{kind}'")))?;
        // Those that are there anyway.
        if name.is_empty() || name.starts_with("amq.") {
            return Ok(());
        }
        let new = NewExchange {
            name: Name::from(name),
            kind,
            durable: flag(exchange, "durable", true)?,
            auto_delete: flag(exchange, "auto_delete", false)?,
            internal: flag(exchange, "internal", false)?,
            arguments: arguments(exchange)?,
            at: exchange.path(),
        };
        self.out.contents.entry(vhost).or_default().exchanges.push(new);
        Ok(())
    }

    fn queue(&mut self, queue: &Cursor<'_>) -> Read<()> {
        let known = ["name", "vhost", "durable", "auto_delete", "arguments", "type", "policy", "exclusive"];
        queue.note_unknown(&known, &mut self.out.notes)?;
        let vhost = self.vhost_of(queue)?;
        let name = queue.need("name")?.name()?;
        if name.is_empty() || name.starts_with("amq.") {
            self.out.notes.push(format!("{queue}: the queue '{name}' is left out: such names are the broker's own"));
            return Ok(());
        }
        let mut arguments = arguments(queue)?;
        if arguments.get("x-queue-type").is_none()
            && let Some(field) = queue.field("type")
        {
            let queue_type =
                queue_type(field.text()?).ok_or_else(|| field.wrong("expected classic, quorum or stream"))?;
            if queue_type != QueueType::Classic {
                arguments.insert("x-queue-type", queue_type.as_str());
            }
        }
        let new = NewQueue {
            name: Name::from(name),
            durable: flag(queue, "durable", true)?,
            auto_delete: flag(queue, "auto_delete", false)?,
            arguments,
            at: queue.path(),
        };
        self.out.contents.entry(vhost).or_default().queues.push(new);
        Ok(())
    }

    fn binding(&mut self, binding: &Cursor<'_>) -> Read<()> {
        let known =
            ["source", "vhost", "destination", "destination_type", "routing_key", "arguments", "properties_key"];
        binding.note_unknown(&known, &mut self.out.notes)?;
        let vhost = self.vhost_of(binding)?;
        let source = binding.need("source")?.name()?;
        // Bindings of the default exchange are there with their queues.
        if source.is_empty() {
            return Ok(());
        }
        let kind = binding.need("destination_type")?;
        let to_queue = match kind.text()? {
            "queue" => true,
            "exchange" => false,
            _ => return Err(kind.wrong("expected queue or exchange")),
        };
        let new = NewBinding {
            source: Name::from(source),
            destination: Name::from(binding.need("destination")?.name()?),
            to_queue,
            routing_key: binding.field("routing_key").map(|key| key.name()).transpose()?.unwrap_or_default().to_owned(),
            arguments: arguments(binding)?,
            at: binding.path(),
        };
        self.out.contents.entry(vhost).or_default().bindings.push(new);
        Ok(())
    }
}

impl Definitions {
    /// The vhosts that the file needs: those that must be there, or come with it.
    pub fn vhosts_named(&self) -> BTreeSet<&Name> {
        let all = self.contents.keys().chain(self.policies.iter().map(|policy| &policy.vhost));
        all.chain(self.permissions.iter().map(|permission| &permission.vhost)).collect()
    }
}

fn user_and_vhost(entry: &Cursor<'_>) -> Read<(Name, Name)> {
    Ok((Name::from(entry.need("user")?.name()?), Name::from(entry.need("vhost")?.name()?)))
}

fn flag(entry: &Cursor<'_>, name: &str, default: bool) -> Read<bool> {
    entry.field(name).map_or(Ok(default), |flag| flag.boolean())
}

fn arguments(entry: &Cursor<'_>) -> Read<FieldTable> {
    entry.field("arguments").map_or_else(|| Ok(FieldTable::new()), |arguments| arguments.table())
}

/// Also by the names of RabbitMQ's modules.
fn queue_type(text: &str) -> Option<QueueType> {
    let types = [QueueType::Classic, QueueType::Quorum, QueueType::Stream];
    QueueType::parse(text).or_else(|| types.into_iter().find(|queue_type| queue_type.internal_name() == text))
}
