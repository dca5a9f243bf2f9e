//! A look-up table from hashes to ids, for what lies in a slab and should not lie in a hash map as well.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys are hashes already, made with a secret key: peers choose what is hashed.
pub(super) type PrehashedMap<T> = HashMap<u64, T, BuildHasherDefault<Prehashed>>;

/// Passes a hash through.
#[derive(Debug, Default)]
pub(super) struct Prehashed(u64);

impl Hasher for Prehashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only hashes are keys");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// From hashes to ids. Ids with equal hashes are told apart by the caller.
#[derive(Debug)]
pub(super) struct HashIndex<T> {
    first: PrehashedMap<T>,
    /// Those whose hash was taken: with 64 bits of secret hash, practically none.
    others: Vec<(u64, T)>,
}

impl<T> Default for HashIndex<T> {
    fn default() -> Self {
        Self { first: HashMap::default(), others: Vec::new() }
    }
}

impl<T: Copy + PartialEq> HashIndex<T> {
    /// The id of this hash that is the right one.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(T) -> bool) -> Option<T> {
        let first = *self.first.get(&hash)?;
        if is_it(first) {
            return Some(first);
        }
        self.others.iter().find(|(other, id)| *other == hash && is_it(*id)).map(|(_, id)| *id)
    }

    /// Adds an id that is not there.
    pub(super) fn insert(&mut self, hash: u64, id: T) {
        if let Some(displaced) = self.first.insert(hash, id) {
            self.others.push((hash, displaced));
        }
    }

    /// Removes an id that is there.
    pub(super) fn remove(&mut self, hash: u64, id: T) {
        let replacement = self.others.iter().position(|(other, _)| *other == hash);
        if self.first.get(&hash) != Some(&id) {
            let position = self.others.iter().position(|entry| *entry == (hash, id));
            self.others.swap_remove(position.expect("an id that was inserted is there"));
        } else if let Some(position) = replacement {
            let (_, id) = self.others.swap_remove(position);
            self.first.insert(hash, id);
        } else {
            self.first.remove(&hash);
        }
    }

    /// Gives back the memory of an index that has become empty.
    pub(super) fn shrink(&mut self) {
        self.first.shrink_to_fit();
        self.others.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_hashes_are_told_apart() {
        let mut index = HashIndex::default();
        for id in [10, 11, 12] {
            index.insert(7, id);
        }
        index.insert(8, 20);
        let has = |index: &HashIndex<i32>, hash, id| index.find(hash, |other| other == id).is_some();
        for (removed, left) in [(12, vec![10, 11]), (10, vec![11]), (11, vec![])] {
            index.remove(7, removed);
            for id in [10, 11, 12] {
                assert_eq!(has(&index, 7, id), left.contains(&id), "{id} after removing {removed}");
            }
            assert!(has(&index, 8, 20) && !has(&index, 8, 10));
        }
    }
}
