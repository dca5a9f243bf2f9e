//! The durable store against a store in plain maps: random work with restarts, crashes at every byte,
//! failed writes, damage, and folders that are not ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use leveret::model::record::{Batch, DefinitionKey, DefinitionKind, Op, Recovered};
use leveret::storage::memory::{FaultyMemoryStore, MemoryStore};
use leveret::storage::sled::SledStore;
use leveret::storage::{Fault, Fsync, Recovery, Store, StoreError, StoreOptions};
use proptest::prelude::*;
use tempfile::TempDir;

/// In memory where that is possible: a sync per commit is what these tests wait for otherwise.
fn temp_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory).unwrap() } else { TempDir::new().unwrap() }
}

/// Small enough that a few commits fill segments and make checkpoints and compaction happen.
fn tiny() -> StoreOptions {
    StoreOptions { segment_bytes: 4 << 10, checkpoint_bytes: 2 << 10, ..eager() }
}

fn eager() -> StoreOptions {
    StoreOptions { idle_after: Duration::ZERO, checkpoint_slice: Duration::ZERO, ..StoreOptions::default() }
}

fn publish(batch: &mut Batch, queue: u64, seq: u64, record: &[u8], body: Option<usize>) {
    let start = batch.bytes.len();
    batch.bytes.extend_from_slice(record);
    batch.ops.push(Op::Publish { queue, seq, start, len: record.len(), body });
}

fn record(queue: u64, seq: u64, len: usize) -> Vec<u8> {
    let mut bytes = format!("{queue}/{seq}/").into_bytes();
    bytes.resize(bytes.len().max(len), seq as u8);
    bytes
}

/// A batch of messages with these sequences.
fn messages(queue: u64, seqs: impl IntoIterator<Item = u64>, len: usize) -> Batch {
    let mut batch = Batch::default();
    for seq in seqs {
        publish(&mut batch, queue, seq, &record(queue, seq, len), None);
    }
    batch
}

fn settled(queue: u64, first: u64, last: u64) -> Batch {
    Batch { ops: vec![Op::Settle { queue, first, last }], ..Batch::default() }
}

fn key(name: &str) -> DefinitionKey {
    let name = Bytes::copy_from_slice(name.as_bytes());
    DefinitionKey { kind: DefinitionKind::Queue, vhost: "/".into(), name }
}

fn recover(store: &mut dyn Store) -> Result<(Recovery, Vec<Recovered>), StoreError> {
    let mut all = Vec::new();
    let recovery = store.recover(&mut |found| all.push(found))?;
    Ok((recovery, all))
}

/// Opens and recovers; the store is open afterwards.
fn start(dir: &Path, options: StoreOptions) -> (SledStore, Recovery, Vec<Recovered>) {
    let mut store = SledStore::open(dir, options).unwrap();
    let (recovery, all) = recover(&mut store).unwrap();
    (store, recovery, all)
}

/// Compares what two stores gave, and says where they differ and not all that they gave.
fn assert_same(found: &[Recovered], expected: &[Recovered]) {
    let pair = found.iter().zip(expected).find(|(found, expected)| found != expected);
    assert!(pair.is_none(), "{:#?}", pair.unwrap());
    assert_eq!(found.len(), expected.len());
}

fn seqs(all: &[Recovered]) -> Vec<u64> {
    let seq = |found: &Recovered| match found {
        Recovered::Message { seq, .. } => Some(*seq),
        Recovered::Definition { .. } => None,
    };
    all.iter().filter_map(seq).collect()
}

