//! The form of the records that users, permissions and vhosts are kept in: a version byte and a field table.

use bytes::{BufMut as _, Bytes, BytesMut};
use leveret_protocol::{FieldTable, FieldValue, decode_table, put_table};

use super::PatternError;
use crate::model::record::{DefinitionKey, DefinitionKind};

/// The first byte of each record here; a field table follows. New fields need no new version if they may be absent.
const RECORD_VERSION: u8 = 1;

/// A stored record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("{record} record of version {version}, written by a newer leveret: start that one")]
    Version { record: &'static str, version: u8 },
    #[error("{record} record is damaged")]
    Damaged { record: &'static str },
    #[error("{record} record has no readable field '{field}'")]
    Field { record: &'static str, field: &'static str },
    #[error("stored {0}")]
    Pattern(#[from] PatternError),
}

pub(crate) fn encode_record(table: &FieldTable) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(RECORD_VERSION);
    put_table(&mut out, table);
    out.freeze()
}

pub(crate) fn decode_record(record: &'static str, bytes: &[u8]) -> Result<FieldTable, RecordError> {
    let damaged = RecordError::Damaged { record };
    let (&version, rest) = bytes.split_first().ok_or(damaged.clone())?;
    if version != RECORD_VERSION {
        return Err(RecordError::Version { record, version });
    }
    match decode_table(rest) {
        Ok((table, taken)) if taken == rest.len() => Ok(table),
        _ => Err(damaged),
    }
}

pub(crate) fn text_field<'t>(
    record: &'static str,
    table: &'t FieldTable,
    field: &'static str,
) -> Result<&'t str, RecordError> {
    table.get(field).and_then(FieldValue::as_str).ok_or(RecordError::Field { record, field })
}

pub(super) fn user_in_vhost(kind: DefinitionKind, user: &str, vhost: &str) -> DefinitionKey {
    DefinitionKey { kind, vhost: vhost.into(), name: Bytes::copy_from_slice(user.as_bytes()) }
}
