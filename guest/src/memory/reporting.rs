//! Free memory that the kernel reports to the host (`Documentation/mm/free_page_reporting.rst`): only whole blocks of one order.
//! Reclaim frees single pages. The kernel merges most of them by itself, and compaction merges others.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use justitia_kernel::PAGE_SIZE;

/// `VIRTIO_BALLOON_F_REPORTING` (the virtio specification, 5.5.3).
const REPORTING: usize = 5;
/// The highest order that a kernel can have (`MAX_PAGE_ORDER`).
const MAX_ORDER: u8 = 20;

/// The least free memory in too small blocks that is worth a compaction, bytes: it moves pages and costs processor time.
const LEAST_FRAGMENTS: u64 = 16 << 20;
/// The least interval between compactions.
const PAUSE: Duration = Duration::from_secs(30);

/// The order of reported blocks; `None` if none are reported.
pub(super) fn order(sys: &Path) -> Option<u8> {
    let balloons = fs::read_dir(sys.join("bus/virtio/drivers/virtio_balloon")).ok()?;
    let reports = |features: String| features.as_bytes().get(REPORTING) == Some(&b'1');
    balloons
        .flatten()
        .filter_map(|balloon| fs::read_to_string(balloon.path().join("features")).ok())
        .any(reports)
        .then_some(())?;
    let path = sys.join("module/page_reporting/parameters/page_reporting_order");
    let order: u8 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (order <= MAX_ORDER).then_some(order)
}

/// Free memory in blocks below an order, bytes, of `/proc/buddyinfo`.
fn fragments(buddyinfo: &str, order: u8) -> u64 {
    // `Node 0, zone   Normal   4  3 ...`: free blocks of each order.
    let zones = buddyinfo.lines().map(|line| {
        let blocks = line.split_whitespace().skip(4).zip(0..u32::from(order));
        let bytes = blocks.map(|(number, order)| {
            let number: u64 = number.parse().unwrap_or(0);
            number.saturating_mul(PAGE_SIZE << order.min(u32::from(MAX_ORDER)))
        });
        bytes.fold(0, u64::saturating_add)
    });
    zones.fold(0, u64::saturating_add)
}

/// Whether compaction is worth it after `taken` bytes of reclaim: at least a tenth of them would not be reported.
const fn is_worth(fragments: u64, taken: u64) -> bool {
    fragments >= LEAST_FRAGMENTS && fragments >= taken / 10 && taken > 0
}

/// Compacts free memory in a thread of its own: the host's next request does not wait for it.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    runs: Arc<AtomicBool>,
    last: Option<Duration>,
}

impl Compaction {
    /// Starts a compaction if it is worth it, after `taken` bytes of reclaim. `now` is since the boot.
    pub(super) fn after(&mut self, taken: u64, now: Duration) {
        let Some(order) = order(Path::new("/sys")) else {
            return;
        };
        let buddyinfo = fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
        let is_soon = self.last.is_some_and(|last| now < last + PAUSE);
        if is_soon || !is_worth(fragments(&buddyinfo, order), taken) {
            return;
        }
        if self.runs.swap(true, Ordering::AcqRel) {
            return;
        }
        self.last = Some(now);
        let runs = Arc::clone(&self.runs);
        let work = move || {
            if let Err(error) = fs::write("/proc/sys/vm/compact_memory", "1") {
                tracing::debug!(%error, "free memory is not compacted");
            }
            runs.store(false, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("compaction".to_owned());
        if thread.spawn(work).is_err() {
            self.runs.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_order_is_known_where_a_balloon_reports() {
        let features = |bit: &str| format!("01000{bit}0000000000000000000000000010000000\n");
        for (of, parameter, expected) in [
            (None, Some("9\n"), None),
            (Some("0"), Some("9\n"), None),
            (Some("1"), Some("9\n"), Some(9)),
            (Some("1"), Some("4\n"), Some(4)),
            (Some("1"), None, None),
            // It is not registered yet.
            (Some("1"), Some("-1\n"), None),
            (Some("1"), Some("4294967295\n"), None),
        ] {
            let sys = tempfile::tempdir().unwrap();
            let driver = sys.path().join("bus/virtio/drivers/virtio_balloon");
            if let Some(bit) = of {
                let device = driver.join("virtio3");
                fs::create_dir_all(&device).unwrap();
                fs::write(driver.join("bind"), "").unwrap();
                fs::write(device.join("features"), features(bit)).unwrap();
            }
            if let Some(text) = parameter {
                let parameters = sys.path().join("module/page_reporting/parameters");
                fs::create_dir_all(&parameters).unwrap();
                fs::write(parameters.join("page_reporting_order"), text).unwrap();
            }
            assert_eq!(order(sys.path()), expected, "{of:?} {parameter:?}");
        }
    }

    #[test]
    fn blocks_below_the_order_are_fragments() {
        let text = "Node 0, zone      DMA      1      1      0      0      0      0      0      0      1      1      2 \n\
                    Node 0, zone    DMA32      3      2      1      0      0      0      0      0      0      7     90 \n";
        assert_eq!(fragments(text, 0), 0);
        assert_eq!(fragments(text, 1), 4 * PAGE_SIZE);
        assert_eq!(fragments(text, 3), (4 + 2 * 3 + 4) * PAGE_SIZE);
        assert_eq!(fragments(text, 9), (14 + 256) * PAGE_SIZE);
        for wrong in ["", "Node", "Node 0, zone DMA -1 x 18446744073709551615"] {
            let _ = fragments(wrong, MAX_ORDER);
        }
    }

    #[test]
    fn compaction_must_be_worth_it() {
        for (fragments, taken, expected) in [
            (40, 400, true),
            (39, 400, false),
            (15, 8, false),
            (16, 8, true),
            (500, 0, false),
        ] {
            assert_eq!(is_worth(fragments * MIB, taken * MIB), expected);
        }
    }
}
