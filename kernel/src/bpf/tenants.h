/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counters per cgroup. A cgroup seen for the first time takes a slot; a slot has one row of
 * counters per processor. Both arrays are mapped into the reader's memory.
 *
 * The most frequent programs find their row without a hash lookup: the row that was used last on
 * this processor carries the cgroup's address, and tasks mostly run for a while. An address is
 * forgotten when its cgroup is removed, before another one may lie there.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* A processor beyond this many does without the short cut. */
#define SHORT_CUTS 1024

struct io {
	u64 bytes;
	u64 operations;
};

struct traffic {
	struct io buffered;
	struct io direct;
};

/*
 * Four cache lines. `plain` is written by one program each (vfs_read's and vfs_write's), which
 * the kernel never lets interrupt itself: plain additions are exact. Everything else is added to
 * atomically, because several programs do, some of them in interrupts.
 * The reader (kernel/src/eyes/rows.rs) knows the order of these fields.
 */
struct row {
	/* The address of the cgroup whose row it is, 0 when it is not known. */
	u64 cgroup;
	/* As in `curve_of`, 0 when accesses are not sampled. */
	u64 sampled;
	struct traffic plain_read;
	/* Blocks accessed while that is sampled, and the last of them, whichever way it was read. */
	u64 visits_read;
	u64 last_read;
	struct traffic plain_written;
	u64 visits_written;
	u64 last_written;
	u64 visits;
	u64 unused;
	struct traffic read;
	struct traffic written;
	u64 faults;
	u64 major_faults;
	u64 filled;
	u64 demand_misses;
	u64 throttled_ns;
	u64 throttled;
	u64 dirty_wait_ns;
	u64 unused_too;
};

/* Slot 0 counts everybody who has none: there was none to have, or the cgroup is being removed. */
struct slot {
	u64 cgroup;
	u64 removed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct row);
} rows SEC(".maps");

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
} slot_of SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, u32);
} free_slots SEC(".maps");

/*
 * Which curve the accesses of a cgroup count for, and of those below it that are not in here: its
 * number plus one, and in the lower half the largest hash that is looked at.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, u64);
} curve_of SEC(".maps");

/* Cgroups above one, itself included, that are asked for a curve. */
#define LEVELS 16

/*
 * What no row could count, and why slot 0 was used though the cgroup was there: none was free, or
 * the kernel's map was busy. BY_TWIN are no losses: what the kernel skipped and a twin counted. The
 * reader (kernel/src/eyes/rows.rs) knows the order.
 */
enum loss { MISSED, NO_ROOM, BUSY, BY_TWIN, LOSSES };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LOSSES);
	__type(key, u32);
	__type(value, u64);
} losses SEC(".maps");

/* Written by the loader, in the order of kernel/src/eyes/open.rs. */
struct config {
	u32 slots;
	u32 processors;
	/* Whether accesses are sampled at all. */
	u64 sampling;
	u64 secrets[3];
};
const volatile struct config config SEC(".rodata.config") = { 1, 1, 1, { 1, 1, 1 } };

/* What was used last on a processor. */
struct short_cut {
	u32 row;
	u32 unused;
	/* The operations of files that count; the reader clears this. */
	u64 operations;
	u64 space[6];
};
struct short_cut short_cuts[SHORT_CUTS] SEC(".data.short_cuts");

static __always_inline void lose(enum loss loss)
{
	u32 key = loss;
	u64 *count = bpf_map_lookup_elem(&losses, &key);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Errors of map functions are `int`: 6.1 leaves the upper half of the register undefined. */
static __noinline u32 take_slot(u64 cgroup)
{
	u32 slot, *other;
	struct slot *entry;
	int error = bpf_map_pop_elem(&free_slots, &slot);

	if (error) {
		lose(error == -ENOENT ? NO_ROOM : BUSY);
		return 0;
	}
	if (bpf_map_update_elem(&slot_of, &cgroup, &slot, BPF_NOEXIST)) {
		/* Another processor was first, or the map is busy. */
		bpf_map_push_elem(&free_slots, &slot, BPF_ANY);
		other = bpf_map_lookup_elem(&slot_of, &cgroup);
		if (other)
			return *other;
		lose(BUSY);
		return 0;
	}
	entry = bpf_map_lookup_elem(&slots, &slot);
	if (entry)
		entry->cgroup = cgroup;
	return slot;
}

/*
 * A cgroup that is being removed takes no slot any more: nobody would give it back. Whether it is
 * can only be told where the cgroup itself is at hand.
 */
static __always_inline u32 index_of(u64 cgroup, bool may_take)
{
	u32 *known = bpf_map_lookup_elem(&slot_of, &cgroup);
	u32 slot = known ? *known : may_take ? take_slot(cgroup) : 0;

	return bpf_get_smp_processor_id() * config.slots + slot;
}

static __always_inline struct row *row_of(u64 cgroup, bool may_take)
{
	u32 index = index_of(cgroup, may_take);

	return bpf_map_lookup_elem(&rows, &index);
}

static __always_inline struct short_cut *short_cut(void)
{
	u64 cpu = bpf_get_smp_processor_id();

	if (cpu >= SHORT_CUTS)
		return NULL;
	/* 6.1 does not remember the comparison: it gets a mask, which the compiler must not see through. */
	asm volatile("" : "+r"(cpu));
	return &short_cuts[cpu & (SHORT_CUTS - 1)];
}

/* As in `curve_of`, for a cgroup or the nearest above it that is in there. */
static __always_inline u64 sampled_of(struct cgroup *cgroup)
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

/* The current task's row, and the short cut to it from now on. */
static __noinline struct row *find_my_row(void)
{
	struct cgroup *cgroup = bpf_get_current_task_btf()->cgroups->dfl_cgrp;
	struct short_cut *cut = short_cut();
	u32 index = index_of(cgroup->kn->id, (cgroup->self.flags & CSS_ONLINE) != 0);
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (row && cut && index % config.slots) {
		if (config.sampling)
			row->sampled = sampled_of(cgroup);
		row->cgroup = address(cgroup);
		cut->row = index;
	}
	return row;
}

static __always_inline struct row *my_row_by(struct short_cut *cut)
{
	if (cut) {
		u32 index = cut->row;
		struct row *row = bpf_map_lookup_elem(&rows, &index);

		if (row && row->cgroup == (u64)bpf_get_current_task_btf()->cgroups->dfl_cgrp)
			return row;
	}
	return find_my_row();
}

static __always_inline struct row *my_row(void)
{
	return my_row_by(short_cut());
}

static long forget_step(u32 cpu, u32 *slot)
{
	u32 index = cpu * config.slots + *slot;
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (row)
		row->cgroup = 0;
	return 0;
}

/* Another cgroup may come to lie where this slot's was. */
static __always_inline void forget_address(u32 slot)
{
	bpf_loop(config.processors, forget_step, &slot, 0);
}

static __always_inline struct row *row_of_css(struct cgroup_subsys_state *css)
{
	u64 id = BPF_CORE_READ(css, cgroup, kn, id);
	u32 flags = BPF_CORE_READ(css, cgroup, self.flags);

	return row_of(id, (flags & CSS_ONLINE) != 0);
}

static __always_inline void add(struct traffic *to, bool direct, u64 bytes)
{
	struct io *io = direct ? &to->direct : &to->buffered;

	__sync_fetch_and_add(&io->bytes, bytes);
	__sync_fetch_and_add(&io->operations, 1);
}
