//! A copy of a data folder to look at: opening a store writes to its folder, and whoever only looks must not.
//!
//! The index is copied, and of the log what opening may change: the segments behind the last checkpoint. The others,
//! most of the bytes, are linked. The folder itself is locked meanwhile, so that no broker starts in it.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::StoreError;
use super::durable::MARKER;
use super::files::failed;
use super::log::{segment_numbers, segment_path};
use super::sled::Tables;

/// Removed when dropped.
pub struct Shadow {
    copy: tempfile::TempDir,
    /// Holds the lock.
    _marker: File,
    /// Number and bytes of each segment of the log.
    segments: Vec<(u32, u64)>,
}

impl Shadow {
    /// # Errors
    /// The folder is in use, or no data folder of ours, or cannot be read; or there is no room for the copy.
    pub fn of(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(MARKER);
        if !path.is_file() {
            let reason = format!("is no data folder of leveret (it has no file {MARKER})");
            return Err(StoreError::Foreign { path: dir.to_owned(), reason });
        }
        let marker = File::open(&path).map_err(failed("open", &path))?;
        match marker.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked { path: dir.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
        }
        let copy = tempfile::tempdir().map_err(failed("make a folder in", &std::env::temp_dir()))?;
        copy_file(&path, &copy.path().join(MARKER))?;
        let (index, log) = (copy.path().join("index"), copy.path().join("log"));
        copy_all(&dir.join("index"), &index)?;
        // After a kill the index may be read only by opening it, and that is what says where its checkpoint is.
        let checkpoint = Tables::open(index, 1 << 20)?.position()?;
        fs::create_dir(&log).map_err(failed("create", &log))?;
        let mut segments = Vec::new();
        for number in segment_numbers(&dir.join("log"))? {
            let (from, to) = (segment_path(&dir.join("log"), number), segment_path(&log, number));
            segments.push((number, fs::metadata(&from).map_err(failed("read", &from))?.len()));
            if number < checkpoint.segment { link(&from, &to)? } else { copy_file(&from, &to)? }
        }
        Ok(Self { copy, _marker: marker, segments })
    }

    pub fn path(&self) -> &Path {
        self.copy.path()
    }

    /// Number and bytes of each segment of the log.
    pub fn segments(&self) -> &[(u32, u64)] {
        &self.segments
    }
}

fn copy_file(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::copy(from, to).map(drop).map_err(failed("copy", from))
}

/// Copies a folder with the folders in it.
fn copy_all(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::create_dir(to).map_err(failed("create", to))?;
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        // A start that got no further: an empty index is made.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("list", from)(error)),
    };
    for entry in entries {
        let path: PathBuf = entry.map_err(failed("list", from))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() { copy_all(&path, &target)? } else { copy_file(&path, &target)? }
    }
    Ok(())
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> Result<(), StoreError> {
    let whole = fs::canonicalize(from).map_err(failed("read", from))?;
    std::os::unix::fs::symlink(whole, to).map_err(failed("link", to))
}

#[cfg(not(unix))]
fn link(from: &Path, to: &Path) -> Result<(), StoreError> {
    copy_file(from, to)
}
