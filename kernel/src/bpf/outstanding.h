/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For how long a cgroup has had requests at a disk that a task waits for: reads, but no readahead, and synchronous
 * writes, but no writeback. PSI does not show that a task waits for asynchronous I/O. Time in which several requests
 * were there counts once.
 */
#pragma once

#include "cgroups.h"

static __always_inline bool is_waited_for(unsigned int flags)
{
	if (flags & (1U << bpf_core_enum_value(enum req_flag_bits, __REQ_RAHEAD)))
		return 0;
	switch (flags & REQ_OP_MASK) {
	case REQ_OP_READ:
		return 1;
	case REQ_OP_WRITE:
		return (flags & (1U << bpf_core_enum_value(enum req_flag_bits, __REQ_SYNC))) != 0;
	default:
		return 0;
	}
}

/* Requests are seen as they complete. The time before the last completion has been counted. */
SEC("tp_btf/block_rq_complete")
int BPF_PROG(request_outstanding, struct request *request, int error, unsigned int bytes)
{
	u64 id, since = request->start_time_ns, now = bpf_ktime_get_ns(), counted;
	struct counters *counters;
	struct slot *entry;
	u32 *slot, index;

	/* 0 where the disk's accounting is off. */
	if (!since || !is_waited_for(request->cmd_flags))
		return 0;
	id = BPF_CORE_READ(request, bio, bi_blkg, blkcg, css.cgroup, kn, id);
	slot = bpf_map_lookup_elem(&slot_of_cgroup, &id);
	if (!slot)
		return 0;
	index = index_in_slot(*slot);
	entry = bpf_map_lookup_elem(&slots, slot);
	counters = bpf_map_lookup_elem(&cgroup_counters, &index);
	if (!entry || !counters)
		return 0;
	counted = __sync_lock_test_and_set(&entry->outstanding_until, now);
	if (since < counted)
		since = counted;
	if (since < now)
		__sync_fetch_and_add(&counters->outstanding_ns, now - since);
	return 0;
}
