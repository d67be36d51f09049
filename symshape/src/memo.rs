//! [`Memo`]: a map for few entries, which hashes only once there are many; and [`FastMap`], for many entries.
//!
//! Most queries meet a handful of atoms and quotients. Looking through a short list beats a hash table there; longer
//! lists get one, so that hostile queries stay linear.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A fast hash for keys that are already spread out; not for keys from outside that pile up on purpose, which the
/// caps on terms and atoms bound.
#[derive(Default)]
pub(crate) struct FastHasher(u64);

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.chunks(8).for_each(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        });
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// With this many entries or more, a hash table replaces the linear search.
const FEW: usize = 12;

/// The first allocation; a larger one is much dearer.
const FIRST_BYTES: usize = 800;

/// Values by key; a key that is inserted again gets the new value.
#[derive(Clone)]
pub(crate) struct Memo<K, V> {
    entries: Vec<(K, V)>,
    table: FastMap<K, usize>,
}

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Memo { entries: Vec::new(), table: FastMap::default() }
    }
}

impl<K: Hash + Eq + Clone, V> Memo<K, V> {
    fn place(&self, key: &K) -> Option<usize> {
        if self.entries.len() < FEW {
            self.entries.iter().position(|(other, _)| other == key)
        } else {
            self.table.get(key).copied()
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.place(key).map(|idx| &self.entries[idx].1)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if let Some(idx) = self.place(&key) {
            self.entries[idx].1 = value;
            return;
        }

        if self.entries.is_empty() {
            self.entries.reserve_exact(FIRST_BYTES / size_of::<(K, V)>());
        }

        self.entries.push((key, value));
        let len = self.entries.len();
        if len == FEW {
            self.table.extend(self.entries.iter().enumerate().map(|(idx, (key, _))| (key.clone(), idx)));
        } else if len > FEW {
            self.table.insert(self.entries[len - 1].0.clone(), len - 1);
        }
    }
}
