//! The bytes of the log: segment header, frames, entries. No I/O here.
//!
//! A segment file is a header and then frames back to back. A commit is one frame, or several when it is
//! large: the last one carries [`LAST_FRAME`], and a commit without it does not count. Frames stay near
//! [`FRAME_TARGET`], so that a message can be read back, checksum and all, without reading a huge commit;
//! only a large body makes a larger one.
//!
//! ```text
//! segment  magic u64 | crc u32 | salt u32 | number u32 | prev u32 | prev_end u64 | next_commit u64 | durable u64
//! frame    magic u32 | crc u32 | payload length u32 | flags u32 | commit u64 | durable lag u32 | payload
//! payload  entries: tag u8, then variable-length integers (LEB128) and bytes
//! ```
//!
//! Invariants: the checksum of a frame starts from its segment's random salt, so bytes that a client sent
//! never pass for a frame; every frame can be read alone, except that a body may lie in an earlier frame
//! of the same commit; a segment file has fewer than 4 GiB.

use crate::model::record::DefinitionKind;

/// Length of a segment's header in bytes.
pub(super) const SEGMENT_HEADER: usize = 48;
/// Length of a frame's header in bytes.
pub(super) const FRAME_HEADER: usize = 28;
/// A frame is closed when its payload reaches this many bytes.
pub(super) const FRAME_TARGET: usize = 64 << 10;
/// Flag of the frame that ends a commit.
pub(super) const LAST_FRAME: u32 = 1;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"LEVERET\x01");
/// Starts every frame.
pub(super) const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"\xf7Lvr");

/// Start of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub number: u32,
    /// Start value of the checksums of all frames in the file.
    pub salt: u32,
    /// The segment that this one continues, 0 if it is the first of all.
    pub prev: u32,
    /// Where the last good commit in `prev` ended: what lies behind is a failed attempt.
    pub prev_end: u64,
    /// Number of the first commit in this segment.
    pub next_commit: u64,
    /// Every commit up to this number was on disk when the segment was created.
    pub durable: u64,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut out = [0; SEGMENT_HEADER];
        out[..8].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        out[12..16].copy_from_slice(&self.salt.to_le_bytes());
        out[16..20].copy_from_slice(&self.number.to_le_bytes());
        out[20..24].copy_from_slice(&self.prev.to_le_bytes());
        out[24..32].copy_from_slice(&self.prev_end.to_le_bytes());
        out[32..40].copy_from_slice(&self.next_commit.to_le_bytes());
        out[40..48].copy_from_slice(&self.durable.to_le_bytes());
        let crc = crc32fast::hash(&out[12..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if the bytes are no header, or a damaged one.
    pub fn decode(bytes: &[u8; SEGMENT_HEADER]) -> Option<Self> {
        if u64_at(bytes, 0) != SEGMENT_MAGIC || u32_at(bytes, 8) != crc32fast::hash(&bytes[12..]) {
            return None;
        }
        Some(Self {
            salt: u32_at(bytes, 12),
            number: u32_at(bytes, 16),
            prev: u32_at(bytes, 20),
            prev_end: u64_at(bytes, 24),
            next_commit: u64_at(bytes, 32),
            durable: u64_at(bytes, 40),
        })
    }
}

/// Start of a frame, checksum not yet compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub crc: u32,
    pub length: u32,
    pub flags: u32,
    pub commit: u64,
    /// `commit` less the last commit known to be on disk when this frame was written.
    pub durable_lag: u32,
}

impl FrameHeader {
    /// `None` if the magic is missing.
    pub fn decode(bytes: &[u8; FRAME_HEADER]) -> Option<Self> {
        (u32_at(bytes, 0) == FRAME_MAGIC).then(|| Self {
            crc: u32_at(bytes, 4),
            length: u32_at(bytes, 8),
            flags: u32_at(bytes, 12),
            commit: u64_at(bytes, 16),
            durable_lag: u32_at(bytes, 24),
        })
    }

    /// Whether this frame ends its commit.
    pub fn is_last(&self) -> bool {
        self.flags & LAST_FRAME != 0
    }

    /// Last commit known to be on disk when this frame was written.
    pub fn durable(&self) -> u64 {
        self.commit.saturating_sub(u64::from(self.durable_lag))
    }
}

/// Writes a frame's header over the space left for it; `frame` is header and payload.
pub(super) fn seal_frame(frame: &mut [u8], salt: u32, flags: u32, commit: u64, durable_lag: u32) {
    let length = u32::try_from(frame.len() - FRAME_HEADER).expect("a frame has less than 4 GiB");
    frame[..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
    frame[8..12].copy_from_slice(&length.to_le_bytes());
    frame[12..16].copy_from_slice(&flags.to_le_bytes());
    frame[16..24].copy_from_slice(&commit.to_le_bytes());
    frame[24..28].copy_from_slice(&durable_lag.to_le_bytes());
    let crc = frame_crc(&frame[8..], salt);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Checksum of a frame from its length field on.
pub(super) fn frame_crc(from_length: &[u8], salt: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(from_length);
    hasher.finalize()
}

/// Where a body lies: `back` bytes before the start of the frame that refers to it starts another frame
/// (0: the same one), and there, `at` bytes into the payload, `len` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyRef {
    pub back: u32,
    pub at: u32,
    pub len: u32,
}

/// One entry of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// A message; `moved` if it is a copy of one that was already there, made by compaction.
    Message {
        queue: u64,
        seq: u64,
        moved: bool,
        record: &'a [u8],
        body: Option<BodyRef>,
    },
    /// Bytes that messages refer to.
    Body,
    Settle {
        queue: u64,
        first: u64,
        last: u64,
    },
    Delivered {
        queue: u64,
        seq: u64,
        count: u32,
    },
    Drop {
        queue: u64,
    },
    Put {
        kind: DefinitionKind,
        vhost: &'a str,
        name: &'a [u8],
        value: &'a [u8],
    },
    Remove {
        kind: DefinitionKind,
        vhost: &'a str,
        name: &'a [u8],
    },
    /// The store was opened.
    Opened,
    /// The store was closed properly, after everything before.
    Closed,
}