/// What a crash of the machine would leave if every write had reached the disk: the files as they are now.
fn crashed(dir: &Path) -> TempDir {
    let copy = temp_dir();
    copy_folder(dir, copy.path());
    copy
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir.join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn log_bytes(dir: &Path) -> u64 {
    segments(dir).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

/// One step of random work.
#[derive(Clone, Debug)]
enum Step {
    Publish {
        queue: u64,
        gap: u64,
        len: usize,
    },
    /// The same body to several queues.
    FanOut {
        queues: u64,
        len: usize,
    },
    /// Settles from the `at`-th live message on, `count` sequences.
    Settle {
        queue: u64,
        at: usize,
        count: u64,
    },
    Delivered {
        queue: u64,
        at: usize,
        count: u32,
    },
    Drop {
        queue: u64,
    },
    Put {
        name: u8,
        len: usize,
    },
    Remove {
        name: u8,
    },
    NextBatch,
    Commit,
    /// The next commit's write, or its sync, fails; then the same batches are tried again.
    CommitFailing {
        write: Option<usize>,
    },
    Maintain,
    Read {
        queue: u64,
        at: usize,
        bytes_max: usize,
    },
    /// Not clean: as after a crash, when sled may have written a part of a checkpoint or not.
    Restart {
        clean: bool,
        flush: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let queue = 1..5_u64;
    prop_oneof![
        12 => (queue.clone(), prop_oneof![9 => 1..3_u64, 1 => 1..3000_u64], 0..200_usize)
            .prop_map(|(queue, gap, len)| Step::Publish { queue, gap, len }),
        2 => (2..5_u64, prop_oneof![4 => 0..300_usize, 1 => Just(70_000)])
            .prop_map(|(queues, len)| Step::FanOut { queues, len }),
        6 => (queue.clone(), 0..40_usize, 1..12_u64).prop_map(|(queue, at, count)| Step::Settle { queue, at, count }),
        1 => (queue.clone(), 0..40_usize, 1..5_u32).prop_map(|(queue, at, count)| Step::Delivered { queue, at, count }),
        1 => queue.clone().prop_map(|queue| Step::Drop { queue }),
        1 => (0..6_u8, 0..50_usize).prop_map(|(name, len)| Step::Put { name, len }),
        1 => (0..6_u8).prop_map(|name| Step::Remove { name }),
        2 => Just(Step::NextBatch),
        8 => Just(Step::Commit),
        1 => prop::option::of(0..300_usize).prop_map(|write| Step::CommitFailing { write }),
        3 => Just(Step::Maintain),
        2 => (queue, 0..40_usize, 0..2000_usize).prop_map(|(queue, at, bytes_max)| Step::Read { queue, at, bytes_max }),
        1 => any::<(bool, bool)>().prop_map(|(clean, flush)| Step::Restart { clean, flush }),
    ]
}

/// Both stores, and what the model would know.
struct World {
    dir: TempDir,
    store: SledStore,
    maps: FaultyMemoryStore,
    options: StoreOptions,
    batches: Vec<Batch>,
    /// Per queue number: its id and next sequence.
    queues: [(u64, u64); 5],
    next_id: u64,
    /// Committed live messages, and those that wait for the commit.
    live: Vec<(u64, u64)>,
    waiting: Vec<(u64, u64)>,
}

impl World {
    fn new(options: StoreOptions) -> Self {
        let dir = temp_dir();
        let (store, recovery, _) = start(dir.path(), options);
        assert!(recovery.clean);
        let maps = FaultyMemoryStore::new();
        let queues = [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)];
        let (live, waiting) = (Vec::new(), Vec::new());
        Self { dir, store, maps, options, batches: vec![Batch::default()], queues, next_id: 5, live, waiting }
    }

    fn run(&mut self, step: &Step) {
        let batch = self.batches.last_mut().unwrap();
        match *step {
            Step::Publish { queue, gap, len } => {
                let (id, seq) = &mut self.queues[queue as usize];
                *seq += gap;
                publish(batch, *id, *seq, &record(*id, *seq, len), None);
                self.waiting.push((*id, *seq));
            }
            Step::FanOut { queues, len } => {
                batch.bodies.push(vec![len as u8; len].into());
                for queue in 1..=queues {
                    let (id, seq) = &mut self.queues[queue as usize];
                    *seq += 1;
                    publish(batch, *id, *seq, &record(*id, *seq, 0), Some(batch.bodies.len() - 1));
                    self.waiting.push((*id, *seq));
                }
            }
            Step::Settle { queue, at, count } => {
                let Some(first) = self.live_seq(queue, at) else { return };
                let (id, next) = self.queues[queue as usize];
                // Not beyond what is committed: the model leaves such messages out of the batch.
                let waiting = self.waiting.iter().filter(|(of, _)| *of == id).map(|(_, seq)| *seq).min();
                let last = (first + count - 1).min(waiting.unwrap_or(next + 1) - 1);
                self.live.retain(|&(of, seq)| of != id || seq < first || seq > last);
                self.batches.last_mut().unwrap().ops.push(Op::Settle { queue: id, first, last });
            }
            Step::Delivered { queue, at, count } => {
                let Some(seq) = self.live_seq(queue, at) else { return };
                let id = self.queues[queue as usize].0;
                self.batches.last_mut().unwrap().ops.push(Op::Delivered { queue: id, seq, count });
            }
            Step::Drop { queue } => {
                let (id, _) = std::mem::replace(&mut self.queues[queue as usize], (self.next_id, 1));
                self.next_id += 1;
                self.live.retain(|(of, _)| *of != id);
                self.waiting.retain(|(of, _)| *of != id);
                batch.ops.push(Op::Drop { queue: id });
            }
            Step::Put { name, len } => {
                batch.ops.push(Op::Put { key: key(&name.to_string()), value: vec![name; len].into() });
            }
            Step::Remove { name } => batch.ops.push(Op::Remove { key: key(&name.to_string()) }),
            Step::NextBatch => self.batches.push(Batch::default()),
            Step::Commit => self.commit(),
            Step::CommitFailing { write } => {
                if self.batches.iter().any(|batch| !batch.is_empty()) {
                    self.store.inject(write.map_or(Fault::Sync, |after| Fault::Write { after }));
                    assert!(self.store.commit(&self.batches).is_err());
                }
                self.commit();
            }
            Step::Maintain => {
                for _ in 0..20 {
                    if !self.store.maintain().unwrap() {
                        break;
                    }
                }
            }
            Step::Read { queue, at, bytes_max } => self.read(queue, at, bytes_max),
            Step::Restart { clean, flush } => self.restart(clean, flush),
        }
    }

    fn live_seq(&self, queue: u64, at: usize) -> Option<u64> {
        let id = self.queues[queue as usize].0;
        let seqs: Vec<u64> = self.live.iter().filter(|(of, _)| *of == id).map(|(_, seq)| *seq).collect();
        (!seqs.is_empty()).then(|| seqs[at % seqs.len()])
    }

    fn commit(&mut self) {
        self.store.commit(&self.batches).unwrap();
        self.maps.commit(&self.batches).unwrap();
        self.batches = vec![Batch::default()];
        self.live.append(&mut self.waiting);
    }

    fn read(&mut self, queue: u64, at: usize, bytes_max: usize) {
        let id = self.queues[queue as usize].0;
        let first = self.live_seq(queue, at).unwrap_or(0);
        let (mut got, mut expected) = (Vec::new(), Vec::new());
        let next = self.store.read(id, first, bytes_max, &mut |found| got.push(found)).unwrap();
        let next_expected = self.maps.read(id, first, bytes_max, &mut |found| expected.push(found)).unwrap();
        // What waits in batches that settle them is live in neither.
        assert_same(&got, &expected);
        assert_eq!(next, next_expected);
    }

    fn restart(&mut self, clean: bool, flush: bool) {
        self.commit();
        if flush {
            self.store.flush_index();
        }
        let crash = (!clean).then(|| crashed(self.dir.path()));
        if clean {
            self.store.close().unwrap();
        }
        // The lock has to go before the folder is opened again.
        let other = temp_dir();
        self.store = SledStore::open(other.path(), self.options).unwrap();
        if let Some(crash) = crash {
            self.dir = crash;
        }
        self.store = SledStore::open(self.dir.path(), self.options).unwrap();
        let (recovery, all) = recover(&mut self.store).unwrap();
        let mut maps = self.maps.restarted();
        let (_, expected) = recover(&mut maps).unwrap();
        assert_same(&all, &expected);
        assert_eq!(recovery.messages as usize, self.live.len());
        assert_eq!(recovery.cut_bytes, 0);
        if clean {
            assert!(recovery.clean);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// Whatever was committed comes back after any restart, and only that.
    #[test]
    fn random_work_survives_restarts(steps in prop::collection::vec(step(), 1..250)) {
        let mut world = World::new(tiny());
        for step in &steps {
            world.run(step);
        }
        world.restart(false, true);
        world.restart(true, false);
    }

    /// The same with a sync only now and then: a crash of the process loses nothing.
    #[test]
    fn random_work_survives_restarts_without_syncs(
        steps in prop::collection::vec(step(), 1..150),
        fsync in prop_oneof![Just(Fsync::Never), Just(Fsync::Interval(Duration::from_millis(1)))],
    ) {
        let mut world = World::new(StoreOptions { fsync, ..tiny() });
        for step in &steps {
            // A sync may not happen in a commit, so that its failure does not either.
            if !matches!(step, Step::CommitFailing { write: None }) {
                world.run(step);
            }
        }
        world.restart(false, true);
        world.restart(true, false);
    }
}

/// Cut anywhere in the last commit, or with any byte of it changed, the log gives all commits before it.
#[test]
fn a_torn_commit_is_not_there() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), StoreOptions::default());
    let mut before = 0;
    for commit in 0..3 {
        let mut batch = messages(1, commit * 10..commit * 10 + 5, 20);
        batch.bodies.push(vec![7; 100].into());
        publish(&mut batch, 2, commit + 1, b"x", Some(0));
        batch.ops.push(Op::Put { key: key("q"), value: vec![commit as u8].into() });
        before = segments(dir.path()).first().map_or(0, |path| used(path));
        store.commit(&[batch]).unwrap();
    }
    let end = used(&segments(dir.path())[0]);
    let crash = crashed(dir.path());
    drop(store);
    let log = &segments(crash.path())[0];
    let good = fs::read(log).unwrap();
    let check = |bytes: &[u8], whole: bool, what: &str| {
        let copy = crashed(crash.path());
        fs::write(&segments(copy.path())[0], bytes).unwrap();
        let (_, recovery, all) = start(copy.path(), StoreOptions::default());
        let commits = if whole { 3 } else { 2 };
        assert_eq!(recovery.messages, commits * 6, "{what}");
        assert!(!recovery.clean);
        assert_eq!(recovery.cut_bytes > 0, !whole && used_bytes(bytes) > before, "{what}");
        let value = Bytes::from(vec![commits as u8 - 1]);
        assert_eq!(all[0], Recovered::Definition { key: key("q"), value }, "{what}");
        // The store goes on behind the cut.
        let (mut store, ..) = start(copy.path(), StoreOptions::default());
        store.commit(&[messages(1, [1000], 20)]).unwrap();
        drop(store);
        let (_, recovery, all) = start(copy.path(), StoreOptions::default());
        assert_eq!(recovery.messages, commits * 6 + 1, "{what}");
        assert_eq!(recovery.cut_bytes, 0);
        assert!(seqs(&all).contains(&1000));
    };
    for cut in (before..=end).step_by(7).chain([end - 1, end]) {
        check(&good[..cut as usize], cut == end, &format!("cut at {cut}"));
    }
    for at in (before..end).step_by(11) {
        let mut bytes = good.clone();
        bytes[at as usize] ^= 0x10;
        check(&bytes, false, &format!("byte {at} changed"));
        bytes[at as usize..end as usize].fill(0);
        check(&bytes, false, &format!("zeros from {at} on"));
    }
}

fn used_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1)
}

