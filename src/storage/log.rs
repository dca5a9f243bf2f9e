//! The tail of the append-only message log: where commits are written.
//!
//! A commit is `begin`, any number of `write`, then `finish`, which syncs; `abort` after any failure.
//! Invariants: `end` is behind the last good commit, and nothing before it changes; after a failure the
//! file is cut back there. When a sync failed, the kernel may have dropped the pages and call them clean:
//! then the commit must come again, in a new segment whose header says where the old one ends, so that
//! what the failed attempt may have left behind cannot come back. A segment exists durably, header and
//! folder entry, before a commit goes into it.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::files::{failed, open_or_create, read_at, remove, sync_dir, write_all_at};
use super::format::{SEGMENT_HEADER, SegmentHeader};
use super::{Fault, Fsync, StoreError};

/// Commits up to this size get zeros written ahead of the end, so that their sync does not have to
/// change the file's length as well: that is a third of the time of a small sync on ext4.
const SMALL_COMMIT: u64 = 32 << 10;
/// How far zeros are written ahead in bytes.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];
/// Offsets in a segment are u32; a commit that does not fit is refused.
const SEGMENT_MAX: u64 = u32::MAX as u64;

/// Where a commit starts, and what its frames have to say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    pub segment: u32,
    pub offset: u64,
    pub salt: u32,
    pub commit: u64,
    pub durable_lag: u32,
}

/// A place between two commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// 0: before the first segment.
    pub segment: u32,
    pub offset: u64,
    /// Number of the last commit before.
    pub commit: u64,
}

/// The segment that is written.
struct Tail {
    file: File,
    number: u32,
    salt: u32,
    /// Behind the last good commit.
    end: u64,
    /// Length of the file.
    length: u64,
    /// Everything before is on disk.
    synced: u64,
}

/// A stretch of a former tail that is not synced yet.
struct Unsynced {
    file: File,
    number: u32,
    from: u64,
    to: u64,
}

pub(super) struct Log {
    dir: PathBuf,
    fsync: Fsync,
    /// A tail of this size is followed by a new segment.
    segment_bytes: u64,
    tail: Option<Tail>,
    /// In order; always empty if every commit is synced.
    unsynced: Vec<Unsynced>,
    /// The last good commit, and the last one known to be on disk.
    commit: u64,
    durable: u64,
    synced_at: Instant,
    /// Bytes of the running commit that are in the file.
    written: u64,
    /// The tail must not be used any more.
    spoiled: bool,
    /// A sync failed: what it was for has to be written once more before the next attempt means anything.
    rewrite: bool,
    faults: Vec<Fault>,
}

impl Log {
    /// The log in `dir`, before its first segment.
    pub fn new(dir: PathBuf, fsync: Fsync, segment_bytes: u64) -> Self {
        Self {
            dir,
            fsync,
            segment_bytes,
            tail: None,
            unsynced: Vec::new(),
            commit: 0,
            durable: 0,
            synced_at: Instant::now(),
            written: 0,
            spoiled: false,
            rewrite: false,
            faults: Vec::new(),
        }
    }

    /// Goes on behind what was found on start, which the caller has checked. Commits up to `durable` are
    /// known to be on disk.
    pub fn resume(&mut self, at: Position, salt: u32, durable: u64) -> Result<(), StoreError> {
        let path = segment_path(&self.dir, at.segment);
        let file = open_or_create(&path)?;
        let length = file.metadata().map_err(failed("read", &path))?.len();
        self.tail = Some(Tail { file, number: at.segment, salt, end: at.offset, length, synced: 0 });
        self.commit = at.commit;
        self.durable = durable;
        Ok(())
    }

    pub fn position(&self) -> Position {
        match &self.tail {
            Some(tail) => Position { segment: tail.number, offset: tail.end, commit: self.commit },
            None => Position::default(),
        }
    }