// The first byte of an entry. Numbers are never reused.
pub(super) const TAG_QUEUE: u8 = 1; // the queue of the messages that follow: queue
pub(super) const TAG_MOVED: u8 = 2; // the same for moved messages
pub(super) const TAG_MESSAGE: u8 = 3; // seq less the one before in this frame, length, record
pub(super) const TAG_MESSAGE_BODY: u8 = 4; // the same, and then back, at, len of the body
pub(super) const TAG_BODY: u8 = 5;
pub(super) const TAG_SETTLE: u8 = 6; // queue, first, last less first
pub(super) const TAG_DELIVERED: u8 = 7;
pub(super) const TAG_DROP: u8 = 8;
pub(super) const TAG_PUT: u8 = 9; // kind u8, vhost, name, value, each with its length
pub(super) const TAG_REMOVE: u8 = 10;
pub(super) const TAG_OPENED: u8 = 11;
pub(super) const TAG_CLOSED: u8 = 12;

/// Walks the entries of a payload. Yields `Err` with the position once, when it meets something that is
/// no entry, and then ends.
pub(super) struct Entries<'a> {
    payload: &'a [u8],
    at: usize,
    queue: u64,
    seq: u64,
    moved: bool,
}

impl<'a> Entries<'a> {
    pub fn new(payload: &'a [u8]) -> Self {
        Self { payload, at: 0, queue: 0, seq: 0, moved: false }
    }

    fn entry(&mut self) -> Option<Entry<'a>> {
        loop {
            let tag = self.byte()?;
            return Some(match tag {
                TAG_QUEUE | TAG_MOVED => {
                    self.queue = self.varint()?;
                    self.seq = 0;
                    self.moved = tag == TAG_MOVED;
                    continue;
                }
                TAG_MESSAGE | TAG_MESSAGE_BODY => {
                    self.seq = self.seq.checked_add(self.varint()?)?;
                    let record = self.bytes()?;
                    let body = if tag == TAG_MESSAGE_BODY {
                        Some(BodyRef { back: self.small()?, at: self.small()?, len: self.small()? })
                    } else {
                        None
                    };
                    Entry::Message { queue: self.queue, seq: self.seq, moved: self.moved, record, body }
                }
                TAG_BODY => {
                    self.bytes()?;
                    Entry::Body
                }
                TAG_SETTLE => {
                    let (queue, first) = (self.varint()?, self.varint()?);
                    Entry::Settle { queue, first, last: first.checked_add(self.varint()?)? }
                }
                TAG_DELIVERED => Entry::Delivered { queue: self.varint()?, seq: self.varint()?, count: self.small()? },
                TAG_DROP => Entry::Drop { queue: self.varint()? },
                TAG_PUT => {
                    let kind = DefinitionKind::from_number(self.byte()?)?;
                    Entry::Put { kind, vhost: self.text()?, name: self.bytes()?, value: self.bytes()? }
                }
                TAG_REMOVE => {
                    let kind = DefinitionKind::from_number(self.byte()?)?;
                    Entry::Remove { kind, vhost: self.text()?, name: self.bytes()? }
                }
                TAG_OPENED => Entry::Opened,
                TAG_CLOSED => Entry::Closed,
                _ => return None,
            });
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.payload.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        read_varint(self.payload, &mut self.at)
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let bytes = self.payload.get(self.at..)?.get(..length)?;
        self.at += length;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, usize>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.payload.len() {
            return None;
        }
        let start = self.at;
        let entry = self.entry();
        if entry.is_none() {
            self.at = self.payload.len();
        }
        Some(entry.ok_or(start))
    }
}

/// Appends a LEB128 integer.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends bytes behind their length.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads a LEB128 integer at `at` and moves `at` behind it; `None` if it does not end or exceeds 64 bits.
pub(super) fn read_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut at = 0;
            assert_eq!(read_varint(&out, &mut at), Some(value));
            assert_eq!(at, out.len());
            assert_eq!(read_varint(&out[..out.len() - 1], &mut 0), None, "cut short");
        }
        assert_eq!(read_varint(&[0xff; 11], &mut 0), None);
        assert_eq!(read_varint(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], &mut 0), None);
    }

    #[test]
    fn segment_headers_come_back_and_notice_damage() {
        let header = SegmentHeader { number: 7, salt: 9, prev: 6, prev_end: 1 << 33, next_commit: 12, durable: 11 };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Some(header));
        for at in 0..bytes.len() {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert_eq!(SegmentHeader::decode(&bad), None, "byte {at}");
        }
    }

    #[test]
    fn any_bytes_are_no_panic() {
        for first in 0..=255 {
            for second in 0..=255 {
                for result in Entries::new(&[first, second, 0xff, 3, 200]) {
                    let _ = result;
                }
            }
        }
    }
}
