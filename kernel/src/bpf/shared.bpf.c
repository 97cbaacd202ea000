/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Files whose pages are charged to one cgroup and read by tasks of another. A use is seen when a read
 * marks a folio as accessed.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "files.h"
#include "folio.h"

char LICENSE[] SEC("license") = "GPL";

struct use_key {
	u64 inode;
	u64 user;
	u64 charged;
	u64 device;
};

/* The number of parts into which a file is divided: a power of two, at least 64. */
#define PARTS 1024

/* The reader (kernel/src/probes/shared_inodes.rs) relies on the order. */
struct usage {
	u64 cached_pages;
	/* Differs for another file that gets the same inode number later. */
	u64 generation;
	/* Whether the file was mapped at the last access. */
	u64 mapped;
	/* A part has this many pages, as a logarithm. */
	u64 shift;
	/* Chooses the page of each part that represents it. */
	u64 seed;
	/* Parts whose page was accessed. */
	u64 parts[PARTS / 64];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct use_key);
	__type(value, struct usage);
} shared_uses SEC(".maps");

/* Uses seen for the first time, whether the map has them or not. */
u64 seen SEC(".data.drops");

static __always_inline void sample_folio(struct usage *usage, struct folio *folio)
{
	usage->cached_pages = BPF_CORE_READ(folio, mapping, nrpages);
	usage->mapped = BPF_CORE_READ(folio, mapping, i_mmap.rb_root.rb_node) != 0;
}

/* Divides what is cached of the file now into at most PARTS parts. */
static __always_inline void init_usage(struct usage *usage, struct folio *folio)
{
	u64 parts = BPF_CORE_READ(folio, mapping, nrpages);
	u32 step;

	for (step = 0; step < 32 && parts > PARTS; step++) {
		parts = (parts + 1) / 2;
		usage->shift++;
	}
	usage->seed = (u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
}

static __always_inline u64 mixed(u64 value)
{
	value ^= value >> 33;
	value *= 0xff51afd7ed558ccdULL;
	return value ^ value >> 33;
}

/*
 * Counts a page once, however often it is read. One page represents each part; no program can know
 * which. A reader of all of a part always reads that page, a reader of an eighth of it in an eighth of
 * the cases. Parts beyond PARTS share bits with earlier ones: pages that are read far apart count less,
 * never more. A folio lies at a multiple of its size.
 */
static __always_inline void mark_pages(struct usage *usage, struct folio *folio)
{
	u64 index = BPF_CORE_READ(folio, index), pages = folio_pages(folio);
	u64 shift = usage->shift & 31, part = index >> shift, count = pages >> shift, bits, *word;
	u64 chosen = (part << shift) + (mixed(usage->seed + part) & ((1ULL << shift) - 1));
	u32 step;

	if (!count) {
		if (chosen < index || chosen >= index + pages)
			return;
		count = 1;
	}
	for (step = 0; step < PARTS / 64; step++) {
		word = &usage->parts[(part / 64 + step) & (PARTS / 64 - 1)];
		bits = count < 64 ? ((1ULL << (count & 63)) - 1) << (part & 63) : ~0ULL;
		if ((*word & bits) != bits)
			__sync_fetch_and_or(word, bits);
		if (count <= 64)
			return;
		count -= 64;
	}
}

SEC("fentry/folio_mark_accessed")
int BPF_PROG(folio_accessed, struct folio *folio)
{
	struct address_space *mapping = folio->mapping;
	struct cgroup_subsys_state *charged, *user;
	struct task_struct *task;
	u32 memory;
	struct inode *inode;
	struct usage *usage, first = {};
	struct use_key key = {};
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
	key.charged = BPF_CORE_READ(charged, cgroup, kn, id);
	key.user = BPF_CORE_READ(user, cgroup, kn, id);
	inode = BPF_CORE_READ(folio, mapping, host);
	if (!is_counted_inode_untyped(inode))
		return 0;
	key.inode = BPF_CORE_READ(inode, i_ino);
	key.device = BPF_CORE_READ(inode, i_sb, s_dev);
	usage = bpf_map_lookup_elem(&shared_uses, &key);
	if (!usage) {
		first.generation = BPF_CORE_READ(inode, i_generation);
		sample_folio(&first, folio);
		init_usage(&first, folio);
		error = bpf_map_update_elem(&shared_uses, &key, &first, BPF_NOEXIST);
		/* Not if another CPU was first. */
		if (error != -EEXIST)
			__sync_fetch_and_add(&seen, 1);
		usage = bpf_map_lookup_elem(&shared_uses, &key);
		if (!usage)
			return 0;
	}
	mark_pages(usage, folio);
	sample_folio(usage, folio);
	return 0;
}
