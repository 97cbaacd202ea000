/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lock contention on the path to a page: while a task allocates one (and reclaims for it), puts it on an
 * LRU list, moves it there, or frees it. Tracepoints tell when a task waits for a lock; the functions
 * below tell whether it is on such a path.
 *
 * The kernel does not report the first waiter of a spin lock. In a guest without paravirtual spin locks
 * it reports no waits for spin locks at all.
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

/* Waits that were not counted because the map was full. */
u64 dropped SEC(".data.drops");

struct task_state {
	u64 depth;
	u64 lock;
	u64 since;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} task_states SEC(".maps");

static __always_inline struct task_state *task_state(u64 flags)
{
	return bpf_task_storage_get(&task_states, bpf_get_current_task_btf(), 0, flags);
}

static __always_inline int path_enter(void)
{
	struct task_state *task = task_state(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (task)
		task->depth++;
	return 0;
}

static __always_inline int path_leave(void)
{
	struct task_state *task = task_state(0);

	if (task && task->depth)
		task->depth--;
	return 0;
}

#define PAGE_PATH(name, function)                                                                 \
	SEC("fentry/" #function)                                                                   \
	int BPF_PROG(name##_enter)                                                                 \
	{                                                                                          \
		return path_enter();                                                                    \
	}                                                                                          \
	SEC("fexit/" #function)                                                                    \
	int BPF_PROG(name##_leave)                                                                 \
	{                                                                                          \
		return path_leave();                                                                    \
	}

PAGE_PATH(alloc, __alloc_pages)
PAGE_PATH(alloc_noprof, __alloc_pages_noprof)
PAGE_PATH(add, filemap_add_folio)
PAGE_PATH(add_lru, folio_add_lru)
PAGE_PATH(accessed, folio_mark_accessed)
PAGE_PATH(put, folios_put_refs)
PAGE_PATH(release, release_pages)
PAGE_PATH(batch_release, __folio_batch_release)
PAGE_PATH(pagevec_release, __pagevec_release)

SEC("tp_btf/contention_begin")
int BPF_PROG(wait_begin, void *lock, unsigned int flags)
{
	struct task_state *task = task_state(0);

	if (!task || !task->depth || task->lock)
		return 0;
	task->lock = (u64)lock;
	task->since = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(wait_end, void *lock, int result)
{
	struct task_state *task = task_state(0);
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
			__sync_fetch_and_add(&dropped, 1);
			return 0;
		}
	}
	__sync_fetch_and_add(&mine->count, 1);
	__sync_fetch_and_add(&mine->wait_ns, ns);
	return 0;
}
