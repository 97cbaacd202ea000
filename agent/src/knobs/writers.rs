//! The writer of a changed knob, and the table of reactions.

use std::collections::HashMap;
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use justitia_api::escape;
use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::knob::Knob;
use justitia_kernel::proc::process::Process;
use justitia_kernel::watch::writers::{WriteWatcher, Writer};

/// The writer of a knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Author {
    /// Its kind, which decides.
    pub(super) kind: AuthorKind,
    /// Its name, safe to print; empty if not known.
    pub(super) name: String,
}

/// The kinds of writers in the table. Of several that wrote since the last check, the last kind in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AuthorKind {
    /// This agent's watchdog.
    Agent,
    /// systemd as the system's manager, or the kubelet.
    Manager,
    /// An unknown writer.
    Unknown,
    /// Any other: an operator, a script, a container runtime.
    Other,
}

/// A value found in a knob that another process wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// The value before our first write, the kernel's default, or the value of our last write.
    Known,
    /// Any other.
    New,
}

/// The reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Ours is written again within the limit. Beyond it the knob is left until the limit allows another write.
    Again(Limit),
    /// Ours is written again within the limit. Beyond it the knob is left to its writer.
    AgainUntil(Limit),
    /// A new policy: the knob is left as long as it holds this value.
    Policy,
    /// The knob is left to its writer until the agent ends, or its operator returns it.
    Yield,
}

/// A rate limit for each knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// The number of times.
    pub(super) times: usize,
    /// The window.
    pub(super) within: Duration,
}

/// systemd writes a unit's properties whenever it realizes the unit: at `daemon-reload`, at `daemon-reexec`, or when a property
/// of the unit or a sibling changes. A deployment that reloads every five seconds causes twelve writes a minute. Twice that is
/// two writers in a loop, not administration.
pub(super) const MANAGER: Limit = Limit {
    times: 24,
    within: Duration::from_secs(60),
};

/// For writers that may or may not mean their value, such as a delegatee in its own subtree.
pub(super) const UNKNOWN: Limit = Limit {
    times: 3,
    within: Duration::from_secs(600),
};

/// The table: the reaction to a write of another process to a knob of ours, or to one that was left to a policy.
#[must_use]
pub(super) const fn decide(author: AuthorKind, value: Value) -> Verdict {
    match (author, value) {
        (AuthorKind::Manager | AuthorKind::Agent, Value::Known) => Verdict::Again(MANAGER),
        (AuthorKind::Manager, Value::New) => Verdict::Policy,
        (AuthorKind::Unknown, Value::Known) => Verdict::AgainUntil(UNKNOWN),
        (AuthorKind::Unknown | AuthorKind::Agent, Value::New) | (AuthorKind::Other, _) => {
            Verdict::Yield
        }
    }
}

/// How long to wait for the event of a value that was already read: the kernel reports a write right after it.
const LATE: Duration = Duration::from_millis(10);

/// Writes that were seen and not judged yet.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// `None` if writes cannot be watched.
    watcher: Option<WriteWatcher>,
    /// This process, to recognize its own writes.
    own: Option<Process>,
    /// The last write of each kind of author to each file, by its number.
    seen: HashMap<(CgroupId, &'static str), Vec<(u64, Author)>>,
    /// The number of the last seen write.
    count: u64,
    /// The last judged write of each knob: a file may hold several knobs.
    judged: HashMap<(CgroupId, Knob), u64>,
}

impl Writers {
    /// Starts watching.
    ///
    /// # Errors
    /// The kernel's refusal. Then writers are unknown.
    pub(super) fn start(&mut self) -> justitia_kernel::Result<()> {
        self.own = Process::read(std::process::id());
        self.watcher = Some(WriteWatcher::new()?);
        Ok(())
    }