/// Length of a log segment less the zeros written ahead (a commit does not end in a zero here).
fn used(path: &Path) -> u64 {
    used_bytes(&fs::read(path).unwrap())
}

/// A large commit is several frames: none of it counts before the last one is there.
#[test]
fn a_torn_large_commit_is_not_there() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), StoreOptions::default());
    store.commit(&[messages(1, 1..10, 50)]).unwrap();
    let before = used(&segments(dir.path())[0]);
    let mut batch = messages(1, 10..2010, 700);
    batch.bodies.push(vec![9; 200_000].into());
    publish(&mut batch, 2, 1, b"large", Some(0));
    publish(&mut batch, 3, 1, b"large", Some(0));
    store.commit(&[batch]).unwrap();
    let crash = crashed(dir.path());
    drop(store);
    let good = fs::read(&segments(crash.path())[0]).unwrap();
    let (_, recovery, all) = start(crashed(crash.path()).path(), StoreOptions::default());
    assert_eq!(recovery.messages, 2011);
    assert!(matches!(all.last(), Some(Recovered::Message { body: Some(body), .. }) if body.len() == 200_000));
    for cut in (before..used_bytes(&good)).step_by(77_777) {
        let copy = crashed(crash.path());
        fs::write(&segments(copy.path())[0], &good[..cut as usize]).unwrap();
        let (_, recovery, _) = start(copy.path(), StoreOptions::default());
        assert_eq!(recovery.messages, 9, "cut at {cut}");
        // A page in the middle that never reached the disk, later ones that did.
        let mut bytes = good.clone();
        bytes[cut as usize..cut as usize + 4096].fill(0);
        fs::write(&segments(copy.path())[0], &bytes).unwrap();
        let (_, recovery, _) = start(copy.path(), StoreOptions::default());
        assert_eq!(recovery.messages, 9, "hole at {cut}");
    }
}

