/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which files are used by tasks of one cgroup while another is charged for their pages: seen when
 * a read marks a folio as used.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "files.h"
#include "folio.h"

char LICENSE[] SEC("license") = "GPL";

struct use {
	u64 inode;
	u64 user;
	u64 charged;
	u64 device;
};

/* How many parts of a file are told apart: a power of two, at least 64. */
#define PARTS 1024

/* The reader (kernel/src/eyes/distinct.rs) knows the order. */
struct used {
	u64 cached_pages;
	/* Tells the file from another that gets the same inode number later. */
	u64 generation;
	/* Whether anybody had it mapped at the last touch. */
	u64 mapped;
	/* A part has this many pages, as a logarithm. */
	u64 shift;
	/* Chooses the page of each part that counts for it. */
	u64 seed;
	/* Parts of which that page was touched. */
	u64 parts[PARTS / 64];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct use);
	__type(value, struct used);
} uses SEC(".maps");

/* Uses met for the first time, whether they are remembered or not. */
u64 met SEC(".data.lost");

static __always_inline void look(struct used *used, struct folio *folio)
{
	used->cached_pages = BPF_CORE_READ(folio, mapping, nrpages);
	used->mapped = BPF_CORE_READ(folio, mapping, i_mmap.rb_root.rb_node) != 0;
}

/* What is cached of the file now is divided into at most PARTS parts. */
static __always_inline void begin(struct used *used, struct folio *folio)
{
	u64 parts = BPF_CORE_READ(folio, mapping, nrpages);
	u32 step;

	for (step = 0; step < 32 && parts > PARTS; step++) {
		parts = (parts + 1) / 2;
		used->shift++;
	}
	used->seed = (u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
}

static __always_inline u64 mixed(u64 value)
{
	value ^= value >> 33;
	value *= 0xff51afd7ed558ccdULL;
	return value ^ value >> 33;
}

/*
 * Counts pages once, however often they are read. Of each part one page is looked at, which nobody
 * outside can know: for who reads all of a part, it is always among the pages read, for who reads
 * an eighth of it, in an eighth of the cases. Parts beyond PARTS fall on earlier ones: what is read
 * far apart counts less, never more. A folio lies at a multiple of its size.
 */
static __always_inline void mark(struct used *used, struct folio *folio)
{
	u64 index = BPF_CORE_READ(folio, index), pages = pages_of(folio);
	u64 shift = used->shift & 31, part = index >> shift, count = pages >> shift, bits, *word;
	u64 chosen = (part << shift) + (mixed(used->seed + part) & ((1ULL << shift) - 1));
	u32 step;

	if (!count) {
		if (chosen < index || chosen >= index + pages)
			return;
		count = 1;
	}
	for (step = 0; step < PARTS / 64; step++) {
		word = &used->parts[(part / 64 + step) & (PARTS / 64 - 1)];
		bits = count < 64 ? ((1ULL << (count & 63)) - 1) << (part & 63) : ~0ULL;
		if ((*word & bits) != bits)
			__sync_fetch_and_or(word, bits);
		if (count <= 64)
			return;
		count -= 64;
	}
}

SEC("fentry/folio_mark_accessed")
int BPF_PROG(touched, struct folio *folio)
{
	struct address_space *mapping = folio->mapping;
	struct cgroup_subsys_state *charged, *user;
	struct task_struct *task;
	u32 memory;
	struct inode *inode;
	struct used *used, first = {};
	struct use use = {};
	int error;

	if (!mapping || (address(mapping) & MAPPING_FLAGS))
		return 0;
	if (!bpf_core_field_exists(folio->memcg_data))
		return 0;
	/* The css is a mem_cgroup's first field. */
	charged = (void *)(folio->memcg_data & ~MEMCG_DATA_FLAGS);
	if (!charged)
		return 0;
	task = (void *)bpf_get_current_task();
	memory = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	user = BPF_CORE_READ(task, cgroups, subsys[memory]);
	if (user == charged)
		return 0;
	use.charged = BPF_CORE_READ(charged, cgroup, kn, id);
	use.user = BPF_CORE_READ(user, cgroup, kn, id);
	inode = BPF_CORE_READ(folio, mapping, host);
	if (!unknown_inode_counts(inode))
		return 0;
	use.inode = BPF_CORE_READ(inode, i_ino);
	use.device = BPF_CORE_READ(inode, i_sb, s_dev);
	used = bpf_map_lookup_elem(&uses, &use);
	if (!used) {
		first.generation = BPF_CORE_READ(inode, i_generation);
		look(&first, folio);
		begin(&first, folio);
		error = bpf_map_update_elem(&uses, &use, &first, BPF_NOEXIST);
		/* Not if another processor was first. */
		if (error != -EEXIST)
			__sync_fetch_and_add(&met, 1);
		used = bpf_map_lookup_elem(&uses, &use);
		if (!used)
			return 0;
	}
	mark(used, folio);
	look(used, folio);
	return 0;
}
