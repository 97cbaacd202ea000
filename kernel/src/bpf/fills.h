/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the disk fills into the page cache: reads that complete into pages that are locked and not
 * yet up to date, charged to the cgroup that the first page of each bio is charged to. A bio of
 * such a read carries pages of one file, allocated by one task.
 */
#pragma once

#include "tenants.h"
#include "files.h"
#include "folio.h"

/* The most bios that one request merges; more than any queue's limit on segments. */
#define BIOS 2048

/* Starts values that the verifier must not take for constants: on 6.1 it would keep them. */
u32 nothing;

struct walk {
	u64 bio;
	u32 left;
};

static __always_inline void fill(struct bio *bio, u32 bytes)
{
	u32 first = BPF_CORE_READ(bio, bi_iter.bi_idx);
	struct bio_vec *vec = BPF_CORE_READ(bio, bi_io_vec);
	struct page *page = NULL;
	struct folio *folio;
	struct address_space *mapping;
	struct mem_cgroup *memcg = NULL;
	unsigned long head, flags;
	struct row *row;

	bpf_core_read(&page, sizeof(page), &vec[first].bv_page);
	if (!page)
		return;
	head = BPF_CORE_READ(page, compound_head);
	folio = head & 1 ? (void *)(head - 1) : (void *)page;
	flags = flags_of(folio);
	if (!(flags & (1UL << bpf_core_enum_value(enum pageflags, PG_locked))) ||
	    flags & (1UL << bpf_core_enum_value(enum pageflags, PG_uptodate)))
		return;
	mapping = BPF_CORE_READ(folio, mapping);
	if (!mapping || (u64)mapping & MAPPING_FLAGS)
		return;
	if (!unknown_inode_counts(BPF_CORE_READ(mapping, host)))
		return;
	if (bpf_core_field_exists(folio->memcg_data))
		memcg = (void *)(BPF_CORE_READ(folio, memcg_data) & ~MEMCG_DATA_FLAGS);
	if (!memcg)
		return;
	row = row_of_css((void *)__builtin_preserve_access_index(&memcg->css));
	if (row)
		__sync_fetch_and_add(&row->filled, bytes);
}

static long walk_step(u32 step, struct walk *walk)
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
	fill(bio, bytes);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(filled, struct request *request, int error, unsigned int bytes)
{
	struct walk walk = { .bio = nothing, .left = nothing };

	if (error || (request->cmd_flags & REQ_OP_MASK) != REQ_OP_READ)
		return 0;
	/* What a loop device reads, the disk below it reads for the same pages, or for its own. */
	if (BPF_CORE_READ(request, q, disk, major) == LOOP_MAJOR)
		return 0;
	walk.bio = address(request->bio);
	walk.left = bytes;
	bpf_loop(BIOS, walk_step, &walk, 0);
	return 0;
}