/// A bad frame before a later commit, or in an earlier segment, is an error and not a silent loss.
#[test]
fn damage_in_the_middle_is_an_error() {
    let dir = temp_dir();
    let options = StoreOptions { segment_bytes: 2 << 10, ..StoreOptions::default() };
    let (mut store, ..) = start(dir.path(), options);
    for commit in 0..24 {
        store.commit(&[messages(1, commit * 10..commit * 10 + 5, 60)]).unwrap();
    }
    let crash = crashed(dir.path());
    drop(store);
    let files = segments(crash.path());
    assert!(files.len() > 2);
    for (number, at) in [(0, 10), (0, 100), (1, 500), (files.len() - 1, 60), (1, 20)] {
        let copy = crashed(crash.path());
        let path = &segments(copy.path())[number];
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
        let mut store = SledStore::open(copy.path(), options).unwrap();
        match recover(&mut store) {
            Err(StoreError::Damaged { path: named, .. }) => assert_eq!(&named, path),
            other => panic!("segment {number}, byte {at}: {other:?}"),
        }
    }
    // A segment that is gone, too.
    let copy = crashed(crash.path());
    fs::remove_file(&segments(copy.path())[1]).unwrap();
    let mut store = SledStore::open(copy.path(), options).unwrap();
    assert!(matches!(recover(&mut store), Err(StoreError::Damaged { .. })));
}

/// Without syncs a power cut may lose any page: the log ends there, and what is behind goes as well.
#[test]
fn unsynced_damage_is_a_torn_tail() {
    let dir = temp_dir();
    let options = StoreOptions { segment_bytes: 2 << 10, fsync: Fsync::Never, ..StoreOptions::default() };
    let (mut store, ..) = start(dir.path(), options);
    for commit in 0..12 {
        store.commit(&[messages(1, commit * 10..commit * 10 + 5, 60)]).unwrap();
    }
    let crash = crashed(dir.path());
    drop(store);
    let path = &segments(crash.path())[1];
    let mut bytes = fs::read(path).unwrap();
    bytes[900] ^= 1;
    fs::write(path, bytes).unwrap();
    let (mut store, recovery, all) = start(crash.path(), options);
    assert!(recovery.cut_bytes > 0 && !recovery.clean);
    let expected: Vec<u64> = (0..12).flat_map(|commit| commit * 10..commit * 10 + 5).take(all.len()).collect();
    assert_eq!(seqs(&all), expected);
    store.commit(&[messages(1, [500], 60)]).unwrap();
    drop(store);
    let (_, recovery, again) = start(crash.path(), options);
    assert_eq!(recovery.cut_bytes, 0);
    assert_eq!(again.len(), all.len() + 1);
}

/// A message whose frame is damaged behind a checkpoint is noticed when it is read.
#[test]
fn damage_before_the_checkpoint_is_an_error() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), StoreOptions::default());
    store.commit(&[messages(1, 1..100, 60)]).unwrap();
    store.close().unwrap();
    drop(store);
    let path = &segments(dir.path())[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[1000] ^= 1;
    fs::write(path, bytes).unwrap();
    let mut store = SledStore::open(dir.path(), StoreOptions::default()).unwrap();
    assert!(matches!(recover(&mut store), Err(StoreError::Damaged { .. })));
}

/// Ranges may span sequences that were never published, that are settled already, or several blocks.
#[test]
fn settles_ranges_with_gaps() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), tiny());
    let published: Vec<u64> = (0..9000).filter(|seq| seq % 3 != 1).collect();
    store.commit(&[messages(7, published.iter().copied(), 10)]).unwrap();
    let mut left = published;
    for (first, last) in
        [(0, 2), (5, 5), (4, 9), (100, 5000), (4990, 4999), (8998, 20_000), (50, 40), (30_000, u64::MAX)]
    {
        store.commit(&[settled(7, first, last)]).unwrap();
        left.retain(|seq| *seq < first || *seq > last);
    }
    store.commit(&[settled(8, 0, u64::MAX)]).unwrap();
    drop(store);
    let (mut store, _, all) = start(dir.path(), tiny());
    assert_eq!(seqs(&all), left);
    store.commit(&[settled(7, 0, u64::MAX)]).unwrap();
    store.close().unwrap();
    drop(store);
    let (_, recovery, _) = start(dir.path(), tiny());
    assert_eq!((recovery.messages, recovery.clean), (0, true));
}

