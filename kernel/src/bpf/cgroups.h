/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counters per cgroup. A cgroup gets a slot when it is first seen; a slot has one struct counters per
 * CPU. Both arrays are mapped into the reader's memory.
 *
 * The most frequent programs find their counters without a hash lookup: each CPU caches the index
 * that it used last, and the counters carry the address of their cgroup. That address is cleared
 * when the cgroup is removed, before another cgroup may be allocated there.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* A CPU beyond this many has no cache. */
#define CPU_CACHES 1024

struct io {
	u64 bytes;
	u64 operations;
};

struct traffic {
	struct io buffered;
	struct io direct;
};

/*
 * Four cache lines. `vfs_read` and `vfs_write` are written by one program each. The kernel never lets
 * a program interrupt itself, so plain additions are exact. Several programs add to everything else,
 * some of them in interrupts, so those additions are atomic.
 * The reader (kernel/src/probes/counters.rs) relies on the order of these fields.
 */
struct counters {
	/* The address of the cgroup; 0 when it is not known. */
	u64 cgroup_ptr;
	/* As in `curve_of`; 0 when accesses are not sampled. */
	u64 curve_ref;
	struct traffic vfs_read;
	/* Blocks accessed while accesses are sampled, and the last of them. */
	u64 vfs_read_accesses;
	u64 last_read_block;
	struct traffic vfs_write;
	u64 vfs_write_accesses;
	u64 last_written_block;
	u64 accesses;
	u64 unused;
	struct traffic read;
	struct traffic written;
	u64 faults;
	u64 major_faults;
	u64 miss_bytes;
	u64 demand_misses;
	u64 throttled_ns;
	u64 throttled_bios;
	u64 dirty_throttle_ns;
	u64 outstanding_ns;
};

/* Slot 0 counts all cgroups without a slot: none was free, or the cgroup is being removed. */
struct slot {
	u64 cgroup;
	u64 removed;
	/* Until then the time is counted for which the cgroup has had requests outstanding. */
	u64 outstanding_until;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counters);
} cgroup_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, u32);
} slot_of_cgroup SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, u32);
} free_slots SEC(".maps");

/*
 * The curve to which the accesses of a cgroup count, and those of its descendants without an entry of
 * their own: in the upper half the curve's number plus one, in the lower half the largest hash that is
 * sampled.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, u64);
} curve_of SEC(".maps");

/* How many cgroups up the tree are looked up in `curve_of`, itself included. */
#define LEVELS 16

/*
 * Events that nothing counted (DROP_EVENT), and how often slot 0 was used although the cgroup is not
 * being removed: no slot was free, or the kernel's map was busy. COUNTED_BY_FALLBACK is no drop: the
 * kernel skipped a program, and its fallback counted. The reader (kernel/src/probes/counters.rs)
 * relies on the order.
 */
enum drop { DROP_EVENT, DROP_MAP_FULL, DROP_MAP_BUSY, COUNTED_BY_FALLBACK, DROPS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DROPS);
	__type(key, u32);
	__type(value, u64);
} drops SEC(".maps");

/* Written by the loader, in the order of kernel/src/probes/attach.rs. */
struct config {
	u32 slots;
	u32 processors;
	/* Whether accesses are sampled at all. */
	u64 sampling;
	u64 secrets[3];
};
const volatile struct config config SEC(".rodata.config") = { 1, 1, 1, { 1, 1, 1 } };

/* What a CPU used last. */
struct cpu_cache {
	/* Index of the counters. */
	u32 index;
	u32 unused;
	/* The file operations of counted files; the reader clears this. */
	u64 file_ops;
	u64 padding[6];
};
struct cpu_cache cpu_caches[CPU_CACHES] SEC(".bss.cpu_caches");

