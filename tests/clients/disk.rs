//! Disks that do not play along: a folder that cannot be written, and one that is full.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::publisher_confirm::{Confirmation, PublisherConfirm};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel};

use super::harness::{connect, counts, open_confirming, persistent, publish_confirmed, soon};
use crate::broker::{self, Broker, is_ours};

/// Bytes of a message here: a disk is full after few of them.
const BODY: usize = 16 << 10;
/// How long a confirm is waited for that cannot come.
const IN_VAIN: Duration = Duration::from_millis(1500);

/// A small file system in memory. It is mounted in a namespace of its own, that of a process that does nothing
/// else, so that nothing is left when the test ends in whatever way.
struct Disk {
    holder: Child,
    lines: Lines<BufReader<ChildStdout>>,
    root: PathBuf,
}

impl Disk {
    /// `None`, with the reason on stderr, where that is not possible: it takes Linux, and root or user namespaces.
    fn new(size: &str) -> Option<Self> {
        let mount = r#"mount -t tmpfs -o size="$1",mode=0777 leveret /mnt && echo mounted && read -r _ &&
            mount -o remount,bind,ro /mnt && echo read-only && read -r _"#;
        let mut refusals = Vec::new();
        for options in [&["--mount"][..], &["--map-root-user", "--mount"]] {
            let mut unshare = Command::new("unshare");
            unshare.args(options).args(["sh", "-c", mount, "sh", size]);
            unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut holder = match unshare.spawn() {
                Ok(holder) => holder,
                Err(error) => {
                    refusals.push(error.to_string());
                    continue;
                }
            };
            let mut lines = BufReader::new(holder.stdout.take().expect("it is piped")).lines();
            let root = PathBuf::from(format!("/proc/{}/root/mnt", holder.id()));
            if lines.next().is_some_and(|line| line.is_ok_and(|line| line == "mounted")) {
                return Some(Self { holder, lines, root });
            }
            let output = holder.wait_with_output().expect("it is our child");
            refusals.push(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        eprintln!("skipped: no file system of our own can be mounted: {}", refusals.join("; "));
        None
    }

    fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    fn ballast(&self) -> PathBuf {
        self.root.join("ballast")
    }

    /// Takes all the space that is left, but about `spare` bytes.
    fn fill(&self, spare: u64) {
        let mut ballast = File::options().create(true).append(true).open(self.ballast()).expect("a file");
        for size in [64 << 10, 4 << 10, 1] {
            let block = vec![b'x'; size];
            while ballast.write_all(&block).is_ok() {}
        }
        let length = ballast.metadata().expect("it is open").len();
        ballast.set_len(length.saturating_sub(spare)).expect("it shrinks");
    }

    fn make_read_only(&mut self) {
        self.holder.stdin.as_mut().expect("it is piped").write_all(b"\n").expect("it reads");
        let line = self.lines.next().and_then(Result::ok);
        assert_eq!(line.as_deref(), Some("read-only"));
    }

    fn free(&self) {
        fs::remove_file(self.ballast()).expect("it is there");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// These disks are smaller than what is to stay free by default: without that alarm, to see what a full one does.
fn start(folder: &Path) -> Broker {
    let mut settings = tempfile::NamedTempFile::new().expect("a file");
    settings.write_all(b"disk_free_limit.absolute = 0\n").expect("written");
    let config = settings.path().as_os_str();
    Broker::start(["--data-dir".as_ref(), folder.as_os_str(), "--config".as_ref(), config])
}

async fn declare(channel: &Channel) {
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare("q", options, FieldTable::default()).await.expect("declared");
}

/// A message that starts with its number.
async fn publish(channel: &Channel, number: u32) -> PublisherConfirm {
    let mut body = vec![0; BODY];
    body[..4].copy_from_slice(&number.to_be_bytes());
    let options = BasicPublishOptions::default();
    channel.basic_publish("", "q", options, &body, persistent()).await.expect("the channel is open")
}

/// The numbers of all messages, and the queue is empty.
async fn drain(channel: &Channel) -> Vec<u32> {
    let mut numbers = Vec::new();
    let no_ack = BasicGetOptions { no_ack: true };
    while let Some(message) = soon("get-ok", channel.basic_get("q", no_ack)).await.expect("the channel is open") {
        assert_eq!(message.data.len(), BODY);
        numbers.push(u32::from_be_bytes(*message.data.first_chunk().expect("4 bytes")));
    }
    numbers
}

/// A full disk stops confirms, and nothing else; the broker goes on by itself when there is space again.
#[tokio::test]
async fn a_full_disk_holds_confirms_back() {
    if !is_ours() {
        return;
    }
    let Some(disk) = Disk::new("8m") else { return };
    let broker = start(&disk.data());
    let connection = connect(broker.address).await;
    let channel = open_confirming(&connection).await;
    declare(&channel).await;
    let mut number = 0;
    for _ in 0..20 {
        let confirm = publish(&channel, number).await;
        assert_eq!(soon("a confirm", confirm).await.expect("open"), Confirmation::Ack(None));
        number += 1;
    }
    for round in 0..3 {
        disk.fill(0);
        let mut waiting = Vec::new();
        for _ in 0..100 {
            waiting.push(publish(&channel, number).await);
            number += 1;
        }
        let mut last = waiting.pop().expect("there are some");
        let early = tokio::time::timeout(IN_VAIN, &mut last).await;
        assert!(early.is_err(), "round {round}: confirmed on a full disk: {early:?}");
        // Everything else goes on: another client publishes, and gets, what needs no disk.
        let other = connect(broker.address).await;
        let other = open_confirming(&other).await;
        let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
        other.queue_declare("transient", options, FieldTable::default()).await.expect("declared");
        let properties = BasicProperties::default();
        let confirm = other.basic_publish("", "transient", BasicPublishOptions::default(), b"t", properties).await;
        let confirm = soon("a confirm", confirm.expect("open")).await;
        assert_eq!(confirm.expect("open"), Confirmation::Ack(None));
        assert_eq!(counts(&other, "transient").await, (1, 0));
        assert_eq!(counts(&other, "q").await.0, number);
        disk.free();
        for confirm in waiting.into_iter().chain([last]) {
            assert_eq!(soon("a confirm, with space again", confirm).await.expect("open"), Confirmation::Ack(None));
        }
    }
    let exit = broker.stop("KILL");
    assert!(exit.stderr.contains("confirms wait"), "{}", exit.stderr);
    assert!(!exit.stderr.contains("panicked"), "{}", exit.stderr);
    let broker = start(&disk.data());
    let channel = open_confirming(&connect(broker.address).await).await;
    assert_eq!(drain(&channel).await, (0..number).collect::<Vec<_>>());
}

/// A broker killed on a full disk: what was confirmed is there afterwards, the rest up to some message.
#[tokio::test]
async fn a_kill_on_a_full_disk_loses_nothing() {
    if !is_ours() {
        return;
    }
    let Some(disk) = Disk::new("8m") else { return };
    let mut broker = start(&disk.data());
    let mut number = 0;
    // Several places in a commit at which the disk may be full.
    for spare in [0, 40_000, 300_000] {
        let channel = open_confirming(&connect(broker.address).await).await;
        declare(&channel).await;
        let first = number;
        for _ in 0..20 {
            let confirm = publish(&channel, number).await;
            assert_eq!(soon("a confirm", confirm).await.expect("open"), Confirmation::Ack(None));
            number += 1;
        }
        disk.fill(spare);
        let mut waiting = Vec::new();
        for _ in 0..100 {
            waiting.push(publish(&channel, number).await);
            number += 1;
        }
        let mut last = waiting.pop().expect("there are some");
        let early = tokio::time::timeout(IN_VAIN, &mut last).await;
        assert!(early.is_err(), "confirmed on a full disk: {early:?}");
        let exit = broker.stop("KILL");
        assert!(!exit.stderr.contains("panicked"), "{}", exit.stderr);
        let mut confirmed = first + 20;
        for confirm in waiting {
            confirmed += u32::from(matches!(confirm.await, Ok(Confirmation::Ack(None))));
        }
        disk.free();
        broker = start(&disk.data());
        let found = drain(&open_confirming(&connect(broker.address).await).await).await;
        assert_eq!(found, (first..first + found.len() as u32).collect::<Vec<_>>());
        assert!(first + found.len() as u32 >= confirmed, "{} of {} are there", found.len(), confirmed - first);
    }
}

/// A full disk does not keep a broker from stopping. It says that the stop was not clean.
#[tokio::test]
async fn a_broker_on_a_full_disk_can_be_stopped() {
    if !is_ours() {
        return;
    }
    let Some(disk) = Disk::new("8m") else { return };
    let broker = start(&disk.data());
    let channel = open_confirming(&connect(broker.address).await).await;
    declare(&channel).await;
    assert_eq!(soon("a confirm", publish(&channel, 0).await).await.expect("open"), Confirmation::Ack(None));
    disk.fill(0);
    for number in 1..100 {
        publish(&channel, number).await;
    }
    let exit = broker.stop("TERM");
    assert_eq!(exit.code, Some(1), "{}", exit.stderr);
    let last = exit.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("leveret: not everything could be stored at the stop: "), "{}", exit.stderr);
    disk.free();
    let broker = start(&disk.data());
    let found = drain(&open_confirming(&connect(broker.address).await).await).await;
    assert_eq!(found.first(), Some(&0));
}

/// A folder that cannot be written: refused in one line, with the path, and code 2.
#[test]
fn a_read_only_folder_is_refused() {
    if !is_ours() {
        return;
    }
    let Some(mut disk) = Disk::new("4m") else { return };
    fs::create_dir(disk.data()).expect("made");
    disk.make_read_only();
    let exit = broker::run(["--data-dir".as_ref(), disk.data().as_os_str()]);
    assert_eq!((exit.code, exit.stdout.as_str()), (Some(2), ""), "{}", exit.stderr);
    let line = exit.stderr.trim_end();
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("leveret: ") && line.contains(disk.data().to_str().expect("UTF-8")), "{line}");
    assert!(line.contains("Read-only file system"), "{line}");
}

/// The index shares the disk: once there is space again, segments of the log that nothing needs go away. And
/// what was declared and published around that is there after a kill.
#[tokio::test]
async fn the_log_shrinks_again_after_a_full_disk() {
    /// More than a segment of the log has room for.
    const MESSAGES: u32 = 70 * 64;
    if !is_ours() {
        return;
    }
    let Some(disk) = Disk::new("260m") else { return };
    let broker = start(&disk.data());
    let connection = connect(broker.address).await;
    let channel = open_confirming(&connection).await;
    declare(&channel).await;
    for round in 0..3 {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(&format!("kept.{round}"), options, FieldTable::default()).await.expect("declared");
        for earlier in 0..=round {
            publish_confirmed(&channel, &format!("kept.{earlier}"), &[round]).await;
        }
        // Full when the index is to forget what is purged; sometimes the log finds room all the same.
        fill_and_purge(&channel, MESSAGES, async || disk.fill(0)).await;
        let mut last = publish(&channel, 0).await;
        for number in 1..100 {
            last = publish(&channel, number).await;
        }
        let early = tokio::time::timeout(IN_VAIN, &mut last).await;
        disk.free();
        if early.is_err() {
            soon("a confirm, with space again", last).await.expect("open");
        }
    }
    fill_and_purge(&channel, MESSAGES, async || ()).await;
    let shrinks = async {
        while log_bytes(&disk.data()) > 80 << 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("a log without dead segments", shrinks).await;
    // Behind the purge in the same log.
    publish_confirmed(&channel, "kept.0", b"proof").await;
    broker.stop("KILL");
    let broker = start(&disk.data());
    let channel = open_confirming(&connect(broker.address).await).await;
    assert_eq!(drain(&channel).await, Vec::<u32>::new());
    for (round, messages) in [(0, 4), (1, 2), (2, 1)] {
        assert_eq!(counts(&channel, &format!("kept.{round}")).await, (messages, 0), "kept.{round}");
    }
}

async fn fill_and_purge(channel: &Channel, messages: u32, between: impl AsyncFnOnce()) {
    let mut waiting = Vec::new();
    for number in 0..messages {
        waiting.push(publish(channel, number).await);
    }
    for confirm in waiting {
        assert_eq!(soon("a confirm", confirm).await.expect("open"), Confirmation::Ack(None));
    }
    between().await;
    channel.queue_purge("q", Default::default()).await.expect("purge-ok");
}

fn log_bytes(data: &Path) -> u64 {
    let files = fs::read_dir(data.join("log")).expect("it is there");
    files.filter_map(|file| file.ok()?.metadata().ok()).map(|file| file.len()).sum()
}