/// A crash at any moment of a checkpoint: before, between any of its rows, after; while segments are filled,
/// die and are compacted.
#[test]
fn crash_within_a_checkpoint() {
    // In the first run checkpoints are short and in quiet moments, in the second they take many commits.
    for (checkpoint_bytes, idle) in [(24 << 10, true), (96 << 10, false)] {
        let options = StoreOptions { checkpoint_bytes, segment_bytes: 6 << 10, ..eager() };
        let dir = temp_dir();
        let (mut store, ..) = start(dir.path(), options);
        let mut maps = FaultyMemoryStore::new();
        let check = |store: &mut SledStore, maps: &FaultyMemoryStore| {
            let expected = recover(&mut maps.restarted()).unwrap().1;
            for flush in [false, true] {
                if flush {
                    store.flush_index();
                }
                let copy = crashed(dir.path());
                let (mut store, _, all) = start(copy.path(), options);
                assert_same(&all, &expected);
                store.close().unwrap();
                drop(store);
                let (_, _, all) = start(copy.path(), options);
                assert_same(&all, &expected);
            }
        };
        for round in 0..120_u64 {
            let mut batch = Batch::default();
            for queue in 1..=40 {
                publish(&mut batch, queue, round + 1, &record(queue, round, 30), None);
                // One message in twenty stays, each queue's at other times.
                if round > 3 && (queue + round) % 20 != 0 {
                    batch.ops.push(Op::Settle { queue, first: round - 3, last: round - 3 });
                }
            }
            batch.ops.push(Op::Put { key: key(&(round % 7).to_string()), value: vec![round as u8].into() });
            let batches = [batch];
            store.commit(&batches).unwrap();
            maps.commit(&batches).unwrap();
            if round % 2 == 0 {
                check(&mut store, &maps);
            }
            for _ in 0..3 {
                if idle && store.maintain().unwrap() && round % 5 == 0 {
                    check(&mut store, &maps);
                }
            }
        }
        assert!(!segments(dir.path())[0].ends_with("0000000001.log"), "no segment was removed");
    }
}

/// Segments that are mostly settled give their space back, and exactly the live messages stay.
#[test]
fn compaction_keeps_the_live_messages() {
    let options = StoreOptions { segment_bytes: 64 << 10, checkpoint_bytes: 32 << 10, ..eager() };
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), options);
    let mut maps = FaultyMemoryStore::new();
    for round in 0..200_u64 {
        let seqs = round * 20 + 1..round * 20 + 21;
        let mut batch = messages(1, seqs.clone(), 100);
        batch.bodies.push(vec![round as u8; 3000].into());
        publish(&mut batch, 2, round + 1, b"shared", Some(0));
        publish(&mut batch, 3, round + 1, b"shared", Some(0));
        let mut ack = Batch::default();
        // Of each queue one message in twenty stays.
        for seq in seqs.filter(|seq| seq % 20 != 3) {
            ack.ops.push(Op::Settle { queue: 1, first: seq, last: seq });
        }
        if round % 20 != 5 {
            ack.ops.push(Op::Settle { queue: 2, first: round + 1, last: round + 1 });
            ack.ops.push(Op::Settle { queue: 3, first: round + 1, last: round + 1 });
        }
        for batches in [[batch], [ack]] {
            store.commit(&batches).unwrap();
            maps.commit(&batches).unwrap();
        }
    }
    let crash = crashed(dir.path());
    let during = log_bytes(dir.path());
    assert!(during < 500 << 10, "not compacted while commits go on: {during} bytes");
    while store.maintain().unwrap() {}
    let after = log_bytes(dir.path());
    assert!(after < 300 << 10, "{after} bytes for 200 messages of 100 bytes and 10 bodies of 3000");
    let expected = recover(&mut maps.restarted()).unwrap().1;
    let (_, _, all) = start(crash.path(), options);
    assert_same(&all, &expected);
    let crash = crashed(dir.path());
    let (_, _, all) = start(crash.path(), options);
    assert_same(&all, &expected);
    // And they can be settled wherever they are now.
    store.commit(&[settled(1, 0, u64::MAX), settled(2, 0, 100), settled(3, 0, u64::MAX)]).unwrap();
    store.close().unwrap();
    drop(store);
    let (mut store, _, all) = start(dir.path(), options);
    assert_eq!(seqs(&all), [106, 126, 146, 166, 186]);
    while store.maintain().unwrap() {}
    assert!(segments(dir.path()).len() <= 3, "{:?}", segments(dir.path()));
}

