//! A message as a queue keeps it: one compact record of bytes, the same in memory and on disk.
//!
//! ```text
//! flags u8 | exchange length u8 | routing key length u8 | priority u8 | properties length u32 | body length u32
//! [expires at u64, if EXPIRES] [body index u32, if EXTERNAL] [BCC keys: u32 length, then (u8 length, key)*, if BCC]
//! exchange | routing key | properties (flags and values as the publisher sent them) | body, unless EXTERNAL
//! ```
//! In streams `expires at` is the time of arrival, and `priority` 1 where a chunk begins.
//! Properties stay encoded. Bodies from [`SHARED_BODY_MIN`] on stand outside as shared `Bytes`.

use bytes::Bytes;
use leveret_protocol::RawProperties;

use crate::model::timer::Millis;

/// Bodies of at least this many bytes are shared, smaller ones copied into each queue's segment.
pub const SHARED_BODY_MIN: usize = 4096;

const HEAD: usize = 12;
/// Where the priority stands in a record.
pub const PRIORITY_OFFSET: usize = 3;

/// Flag bits of a record. The first group is stored on disk, the second says what happened to the message here.
pub mod flag {
    pub const PERSISTENT: u8 = 1;
    pub const EXPIRES: u8 = 2;
    pub const EXTERNAL: u8 = 4;
    pub const BCC: u8 = 8;
    /// This broker has dead-lettered it: its `x-death` header is ours.
    pub const DIED: u8 = 16;
    /// What a record on disk may carry.
    pub const STORED: u8 = PERSISTENT | EXPIRES | EXTERNAL | BCC | DIED;
    pub const REDELIVERED: u8 = 32;
    pub const SETTLED: u8 = 64;
    /// It was refused with basic.reject while in this queue.
    pub const FAILED: u8 = 128;
}

/// The body on its way into queues: copied when small, shared when large.
#[derive(Clone, Copy, Debug)]
pub enum BodyRef<'a> {
    Slice(&'a [u8]),
    Shared(&'a Bytes),
}

impl<'a> BodyRef<'a> {
    pub fn as_slice(&self) -> &'a [u8] {
        match self {
            Self::Slice(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// A message about to enter a queue.
#[derive(Clone, Copy, Debug)]
pub struct NewMessage<'a> {
    pub exchange: &'a [u8],
    pub routing_key: &'a [u8],
    /// Encoded: flag word and values.
    pub properties: &'a [u8],
    pub body: BodyRef<'a>,
    pub persistent: bool,
    /// Already cut to the levels of the queue.
    pub priority: u8,
    pub expires_at: Option<Millis>,
    /// The extra keys of a BCC header, which is not in the properties any more; needed for dead-lettering.
    /// Of a message that an exchange keeps: all keys that it is routed by beside its routing key.
    pub bcc: &'a [Vec<u8>],
    /// This broker has dead-lettered it.
    pub died: bool,
}

impl NewMessage<'_> {
    /// Appends the record. The caller keeps the body if this returns true ("external").
    pub fn encode(&self, body_index: u32, out: &mut Vec<u8>) -> bool {
        let body = self.body.as_slice();
        let external = body.len() >= SHARED_BODY_MIN;
        let mut flags = 0;
        if self.persistent {
            flags |= flag::PERSISTENT;
        }
        if self.expires_at.is_some() {
            flags |= flag::EXPIRES;
        }
        if external {
            flags |= flag::EXTERNAL;
        }
        if !self.bcc.is_empty() {
            flags |= flag::BCC;
        }
        if self.died {
            flags |= flag::DIED;
        }
        let inline = if external { 0 } else { body.len() };
        out.reserve(HEAD + 16 + self.exchange.len() + self.routing_key.len() + self.properties.len() + inline);
        let mut head = [0_u8; HEAD];
        head[0] = flags;
        // Exchange names and routing keys are AMQP short strings: 255 bytes at most.
        head[1] = self.exchange.len() as u8;
        head[2] = self.routing_key.len() as u8;
        head[3] = self.priority;
        head[4..8].copy_from_slice(&(self.properties.len() as u32).to_le_bytes());
        head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&head);
        if let Some(at) = self.expires_at {
            out.extend_from_slice(&at.to_le_bytes());
        }
        if external {
            out.extend_from_slice(&body_index.to_le_bytes());
        }
        if !self.bcc.is_empty() {
            let length: usize = self.bcc.iter().map(|key| key.len() + 1).sum();
            out.extend_from_slice(&(length as u32).to_le_bytes());
            for key in self.bcc {
                out.push(key.len() as u8);
                out.extend_from_slice(key);
            }
        }
        out.extend_from_slice(self.exchange);
        out.extend_from_slice(self.routing_key);
        out.extend_from_slice(self.properties);
        if !external {
            out.extend_from_slice(body);
        }
        external
    }
}

/// A record, taken apart without copying.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    pub flags: u8,
    pub priority: u8,
    pub expires_at: Option<Millis>,
    pub body_index: Option<u32>,
    bcc: &'a [u8],
    pub exchange: &'a [u8],
    pub routing_key: &'a [u8],
    pub properties: &'a [u8],
    /// The body, empty if it stands outside.
    pub inline_body: &'a [u8],
    pub body_len: u32,
    /// Length of the whole record in bytes.
    pub len: usize,
}

