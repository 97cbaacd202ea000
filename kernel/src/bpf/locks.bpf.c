/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Locks found taken by tasks that are after a page: while they allocate one (and reclaim for it), put
 * one on a list, move it there, or give it back. The kernel says when a task waits for a lock; the
 * functions below say what for.
 *
 * The kernel tells of a spin lock only from the second that waits on, and on a hypervisor without
 * paravirtual spin locks of none.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "files.h"

char LICENSE[] SEC("license") = "GPL";

struct contention {
	u64 count;
	u64 wait_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct contention);
} contention SEC(".maps");

/* Waits of cgroups that found no room. */
u64 lost SEC(".data.lost");

struct task {
	u64 depth;
	u64 lock;
	u64 since;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

static __always_inline struct task *this_task(u64 flags)
{
	return bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), 0, flags);
}

static __always_inline int enter(void)
{
	struct task *task = this_task(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (task)
		task->depth++;
	return 0;
}

static __always_inline int leave(void)
{
	struct task *task = this_task(0);

	if (task && task->depth)
		task->depth--;
	return 0;
}

#define ON_THE_WAY(name, function)                                                                 \
	SEC("fentry/" #function)                                                                   \
	int BPF_PROG(name##_enter)                                                                 \
	{                                                                                          \
		return enter();                                                                    \
	}                                                                                          \
	SEC("fexit/" #function)                                                                    \
	int BPF_PROG(name##_leave)                                                                 \
	{                                                                                          \
		return leave();                                                                    \
	}

ON_THE_WAY(alloc, __alloc_pages)
ON_THE_WAY(alloc_noprof, __alloc_pages_noprof)
ON_THE_WAY(add, filemap_add_folio)
ON_THE_WAY(add_lru, folio_add_lru)
ON_THE_WAY(accessed, folio_mark_accessed)
ON_THE_WAY(put, folios_put_refs)
ON_THE_WAY(release, release_pages)
ON_THE_WAY(batch_release, __folio_batch_release)
ON_THE_WAY(pagevec_release, __pagevec_release)

SEC("tp_btf/contention_begin")
int BPF_PROG(wait_begin, void *lock, unsigned int flags)
{
	struct task *task = this_task(0);

	if (!task || !task->depth || task->lock)
		return 0;
	task->lock = (u64)lock;
	task->since = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(wait_end, void *lock, int result)
{
	struct task *task = this_task(0);
	struct contention *mine, none = {};
	u64 cgroup, ns;

	if (!task || !task->lock || task->lock != (u64)lock)
		return 0;
	task->lock = 0;
	ns = bpf_ktime_get_ns() - task->since;
	cgroup = bpf_get_current_cgroup_id();
	mine = bpf_map_lookup_elem(&contention, &cgroup);
	if (!mine) {
		bpf_map_update_elem(&contention, &cgroup, &none, BPF_NOEXIST);
		mine = bpf_map_lookup_elem(&contention, &cgroup);
		if (!mine) {
			__sync_fetch_and_add(&lost, 1);
			return 0;
		}
	}
	__sync_fetch_and_add(&mine->count, 1);
	__sync_fetch_and_add(&mine->wait_ns, ns);
	return 0;
}