    /// Watches writes to a knob. If that fails, their writers are unknown.
    pub(super) fn watch(&mut self, cgroup: &Cgroup, knob: Knob) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        if let Err(error) = watcher.watch(cgroup, knob) {
            tracing::debug!(%knob, %error, "its writers cannot be watched");
        }
    }

    /// A cgroup was removed, or is no tenant any more.
    pub(super) fn forget(&mut self, id: CgroupId) {
        if let Some(watcher) = &mut self.watcher {
            watcher.forget(id);
        }
        self.seen.retain(|(of, _), _| *of != id);
        self.judged.retain(|(of, _), _| *of != id);
    }

    /// The other process that has written a knob since the last call for it. `written`: the knob holds a value that is not
    /// ours, so there is a writer.
    pub(super) fn take(&mut self, id: CgroupId, knob: Knob, written: bool) -> Option<Author> {
        self.drain();
        if self.unjudged(id, knob).is_none()
            && written
            && let Some(watcher) = self.watcher.as_ref().filter(|w| w.watches(id))
        {
            watcher.wait(LATE);
            self.drain();
        }
        let author = self.unjudged(id, knob).cloned();
        self.settle(id, knob);
        author
    }

    /// The writer of a knob's file since the knob was judged. The order of several writes is uncertain: the highest kind
    /// counts.
    fn unjudged(&self, id: CgroupId, knob: Knob) -> Option<&Author> {
        let judged = self.judged.get(&(id, knob)).copied().unwrap_or(0);
        let writes = self.seen.get(&(id, knob.file()))?.iter();
        let since = writes.filter(|(number, _)| *number > judged);
        since.map(|(_, author)| author).max_by_key(|a| a.kind)
    }

    /// The knob holds our value: earlier writes count as judged.
    pub(super) fn settle(&mut self, id: CgroupId, knob: Knob) {
        if self.seen.contains_key(&(id, knob.file())) {
            self.judged.insert((id, knob), self.count);
        }
    }

    /// Reads the reported writes. Must be called often enough that the kernel's queue does not fill.
    pub(super) fn drain(&mut self) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let found = watcher.drain();
        if found.lost {
            self.seen.clear();
            return;
        }
        for write in found.writes {
            let author = author(&write.writer, self.own.as_ref());
            self.see((write.cgroup, write.file), author);
        }
    }

    /// Records a write.
    fn see(&mut self, key: (CgroupId, &'static str), author: Author) {
        self.count += 1;
        let seen = self.seen.entry(key).or_default();
        seen.retain(|(_, before)| before.kind != author.kind);
        seen.push((self.count, author));
    }

    /// As if this one had written a knob.
    #[cfg(test)]
    pub(super) fn say(&mut self, id: CgroupId, knob: Knob, kind: AuthorKind) {
        let name = format!("{kind:?}");
        self.see((id, knob.file()), Author { kind, name });
    }
}

/// Classifies a writer. A program's name proves nothing: any user can choose it. Only the system chooses the first process and
/// the cgroup of a service.
fn author(writer: &Writer, own: Option<&Process>) -> Author {
    let process = match writer {
        Writer::Process(process) => process,
        // Process 1 does not end, and the kubelet hardly ever does: it was neither.
        Writer::Ended(pid) => {
            return Author {
                kind: AuthorKind::Other,
                name: format!("process {pid}, which has ended"),
            };
        }
        Writer::Hidden => {
            return Author {
                kind: AuthorKind::Unknown,
                name: "a process outside the agent's process namespace".to_owned(),
            };
        }
    };
    let (kind, what) = if is_systemd(process) {
        (AuthorKind::Manager, "systemd".to_owned())
    } else if is_kubelet(process) {
        (AuthorKind::Manager, "the kubelet".to_owned())
    } else if own.is_some_and(|own| is_ours(process, own)) {
        (AuthorKind::Agent, "the agent's watchdog".to_owned())
    } else {
        let program = process.exe.as_deref().unwrap_or(Path::new("unknown"));
        let program = escape::encode(program.as_os_str());
        let cgroup = escape::encode(process.cgroup.as_os_str());
        let what = format!("process {} ({program} in {cgroup})", process.pid);
        (AuthorKind::Other, what)
    };
    Author { kind, name: what }
}

/// Whether its program has this name, even if the file was replaced by an upgrade since.
fn runs(process: &Process, name: &str) -> bool {
    let exe = process.exe.as_deref().and_then(Path::file_name);
    let exe = exe.and_then(|exe| exe.to_str());
    exe.is_some_and(|exe| exe.strip_suffix(" (deleted)").unwrap_or(exe) == name)
}

