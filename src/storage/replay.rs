//! Reads the log's tail on start: from the last checkpoint to the last whole commit.
//!
//! What may be missing after a crash is only what was not synced: a bad frame ends the log, unless
//! something behind it proves that it was on disk once. Every segment header and frame says up to which
//! commit all was synced when it was written; if such a proof covers the bad frame, it is damage, and an
//! error. So with a sync per commit, a bad frame before a good later commit is always an error.
//! Frames of a commit without its last frame are not applied.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::StoreError;
use super::block::Place;
use super::files::{failed, read_at, remove, sync_dir};
use super::format::{Entries, Entry, FRAME_HEADER, FRAME_MAGIC, FrameHeader, SEGMENT_HEADER, SegmentHeader, frame_crc};
use super::log::{Position, segment_numbers, segment_path};

/// What the log's tail held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Replayed {
    /// Where to go on, and the salt of that segment; segment 0 if the log is empty.
    pub end: Position,
    pub salt: u32,
    /// The last commit says that the store was closed properly, or nothing was ever written.
    pub closed: bool,
    pub cut_bytes: u64,
    /// Bytes of log since the checkpoint.
    pub bytes: u64,
}

/// A segment to be replayed.
struct Segment {
    path: PathBuf,
    header: SegmentHeader,
    /// Where its good part must end, if a later segment says so.
    end: Option<u64>,
}

/// Replays the log in `dir` from the checkpoint on: gives every entry with the frame that it is in.
/// Cuts off a torn last commit and removes segments that were begun in vain.
pub(super) fn replay(
    dir: &Path,
    checkpoint: Position,
    apply: &mut dyn FnMut(&Entry<'_>, Place),
) -> Result<Replayed, StoreError> {
    let chain = chain(dir, checkpoint)?;
    let mut end = checkpoint;
    let mut result = Replayed { closed: chain.is_empty(), ..Replayed::default() };
    for (number, segment) in chain.iter().enumerate() {
        let first = segment.header.number == checkpoint.segment;
        let from = if first { checkpoint.offset } else { SEGMENT_HEADER as u64 };
        if segment.header.next_commit > end.commit + 1 || (!first && segment.header.next_commit != end.commit + 1) {
            return Err(damaged(&segment.path, 0, "commits before it are missing"));
        }
        let mut scan = Scan::open(segment, Position { offset: from, ..end })?;
        scan.run(&mut result.closed, apply)?;
        end = Position { segment: segment.header.number, offset: scan.good, commit: scan.commit };
        result.salt = segment.header.salt;
        result.bytes += scan.good - from;
        if scan.is_whole()? {
            continue;
        }
        if scan.was_durable(&chain[number + 1..])? {
            return Err(damaged(&segment.path, scan.good, "a commit that was on disk is not readable"));
        }
        result.cut_bytes = cut(dir, segment, scan.good, &chain[number + 1..])?;
        result.closed = false;
        break;
    }
    result.end = end;
    Ok(result)
}

/// The segments from the checkpoint on, each of which continues the one before. Removes the others.
fn chain(dir: &Path, checkpoint: Position) -> Result<Vec<Segment>, StoreError> {
    let mut numbers = segment_numbers(dir)?;
    numbers.retain(|&number| number >= checkpoint.segment);
    let mut chain: Vec<Segment> = Vec::new();
    while let Some(number) = numbers.pop() {
        let path = segment_path(dir, number);
        let (header, length) = read_header(&path)?;
        let expected = chain.last().map(|next| (next.header.prev, next.header.prev_end));
        match (header, expected) {
            (Some(header), None) if header.number == number => {
                chain.push(Segment { path, header, end: None });
            }
            (Some(header), Some((prev, prev_end))) if header.number == number && prev == number => {
                chain.push(Segment { path, header, end: Some(prev_end) });
            }
            // Begun, and a crash came before its header was on disk or before anything was in it.
            (None, None) if length <= SEGMENT_HEADER as u64 => remove(&path)?,
            // Begun, failed, and begun again under another number.
            (_, Some((prev, _))) if prev < number => remove(&path)?,
            _ => return Err(damaged(&path, 0, "this is not the header of that segment")),
        }
        if number == checkpoint.segment {
            break;
        }
    }
    let start =
        chain.last().map_or(0, |first| if checkpoint.segment == 0 { first.header.prev } else { first.header.number });
    if start != checkpoint.segment {
        return Err(missing(dir, chain.last().map_or(checkpoint.segment, |first| first.header.prev)));
    }
    chain.reverse();
    Ok(chain)
}

/// The header, `None` if it is none, and the length of the file.
pub(super) fn read_header(path: &Path) -> Result<(Option<SegmentHeader>, u64), StoreError> {
    let file = File::open(path).map_err(failed("open", path))?;
    let length = file.metadata().map_err(failed("read", path))?.len();
    let mut bytes = [0; SEGMENT_HEADER];
    let read = read_at(&file, &mut bytes, 0).map_err(failed("read", path))?;
    Ok((SegmentHeader::decode(&bytes).filter(|_| read == bytes.len()), length))
}

/// Cuts the log off at `good`; returns how many bytes of commits that were not whole are gone.
fn cut(dir: &Path, segment: &Segment, good: u64, later: &[Segment]) -> Result<u64, StoreError> {
    let mut bytes = 0;
    for later in later.iter().rev() {
        bytes += fs::metadata(&later.path).map_err(failed("read", &later.path))?.len();
        remove(&later.path)?;
    }
    let path = &segment.path;
    let file = File::options().read(true).write(true).open(path).map_err(failed("open", path))?;
    bytes += Scan::used_length(&file, path, good)? - good;
    file.set_len(good).and_then(|()| file.sync_all()).map_err(failed("cut", path))?;
    sync_dir(dir)?;
    Ok(bytes)
}

/// Reads one segment frame by frame.
struct Scan<'a> {
    segment: &'a Segment,
    file: File,
    /// Behind the last whole commit, and its number.
    good: u64,
    commit: u64,
    /// Where the file has to end.
    limit: u64,
    window: Window,
}