/// After a failed write or sync, the same batches can be tried again, and nothing of the failure stays.
#[test]
fn a_failed_commit_leaves_nothing() {
    for fault in [
        Fault::Write { after: 0 },
        Fault::Write { after: 1 },
        Fault::Write { after: 200 },
        Fault::Write { after: usize::MAX },
        Fault::Sync,
        Fault::Create,
    ] {
        for retry in [false, true] {
            let dir = temp_dir();
            let options = StoreOptions { segment_bytes: 600, ..StoreOptions::default() };
            let (mut store, ..) = start(dir.path(), options);
            store.commit(&[messages(1, 1..20, 30)]).unwrap();
            store.inject(fault);
            let batch = [messages(1, 20..30, 30), settled(1, 1, 5)];
            assert!(store.commit(&batch).is_err(), "{fault:?}");
            let crash = crashed(dir.path());
            let mut expected: Vec<u64> = (1..20).collect();
            let (_, recovery, all) = start(crash.path(), options);
            assert_eq!((seqs(&all), recovery.cut_bytes), (expected.clone(), 0), "{fault:?}");
            if retry {
                store.commit(&batch).unwrap();
                expected = (6..30).collect();
            }
            store.commit(&[messages(1, 40..42, 30)]).unwrap();
            expected.extend([40, 41]);
            drop(store);
            let (_, _, all) = start(dir.path(), options);
            assert_eq!(seqs(&all), expected, "{fault:?}");
        }
    }
}

/// Reading goes on where it stopped, and gives what recovery gives.
#[test]
fn reads_a_queue_in_parts() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), tiny());
    for round in 0..50_u64 {
        let mut batch = Batch::default();
        for queue in 1..4 {
            for seq in 0..20 {
                publish(&mut batch, queue, round * 20 + seq, &record(queue, round * 20 + seq, 64), None);
            }
        }
        batch.ops.push(Op::Delivered { queue: 2, seq: round * 20 + 7, count: round as u32 });
        store.commit(&[batch]).unwrap();
    }
    store.commit(&[settled(2, 100, 300)]).unwrap();
    let mut found = Vec::new();
    let mut next = Some(40);
    let mut reads = 0;
    while let Some(first) = next {
        next = store.read(2, first, 5000, &mut |message| found.push(message)).unwrap();
        reads += 1;
    }
    assert_eq!(seqs(&found), (40..100).chain(301..1000).collect::<Vec<u64>>());
    assert!((9..12).contains(&reads), "{reads} reads of 5000 bytes");
    let counted = found.iter().filter(|m| matches!(m, Recovered::Message { delivered, .. } if *delivered > 0));
    assert_eq!(counted.count(), 3 + 35);
    assert_eq!(store.read(99, 0, 100, &mut |_| panic!("no such queue")).unwrap(), None);
}

/// A batch that jumps among queues is written queue by queue; what happens to one queue keeps its order.
#[test]
fn many_queues_in_one_batch() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), StoreOptions::default());
    let mut maps = FaultyMemoryStore::new();
    for round in 0..4_u64 {
        let mut batch = Batch::default();
        for step in 0..300_u64 {
            let seq = round * 300 + step + 1;
            batch.bodies.push(vec![step as u8; 500].into());
            for queue in 1..=10 {
                let body = (step % 3 == 0).then(|| batch.bodies.len() - 1);
                publish(&mut batch, queue, seq, &record(queue, seq, 40), body);
                if round > 0 && (step + queue) % 7 == 0 {
                    batch.ops.push(Op::Settle { queue, first: seq - 250, last: seq - 245 });
                }
                if (step + queue) % 11 == 0 {
                    batch.ops.push(Op::Delivered { queue, seq, count: step as u32 });
                }
            }
            // The later one of two changes counts, whatever comes between.
            batch.ops.push(Op::Put { key: key(&(step % 5).to_string()), value: vec![step as u8].into() });
            if step % 4 == 0 {
                batch.ops.push(Op::Remove { key: key(&(step % 3).to_string()) });
            }
            // A queue that lives in this batch only, and one that is dropped again.
            publish(&mut batch, 1000 + seq, 1, b"x", None);
            if step % 2 == 0 {
                batch.ops.push(Op::Drop { queue: 1000 + seq });
            }
        }
        let batches = [batch, messages(20 + round, 1..5, 10)];
        store.commit(&batches).unwrap();
        maps.commit(&batches).unwrap();
    }
    let (mut got, mut expected) = (Vec::new(), Vec::new());
    store.read(4, 100, 20_000, &mut |found| got.push(found)).unwrap();
    maps.read(4, 100, 20_000, &mut |found| expected.push(found)).unwrap();
    assert_same(&got, &expected);
    drop(store);
    let (_, _, all) = start(dir.path(), StoreOptions::default());
    assert_same(&all, &recover(&mut maps.restarted()).unwrap().1);
}

/// A body that went to several queues is one piece of memory after a restart as well.
#[test]
fn a_shared_body_stays_shared() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), StoreOptions::default());
    for seq in 1..4 {
        let mut batch = messages(9, seq * 100..seq * 100 + 100, 10);
        batch.bodies.push(vec![1; 10_000].into());
        batch.bodies.push(vec![2; 100_000].into());
        for queue in 1..4 {
            publish(&mut batch, queue, 2 * seq, b"x", Some(0));
            publish(&mut batch, queue, 2 * seq + 1, b"y", Some(1));
        }
        store.commit(&[batch]).unwrap();
    }
    let written = log_bytes(dir.path());
    assert!(written < 700_000, "{written} bytes for 3 times 110,000 of bodies");
    drop(store);
    let (_, _, all) = start(dir.path(), StoreOptions::default());
    let bodies: Vec<(usize, usize)> = all
        .iter()
        .filter_map(|found| match found {
            Recovered::Message { body: Some(body), .. } => Some((body.len(), body.as_ptr() as usize)),
            _ => None,
        })
        .collect();
    assert_eq!(bodies.len(), 18);
    for (number, body) in bodies.iter().enumerate() {
        assert_eq!(*body, bodies[number % 6]);
    }
}