/// The system's manager is process 1; users' managers are not.
fn is_systemd(process: &Process) -> bool {
    process.pid == 1 && process.uid == 0 && runs(process, "systemd")
}

/// The kubelet is root's service `kubelet.service` with only slices above it: the owner of a scope or a service may make
/// cgroups of any name in it.
fn is_kubelet(process: &Process) -> bool {
    let mut above = process.cgroup.components().rev();
    let service = above.next() == Some(Component::Normal("kubelet.service".as_ref()));
    let slices = above.all(|one| match one {
        Component::RootDir => true,
        Component::Normal(name) => name.to_str().is_some_and(|name| name.ends_with(".slice")),
        _ => false,
    });
    process.uid == 0 && runs(process, "kubelet") && service && slices
}

/// Another process of this program in the same cgroup.
fn is_ours(process: &Process, own: &Process) -> bool {
    process.program.is_some() && process.program == own.program && process.cgroup == own.cgroup
}

/// The times at which a knob was written again, each with its limit.
#[derive(Debug, Default)]
pub(super) struct ReapplyLimiter(Vec<(Instant, Limit)>);

impl ReapplyLimiter {
    /// Whether our value may be written once more; if so, counts it.
    pub(super) fn allow(&mut self, limit: Limit, now: Instant) -> bool {
        self.0
            .retain(|(at, by)| now.saturating_duration_since(*at) < by.within);
        let allowed = self.0.iter().filter(|(_, by)| *by == limit).count() < limit.times;
        if allowed {
            self.0.push((now, limit));
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use AuthorKind::{Agent, Manager, Other, Unknown};
        for (author, known, new) in [
            (Manager, Verdict::Again(MANAGER), Verdict::Policy),
            (Other, Verdict::Yield, Verdict::Yield),
            (Unknown, Verdict::AgainUntil(UNKNOWN), Verdict::Yield),
            (Agent, Verdict::Again(MANAGER), Verdict::Yield),
        ] {
            assert_eq!(decide(author, Value::Known), known, "{author:?}");
            assert_eq!(decide(author, Value::New), new, "{author:?}");
        }
        let limits = [MANAGER, UNKNOWN].map(|l| (l.times, l.within.as_secs()));
        assert_eq!(limits, [(24, 60), (3, 600)]);
    }

    #[test]
    fn a_limit_counts_what_lies_within_it() {
        let begin = Instant::now();
        let mut limiter = ReapplyLimiter::default();
        let mut allowed =
            |limit, seconds| limiter.allow(limit, begin + Duration::from_secs(seconds));
        assert!((0..24).all(|at| allowed(MANAGER, at)));
        assert!(!allowed(MANAGER, 24) && !allowed(MANAGER, 59), "one more");
        assert!(allowed(MANAGER, 60), "the first is a minute old");
        // Each limit counts its own.
        assert!((60..63).all(|at| allowed(UNKNOWN, at)));
        assert!(!allowed(UNKNOWN, 63) && !allowed(UNKNOWN, 659));
        assert!(allowed(MANAGER, 660) && allowed(UNKNOWN, 660));
    }

    /// A process of root.
    fn process(pid: u32, exe: &str, cgroup: &str) -> Process {
        Process {
            pid,
            exe: Some(exe.into()),
            program: Some((1, 2)),
            cgroup: cgroup.into(),
            uid: 0,
        }
    }

    const SYSTEMD: &str = "/usr/lib/systemd/systemd";
    const KUBELET: &str = "/usr/bin/kubelet";
    const SERVICE: &str = "/system.slice/kubelet.service";
    const AGENT: &str = "/usr/bin/justitia";
    const AGENTS: &str = "/system.slice/justitia.service";

    fn kind(process: Process) -> AuthorKind {
        let own = process_of_agent();
        author(&Writer::Process(process), Some(&own)).kind
    }

    fn process_of_agent() -> Process {
        process(50, AGENT, AGENTS)
    }

    #[test]
    fn systemd_the_kubelet_and_the_watchdog_are_known() {
        for (who, expected) in [
            (process(1, SYSTEMD, "/init.scope"), AuthorKind::Manager),
            (
                process(1, &format!("{SYSTEMD} (deleted)"), "/init.scope"),
                AuthorKind::Manager,
            ),
            (process(7, KUBELET, SERVICE), AuthorKind::Manager),
            (process(7, KUBELET, "/kubelet.service"), AuthorKind::Manager),
            (process(8, AGENT, AGENTS), AuthorKind::Agent),
        ] {
            assert_eq!(kind(who.clone()), expected, "{who:?}");
        }
    }

    #[test]
    fn nobody_is_taken_for_systemd_or_the_kubelet_by_a_name() {
        let mut of_user = process(7, KUBELET, SERVICE);
        of_user.uid = 1000;
        let mut other_program = process(8, AGENT, AGENTS);
        other_program.program = Some((1, 3));
        let user = "/user.slice/user-1000.slice/user@1000.service";
        for who in [
            of_user,
            other_program,
            // A user's manager; the first process of another init; a kubelet that is none.
            process(9, SYSTEMD, "/user.slice"),
            process(1, "/bin/busybox", "/"),
            process(7, KUBELET, "/system.slice"),
            process(7, "/bin/sh", SERVICE),
            process(7, KUBELET, &format!("{user}/x.slice/kubelet.service")),
            process(7, KUBELET, "/system.slice/docker-1.scope/kubelet.service"),
            process(7, KUBELET, "/../kubelet.service"),
            process(8, AGENT, "/user.slice"),
        ] {
            assert_eq!(kind(who.clone()), AuthorKind::Other, "{who:?}");
        }
        let ended = author(&Writer::Ended(7), None);
        assert_eq!(
            (ended.kind, ended.name.as_str()),
            (AuthorKind::Other, "process 7, which has ended")
        );
        assert_eq!(author(&Writer::Hidden, None).kind, AuthorKind::Unknown);
        let hostile = process(7, "/\u{1b}[31m", "/a\n");
        let hostile = author(&Writer::Process(hostile), None);
        assert!(!hostile.name.contains(['\u{1b}', '\n']), "{hostile:?}");
    }

    #[test]
    fn of_several_writers_the_one_who_may_mean_it_counts() {
        let mut writers = Writers::default();
        let (id, knob) = (CgroupId(1), Knob::MemoryLow);
        for (kinds, expected) in [
            (vec![], None),
            (vec![AuthorKind::Manager], Some(AuthorKind::Manager)),
            (
                vec![AuthorKind::Other, AuthorKind::Manager],
                Some(AuthorKind::Other),
            ),
            (
                vec![AuthorKind::Manager, AuthorKind::Unknown, AuthorKind::Agent],
                Some(AuthorKind::Unknown),
            ),
        ] {
            for kind in &kinds {
                writers.say(id, knob, *kind);
            }
            assert_eq!(writers.take(CgroupId(2), knob, true), None);
            let taken = writers.take(id, knob, true);
            assert_eq!(taken.map(|author| author.kind), expected, "{kinds:?}");
            assert_eq!(writers.take(id, knob, true), None, "judged once");
        }
    }

    #[test]
    fn a_write_is_judged_for_each_knob_of_its_file() {
        let mut writers = Writers::default();
        let disk = Knob::IoWeightOn(justitia_kernel::io::DevId { major: 8, minor: 0 });
        let kind = |author: Option<Author>| author.map(|author| author.kind);
        writers.say(CgroupId(1), disk, AuthorKind::Other);
        // The default stands as it was: the line of a disk was meant.
        writers.settle(CgroupId(1), Knob::IoWeight);
        writers.say(CgroupId(1), disk, AuthorKind::Manager);
        let found = writers.take(CgroupId(1), Knob::IoWeight, true);
        assert_eq!(kind(found), Some(AuthorKind::Manager));
        let found = writers.take(CgroupId(1), disk, true);
        assert_eq!(kind(found), Some(AuthorKind::Other));
        writers.forget(CgroupId(1));
        assert_eq!(writers.take(CgroupId(1), disk, true), None);
    }
}
