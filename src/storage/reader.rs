//! Reads messages back from segments, their checksums compared.
//! Does not know which messages are live: that is the index's.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;

use bytes::Bytes;

use super::StoreError;
use super::files::{failed, read_at};
use super::format::{BodyRef, Entries, Entry, FRAME_HEADER, FRAME_MAGIC, FrameHeader, frame_crc};
use super::log::segment_path;
use super::replay::{damaged, malformed, read_header};

/// Open segment files that are kept for the next read.
const OPEN_MAX: usize = 8;

pub(super) struct Reader {
    dir: PathBuf,
    /// The most recently used one is the last.
    open: Vec<Source>,
    /// The frame of the last body that was not in its message's chunk.
    body_frame: Option<Chunk>,
    /// While everything is recovered: bodies that someone holds, since another queue may have them as well.
    shared: Option<HashMap<BodyAt, Bytes>>,
    /// Bodies to be in the map before those that nobody holds are taken out.
    shared_max: usize,
}

const SHARED_MIN: usize = 1024;

struct Source {
    number: u32,
    salt: u32,
    file: File,
}

/// A run of whole frames, checked.
#[derive(Clone)]
pub(super) struct Chunk {
    segment: u32,
    /// Offset in the segment.
    offset: u32,
    bytes: Bytes,
}

/// A message in a chunk.
pub(super) struct Found {
    pub queue: u64,
    pub seq: u64,
    pub record: Bytes,
    pub body: Option<BodyAt>,
}

/// A body in a segment: the start of its frame, and where it is in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BodyAt {
    pub segment: u32,
    pub frame: u32,
    pub at: u32,
    pub len: u32,
}

impl Reader {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, open: Vec::new(), body_frame: None, shared: None, shared_max: SHARED_MIN }
    }

    /// Reads a run of frames.
    pub fn chunk(&mut self, segment: u32, offset: u32, length: u32) -> Result<Chunk, StoreError> {
        let source = self.source(segment)?;
        let mut bytes = vec![0; length as usize];
        match read_at(&source.file, &mut bytes, offset.into()) {
            Ok(_) => self.checked(segment, offset, bytes),
            Err(error) => Err(failed("read", &segment_path(&self.dir, segment))(error)),
        }
    }

    /// Reads whole frames from `offset` on: so many bytes, or one frame if that is longer.
    pub fn frames_from(&mut self, segment: u32, offset: u32, bytes_max: usize) -> Result<Chunk, StoreError> {
        let source = self.source(segment)?;
        let mut bytes = vec![0; bytes_max.max(FRAME_HEADER)];
        let read = read_at(&source.file, &mut bytes, offset.into());
        let length = read.map(|read| whole_frames(&bytes[..read]));
        match length {
            Ok(length) if length > bytes.len() || length == 0 => {
                self.chunk(segment, offset, length.max(FRAME_HEADER) as u32)
            }
            Ok(length) => {
                bytes.truncate(length);
                self.checked(segment, offset, bytes)
            }
            Err(error) => Err(failed("read", &segment_path(&self.dir, segment))(error)),
        }
    }

    /// Reads a run of frames some of which are damaged: gives those that are not.
    pub fn salvage(&mut self, segment: u32, offset: u32, length: u32) -> Result<Vec<Chunk>, StoreError> {
        let source = self.source(segment)?;
        let (salt, mut bytes) = (source.salt, vec![0; length as usize]);
        let read = read_at(&source.file, &mut bytes, offset.into());
        let read = read.map_err(failed("read", &segment_path(&self.dir, segment)))?;
        bytes.truncate(read);
        let bytes = Bytes::from(bytes);
        let (mut at, mut good) = (0, Vec::new());
        while at < bytes.len() {
            let end = frame_length(&bytes[at..]).map(|length| at + length).filter(|end| *end <= bytes.len());
            match end.filter(|end| check(&bytes[at..*end], salt).is_ok()) {
                Some(end) => {
                    good.push(Chunk { segment, offset: offset + at as u32, bytes: bytes.slice(at..end) });
                    at = end;
                }
                None => {
                    let magic = FRAME_MAGIC.to_le_bytes();
                    let next = bytes[at + 1..].windows(4).position(|four| four == magic);
                    at = next.map_or(bytes.len(), |next| at + 1 + next);
                }
            }
        }
        Ok(good)
    }

    /// Gives the messages in the chunk, of one queue or of all, in order.
    pub fn messages(&self, chunk: &Chunk, queue: Option<u64>, sink: &mut dyn FnMut(Found)) -> Result<(), StoreError> {
        for (start, payload) in chunk.frames() {
            let frame = chunk.offset + start as u32;
            for entry in Entries::new(payload) {
                let entry = entry.map_err(|at| malformed(&segment_path(&self.dir, chunk.segment), frame.into(), at))?;
                if let Entry::Message { queue: of, seq, record, body, .. } = entry
                    && queue.is_none_or(|queue| of == queue)
                {
                    let body = body.map(|BodyRef { back, at, len }| BodyAt {
                        segment: chunk.segment,
                        frame: frame.saturating_sub(back),
                        at,
                        len,
                    });
                    sink(Found { queue: of, seq, record: chunk.bytes.slice_ref(record), body });
                }
            }
        }
        Ok(())
    }

    /// The bytes of a body; `chunk` is where its message was found.
    pub fn body(&mut self, chunk: &Chunk, at: BodyAt) -> Result<Bytes, StoreError> {
        if let Some(body) = self.shared.as_ref().and_then(|shared| shared.get(&at)) {
            return Ok(body.clone());
        }
        let here = chunk.segment == at.segment && chunk.offset <= at.frame;
        let frame = if here { chunk } else { self.body_frame(at)? };
        let start = (at.frame - frame.offset) as usize + FRAME_HEADER + at.at as usize;
        let Some(body) = frame.bytes.get(start..start + at.len as usize) else {
            return Err(self.damaged(at.segment, at.frame.into(), "a message's body is not where it should be"));
        };
        // A small body must not keep the whole chunk in memory.
        let body = if body.len() >= frame.bytes.len() / 2 {
            frame.bytes.slice_ref(body)
        } else {
            Bytes::copy_from_slice(body)
        };
        if let Some(shared) = &mut self.shared {
            if shared.len() >= self.shared_max {
                shared.retain(|_, body| !body.is_unique());
                self.shared_max = SHARED_MIN.max(shared.len() * 2);
            }
            shared.insert(at, body.clone());
        }
        Ok(body)
    }

    /// From now on a body that several messages have is given to all of them as one, until `rest`.
    pub fn share_bodies(&mut self) {
        self.shared = Some(HashMap::new());
    }

    /// The segment's file will be removed.
    pub fn forget(&mut self, segment: u32) {
        self.open.retain(|source| source.number != segment);
        self.body_frame = None;
    }

    /// Gives memory back: nothing will be read for a while.
    pub fn rest(&mut self) {
        self.body_frame = None;
        self.shared = None;
    }

    /// Makes a chunk of bytes that were read, if they are whole frames.
    fn checked(&mut self, segment: u32, offset: u32, bytes: Vec<u8>) -> Result<Chunk, StoreError> {
        let salt = self.source(segment)?.salt;
        match check(&bytes, salt) {
            Ok(()) => Ok(Chunk { segment, offset, bytes: bytes.into() }),
            Err(at) => {
                let reason = "a message that was stored is not readable";
                Err(self.damaged(segment, u64::from(offset) + at as u64, reason))
            }
        }
    }

    fn damaged(&self, segment: u32, offset: u64, reason: &str) -> StoreError {
        damaged(&segment_path(&self.dir, segment), offset, reason)
    }

    fn body_frame(&mut self, at: BodyAt) -> Result<&Chunk, StoreError> {
        let is_kept = |chunk: &Chunk| chunk.segment == at.segment && chunk.offset == at.frame;
        if !self.body_frame.as_ref().is_some_and(is_kept) {
            let path = segment_path(&self.dir, at.segment);
            let source = self.source(at.segment)?;
            let mut header = [0; FRAME_HEADER];
            let read = read_at(&source.file, &mut header, at.frame.into()).map_err(failed("read", &path))?;
            let header = FrameHeader::decode(&header).filter(|_| read == FRAME_HEADER);
            let length = header.and_then(|header| header.length.checked_add(FRAME_HEADER as u32));
            let Some(length) = length else {
                return Err(damaged(&path, at.frame.into(), "a message's body is not where it should be"));
            };
            self.body_frame = Some(self.chunk(at.segment, at.frame, length)?);
        }
        Ok(self.body_frame.as_ref().expect("just read"))
    }

    fn source(&mut self, number: u32) -> Result<&Source, StoreError> {
        match self.open.iter().position(|source| source.number == number) {
            Some(found) => {
                let source = self.open.remove(found);
                self.open.push(source);
            }
            None => {
                let path = &segment_path(&self.dir, number);
                let file = File::open(path).map_err(failed("open", path))?;
                let (header, _) = read_header(path)?;
                let Some(header) = header.filter(|header| header.number == number) else {
                    return Err(damaged(path, 0, "this is not the header of that segment"));
                };
                if self.open.len() == OPEN_MAX {
                    self.open.remove(0);
                }
                self.open.push(Source { number, salt: header.salt, file });
            }
        }
        Ok(self.open.last().expect("just pushed"))
    }
}

