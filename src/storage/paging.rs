//! The paging log: segments of messages for which memory has no room and that the store does not have, written as
//! they are. It means nothing after a restart, so nothing is synced, and what is found at the start is removed.
//!
//! ```text
//! DIR/0000000001.page    a file; removed when nothing in it is needed any more
//! crc u32 (of the rest) | number of entries, bytes, bodies u32 | length of each body u32 | entries u32 | bytes | bodies
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

use bytes::Bytes;

use super::StoreError;
use super::files::{failed, read_at, remove, write_all_at};
use super::replay::damaged;
use crate::model::queue::page::{Image, PagePlace};

/// A file of this size is followed by a new one: what one page that stays for long can pin.
const FILE_BYTES: u32 = 64 << 20;
const HEADER: usize = 16;

/// See the file's head.
#[derive(Debug)]
pub struct PageLog {
    dir: PathBuf,
    files: BTreeMap<u32, PageFile>,
    /// The file that grows; 0: none was made yet.
    current: u32,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct PageFile {
    file: File,
    len: u32,
    /// Pages that are needed.
    live: u32,
}

impl PageLog {
    /// A paging log in that folder, which is made when it is needed.
    ///
    /// # Errors
    /// What an earlier process left there cannot be removed.
    pub fn new(dir: PathBuf) -> Result<Self, StoreError> {
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed("remove", &dir)(error)),
            _ => {}
        }
        Ok(Self { dir, files: BTreeMap::new(), current: 0, buffer: Vec::new() })
    }

    fn path(&self, number: u32) -> PathBuf {
        self.dir.join(format!("{number:010}.page"))
    }

    /// Writes a page.
    ///
    /// # Errors
    /// The operating system refused; what was written before is safe.
    pub fn write(&mut self, image: &Image) -> Result<PagePlace, StoreError> {
        encode(image, &mut self.buffer);
        let len = self.buffer.len() as u32;
        let number = self.file_for_write()?;
        let path = self.path(number);
        let file = self.files.get_mut(&number).expect("just seen");
        let offset = file.len;
        write_all_at(&file.file, &self.buffer, offset.into()).map_err(failed("write", &path))?;
        file.len += len;
        file.live += 1;
        self.buffer.clear();
        self.buffer.shrink_to(1 << 20);
        Ok(PagePlace { file: number, offset, len })
    }

    fn file_for_write(&mut self) -> Result<u32, StoreError> {
        if self.files.get(&self.current).is_some_and(|file| file.len < FILE_BYTES) {
            return Ok(self.current);
        }
        fs::create_dir_all(&self.dir).map_err(failed("create", &self.dir))?;
        let path = self.path(self.current + 1);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(failed("create", &path))?;
        let full = self.current;
        self.current += 1;
        self.files.insert(self.current, PageFile { file, len: 0, live: 0 });
        self.remove_if_dead(full);
        Ok(self.current)
    }

    /// Reads a page.
    ///
    /// # Errors
    /// It cannot be read, or is not what was written.
    pub fn read(&self, place: PagePlace) -> Result<Image, StoreError> {
        let path = self.path(place.file);
        let Some(file) = self.files.get(&place.file) else {
            return Err(damaged(&path, place.offset.into(), "the file is gone, and messages are in it"));
        };
        let mut bytes = vec![0; place.len as usize];
        let read = read_at(&file.file, &mut bytes, place.offset.into()).map_err(failed("read", &path))?;
        let image = decode(&bytes[..read]);
        image.ok_or_else(|| damaged(&path, place.offset.into(), "messages that were written there are not readable"))
    }

    /// The page is not needed any more. Files without a page that is go.
    pub fn free(&mut self, place: PagePlace) {
        if let Some(file) = self.files.get_mut(&place.file) {
            file.live = file.live.saturating_sub(1);
        }
        if place.file != self.current {
            self.remove_if_dead(place.file);
        } else if let Some(file) = self.files.get_mut(&place.file).filter(|file| file.live == 0) {
            // Begins anew, and gives its space back.
            if file.len > 0 && file.file.set_len(0).is_ok() {
                file.len = 0;
            }
        }
    }

    fn remove_if_dead(&mut self, number: u32) {
        if self.files.get(&number).is_some_and(|file| file.live == 0) {
            self.files.remove(&number);
            if let Err(error) = remove(&self.path(number)) {
                tracing::warn!(%error, "a file of the paging log stays until the next start");
            }
        }
    }

    /// Bytes on disk.
    pub fn size(&self) -> u64 {
        self.files.values().map(|file| u64::from(file.len)).sum()
    }
}