/// A part of the file in memory.
#[derive(Default)]
struct Window {
    bytes: Vec<u8>,
    offset: u64,
}

const WINDOW_BYTES: usize = 256 << 10;

impl<'a> Scan<'a> {
    fn open(segment: &'a Segment, from: Position) -> Result<Self, StoreError> {
        let path = &segment.path;
        let file = File::open(path).map_err(failed("open", path))?;
        let length = file.metadata().map_err(failed("read", path))?.len();
        if length < from.offset {
            return Err(damaged(path, length, "the file ends before the last checkpoint"));
        }
        let limit = segment.end.unwrap_or(length).min(length);
        Ok(Self { segment, file, good: from.offset, commit: from.commit, limit, window: Window::default() })
    }

    /// Applies whole commits until there is none.
    fn run(&mut self, closed: &mut bool, apply: &mut dyn FnMut(&Entry<'_>, Place)) -> Result<(), StoreError> {
        // Frames of a commit that is not complete yet; only of large ones.
        let mut waiting: Vec<(Place, Vec<u8>)> = Vec::new();
        let mut offset = self.good;
        while let Some((header, place)) = self.frame_at(offset)? {
            if header.commit != self.commit + 1 {
                break;
            }
            let payload = self.window.get(offset + FRAME_HEADER as u64, u64::from(place.end));
            offset = place.end.into();
            if !header.is_last() {
                waiting.push((place, payload.to_vec()));
                continue;
            }
            *closed = false;
            for (place, payload) in &waiting {
                apply_frame(self.segment, *place, payload, closed, apply)?;
            }
            apply_frame(self.segment, place, payload, closed, apply)?;
            waiting.clear();
            self.good = offset;
            self.commit += 1;
        }
        Ok(())
    }

    /// Whether nothing but zeros comes behind the good part.
    fn is_whole(&self) -> Result<bool, StoreError> {
        match self.segment.end {
            Some(end) => Ok(end == self.good),
            None => Ok(Self::used_length(&self.file, &self.segment.path, self.good)? == self.good),
        }
    }

    /// Whether something proves that the commit after the good part was on disk.
    fn was_durable(&mut self, later: &[Segment]) -> Result<bool, StoreError> {
        let lost = self.commit + 1;
        if later.iter().any(|segment| segment.header.durable >= lost) {
            return Ok(true);
        }
        // Slow, but a log is torn rarely, and what is behind the tear is short mostly.
        let mut offset = self.good + 1;
        while offset + FRAME_HEADER as u64 <= self.limit {
            self.load(offset, WINDOW_BYTES as u64)?;
            let bytes = self.window.get(offset, self.window.end());
            let magic = FRAME_MAGIC.to_le_bytes();
            match bytes.windows(4).position(|four| four == magic) {
                Some(found) => {
                    offset += found as u64;
                    if let Some((header, _)) = self.frame_at(offset)?
                        && header.durable() >= lost
                    {
                        return Ok(true);
                    }
                    offset += 1;
                }
                None => offset += (bytes.len() as u64).saturating_sub(3).max(1),
            }
        }
        Ok(false)
    }

    /// The frame that starts there, if it is whole.
    fn frame_at(&mut self, offset: u64) -> Result<Option<(FrameHeader, Place)>, StoreError> {
        let start = offset + FRAME_HEADER as u64;
        if start > self.limit {
            return Ok(None);
        }
        self.load(offset, FRAME_HEADER as u64)?;
        let header = self.window.get(offset, start).try_into().ok().and_then(FrameHeader::decode);
        let Some(header) = header else { return Ok(None) };
        let end = start + u64::from(header.length);
        if end > self.limit {
            return Ok(None);
        }
        self.load(offset, end - offset)?;
        if frame_crc(self.window.get(offset + 8, end), self.segment.header.salt) != header.crc {
            return Ok(None);
        }
        let place = Place { segment: self.segment.header.number, offset: offset as u32, end: end as u32 };
        Ok(Some((header, place)))
    }

    /// Makes the window hold at least `length` bytes from `offset` on, as far as the file goes.
    fn load(&mut self, offset: u64, length: u64) -> Result<(), StoreError> {
        if offset >= self.window.offset && (offset + length).min(self.limit) <= self.window.end() {
            return Ok(());
        }
        let length = length.max(WINDOW_BYTES as u64).min(self.limit.saturating_sub(offset));
        self.window.bytes.resize(length as usize, 0);
        self.window.offset = offset;
        let read = read_at(&self.file, &mut self.window.bytes, offset).map_err(failed("read", &self.segment.path))?;
        self.window.bytes.truncate(read);
        Ok(())
    }

    /// Offset behind the last byte that is not zero, at least `from`.
    fn used_length(file: &File, path: &Path, from: u64) -> Result<u64, StoreError> {
        let mut buffer = vec![0; WINDOW_BYTES];
        let (mut offset, mut used) = (from, from);
        loop {
            let read = read_at(file, &mut buffer, offset).map_err(failed("read", path))?;
            if read == 0 {
                return Ok(used);
            }
            if let Some(last) = buffer[..read].iter().rposition(|&byte| byte != 0) {
                used = offset + last as u64 + 1;
            }
            offset += read as u64;
        }
    }
}

impl Window {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    fn get(&self, from: u64, to: u64) -> &[u8] {
        let to = to.min(self.end());
        &self.bytes[(from - self.offset) as usize..(to - self.offset) as usize]
    }
}

fn apply_frame(
    segment: &Segment,
    place: Place,
    payload: &[u8],
    closed: &mut bool,
    apply: &mut dyn FnMut(&Entry<'_>, Place),
) -> Result<(), StoreError> {
    for entry in Entries::new(payload) {
        let entry = entry.map_err(|at| malformed(&segment.path, u64::from(place.offset), at))?;
        *closed = entry == Entry::Closed;
        apply(&entry, place);
    }
    Ok(())
}

/// An entry that a good checksum covers, and that is none all the same.
pub(super) fn malformed(path: &Path, frame: u64, at: usize) -> StoreError {
    damaged(path, frame + (FRAME_HEADER + at) as u64, "unknown entry")
}

pub(super) fn damaged(path: &Path, offset: u64, reason: &str) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), offset, reason: reason.to_owned() }
}

fn missing(dir: &Path, number: u32) -> StoreError {
    damaged(&segment_path(dir, number), 0, "the file is missing")
}
