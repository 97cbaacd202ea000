//! `/proc/vmstat`.

use crate::PAGE_SIZE;
use crate::parse::{self, ParseError, Parsed};

/// Page counts and, since boot, page events of the whole machine. Amounts in pages.
///
/// `nr_free_pages` must be there; of the rest, a missing line is 0. `allocstall` and
/// `pgscan_direct` exclude `memory.reclaim` only on kernels that count it apart
/// (`pgscan_proactive`, since 6.14 or so).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub struct Vmstat {
    pub nr_free_pages: u64,
    pub nr_inactive_anon: u64,
    pub nr_active_anon: u64,
    pub nr_inactive_file: u64,
    pub nr_active_file: u64,
    pub nr_file_pages: u64,
    pub nr_dirty: u64,
    pub nr_writeback: u64,
    pub nr_shmem: u64,
    pub nr_slab_reclaimable: u64,
    /// Pages above which writers are throttled.
    pub nr_dirty_threshold: u64,
    /// Pages above which the flusher starts.
    pub nr_dirty_background_threshold: u64,
    pub pgscan_kswapd: u64,
    pub pgscan_direct: u64,
    pub pgsteal_kswapd: u64,
    pub pgsteal_direct: u64,
    pub pgscan_proactive: u64,
    pub pgsteal_proactive: u64,
    pub pgscan_file: u64,
    pub pgsteal_file: u64,
    /// Times an allocation had to reclaim itself, over all zones (`allocstall_*`).
    pub allocstall: u64,
    /// Times kswapd was woken.
    pub pageoutrun: u64,
    pub workingset_refault_anon: u64,
    pub workingset_refault_file: u64,
    pub pswpin: u64,
    pub pswpout: u64,
    pub oom_kill: u64,
}

impl Vmstat {
    /// Bytes of file pages on the LRU lists.
    #[must_use]
    pub const fn file_lru(&self) -> u64 {
        let pages = self.nr_inactive_file.saturating_add(self.nr_active_file);
        pages.saturating_mul(PAGE_SIZE)
    }

    /// Reads `nr_free_pages 210351` and so on; unknown lines are passed over.
    ///
    /// # Errors
    /// When `nr_free_pages` is missing or the value of a known key is no number.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut stat = Self::default();
        let mut found = false;
        for line in parse::keyed(text) {
            let line = line?;
            let mut stalls = 0;
            let field = match line.key {
                b"nr_free_pages" => {
                    found = true;
                    &mut stat.nr_free_pages
                }
                b"nr_inactive_anon" => &mut stat.nr_inactive_anon,
                b"nr_active_anon" => &mut stat.nr_active_anon,
                b"nr_inactive_file" => &mut stat.nr_inactive_file,
                b"nr_active_file" => &mut stat.nr_active_file,
                b"nr_file_pages" => &mut stat.nr_file_pages,
                b"nr_dirty" => &mut stat.nr_dirty,
                b"nr_writeback" => &mut stat.nr_writeback,
                b"nr_shmem" => &mut stat.nr_shmem,
                b"nr_slab_reclaimable" => &mut stat.nr_slab_reclaimable,
                b"nr_dirty_threshold" => &mut stat.nr_dirty_threshold,
                b"nr_dirty_background_threshold" => &mut stat.nr_dirty_background_threshold,
                b"pgscan_kswapd" => &mut stat.pgscan_kswapd,
                b"pgscan_direct" => &mut stat.pgscan_direct,
                b"pgsteal_kswapd" => &mut stat.pgsteal_kswapd,
                b"pgsteal_direct" => &mut stat.pgsteal_direct,
                b"pgscan_proactive" => &mut stat.pgscan_proactive,
                b"pgsteal_proactive" => &mut stat.pgsteal_proactive,
                b"pgscan_file" => &mut stat.pgscan_file,
                b"pgsteal_file" => &mut stat.pgsteal_file,
                b"pageoutrun" => &mut stat.pageoutrun,
                b"workingset_refault_anon" => &mut stat.workingset_refault_anon,
                b"workingset_refault_file" => &mut stat.workingset_refault_file,
                b"pswpin" => &mut stat.pswpin,
                b"pswpout" => &mut stat.pswpout,
                b"oom_kill" => &mut stat.oom_kill,
                key if key.starts_with(b"allocstall") => &mut stalls,
                _ => continue,
            };
            *field = line.value()?;
            stat.allocstall = stat.allocstall.saturating_add(stalls);
        }
        if found {
            Ok(stat)
        } else {
            Err(ParseError::new(1, "a line `nr_free_pages PAGES`", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_summed_over_zones() {
        let stat = Vmstat::parse(
            b"nr_free_pages 7\nallocstall_dma 1\nallocstall_normal 2\nallocstall_movable 3\nhtlb x\n",
        )
        .unwrap();
        assert_eq!((stat.nr_free_pages, stat.allocstall), (7, 6));
    }

    #[test]
    fn file_pages_on_the_lru_lists_are_summed_in_bytes() {
        let stat =
            Vmstat::parse(b"nr_free_pages 7\nnr_inactive_file 2\nnr_active_file 3\n").unwrap();
        assert_eq!(stat.file_lru(), 5 * 4096);
    }

    #[test]
    fn wrong_values_are_refused() {
        for bad in [
            "",
            "pswpout 1\n",
            "nr_free_pages\n",
            "nr_free_pages -1\n",
            "nr_free_pages 1\npswpout \n",
        ] {
            assert!(Vmstat::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