#[test]
fn definitions_come_back_in_order() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), tiny());
    let put = |name: &str, value: &'static str| Op::Put { key: key(name), value: value.into() };
    let commit = |store: &mut SledStore, ops: Vec<Op>| store.commit(&[Batch { ops, ..Batch::default() }]).unwrap();
    commit(&mut store, vec![put("b", "1"), put("d", "1"), put("f", "1")]);
    store.close().unwrap();
    drop(store);
    let (mut store, recovery, _) = start(dir.path(), tiny());
    assert_eq!((recovery.definitions, recovery.clean), (3, true));
    // Over the checkpoint: new ones around it, a changed one, a removed one, one that never was.
    commit(&mut store, vec![put("a", "2"), put("d", "2"), put("c", "2"), put("g", "2")]);
    commit(&mut store, vec![Op::Remove { key: key("b") }, Op::Remove { key: key("x") }, Op::Remove { key: key("g") }]);
    drop(store);
    let (_, recovery, all) = start(dir.path(), tiny());
    assert!(!recovery.clean);
    let expected = [("a", "2"), ("c", "2"), ("d", "2"), ("f", "1")];
    let expected = expected.map(|(name, value)| Recovered::Definition { key: key(name), value: value.into() });
    assert_eq!(all, expected);
}

/// Large values make large pages in sled, which it keeps in files of their own.
#[test]
fn large_definitions_come_back() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), tiny());
    let mut expected = Vec::new();
    for number in 10..50_u8 {
        let (key, value) = (key(&number.to_string()), Bytes::from(vec![number; 40_000]));
        let ops = vec![Op::Put { key: key.clone(), value: value.clone() }];
        store.commit(&[Batch { ops, ..Batch::default() }]).unwrap();
        expected.push(Recovered::Definition { key, value });
    }
    while store.maintain().unwrap() {}
    let (_, _, all) = start(crashed(dir.path()).path(), tiny());
    assert_same(&all, &expected);
    store.close().unwrap();
    drop(store);
    let (_, _, all) = start(dir.path(), tiny());
    assert_same(&all, &expected);
}

#[test]
fn a_clean_stop_is_known_once() {
    let dir = temp_dir();
    let (mut store, recovery, _) = start(dir.path(), tiny());
    assert!(recovery.clean, "an empty folder");
    store.close().unwrap();
    drop(store);
    let (mut store, recovery, _) = start(dir.path(), tiny());
    assert!(recovery.clean, "nothing was ever committed");
    store.commit(&[messages(1, [1], 10)]).unwrap();
    store.close().unwrap();
    drop(store);
    let (store, recovery, _) = start(dir.path(), tiny());
    assert!(recovery.clean);
    drop(store);
    let (_, recovery, _) = start(dir.path(), tiny());
    assert!(!recovery.clean, "opened, and not closed");
}

#[test]
fn a_locked_folder_is_refused() {
    let dir = temp_dir();
    let (store, ..) = start(dir.path(), tiny());
    assert!(matches!(SledStore::open(dir.path(), tiny()), Err(StoreError::Locked { .. })));
    drop(store);
    SledStore::open(dir.path(), tiny()).unwrap();
}