impl<'a> Record<'a> {
    /// Takes the record at the start of `input` apart; `None` if it is not whole (possible only for bytes from a disk).
    #[inline]
    pub fn parse(input: &'a [u8]) -> Option<Self> {
        let head = input.first_chunk::<HEAD>()?;
        let flags = head[0];
        let exchange_len = head[1] as usize;
        let key_len = head[2] as usize;
        let properties_len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let body_len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        let mut at = HEAD;
        let mut expires_at = None;
        let mut body_index = None;
        let mut bcc: &[u8] = &[];
        if flags & (flag::EXPIRES | flag::EXTERNAL | flag::BCC) != 0 {
            if flags & flag::EXPIRES != 0 {
                expires_at = Some(u64::from_le_bytes(*input.get(at..)?.first_chunk::<8>()?));
                at += 8;
            }
            if flags & flag::EXTERNAL != 0 {
                body_index = Some(u32::from_le_bytes(*input.get(at..)?.first_chunk::<4>()?));
                at += 4;
            }
            if flags & flag::BCC != 0 {
                let length = u32::from_le_bytes(*input.get(at..)?.first_chunk::<4>()?) as usize;
                bcc = input.get(at + 4..at + 4 + length)?;
                at += 4 + length;
            }
        }
        let rest = input.get(at..)?;
        let (exchange, rest) = rest.split_at_checked(exchange_len)?;
        let (routing_key, rest) = rest.split_at_checked(key_len)?;
        let (properties, rest) = rest.split_at_checked(properties_len)?;
        let inline_len = if flags & flag::EXTERNAL == 0 { body_len as usize } else { 0 };
        let inline_body = rest.get(..inline_len)?;
        Some(Self {
            flags,
            priority: head[3],
            expires_at,
            body_index,
            bcc,
            exchange,
            routing_key,
            properties,
            inline_body,
            body_len,
            len: at + exchange_len + key_len + properties_len + inline_len,
        })
    }

    pub fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn raw_properties(&self) -> RawProperties<'a> {
        RawProperties::from_bytes(self.properties)
    }

    /// The keys of the BCC header that was taken out at publish.
    pub fn bcc_keys(&self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut rest = self.bcc;
        while let Some((&len, tail)) = rest.split_first() {
            let len = (len as usize).min(tail.len());
            keys.push(tail[..len].to_vec());
            rest = &tail[len..];
        }
        keys
    }
}

/// Changes the state flags of the record that starts at `bytes[0]`.
#[inline]
pub fn set_flag(bytes: &mut [u8], flag: u8, on: bool) {
    if on {
        bytes[0] |= flag;
    } else {
        bytes[0] &= !flag;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<'a>(body: BodyRef<'a>, bcc: &'a [Vec<u8>]) -> NewMessage<'a> {
        NewMessage {
            exchange: b"amq.topic",
            routing_key: b"a.b",
            properties: &[0x10, 0, 2],
            body,
            persistent: true,
            priority: 3,
            expires_at: Some(77),
            bcc,
            died: false,
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let bcc = vec![b"x".to_vec(), b"yy".to_vec()];
        let mut bytes = Vec::new();
        assert!(!message(BodyRef::Slice(b"hello"), &bcc).encode(0, &mut bytes));
        bytes.extend_from_slice(b"next record");
        let record = Record::parse(&bytes).unwrap();
        assert_eq!(record.exchange, b"amq.topic");
        assert_eq!(record.routing_key, b"a.b");
        assert_eq!(record.properties, [0x10, 0, 2]);
        assert_eq!(record.inline_body, b"hello");
        assert_eq!((record.expires_at, record.priority, record.body_len), (Some(77), 3, 5));
        assert_eq!(record.bcc_keys(), bcc);
        assert_eq!(record.len, bytes.len() - b"next record".len());
    }

    /// A content header of 128 KiB has room for more keys than 64 KiB.
    #[test]
    fn many_long_keys_do_not_spoil_a_record() {
        let bcc = vec![vec![b'k'; 255]; 400];
        let mut bytes = Vec::new();
        message(BodyRef::Slice(b"hello"), &bcc).encode(0, &mut bytes);
        let record = Record::parse(&bytes).unwrap();
        assert_eq!((record.bcc_keys(), record.inline_body), (bcc, &b"hello"[..]));
    }

    #[test]
    fn a_large_body_stays_outside() {
        let body = Bytes::from(vec![7; SHARED_BODY_MIN]);
        let mut bytes = Vec::new();
        assert!(message(BodyRef::Shared(&body), &[]).encode(5, &mut bytes));
        let record = Record::parse(&bytes).unwrap();
        assert_eq!(record.body_index, Some(5));
        assert_eq!(record.body_len as usize, SHARED_BODY_MIN);
        assert!(bytes.len() < 100);
    }

    #[test]
    fn a_cut_record_is_refused() {
        let mut bytes = Vec::new();
        message(BodyRef::Slice(b"hello"), &[b"k".to_vec()]).encode(0, &mut bytes);
        for cut in 0..bytes.len() {
            assert!(Record::parse(&bytes[..cut]).is_none(), "cut at {cut}");
        }
    }
}
