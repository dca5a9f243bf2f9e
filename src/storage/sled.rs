//! What sled holds: the state of the last checkpoint. The only file that names sled.
//!
//! | tree | key (integers big-endian) | value |
//! |---|---|---|
//! | `meta` | `checkpoint` | where in the log the replay starts: segment, offset, commit |
//! | `definitions` | kind, vhost (escaped), name | as the model encoded it |
//! | `blocks` | queue id, first sequence | where a block's messages lie, which are live, delivery counts |
//!
//! What is live and the delivery counts are in the block's row and not in trees of their own, so that each
//! key alone is consistent: the rows are of different moments while a checkpoint is written, and what a
//! crash leaves of them is completed by the replay (see `index.rs`).
//!
//! sled writes small values some three times, larger ones to files of their own: so rows are small
//! (mostly under 100 bytes, 2 KiB at most) and each stands for hundreds of messages. Its `flush` only
//! starts the writing on Linux, and leaves the files of large pages (many large definitions) alone: both
//! have to be synced as well.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::model::record::{DefinitionKey, DefinitionKind};

pub use super::durable::SledStore;

use super::StoreError;
use super::files::{failed, sync_dir};
use super::index::BlockKey;
use super::log::Position;

pub(super) struct Tables {
    path: PathBuf,
    cache_bytes: u64,
    /// `None` only when it could not be opened again.
    trees: Option<Trees>,
    /// Files for large pages that are synced.
    blobs: HashSet<PathBuf>,
}

struct Trees {
    db: ::sled::Db,
    definitions: ::sled::Tree,
    blocks: ::sled::Tree,
    /// sled's own file.
    file: File,
}

const CHECKPOINT: &str = "checkpoint";
/// How long to wait for a store of this process that was just dropped.
const LET_GO: Duration = Duration::from_secs(5);

impl Tables {
    /// Opens the trees in their folder, or makes them.
    pub fn open(path: PathBuf, cache_bytes: u64) -> Result<Self, StoreError> {
        let trees = Some(Trees::open(&path, cache_bytes)?);
        Ok(Self { path, cache_bytes, trees, blobs: HashSet::new() })
    }

    /// Opens the trees once more: after a write that failed, sled refuses everything. What was not flushed
    /// may be gone.
    pub fn reopen(&mut self) -> Result<(), StoreError> {
        // Let go of first: there can be but one.
        self.trees = None;
        self.blobs.clear();
        self.trees = Some(Trees::open(&self.path, self.cache_bytes)?);
        Ok(())
    }

    fn trees(&self) -> Result<&Trees, StoreError> {
        let closed = || failed("use", &self.path)(io::Error::other("it could not be opened again"));
        self.trees.as_ref().ok_or_else(closed)
    }

    /// Where the replay has to start; the start of the log if there was no checkpoint yet.
    pub fn position(&self) -> Result<Position, StoreError> {
        let meta = self.trees()?.db.open_tree("meta").map_err(index_failed("open", &self.path))?;
        let Some(value) = meta.get(CHECKPOINT).map_err(index_failed("read", &self.path))? else {
            return Ok(Position::default());
        };
        let bytes: &[u8; 20] = value.as_ref().try_into().map_err(|_| self.damaged("the checkpoint's position"))?;
        let (segment, rest) = bytes.split_at(4);
        let (offset, commit) = rest.split_at(8);
        Ok(Position {
            segment: u32::from_be_bytes(segment.try_into().expect("4 bytes")),
            offset: u64::from_be_bytes(offset.try_into().expect("8 bytes")),
            commit: u64::from_be_bytes(commit.try_into().expect("8 bytes")),
        })
    }

    pub fn set_position(&self, at: Position) -> Result<(), StoreError> {
        let mut value = [0; 20];
        value[..4].copy_from_slice(&at.segment.to_be_bytes());
        value[4..12].copy_from_slice(&at.offset.to_be_bytes());
        value[12..].copy_from_slice(&at.commit.to_be_bytes());
        let meta = self.trees()?.db.open_tree("meta").map_err(index_failed("open", &self.path))?;
        meta.insert(CHECKPOINT, &value).map_err(index_failed("write", &self.path))?;
        Ok(())
    }

    pub fn put_block(&self, key: BlockKey, row: &[u8]) -> Result<(), StoreError> {
        self.trees()?.blocks.insert(block_key(key), row).map_err(index_failed("write", &self.path))?;
        Ok(())
    }

    pub fn remove_block(&self, key: BlockKey) -> Result<(), StoreError> {
        self.trees()?.blocks.remove(block_key(key)).map_err(index_failed("write", &self.path))?;
        Ok(())
    }

    /// Gives every block's row, in the order of their keys, until `sink` says that one is bad.
    pub fn blocks(&self, sink: &mut dyn FnMut(BlockKey, &[u8]) -> bool) -> Result<(), StoreError> {
        for row in &self.trees()?.blocks {
            let (key, value) = row.map_err(index_failed("read", &self.path))?;
            let bytes: &[u8; 16] = key.as_ref().try_into().map_err(|_| self.damaged("a block's key"))?;
            let (queue, first) = bytes.split_at(8);
            let queue = u64::from_be_bytes(queue.try_into().expect("8 bytes"));
            let first = u64::from_be_bytes(first.try_into().expect("8 bytes"));
            if !sink((queue, first), &value) {
                return Err(self.damaged("a block (or the log segment it points to)"));
            }
        }
        Ok(())
    }