    /// Folder of the segments.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the next operations of the file system fail; for tests.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Starts a commit, in a new segment if the tail is full.
    pub fn begin(&mut self) -> Result<Start, StoreError> {
        let full = self.tail.as_ref().is_none_or(|tail| tail.end >= self.segment_bytes);
        if full || self.spoiled {
            self.roll()?;
        }
        self.written = 0;
        let tail = self.tail.as_ref().expect("there is a segment now");
        let commit = self.commit + 1;
        let durable_lag = u32::try_from(commit - self.durable).unwrap_or(u32::MAX);
        Ok(Start { segment: tail.number, offset: tail.end, salt: tail.salt, commit, durable_lag })
    }

    /// Writes the next bytes of the running commit.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let fault = self.take_fault(|fault| matches!(fault, Fault::Write { .. }));
        let tail = self.tail.as_mut().expect("a commit was begun");
        let offset = tail.end + self.written;
        let end = offset + bytes.len() as u64;
        let result = match fault {
            _ if end > SEGMENT_MAX => Err(io::ErrorKind::FileTooLarge.into()),
            Some(Fault::Write { after }) => {
                let part = &bytes[..after.min(bytes.len())];
                write_all_at(&tail.file, part, offset).and(Err(io::ErrorKind::StorageFull.into()))
            }
            _ => write_all_at(&tail.file, bytes, offset),
        };
        result.map_err(|error| failed("write", &segment_path(&self.dir, tail.number))(error))?;
        self.written += bytes.len() as u64;
        tail.length = tail.length.max(end);
        Ok(())
    }

    /// Ends the running commit: it is durable as far as the fsync policy goes.
    pub fn finish(&mut self) -> Result<(), StoreError> {
        let due = match self.fsync {
            Fsync::Always => true,
            Fsync::Interval(interval) => self.synced_at.elapsed() >= interval,
            Fsync::Never => false,
        };
        let tail = self.tail.as_mut().expect("a commit was begun");
        let end = tail.end + self.written;
        if due {
            if self.written <= SMALL_COMMIT && end == tail.length {
                let zeros = &ZEROS[..self.segment_bytes.saturating_sub(end).min(ZEROS.len() as u64) as usize];
                // Zeros behind the end are no commit; if there is no room for them, we do without.
                if write_all_at(&tail.file, zeros, end).is_ok() {
                    tail.length = end + zeros.len() as u64;
                }
            }
            self.sync_to(end)?;
            self.durable = self.commit + 1;
        }
        self.tail.as_mut().expect("a commit was begun").end = end;
        self.commit += 1;
        self.written = 0;
        Ok(())
    }

    /// The running commit failed: cuts it off.
    pub fn abort(&mut self) {
        self.written = 0;
        let Some(tail) = &mut self.tail else { return };
        match tail.file.set_len(tail.end).and_then(|()| tail.file.sync_data()) {
            Ok(()) => tail.length = tail.end,
            Err(error) => {
                // The next segment's header will say where the good part of this one ends.
                self.spoiled = true;
                tracing::warn!(segment = tail.number, %error, "cannot cut back the log");
            }
        }
    }

    /// True if something is written and not synced.
    pub fn is_unsynced(&self) -> bool {
        self.durable < self.commit
    }

    /// When the last sync was.
    pub fn synced_at(&self) -> Instant {
        self.synced_at
    }

    /// Syncs whatever is not synced yet, whatever the policy.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        if let Some(tail) = &self.tail
            && self.durable < self.commit
        {
            self.sync_to(tail.end)?;
            self.durable = self.commit;
        }
        Ok(())
    }

    /// Cuts the zeros off that were written ahead.
    pub fn trim(&mut self) -> Result<(), StoreError> {
        if let Some(tail) = &mut self.tail
            && tail.length > tail.end
        {
            let path = segment_path(&self.dir, tail.number);
            tail.file.set_len(tail.end).and_then(|()| tail.file.sync_all()).map_err(failed("cut", &path))?;
            tail.length = tail.end;
        }
        Ok(())
    }

    /// Syncs the former tails, and this one up to `end`.
    fn sync_to(&mut self, end: u64) -> Result<(), StoreError> {
        let fault = self.take_fault(|fault| matches!(fault, Fault::Sync));
        let tail = self.tail.as_mut().expect("there is a segment");
        let sync = |file: &File, number: u32, from: u64, to: u64| {
            let again = if self.rewrite { write_again(file, from, to) } else { Ok(()) };
            let result = match fault {
                Some(_) => Err(io::Error::other("injected fault")),
                None => again.and_then(|()| file.sync_data()),
            };
            result.map_err(|error| failed("sync", &segment_path(&self.dir, number))(error))
        };
        let mut result = self.unsynced.iter().try_for_each(|old| sync(&old.file, old.number, old.from, old.to));
        if result.is_ok() {
            result = sync(&tail.file, tail.number, tail.synced, end);
        }
        if let Err(error) = result {
            self.spoiled = true;
            self.rewrite = true;
            return Err(error);
        }
        tail.synced = end;
        self.unsynced.clear();
        self.rewrite = false;
        self.synced_at = Instant::now();
        Ok(())
    }

    /// Starts the next segment.
    pub fn roll(&mut self) -> Result<(), StoreError> {
        if self.take_fault(|fault| matches!(fault, Fault::Create)).is_some() {
            return Err(failed("create", &self.dir)(io::ErrorKind::StorageFull.into()));
        }
        if self.fsync != Fsync::Never && !self.spoiled {
            self.sync()?; // so that the header below can vouch for all before
        }
        let Position { segment: prev, offset: prev_end, .. } = self.position();
        let header = SegmentHeader {
            number: prev + 1,
            salt: RandomState::new().build_hasher().finish() as u32,
            prev,
            prev_end,
            next_commit: self.commit + 1,
            durable: self.durable,
        };
        let path = segment_path(&self.dir, header.number);
        let created = self.create(&path, &header);
        if created.is_err() {
            // The number is used again; recovery would ignore the file as well.
            let _ = remove(&path);
        }
        let file = created?;
        let length = SEGMENT_HEADER as u64;
        let number = header.number;
        let tail = Tail { file, number, salt: header.salt, end: length, length, synced: length };
        if let Some(old) = self.tail.replace(tail) {
            if old.length > old.end {
                // Only space is lost if this fails.
                let _ = old.file.set_len(old.end);
            }
            if old.synced < old.end {
                let Tail { file, number, end, synced, .. } = old;
                self.unsynced.push(Unsynced { file, number, from: synced, to: end });
            }
        }
        self.spoiled = false;
        Ok(())
    }

    fn create(&self, path: &Path, header: &SegmentHeader) -> Result<File, StoreError> {
        // What an earlier failed attempt left would look like damage.
        remove(path)?;
        let file = open_or_create(path)?;
        write_all_at(&file, &header.encode(), 0).map_err(failed("write", path))?;
        file.sync_all().map_err(failed("sync", path))?;
        sync_dir(&self.dir)?;
        Ok(file)
    }

    fn take_fault(&mut self, wanted: impl Fn(&Fault) -> bool) -> Option<Fault> {
        // Empty but in tests.
        let found = self.faults.iter().position(wanted)?;
        Some(self.faults.remove(found))
    }
}

/// Makes the kernel take a stretch of a file for changed again.
fn write_again(file: &File, mut from: u64, to: u64) -> io::Result<()> {
    let mut buffer = vec![0; ZEROS.len()];
    while from < to {
        let part = buffer.len().min((to - from) as usize);
        if read_at(file, &mut buffer[..part], from)? < part {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        write_all_at(file, &buffer[..part], from)?;
        from += part as u64;
    }
    Ok(())
}

/// Path of a segment's file.
pub(super) fn segment_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:010}.log"))
}

/// Numbers of the segment files in the folder, lowest first. Other files are none of ours.
pub(super) fn segment_numbers(dir: &Path) -> Result<Vec<u32>, StoreError> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed("list", dir))? {
        let name = entry.map_err(failed("list", dir))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse::<u32>().ok());
        numbers.extend(number.filter(|&number| number > 0));
    }
    numbers.sort_unstable();
    Ok(numbers)
}