impl Chunk {
    /// Offset in the segment behind it.
    pub fn end(&self) -> u64 {
        u64::from(self.offset) + self.bytes.len() as u64
    }

    /// Start in the chunk and payload of every frame.
    fn frames(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let header = self.bytes.get(at..at + FRAME_HEADER)?.try_into().ok()?;
            let length = FrameHeader::decode(header)?.length as usize;
            let start = at;
            at += FRAME_HEADER + length;
            Some((start, self.bytes.get(start + FRAME_HEADER..at)?))
        })
    }
}

/// Checks that the bytes are whole frames; else says where they are not. What a file was too short for is
/// zeros, and those are none.
fn check(bytes: &[u8], salt: u32) -> Result<(), usize> {
    let mut at = 0;
    while at < bytes.len() {
        let end = at + frame_length(&bytes[at..]).ok_or(at)?;
        let frame = bytes.get(at..end).ok_or(at)?;
        let header = FrameHeader::decode(frame[..FRAME_HEADER].try_into().expect("a header")).ok_or(at)?;
        if frame_crc(&frame[8..], salt) != header.crc {
            return Err(at);
        }
        at = end;
    }
    Ok(())
}

/// Length of the frame that starts there; `None` if none does.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..FRAME_HEADER)?.try_into().ok()?;
    Some(FRAME_HEADER + FrameHeader::decode(header)?.length as usize)
}

/// Bytes of the whole frames at the start; if there is none, of the first one, and 0 if that is no frame.
fn whole_frames(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(length) = frame_length(&bytes[at..]) {
        if at + length > bytes.len() {
            return if at == 0 { length } else { at };
        }
        at += length;
    }
    at
}
