/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bytes that the disk reads into the page cache: reads that complete into pages which are locked and
 * not yet up to date. They count for the cgroup to which the first page of each bio is charged. A bio
 * of such a read carries pages of one file, allocated by one task.
 */
#pragma once

#include "cgroups.h"
#include "files.h"
#include "folio.h"

/* The most bios that one request merges: more than any queue's limit on segments. */
#define MAX_BIOS 2048

/* A zero that the verifier does not know to be constant: 6.1 would keep a constant in the loop. */
u32 zero;

struct bio_walk {
	u64 bio;
	u32 left;
};

static __always_inline void account_miss(struct bio *bio, u32 bytes)
{
	u32 first = BPF_CORE_READ(bio, bi_iter.bi_idx);
	struct bio_vec *vec = BPF_CORE_READ(bio, bi_io_vec);
	struct page *page = NULL;
	struct folio *folio;
	struct address_space *mapping;
	struct mem_cgroup *memcg;
	unsigned long flags;
	struct counters *counters;

	bpf_core_read(&page, sizeof(page), &vec[first].bv_page);
	if (!page)
		return;
	folio = folio_of(page);
	flags = folio_flags(folio);
	if (!HAS(flags, PG_locked) || HAS(flags, PG_uptodate))
		return;
	mapping = BPF_CORE_READ(folio, mapping);
	if (!mapping || (u64)mapping & MAPPING_FLAGS)
		return;
	if (!is_counted_inode_untyped(BPF_CORE_READ(mapping, host)))
		return;
	memcg = charged_memcg(folio);
	if (!memcg)
		return;
	counters = counters_of_css((void *)__builtin_preserve_access_index(&memcg->css));
	if (counters)
		__sync_fetch_and_add(&counters->miss_bytes, bytes);
}

static long walk_step(u32 step, struct bio_walk *walk)
{
	struct bio *bio = (void *)walk->bio;
	u32 bytes;

	if (!bio || !walk->left)
		return 1;
	bytes = BPF_CORE_READ(bio, bi_iter.bi_size);
	if (bytes > walk->left)
		bytes = walk->left;
	walk->left -= bytes;
	walk->bio = (u64)BPF_CORE_READ(bio, bi_next);
	account_miss(bio, bytes);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(cache_miss, struct request *request, int error, unsigned int bytes)
{
	struct bio_walk walk = { .bio = zero, .left = zero };

	if (error || (request->cmd_flags & REQ_OP_MASK) != REQ_OP_READ)
		return 0;
	/* The disk below a loop device reads for the same pages, or for its own: that request counts. */
	if (BPF_CORE_READ(request, q, disk, major) == LOOP_MAJOR)
		return 0;
	walk.bio = address(request->bio);
	walk.left = bytes;
	bpf_loop(MAX_BIOS, walk_step, &walk, 0);
	return 0;
}