#[test]
fn a_foreign_folder_is_refused() {
    let refused = |dir: &Path, word: &str| match SledStore::open(dir, tiny()) {
        Err(error @ StoreError::Foreign { .. }) => assert!(error.to_string().contains(word), "{error}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("opened"),
    };
    let dir = temp_dir();
    fs::write(dir.path().join("holiday.jpg"), "x").unwrap();
    refused(dir.path(), "holiday.jpg");
    assert!(!dir.path().join("log").exists(), "nothing is left in it");
    refused(&dir.path().join("holiday.jpg"), "is a file");
    let dir = temp_dir();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    drop(SledStore::open(dir.path(), tiny()).unwrap());
    fs::write(dir.path().join("leveret-store"), "leveret store, format 9\n").unwrap();
    refused(dir.path(), "newer");
    fs::write(dir.path().join("leveret-store"), "something else").unwrap();
    refused(dir.path(), "not ours");
    // The folder and those above it are made.
    SledStore::open(&dir.path().join("a/b/c"), tiny()).unwrap();
}

/// The log without the index, or the other way round, is not taken for an empty store.
#[test]
fn half_a_store_is_an_error() {
    let dir = temp_dir();
    let options = tiny();
    let (mut store, ..) = start(dir.path(), options);
    for round in 0..20_u64 {
        store.commit(&[messages(1, round * 50..round * 50 + 50, 30), settled(1, 0, round * 50)]).unwrap();
    }
    while store.maintain().unwrap() {}
    store.close().unwrap();
    drop(store);
    for part in ["index", "log"] {
        let copy = crashed(dir.path());
        fs::remove_dir_all(copy.path().join(part)).unwrap();
        let mut store = SledStore::open(copy.path(), options).unwrap();
        assert!(matches!(recover(&mut store), Err(StoreError::Damaged { .. })), "without {part}");
    }
}

#[test]
fn syncs_at_intervals() {
    let dir = temp_dir();
    let interval = Duration::from_millis(30);
    let options = StoreOptions { fsync: Fsync::Interval(interval), ..StoreOptions::default() };
    let (mut store, ..) = start(dir.path(), options);
    assert_eq!(store.sync_if_due().unwrap(), None);
    store.commit(&[messages(1, [1], 10)]).unwrap();
    let left = store.sync_if_due().unwrap().expect("something is not synced");
    assert!(left <= interval);
    std::thread::sleep(interval);
    // A failed sync is reported, and the next one writes again.
    store.inject(Fault::Sync);
    assert!(store.sync_if_due().is_err());
    assert_eq!(store.sync_if_due().unwrap(), None);
    store.commit(&[messages(1, [2], 10)]).unwrap();
    drop(store);
    let (_, recovery, _) = start(dir.path(), options);
    assert_eq!(recovery.messages, 2);
}

#[test]
fn stores_in_memory() {
    let mut nothing = MemoryStore;
    nothing.commit(&[messages(1, [1], 10)]).unwrap();
    assert_eq!(recover(&mut nothing).unwrap().1, []);
    let store = FaultyMemoryStore::new();
    let mut handle = store.clone();
    handle.commit(&[messages(1, [1], 10)]).unwrap();
    store.fail_commit(0);
    assert!(handle.commit(&[messages(1, [2], 10)]).is_err());
    handle.commit(&[messages(1, [3], 10)]).unwrap();
    store.freeze_after(1);
    handle.commit(&[messages(1, [4], 10)]).unwrap();
    for seq in 5..8 {
        assert!(handle.commit(&[messages(1, [seq], 10)]).is_err());
    }
    let mut restarted = store.restarted();
    let (recovery, all) = recover(&mut restarted).unwrap();
    assert_eq!((seqs(&all), recovery.clean), (vec![1, 3, 4], false));
    restarted.commit(&[messages(1, [9], 10)]).unwrap();
    restarted.close().unwrap();
    assert!(recover(&mut restarted.restarted()).unwrap().0.clean);
}

/// What memory had no room for is read in parts, while commits go on.
#[test]
fn a_part_of_a_queue_is_read_as_it_is_now() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), eager());
    for first in (0..1000).step_by(50) {
        store.commit(&[messages(1, first..first + 50, 100), messages(2, first..first + 50, 50)]).unwrap();
    }
    store.commit(&[settled(1, 120, 129), settled(1, 140, 140)]).unwrap();
    let mut found = Vec::new();
    store.read_range(1, 110, 149, &mut |message| found.push(message)).unwrap();
    let expected: Vec<u64> = (110..150).filter(|seq| !(120..130).contains(seq) && *seq != 140).collect();
    assert_eq!(seqs(&found), expected);
    for message in found {
        let Recovered::Message { queue, seq, record: bytes, .. } = message else { panic!("{message:?}") };
        assert_eq!((queue, &bytes[..]), (1, &record(1, seq, 100)[..]));
    }
}

/// On start the blocks say where all messages are, and nothing of them is read.
#[test]
fn blocks_name_every_message() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), eager());
    for first in (0..9000).step_by(300) {
        store.commit(&[messages(1, first..first + 300, 100), messages(7, first..first + 10, 10_000)]).unwrap();
    }
    store.commit(&[settled(1, 0, 99), settled(1, 5000, 5000), settled(7, 300, 304)]).unwrap();
    store.close().unwrap();
    drop(store);
    let mut store = SledStore::open(dir.path(), eager()).unwrap();
    let mut blocks = Vec::new();
    let recovery = store.recover_blocks(&mut |_| {}, &mut |block| blocks.push(block)).unwrap();
    assert_eq!(recovery.messages, 9000 - 101 + 300 - 5);
    assert_eq!(recovery.messages, blocks.iter().map(|block| u64::from(block.live)).sum::<u64>());
    let mut all = Vec::new();
    for block in &blocks {
        let mut found = Vec::new();
        store.read_range(block.queue, block.first, block.last, &mut |message| found.push(message)).unwrap();
        let named: Vec<u64> = (block.first..=block.last)
            .filter(|seq| {
                let at = (seq - block.first) as usize;
                block.bits.as_ref().is_none_or(|bits| bits[at / 64] >> (at % 64) & 1 == 1)
            })
            .collect();
        assert_eq!(seqs(&found), named, "{block:?}");
        assert_eq!(named.len(), block.live as usize);
        assert!((named.first(), named.last()) == (Some(&block.first), Some(&block.last)), "{block:?}");
        all.extend(found);
    }
    assert!(blocks.len() < 100, "{} blocks", blocks.len());
    assert_eq!(all.len() as u64, recovery.messages);
}

/// A flipped byte costs what is in its frame, and the error says where; a file that is gone says so.
#[test]
fn damage_that_is_met_later_costs_only_what_is_damaged() {
    let dir = temp_dir();
    let (mut store, ..) = start(dir.path(), eager());
    for first in (0..1000).step_by(50) {
        store.commit(&[messages(1, first..first + 50, 100)]).unwrap();
    }
    let path = &segments(dir.path())[0];
    let mut bytes = fs::read(path).unwrap();
    let needle = record(1, 512, 100);
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    bytes[at + 30] ^= 0x10;
    fs::write(path, &bytes).unwrap();
    let mut found = Vec::new();
    let error = store.read_range(1, 0, 999, &mut |message| found.push(message)).unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { path: named, .. } if named == path), "{error}");
    assert_eq!(seqs(&found), (0..500).chain(550..1000).collect::<Vec<_>>());
}