impl Drop for PageLog {
    fn drop(&mut self) {
        if self.current > 0 {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn encode(image: &Image, out: &mut Vec<u8>) {
    out.clear();
    out.reserve(HEADER + image.len() + image.bodies.len() * 4);
    out.extend_from_slice(&[0; 4]);
    for count in [image.entries.len(), image.bytes.len(), image.bodies.len()] {
        out.extend_from_slice(&(count as u32).to_le_bytes());
    }
    for body in &image.bodies {
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    }
    for entry in &image.entries {
        out.extend_from_slice(&entry.to_le_bytes());
    }
    out.extend_from_slice(&image.bytes);
    image.bodies.iter().for_each(|body| out.extend_from_slice(body));
    let crc = crc32fast::hash(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
}

fn decode(input: &[u8]) -> Option<Image> {
    let (header, mut rest) = input.split_at_checked(HEADER)?;
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if crc32fast::hash(&input[4..]) != number(0) {
        return None;
    }
    let mut take = |length: usize| {
        let (taken, left) = rest.split_at_checked(length)?;
        rest = left;
        Some(taken)
    };
    let numbers = |bytes: &[u8]| -> Vec<u32> {
        bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
    };
    let (entries, bytes, bodies) = (number(4) as usize, number(8) as usize, number(12) as usize);
    let lengths = numbers(take(bodies.checked_mul(4)?)?);
    let entries = numbers(take(entries.checked_mul(4)?)?);
    let bytes = take(bytes)?.to_vec();
    let bodies = lengths.into_iter().map(|length| take(length as usize).map(Bytes::copy_from_slice));
    Some(Image { entries, bytes, bodies: bodies.collect::<Option<_>>()?, delivered: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(number: u32, bytes: usize) -> Image {
        let bodies = vec![Bytes::from(vec![number as u8; 5000]), Bytes::new()];
        Image { entries: vec![0, u32::MAX, number], bytes: vec![number as u8; bytes], bodies, delivered: Vec::new() }
    }

    fn same(a: &Image, b: &Image) -> bool {
        a.entries == b.entries && a.bytes == b.bytes && a.bodies == b.bodies
    }

    #[test]
    fn pages_read_back_and_dead_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("paging");
        let mut log = PageLog::new(folder.clone()).unwrap();
        let size = 9 << 20;
        let places: Vec<PagePlace> = (0..20).map(|number| log.write(&image(number, size)).unwrap()).collect();
        for (number, place) in places.iter().enumerate() {
            assert!(same(&log.read(*place).unwrap(), &image(number as u32, size)), "page {number}");
        }
        let files = || fs::read_dir(&folder).unwrap().count();
        assert_eq!(files(), 3);
        places[..8].iter().for_each(|place| log.free(*place));
        assert_eq!(files(), 2, "the first file is dead");
        places[8..].iter().for_each(|place| log.free(*place));
        assert_eq!((files(), log.size()), (1, 0));
        drop(log);
        assert!(!folder.exists());
    }

    #[test]
    fn a_flipped_byte_is_seen_and_what_was_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("paging");
        let mut log = PageLog::new(folder.clone()).unwrap();
        let place = log.write(&image(1, 1000)).unwrap();
        let path = log.path(place.file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[700] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = log.read(place).unwrap_err().to_string();
        assert!(error.contains(".page is damaged at byte 0"), "{error}");
        std::mem::forget(log);
        PageLog::new(folder.clone()).unwrap();
        assert!(!folder.exists());
    }
}
