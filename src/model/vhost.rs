//! What is known of a vhost besides its contents (§15.2, §14.4), and the record that it is kept in.

use bytes::Bytes;
use leveret_protocol::{FieldTable, FieldValue};

use super::arguments::QueueType;
use super::profile::Profile;
use super::record::{DefinitionKey, DefinitionKind, Name};
use crate::auth::RecordError;
use crate::auth::record::{decode_record, encode_record};

const RECORD: &str = "vhost";

/// A vhost's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vhost {
    pub name: Name,
    /// Which range of queue ids is its own in the store; from 1, never used again.
    pub number: u64,
    pub description: String,
    pub tags: Vec<String>,
    /// The type of queues whose declare does not say; `None`: the node's default.
    pub default_queue_type: Option<QueueType>,
    /// The RabbitMQ version to behave like; `None`: the node's.
    pub profile: Option<Profile>,
    pub limits: VhostLimits,
    /// It cannot be deleted.
    pub protected: bool,
}

/// Limits as they were set: `None` and negative numbers are none, 0 allows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostLimits {
    pub max_connections: Option<i64>,
    pub max_queues: Option<i64>,
}

impl Vhost {
    /// A vhost with nothing set.
    pub fn new(name: Name, number: u64) -> Self {
        Self {
            name,
            number,
            description: String::new(),
            tags: Vec::new(),
            default_queue_type: None,
            profile: None,
            limits: VhostLimits::default(),
            protected: false,
        }
    }

    /// Where the store keeps this vhost.
    pub fn key(name: &str) -> DefinitionKey {
        let name = Bytes::copy_from_slice(name.as_bytes());
        DefinitionKey { kind: DefinitionKind::Vhost, vhost: Name::from(""), name }
    }

    /// The record for [`Vhost::key`]; it leaves out the name.
    pub fn encode(&self) -> Bytes {
        let mut table = FieldTable::new();
        table.insert("number", FieldValue::I64(self.number.cast_signed()));
        table.insert("description", self.description.as_str());
        let tags: Vec<FieldValue> = self.tags.iter().map(|tag| tag.as_str().into()).collect();
        table.insert("tags", tags);
        if let Some(queue_type) = self.default_queue_type {
            table.insert("default_queue_type", queue_type.as_str());
        }
        if let Some(profile) = self.profile {
            table.insert("compat", profile.as_str());
        }
        for (field, limit) in [("max_connections", self.limits.max_connections), ("max_queues", self.limits.max_queues)]
        {
            if let Some(limit) = limit {
                table.insert(field, FieldValue::I64(limit));
            }
        }
        if self.protected {
            table.insert("protected", FieldValue::Bool(true));
        }
        encode_record(&table)
    }

    /// # Errors
    /// A record that no `encode` of this or an older version wrote.
    pub fn decode(name: Name, record: &[u8]) -> Result<Self, RecordError> {
        // The first records were the number alone, too small for its first byte to be a version.
        if let Ok(number) = <[u8; 8]>::try_from(record)
            && number[0] == 0
        {
            return Ok(Self::new(name, u64::from_be_bytes(number)));
        }
        let table = decode_record(RECORD, record)?;
        let number = required(&table, "number", FieldValue::as_integer)?;
        let tags = required(&table, "tags", FieldValue::as_array)?.iter();
        let tags = tags.map(|tag| tag.as_str().map(str::to_owned).ok_or(unreadable("tags")));
        let integer = |value: &FieldValue| value.as_integer().and_then(|limit| i64::try_from(limit).ok());
        Ok(Self {
            name,
            number: u64::try_from(number).map_err(|_| unreadable("number"))?,
            description: required(&table, "description", FieldValue::as_str)?.to_owned(),
            tags: tags.collect::<Result<_, _>>()?,
            default_queue_type: optional(&table, "default_queue_type", |v| v.as_str().and_then(QueueType::parse))?,
            profile: optional(&table, "compat", |value| value.as_str().and_then(Profile::parse))?,
            limits: VhostLimits {
                max_connections: optional(&table, "max_connections", integer)?,
                max_queues: optional(&table, "max_queues", integer)?,
            },
            protected: optional(&table, "protected", FieldValue::as_bool)?.unwrap_or(false),
        })
    }
}

fn unreadable(field: &'static str) -> RecordError {
    RecordError::Field { record: RECORD, field }
}

fn required<'t, T>(
    table: &'t FieldTable,
    field: &'static str,
    read: impl FnOnce(&'t FieldValue) -> Option<T>,
) -> Result<T, RecordError> {
    table.get(field).and_then(read).ok_or(unreadable(field))
}

/// `None` if the field is absent; what is there must be readable.
fn optional<'t, T>(
    table: &'t FieldTable,
    field: &'static str,
    read: impl FnOnce(&'t FieldValue) -> Option<T>,
) -> Result<Option<T>, RecordError> {
    table.get(field).map(|value| read(value).ok_or(unreadable(field))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s15_2_vhosts_survive_their_record() {
        let bare = Vhost::new("a".into(), 1);
        let full = Vhost {
            description: "für Tests".into(),
            tags: vec!["ci".into(), "ünusual".into()],
            default_queue_type: Some(QueueType::Quorum),
            profile: Some(Profile::V3_13),
            limits: VhostLimits { max_connections: Some(-1), max_queues: Some(0) },
            protected: true,
            ..Vhost::new("a".into(), (1 << 24) - 1)
        };
        for vhost in [bare, full] {
            assert_eq!(Vhost::decode("a".into(), &vhost.encode()), Ok(vhost));
        }
        let key = Vhost::key("a");
        assert_eq!((key.kind, &*key.vhost, &key.name[..]), (DefinitionKind::Vhost, "", &b"a"[..]));
    }

    #[test]
    fn s15_2_the_record_of_the_first_versions_is_read() {
        let old = 7_u64.to_be_bytes();
        assert_eq!(Vhost::decode("/".into(), &old), Ok(Vhost::new("/".into(), 7)));
    }

    #[test]
    fn unreadable_records_say_what_is_wrong() {
        let decode = |record: &[u8]| Vhost::decode("a".into(), record).unwrap_err().to_string();
        assert_eq!(decode(b""), "vhost record is damaged");
        assert_eq!(decode(&[9; 8]), "vhost record of version 9, written by a newer leveret: start that one");
        assert_eq!(decode(&encode_record(&FieldTable::new())), "vhost record has no readable field 'number'");
        let mut table = decode_record(RECORD, &Vhost::new("a".into(), 1).encode()).unwrap();
        table.insert("compat", "9.9");
        assert_eq!(decode(&encode_record(&table)), "vhost record has no readable field 'compat'");
    }
}