    pub fn put_definition(&self, key: &DefinitionKey, value: &[u8]) -> Result<(), StoreError> {
        self.trees()?.definitions.insert(definition_key(key), value).map_err(index_failed("write", &self.path))?;
        Ok(())
    }

    pub fn remove_definition(&self, key: &DefinitionKey) -> Result<(), StoreError> {
        self.trees()?.definitions.remove(definition_key(key)).map_err(index_failed("write", &self.path))?;
        Ok(())
    }

    /// Gives every definition in the order of their keys.
    pub fn definitions(&self, sink: &mut dyn FnMut(DefinitionKey, Bytes)) -> Result<(), StoreError> {
        for row in &self.trees()?.definitions {
            let (key, value) = row.map_err(index_failed("read", &self.path))?;
            let key = read_definition_key(&key).ok_or_else(|| self.damaged("a definition's key"))?;
            sink(key, Bytes::copy_from_slice(&value));
        }
        Ok(())
    }

    /// Makes everything written so far durable.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.trees()?.db.flush().map_err(index_failed("flush", &self.path))?;
        self.sync_blobs()?;
        self.trees()?.file.sync_data().map_err(failed("sync", &self.path))
    }

    /// Syncs the files that sled has made for large pages since the last time: it never does.
    fn sync_blobs(&mut self) -> Result<(), StoreError> {
        let dir = self.path.join("blobs");
        let mut found = HashSet::new();
        for entry in fs::read_dir(&dir).map_err(failed("list", &dir))? {
            let path = entry.map_err(failed("list", &dir))?.path();
            if !self.blobs.contains(&path) {
                match File::options().write(true).open(&path).and_then(|file| file.sync_all()) {
                    // sled removes them when it likes.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    result => result.map_err(failed("sync", &path))?,
                }
            }
            found.insert(path);
        }
        if !found.is_subset(&self.blobs) {
            sync_dir(&dir)?;
        }
        self.blobs = found;
        Ok(())
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), offset: 0, reason: format!("{what} is not readable") }
    }
}

impl Trees {
    fn open(path: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let config = ::sled::Config::new().path(path).cache_capacity(cache_bytes).flush_every_ms(None);
        let db = open_db(&config).map_err(index_failed("open", path))?;
        let definitions = db.open_tree("definitions").map_err(index_failed("open", path))?;
        let blocks = db.open_tree("blocks").map_err(index_failed("open", path))?;
        let file_path = path.join("db");
        let file = File::options().read(true).write(true).open(&file_path).map_err(failed("open", &file_path))?;
        Ok(Self { db, definitions, blocks, file })
    }
}

fn open_db(config: &::sled::Config) -> Result<::sled::Db, ::sled::Error> {
    let start = Instant::now();
    loop {
        // sled panics over some damage that it meets here; to us that is an error like the others.
        let opened = panic::catch_unwind(AssertUnwindSafe(|| config.open()));
        match opened.unwrap_or(Err(::sled::Error::Corruption { at: None, bt: () })) {
            // The folder is ours alone, so this is an earlier store of this process: sled's threads let go of
            // the file a moment after the last handle is dropped.
            Err(::sled::Error::Io(error)) if error.to_string().contains("lock") && start.elapsed() < LET_GO => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

fn index_failed(action: &'static str, path: &Path) -> impl FnOnce(::sled::Error) -> StoreError {
    move |source| StoreError::Index { action, path: path.to_owned(), source: source.into() }
}

fn block_key((queue, first): BlockKey) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&queue.to_be_bytes());
    key[8..].copy_from_slice(&first.to_be_bytes());
    key
}

/// Keys sort like [`DefinitionKey`]: a NUL in the vhost's name becomes `00 ff`, and `00 00` ends it.
fn definition_key(key: &DefinitionKey) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.vhost.len() + key.name.len() + 3);
    out.push(key.kind as u8);
    for &byte in key.vhost.as_bytes() {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&key.name);
    out
}

fn read_definition_key(key: &[u8]) -> Option<DefinitionKey> {
    let (&kind, rest) = key.split_first()?;
    let mut vhost = Vec::new();
    let mut at = 0;
    loop {
        match (*rest.get(at)?, rest.get(at + 1)) {
            (0, Some(0)) => break,
            (0, Some(0xff)) => {
                vhost.push(0);
                at += 2;
            }
            (0, _) => return None,
            (byte, _) => {
                vhost.push(byte);
                at += 1;
            }
        }
    }
    Some(DefinitionKey {
        kind: DefinitionKind::from_number(kind)?,
        vhost: String::from_utf8(vhost).ok()?.into(),
        name: Bytes::copy_from_slice(&rest[at + 2..]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_keys_come_back_and_sort_alike() {
        let mut keys = Vec::new();
        for kind in [DefinitionKind::Vhost, DefinitionKind::Policy] {
            for vhost in ["", "/", "a", "a\0", "a\0b", "a\u{1}", "ab", "\0", "\0\0"] {
                for name in [&b""[..], b"\0", b"\0\0", b"x", b"\xff"] {
                    let name = Bytes::from_static(name);
                    keys.push(DefinitionKey { kind, vhost: vhost.into(), name });
                }
            }
        }
        for key in &keys {
            assert_eq!(read_definition_key(&definition_key(key)).as_ref(), Some(key));
        }
        keys.sort();
        assert!(keys.is_sorted_by_key(definition_key));
    }
}
