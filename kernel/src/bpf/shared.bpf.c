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

char LICENSE[] SEC("license") = "GPL";

struct use {
	u64 inode;
	u64 user;
	u64 charged;
	u64 device;
};

struct used {
	u64 bytes;
	u64 cached_pages;
	/* Tells the file from another that gets the same inode number later. */
	u64 generation;
	/* Whether anybody had it mapped at the last touch. */
	u64 mapped;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct use);
	__type(value, struct used);
} uses SEC(".maps");

/* Uses met for the first time, whether they are remembered or not. */
u64 met SEC(".data.lost");

/* The page size's logarithm, and which pages of a large folio there are, is not asked for: a touch
 * counts as one page. */
#define PAGE 4096

static __always_inline void look(struct used *used, struct folio *folio)
{
	used->cached_pages = BPF_CORE_READ(folio, mapping, nrpages);
	used->mapped = BPF_CORE_READ(folio, mapping, i_mmap.rb_root.rb_node) != 0;
}

SEC("fentry/folio_mark_accessed")
int BPF_PROG(touched, struct folio *folio)
{
	struct address_space *mapping = folio->mapping;
	struct cgroup_subsys_state *charged, *user;
	struct task_struct *task;
	u32 memory;
	struct inode *inode;
	struct used *used, first = { .bytes = PAGE };
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
		error = bpf_map_update_elem(&uses, &use, &first, BPF_NOEXIST);
		/* Not if another processor was first. */
		if (error != -EEXIST) {
			__sync_fetch_and_add(&met, 1);
			return 0;
		}
		used = bpf_map_lookup_elem(&uses, &use);
		if (!used)
			return 0;
	}
	__sync_fetch_and_add(&used->bytes, PAGE);
	look(used, folio);
	return 0;
}
