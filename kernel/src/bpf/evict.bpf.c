/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The content of clean pages that reclaim evicts from the page cache, with the place on the disk that it
 * has, into a ring buffer. A page's content is gone as soon as the page is allocated again, so it is copied
 * here. Copies are bounded for each call, and dropped when the ring is full: nothing ever waits.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "places.h"

char LICENSE[] SEC("license") = "GPL";

/* Pages of one folio that are copied: the caller has interrupts off. */
#define MAX_COPIES 64
/* Pages of the largest folio that is followed. */
#define MAX_FOLIO_PAGES 512
/* The most pages that one request carries. */
#define MAX_REQUEST_PAGES 8192
/* The reader is woken when this many bytes wait; it looks by itself now and then. */
#define WAKE_BYTES (32 * 4096)

/* A zero that the verifier does not know to be constant: 6.1 would keep a constant in loops. */
u32 zero;

/* The reader (kernel/src/probes/evictions.rs) relies on the order. */
struct eviction {
	u64 block;
	/* The cgroup that is charged for the page; 0 when none is known. */
	u64 cgroup;
	u32 disk;
	/* The device number of the file system. */
	u32 filesystem;
	u8 content[PAGE_SIZE];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} evictions SEC(".maps");

/* The disks whose pages are followed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u32);
} watched SEC(".maps");

/*
 * Of a file system on a disk, and of a cgroup: one block in 2^value is offered, always the same ones; from
 * NOTHING on none. Without an entry all are; but of cgroups 0 stands for those without one.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u64);
	__type(value, u32);
} filesystem_shift SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u32);
} cgroup_shift SEC(".maps");

#define NOTHING 32

/* What became of pages. The reader (kernel/src/probes/evictions.rs) relies on the order. */
enum count { COPIED, RING_FULL, NOT_SAMPLED, BEYOND_BOUND, UNKNOWN_PLACE, PROGRAMS_NS, COUNTS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, COUNTS);
	__type(key, u32);
	__type(value, u64);
} eviction_counts SEC(".maps");

static __always_inline void add(enum count what, u64 n)
{
	u32 key = what;
	u64 *found = bpf_map_lookup_elem(&eviction_counts, &key);

	if (found)
		__sync_fetch_and_add(found, n);
}

static __always_inline void count(enum count what)
{
	add(what, 1);
}

/* One call in this many is timed, and stands for the others: so timing costs little. */
#define TIMED 64

static __always_inline u64 begin(void)
{
	return bpf_get_prandom_u32() % TIMED ? 0 : bpf_ktime_get_ns();
}

static __always_inline void end(u64 begun)
{
	if (begun)
		add(PROGRAMS_NS, (bpf_ktime_get_ns() - begun) * TIMED);
}

struct evicted_folio {
	u64 frame, index, mapping, cgroup, wake;
	u32 filesystem, pages, copied, offered;
	u32 cgroup_shift, unused;
};

static __always_inline bool is_sampled(u64 block, u32 shift)
{
	u64 mixed = block * 0x9e3779b97f4a7c15ULL;

	return shift < NOTHING && !((mixed >> 32) & ((1ULL << (shift & 31)) - 1));
}

static __always_inline u32 shift_of(struct evicted_folio *folio, u32 disk)
{
	u64 key = (u64)folio->filesystem << 32 | disk;
	u32 *set = bpf_map_lookup_elem(&filesystem_shift, &key);

	return set && *set > folio->cgroup_shift ? *set : folio->cgroup_shift;
}

static __always_inline void copy(struct evicted_folio *folio, u32 step, u64 block, u32 disk)
{
	u64 address = memory_base + ((folio->frame + step) << PAGE_SHIFT);
	struct eviction *eviction;

	eviction = bpf_ringbuf_reserve(&evictions, sizeof(*eviction), 0);
	if (!eviction) {
		count(RING_FULL);
		return;
	}
	eviction->block = block;
	eviction->cgroup = folio->cgroup;
	eviction->disk = disk;
	eviction->filesystem = folio->filesystem;
	if (bpf_probe_read_kernel(eviction->content, PAGE_SIZE, (void *)address)) {
		bpf_ringbuf_discard(eviction, BPF_RB_NO_WAKEUP);
		count(UNKNOWN_PLACE);
		return;
	}
	bpf_ringbuf_submit(eviction, folio->wake);
	folio->wake = BPF_RB_NO_WAKEUP;
	count(COPIED);
}

