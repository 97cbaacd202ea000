//! Guards mappings whose pages may vanish.
//!
//! A front end can truncate the file of a guest's memory at any moment, and huge pages may run out. The next access raises
//! SIGBUS, which would end this process. Instead, the handler replaces the whole mapping by zeroes, marks it as lost, and lets
//! the access continue. Users of a mapping check for loss after reading and before they act on the content. (systemd does the
//! same for files of others, `src/basic/sigbus.c`.)
//!
//! A signal handler must not lock or allocate. So the mappings are in a table of fixed size, with atomic entries.

use nix::libc::{c_int, c_void, siginfo_t};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most guarded mappings: half of a process's default limit (`vm.max_map_count`, 65,530).
const MAX_GUARDED: usize = 32_768;

/// Mappings that were lost since this process began.
static LOST: AtomicUsize = AtomicUsize::new(0);
static ENTRIES: [Entry; MAX_GUARDED] = [const { Entry::new() }; MAX_GUARDED];
/// Free entries, and the number of entries ever used.
static FREE: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));
/// The previous action of SIGBUS.
static BEFORE: OnceLock<io::Result<SigAction>> = OnceLock::new();

struct Entry {
    /// Odd while the entry changes.
    version: AtomicUsize,
    start: AtomicUsize,
    /// 0 when there is no mapping.
    size: AtomicUsize,
    lost: AtomicBool,
}

impl Entry {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// Call it only as the entry's sole owner.
    fn set(&self, start: usize, size: usize) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.size.store(size, Ordering::SeqCst);
        self.lost.store(false, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Its mapping, if that contains `address`. An entry changes only while its mapping is unused, so a changing entry is not
    /// the one sought.
    fn mapping_of(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::SeqCst);
        let start = self.start.load(Ordering::SeqCst);
        let size = self.size.load(Ordering::SeqCst);
        let stable = version.is_multiple_of(2) && version == self.version.load(Ordering::SeqCst);
        let inside = address.checked_sub(start).is_some_and(|at| at < size);
        (stable && inside).then_some((start, size))
    }
}

/// Guards a mapping until it is dropped.
#[derive(Debug)]
pub(super) struct Guard(usize);

impl Guard {
    /// Guards `size` bytes of the address space at `start`.
    ///
    /// # Safety
    /// The bytes stay one mapping while the guard lives. Only volatile accesses use them: they may become zero at any moment.
    ///
    /// # Errors
    /// When there are too many mappings, or the system refuses a signal handler.
    pub(super) unsafe fn new(start: usize, size: usize) -> io::Result<Self> {
        if let Err(e) = BEFORE.get_or_init(install) {
            return Err(io::Error::new(e.kind(), e.to_string()));
        }
        let mut free = FREE.lock();
        let number = free.0.pop().unwrap_or(free.1);
        let entry = ENTRIES.get(number).ok_or_else(|| {
            io::Error::other(format!(
                "expected at most {MAX_GUARDED} mappings of guests' memory, found one more"
            ))
        })?;
        free.1 = free.1.max(number + 1);
        entry.set(start, size);
        Ok(Self(number))
    }

    /// Has the mapping been lost?
    pub(super) fn is_lost(&self) -> bool {
        let of_all = LOST.load(Ordering::Acquire);
        of_all > 0
            && ENTRIES
                .get(self.0)
                .is_some_and(|entry| entry.lost.load(Ordering::Acquire))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(entry) = ENTRIES.get(self.0) {
            entry.set(0, 0);
            FREE.lock().0.push(self.0);
        }
    }
}

fn install() -> io::Result<SigAction> {
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK;
    let ours = SigAction::new(SigHandler::SigAction(on_sigbus), flags, SigSet::empty());
    // SAFETY: the handler only makes system calls and accesses atomics.
    unsafe { sigaction(Signal::SIGBUS, &ours) }.map_err(Into::into)
}

extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes this pointer. A fault's signal (a positive code) has an address.
    let fault = unsafe { info.as_ref().filter(|i| i.si_code > 0).map(|i| i.si_addr()) };
    if fault.is_some_and(|address| replace(address.addr()).is_some()) {
        return;
    }
    if let Some(Ok(before)) = BEFORE.get() {
        match before.handler() {
            SigHandler::SigAction(handler) => return handler(signal, info, context),
            SigHandler::Handler(handler) => return handler(signal),
            _ => {}
        }
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: it sets the default action. The access is repeated, and ends the process.
    let _ = unsafe { sigaction(Signal::SIGBUS, &default) };
}

