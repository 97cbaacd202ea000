//! The measurements over vhost-user-blk, beside qemu-storage-daemon.

use super::compare::{compare, scratch};
use super::misses::Misses;
use super::options::{BenchError, Options};
use super::report::{Report, Section};
use super::subject::{Subject, ours, theirs};
use justitia_cache::lab::Random;
use justitia_cache::lab::front_end::{BlkRequest, FrontEnd, FrontEndOptions, kind};
use justitia_cache::serve::Config;
use justitia_share::num::to_f64;
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Bytes of a random read.
const BLOCK: u32 = 4096;
/// Bytes of a sequential one.
const LARGE: u32 = 64 << 10;
const SECTOR: u64 = 512;

/// Measures.
///
/// # Errors
/// When the image cannot be had, or a server does not serve it.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let (scratch, image) = scratch(&options.directory, options.size.0)?;
    let dir = scratch.path();
    let misses = Misses {
        options,
        serve: |dir, image, name, change| served(dir, image, name, change),
        measure,
    };
    let title = "vhost-user-blk, misses: 4 KiB random reads, queue depth 32";
    let mut sections = vec![hits(dir, &image, options)?, misses.of(title, dir, &image)?];
    sections.extend(misses.in_memory("vhost-user-blk, misses, the image in memory (tmpfs)")?);
    Ok(Report { sections })
}

fn hits(dir: &Path, image: &Path, options: &Options) -> Result<Section, BenchError> {
    let all = |config: &mut Config| config.cache.memory_bytes = options.size.0 * 2;
    let mut subjects = vec![served(dir, image, "justitia, all in the cache", all)?];
    let copy = dir.join("theirs");
    std::fs::copy(image, &copy)?;
    let name = "qemu-storage-daemon, image in the page cache";
    let socket = dir.join("qemu.sock");
    subjects.extend(theirs(
        name,
        socket.clone(),
        storage_daemon(&copy, &socket, false),
    ));
    let other = dir.join("theirs-too");
    std::fs::copy(image, &other)?;
    let name = "the same, I/O thread and io_uring";
    let socket = dir.join("qemu-thread.sock");
    subjects.extend(theirs(
        name,
        socket.clone(),
        storage_daemon(&other, &socket, true),
    ));
    for subject in &subjects {
        read_all(&subject.socket, options).map_err(|e| failed(subject.name, &e))?;
    }
    let title = "vhost-user-blk, hits: 4 KiB random reads, queue depth 32";
    compare(title, subjects, options, |subject| {
        measure(subject, options)
    })
}

/// Ours, on a vhost-user socket beside the NBD one.
fn served(
    dir: &Path,
    image: &Path,
    name: &'static str,
    change: impl FnOnce(&mut Config),
) -> Result<Subject, BenchError> {
    let socket = dir.join(format!("{}.vhost", name.len()));
    let mut subject = ours(dir, image, name, |config| {
        change(config);
        for disk in config.vms.iter_mut().flat_map(|vm| &mut vm.disks) {
            disk.vhost = Some(socket.clone());
        }
    })?;
    subject.socket = socket;
    Ok(subject)
}

fn storage_daemon(image: &Path, socket: &Path, thread: bool) -> io::Result<Child> {
    let mut command = Command::new("qemu-storage-daemon");
    let mut file = format!("driver=file,node-name=disk,filename={}", image.display());
    let mut export = format!(
        "type=vhost-user-blk,id=export,node-name=disk,writable=on,addr.type=unix,addr.path={}",
        socket.display()
    );
    if thread {
        command.args(["--object", "iothread,id=thread"]);
        file += ",aio=io_uring";
        export += ",iothread=thread";
    }
    command
        .args(["--blockdev", &file, "--export", &export])
        .spawn()
}

fn failed(name: &str, e: &io::Error) -> BenchError {
    BenchError::Program {
        program: name.to_owned(),
        why: e.to_string(),
    }
}

fn measure(subject: &Subject, options: &Options) -> Result<f64, BenchError> {
    let time = Duration::from_secs(options.seconds.max(1).into());
    random_reads(&subject.socket, options, time).map_err(|e| failed(subject.name, &e))
}

fn connect(socket: &Path, data: u32) -> io::Result<FrontEnd> {
    let options = FrontEndOptions {
        queue_size: 32,
        data: data.into(),
        ..FrontEndOptions::default()
    };
    FrontEnd::connect(socket, options)
}

const fn read_of(sector: u64, bytes: u32) -> BlkRequest {
    BlkRequest::new(kind::IN, sector, bytes)
}

/// Reads all of the disk once.
fn read_all(socket: &Path, options: &Options) -> io::Result<()> {
    let mut front_end = connect(socket, LARGE)?;
    let mut sectors = (0..options.size.0 / u64::from(LARGE)).map(|n| n * u64::from(LARGE) / SECTOR);
    keep_busy(&mut front_end, || sectors.next().map(|s| read_of(s, LARGE))).map(drop)
}

/// Random reads for a while; requests a second.
fn random_reads(socket: &Path, options: &Options, time: Duration) -> io::Result<f64> {
    let mut front_end = connect(socket, BLOCK)?;
    let mut random = Random::new(11);
    let blocks = options.size.0 / u64::from(BLOCK);
    let start = Instant::now();
    let done = keep_busy(&mut front_end, || {
        let sector = random.below(blocks) * u64::from(BLOCK) / SECTOR;
        (start.elapsed() < time).then(|| read_of(sector, BLOCK))
    })?;
    Ok(to_f64(done) / start.elapsed().as_secs_f64())
}

/// Keeps as many requests in flight as there are slots, until there are no more; how many were answered.
fn keep_busy(
    front_end: &mut FrontEnd,
    mut next: impl FnMut() -> Option<BlkRequest>,
) -> io::Result<u64> {
    let [queue] = &mut front_end.queues[..] else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (mut begun, mut done) = (0, 0);
    let mut completed = Vec::new();
    let mut more = true;
    while more || done < begun {
        let before = queue.available_index();
        while more && let Some(slot) = queue.take_slot() {
            match next() {
                Some(request) => {
                    queue.submit(slot, request)?;
                    begun += 1;
                }
                None => more = false,
            }
        }
        if queue.available_index() != before {
            queue.kick_if_wanted(before)?;
        }
        if done == begun {
            continue;
        }
        if !queue.wait(Duration::from_secs(20))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        queue.completed(&mut completed)?;
        for answer in completed.drain(..) {
            done += 1;
            if answer.status != 0 {
                return Err(io::Error::other(format!("a read failed: {answer:?}")));
            }
        }
    }
    Ok(done)
}