/* Forgets the place of one page, and offers the page. */
static long evict_page(u32 step, struct evicted_folio *folio)
{
	struct place *place, was;

	if (step >= folio->pages)
		return 1;
	place = place_of(folio->frame + step);
	if (!place)
		return 0;
	was = *place;
	place->block = 0;
	if (!folio->offered)
		return 0;
	if (!was.block || was.owner != owner_of(folio->mapping, folio->index + step)) {
		count(UNKNOWN_PLACE);
		return 0;
	}
	if (!is_sampled(was.block, shift_of(folio, was.disk))) {
		count(NOT_SAMPLED);
		return 0;
	}
	if (folio->copied >= MAX_COPIES) {
		count(BEYOND_BOUND);
		return 0;
	}
	folio->copied++;
	copy(folio, step, was.block - 1, was.disk);
	return 0;
}

/* Reclaim has taken the last reference; truncation and unmounting have not. */
static __always_inline bool is_evicted(struct folio *folio, unsigned long flags)
{
	return !BPF_CORE_READ(folio, _refcount.counter) && HAS(flags, PG_uptodate) && !HAS(flags, PG_dirty) &&
	       !HAS(flags, PG_writeback);
}

static __always_inline void evict(struct evicted_folio *walk, struct folio *folio)
{
	struct mem_cgroup *memcg = charged_memcg(folio);
	u64 others = 0;
	u32 *set;

	if (memcg)
		walk->cgroup = BPF_CORE_READ(memcg, css.cgroup, kn, id);
	set = bpf_map_lookup_elem(&cgroup_shift, &walk->cgroup);
	if (!set)
		set = bpf_map_lookup_elem(&cgroup_shift, &others);
	if (set)
		walk->cgroup_shift = *set;
	walk->mapping = (u64)BPF_CORE_READ(folio, mapping);
	walk->index = BPF_CORE_READ(folio, index);
	walk->filesystem = BPF_CORE_READ(folio, mapping, host, i_sb, s_dev);
	walk->offered = walk->cgroup_shift < NOTHING;
	if (bpf_ringbuf_query(&evictions, BPF_RB_AVAIL_DATA) >= WAKE_BYTES)
		walk->wake = BPF_RB_FORCE_WAKEUP;
}

SEC("tp_btf/mm_filemap_delete_from_page_cache")
int BPF_PROG(page_deleted, struct folio *folio)
{
	struct evicted_folio walk = { .copied = zero, .offered = zero, .cgroup_shift = zero, .wake = BPF_RB_NO_WAKEUP };
	unsigned long flags = folio_flags(folio);
	u64 begun = begin();

	if (!know_bases())
		return 0;
	walk.frame = frame_of(address(folio));
	walk.pages = folio_pages(folio);
	if (is_evicted(folio, flags))
		evict(&walk, folio);
	if (walk.pages == 1)
		evict_page(0, &walk);
	else
		bpf_loop(MAX_FOLIO_PAGES, evict_page, &walk, 0);
	end(begun);
	return 0;
}

struct frames {
	u64 from, to;
	u32 pages, unused;
};