/// Replaces the whole guarded mapping that contains `address`: replacing single pages would exhaust the process's mappings.
fn replace(address: usize) -> Option<()> {
    let found = ENTRIES
        .iter()
        .find_map(|entry| Some((entry, entry.mapping_of(address)?)));
    let (entry, (start, size)) = found?;
    // Mark it before zeroes can be read.
    entry.lost.store(true, Ordering::SeqCst);
    LOST.fetch_add(1, Ordering::SeqCst);
    let place = std::ptr::with_exposed_provenance_mut(start);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the mapping is guarded. The interrupted thread uses it, so it stays, and may become zero.
    if unsafe { mmap_anonymous(place, size, access, flags) }.is_ok() {
        return Some(());
    }
    // Without overcommit (`vm.overcommit_memory=2`), a sparse file can still be mapped.
    let file = rustix::fs::memfd_create(c"lost", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    rustix::fs::ftruncate(&file, u64::try_from(size).ok()?).ok()?;
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: as above.
    unsafe { mmap(place, size, access, flags, &file, 0) }
        .ok()
        .map(drop)
}

#[cfg(test)]
mod tests {
    use crate::frontend::Budget;
    use crate::vhost::memory::Mapping;
    use crate::vhost::memory::{map, sealed};
    use std::os::unix::process::ExitStatusExt;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use vm_memory::Bytes;

    fn shrinking() -> (std::fs::File, Mapping) {
        let file = rustix::fs::memfd_create("shrinks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 20).unwrap();
        let file = file.into();
        let mapping = map(&file, 0, 1 << 20, &Budget::of_vm()).unwrap();
        (file, mapping)
    }

    #[test]
    fn what_is_taken_away_is_zero_and_noted_and_others_stay() {
        let (file, mapping) = shrinking();
        let (_other_file, other) = shrinking();
        let ours = sealed("ours", 1 << 20).unwrap();
        let sealed = map(&ours, 0, 1 << 20, &Budget::of_vm()).unwrap();
        for m in [&mapping, &other, &sealed] {
            m.slice().write_slice(&[7; 8192], 4096).unwrap();
        }
        file.set_len(4096).unwrap();
        assert!(!mapping.is_lost(), "nobody has looked");
        let mut found = [1; 8192];
        mapping.slice().read_slice(&mut found, 4096).unwrap();
        assert_eq!((found, mapping.is_lost()), ([0; 8192], true));
        mapping.slice().write_slice(&[5; 8192], 4096).unwrap();
        mapping.slice().store(9_u16, 8, Ordering::SeqCst).unwrap();
        for m in [&other, &sealed] {
            m.slice().read_slice(&mut found, 4096).unwrap();
            assert_eq!((found, m.is_lost()), ([7; 8192], false));
        }
        drop(mapping);
        let (_file, next) = shrinking();
        assert!(!next.is_lost(), "the place of another");
    }

    #[test]
    fn huge_pages_that_there_are_none_of_are_lost() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
        // Not with a kernel without them.
        let Ok(file) = memfd_create("huge", flags) else {
            return;
        };
        ftruncate(&file, 64 << 20).unwrap();
        let file = file.into();
        let budget = Budget::of_vm();
        let refused = map(&file, 0, (2 << 20) + 4096, &budget).unwrap_err();
        assert!(refused.to_string().contains("whole huge pages"));
        let mapping = map(&file, 0, 64 << 20, &budget).unwrap();
        let free = |line: &&str| line.starts_with("HugePages_Free:") && line.ends_with(" 0");
        let none = std::fs::read_to_string("/proc/meminfo").unwrap();
        mapping.slice().write_slice(&[7; 8192], 1 << 20).unwrap();
        if none.lines().any(|line| free(&line)) {
            assert!(mapping.is_lost());
        }
    }

    #[test]
    fn many_threads_may_use_what_is_taken_away() {
        for _ in 0..50 {
            let (file, mapping) = shrinking();
            let mapping = Arc::new(mapping);
            let threads: Vec<_> = (0..4_usize)
                .map(|n| {
                    let mapping = Arc::clone(&mapping);
                    std::thread::spawn(move || {
                        while !mapping.is_lost() {
                            let at = n * 4096;
                            mapping.slice().write_slice(&[1; 65536], at).unwrap();
                        }
                    })
                })
                .collect();
            file.set_len(0).unwrap();
            threads.into_iter().for_each(|t| t.join().unwrap());
        }
    }

    #[test]
    #[ignore = "it is ended by SIGBUS, in a process of its own"]
    fn a_fault_elsewhere() {
        if std::env::var_os("JUSTITIA_TEST_SIGBUS").is_none() {
            return;
        }
        let (_file, _guarded) = shrinking();
        let (file, mapping) = shrinking();
        file.set_len(0).unwrap();
        let place = mapping.slice().ptr_guard().as_ptr().addr();
        // As if it was none of ours.
        let entry = super::ENTRIES
            .iter()
            .find(|e| e.mapping_of(place).is_some());
        entry.unwrap().set(0, 0);
        mapping.slice().read_obj::<u8>(0).unwrap();
    }

    #[test]
    fn a_fault_elsewhere_ends_the_process_as_ever() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "--ignored",
            "vhost::sigbus::tests::a_fault_elsewhere",
        ]);
        child.env("JUSTITIA_TEST_SIGBUS", "1");
        let ended = child.output().unwrap();
        assert_eq!(ended.status.signal(), Some(super::Signal::SIGBUS as i32));
    }
}