static __always_inline void count_drop(enum drop drop)
{
	u32 key = drop;
	u64 *count = bpf_map_lookup_elem(&drops, &key);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Errors of map functions are `int`: 6.1 leaves the upper half of the register undefined. */
__noinline u32 allocate_slot(u64 cgroup)
{
	u32 slot, *other;
	struct slot *entry;
	int error = bpf_map_pop_elem(&free_slots, &slot);

	if (error) {
		count_drop(error == -ENOENT ? DROP_MAP_FULL : DROP_MAP_BUSY);
		return 0;
	}
	if (bpf_map_update_elem(&slot_of_cgroup, &cgroup, &slot, BPF_NOEXIST)) {
		/* Another CPU was first, or the map is busy. */
		bpf_map_push_elem(&free_slots, &slot, BPF_ANY);
		other = bpf_map_lookup_elem(&slot_of_cgroup, &cgroup);
		if (other)
			return *other;
		count_drop(DROP_MAP_BUSY);
		return 0;
	}
	entry = bpf_map_lookup_elem(&slots, &slot);
	if (entry)
		entry->cgroup = cgroup;
	return slot;
}

/* The index of this CPU's counters in a slot. */
static __always_inline u32 index_in_slot(u32 slot)
{
	return bpf_get_smp_processor_id() * config.slots + slot;
}

/*
 * A cgroup that is being removed must not allocate a slot: nothing would free it. Only a caller that
 * has the cgroup itself can tell whether it is.
 */
static __always_inline u32 counters_index(u64 cgroup, bool may_allocate)
{
	u32 *known = bpf_map_lookup_elem(&slot_of_cgroup, &cgroup);
	u32 slot = known ? *known : may_allocate ? allocate_slot(cgroup) : 0;

	return index_in_slot(slot);
}

static __always_inline struct counters *counters_of(u64 cgroup, bool may_allocate)
{
	u32 index = counters_index(cgroup, may_allocate);

	return bpf_map_lookup_elem(&cgroup_counters, &index);
}

static __always_inline struct cpu_cache *cpu_cache(void)
{
	u64 cpu = bpf_get_smp_processor_id();

	if (cpu >= CPU_CACHES)
		return NULL;
	/* 6.1 forgets the comparison, so the index gets a mask that the compiler must not optimize away. */
	asm volatile("" : "+r"(cpu));
	return &cpu_caches[cpu & (CPU_CACHES - 1)];
}

/* As in `curve_of`, for a cgroup or its nearest ancestor that has an entry. */
static __always_inline u64 curve_ref_of(struct cgroup *cgroup)
{
	struct cgroup_subsys_state *css = &cgroup->self;
	u64 id = cgroup->kn->id, *found;
	u32 level;

	for (level = 0; level < LEVELS; level++) {
		found = bpf_map_lookup_elem(&curve_of, &id);
		if (found)
			return *found;
		css = BPF_CORE_READ(css, parent);
		if (!css)
			break;
		id = BPF_CORE_READ(css, cgroup, kn, id);
	}
	return 0;
}

/* The counters of the current task's cgroup, by a hash lookup; the CPU's cache has them afterwards. */
static __noinline struct counters *find_current_counters(void)
{
	struct cgroup *cgroup = bpf_get_current_task_btf()->cgroups->dfl_cgrp;
	struct cpu_cache *cache = cpu_cache();
	u32 index = counters_index(cgroup->kn->id, (cgroup->self.flags & CSS_ONLINE) != 0);
	struct counters *counters = bpf_map_lookup_elem(&cgroup_counters, &index);

	if (counters && cache && index % config.slots) {
		if (config.sampling)
			counters->curve_ref = curve_ref_of(cgroup);
		counters->cgroup_ptr = address(cgroup);
		cache->index = index;
	}
	return counters;
}

static __always_inline struct counters *current_counters_cached(struct cpu_cache *cache)
{
	if (cache) {
		u32 index = cache->index;
		struct counters *counters = bpf_map_lookup_elem(&cgroup_counters, &index);

		if (counters &&
		    counters->cgroup_ptr == (u64)bpf_get_current_task_btf()->cgroups->dfl_cgrp)
			return counters;
	}
	return find_current_counters();
}

/* The counters of the current task's cgroup. */
static __always_inline struct counters *current_counters(void)
{
	return current_counters_cached(cpu_cache());
}

static long clear_cgroup_step(u32 cpu, u32 *slot)
{
	u32 index = cpu * config.slots + *slot;
	struct counters *counters = bpf_map_lookup_elem(&cgroup_counters, &index);

	if (counters)
		counters->cgroup_ptr = 0;
	return 0;
}

/* Another cgroup may be allocated at the address of this slot's. */
static __always_inline void clear_cgroup_ptr(u32 slot)
{
	bpf_loop(config.processors, clear_cgroup_step, &slot, 0);
}

static __always_inline struct counters *counters_of_css(struct cgroup_subsys_state *css)
{
	u64 id = BPF_CORE_READ(css, cgroup, kn, id);
	u32 flags = BPF_CORE_READ(css, cgroup, self.flags);

	return counters_of(id, (flags & CSS_ONLINE) != 0);
}

static __always_inline void add_io(struct traffic *to, bool direct, u64 bytes)
{
	struct io *io = direct ? &to->direct : &to->buffered;

	__sync_fetch_and_add(&io->bytes, bytes);
	__sync_fetch_and_add(&io->operations, 1);
}