static long forget_page(u32 step, struct frames *frames)
{
	struct place *place;

	if (step >= frames->pages)
		return 1;
	place = place_of(frames->from + step);
	if (place)
		place->block = 0;
	return 0;
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int BPF_PROG(page_added, struct folio *folio)
{
	struct frames frames = {};
	u64 begun = begin();

	if (!know_bases())
		return 0;
	frames.from = frame_of(address(folio));
	frames.pages = folio_pages(folio);
	if (frames.pages == 1)
		forget_page(0, &frames);
	else
		bpf_loop(MAX_FOLIO_PAGES, forget_page, &frames, 0);
	end(begun);
	return 0;
}

static long move_page(u32 step, struct frames *frames)
{
	struct place *from, *to;

	if (step >= frames->pages)
		return 1;
	from = place_of(frames->from + step);
	to = place_of(frames->to + step);
	if (from && to) {
		*to = *from;
		from->block = 0;
	}
	return 0;
}

/* Compaction moves a page of the page cache without deleting and adding it. */
SEC("fentry/folio_migrate_flags")
int BPF_PROG(page_moved, struct folio *to, struct folio *from)
{
	struct frames frames = {};

	if (!know_bases())
		return 0;
	frames.from = frame_of(address(from));
	frames.to = frame_of(address(to));
	frames.pages = folio_pages(from);
	bpf_loop(MAX_FOLIO_PAGES, move_page, &frames, 0);
	return 0;
}

/* The pages of a request, bio by bio and part by part. */
struct request_walk {
	u64 bio, vec, sector, page;
	/* Bytes: of the bio, of the part, of the request that are left; where in its page the part begins. */
	u32 bio_left, part_left, left, offset;
	u32 skipped, disk, writes, failed;
};

/* Goes on to the next bio. */
static __always_inline bool next_bio(struct request_walk *walk)
{
	struct bio *bio = (void *)walk->bio;

	if (!bio)
		return 0;
	walk->vec = (u64)BPF_CORE_READ(bio, bi_io_vec) +
		    (u64)BPF_CORE_READ(bio, bi_iter.bi_idx) * sizeof(struct bio_vec);
	walk->skipped = BPF_CORE_READ(bio, bi_iter.bi_bvec_done);
	walk->bio_left = BPF_CORE_READ(bio, bi_iter.bi_size);
	walk->sector = BPF_CORE_READ(bio, bi_iter.bi_sector);
	walk->bio = (u64)BPF_CORE_READ(bio, bi_next);
	return 1;
}

/* Goes on to the next part of a bio: one or more pages that lie in a row. */
static __always_inline void next_part(struct request_walk *walk)
{
	struct bio_vec *vec = (void *)walk->vec;
	u32 offset = BPF_CORE_READ(vec, bv_offset) + walk->skipped;

	walk->part_left = BPF_CORE_READ(vec, bv_len) - walk->skipped;
	if (walk->part_left > walk->bio_left)
		walk->part_left = walk->bio_left;
	walk->page = frame_of((u64)BPF_CORE_READ(vec, bv_page)) + (offset >> PAGE_SHIFT);
	walk->offset = offset & (PAGE_SIZE - 1);
	walk->vec += sizeof(struct bio_vec);
	walk->skipped = 0;
}

/*
 * A page of the page cache that is read is locked and not yet up to date; one that is written is under
 * writeback. Other pages belong to direct I/O, or to a layer in between.
 */
static __always_inline void learn(struct request_walk *walk, struct place *place)
{
	struct page *page = (void *)(pages_base + walk->page * bpf_core_type_size(struct page));
	struct folio *folio = folio_of(page);
	unsigned long flags = folio_flags(folio);
	u64 index;

	if (walk->writes ? !HAS(flags, PG_writeback) : !HAS(flags, PG_locked) || HAS(flags, PG_uptodate))
		return;
	index = BPF_CORE_READ(folio, index) + (walk->page - frame_of((u64)folio));
	place->owner = owner_of((u64)BPF_CORE_READ(folio, mapping), index);
	place->disk = walk->disk;
	place->block = (walk->sector >> PAGE_SECTORS_SHIFT) + 1;
}

static long request_page(u32 step, struct request_walk *walk)
{
	struct place *place;
	u32 bytes;

	if (!walk->left)
		return 1;
	if (!walk->part_left) {
		if (!walk->bio_left)
			return !next_bio(walk);
		next_part(walk);
		if (!walk->part_left)
			return 1;
	}
	bytes = PAGE_SIZE - walk->offset;
	if (bytes > walk->part_left)
		bytes = walk->part_left;
	place = place_of(walk->page);
	if (place) {
		/* Part of a page, or a block that does not lie on the host's: none. */
		place->block = 0;
		if (bytes == PAGE_SIZE && !walk->failed && !(walk->sector & ((1 << PAGE_SECTORS_SHIFT) - 1)))
			learn(walk, place);
	}
	walk->page++;
	walk->offset = 0;
	walk->part_left -= bytes;
	walk->bio_left -= bytes;
	walk->sector += bytes >> 9;
	walk->left = bytes >= walk->left ? 0 : walk->left - bytes;
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(request_completed, struct request *request, int error, unsigned int bytes)
{
	struct request_walk walk = {
		.vec = zero, .sector = zero, .page = zero, .bio_left = zero, .part_left = zero,
		.offset = zero, .skipped = zero, .failed = zero, .writes = zero,
	};
	u32 operation = request->cmd_flags & REQ_OP_MASK;
	u64 begun;

	if (operation > REQ_OP_WRITE || !know_bases())
		return 0;
	walk.disk = (u32)BPF_CORE_READ(request, q, disk, major) << 20 | BPF_CORE_READ(request, q, disk, first_minor);
	if (!bpf_map_lookup_elem(&watched, &walk.disk))
		return 0;
	begun = begin();
	walk.writes += operation == REQ_OP_WRITE;
	walk.failed += error != 0;
	walk.bio = address(request->bio);
	walk.left = bytes;
	bpf_loop(MAX_REQUEST_PAGES, request_page, &walk, 0);
	end(begun);
	return 0;
}
