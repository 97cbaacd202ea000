/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Latencies of reads, writes and syncs of regular files, per cgroup. Reading the clock twice per call
 * costs as much as everything else together, so this is attached on demand only.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "files.h"

char LICENSE[] SEC("license") = "GPL";

#define BUCKETS 32
/* The first bucket ends at 2^9 ns, as in kernel/src/probes/histogram.rs. */
#define SHIFT 8

struct histogram {
	u64 buckets[BUCKETS];
	u64 sum_ns;
};

enum call { READ, WRITE, SYNC, CALLS };

struct latencies {
	struct histogram by_call[CALLS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct latencies);
} latencies SEC(".maps");

/* Calls that were not counted because a map was full. */
u64 dropped SEC(".data.drops");

/* The initial value of a cgroup: too large for a program's stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct latencies);
} zero_hist SEC(".maps");

/* When the task's calls in flight began. A write that syncs is both, so each kind has its own. */
struct inflight {
	u64 start[CALLS];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct inflight);
} inflight SEC(".maps");

static __always_inline int begin(struct file *file, enum call call)
{
	struct inflight *task;

	if (!is_counted_file(file))
		return 0;
	task = bpf_task_storage_get(&inflight, bpf_get_current_task_btf(), 0,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (task)
		task->start[call] = bpf_ktime_get_ns();
	else
		__sync_fetch_and_add(&dropped, 1);
	return 0;
}

static __always_inline u32 bucket(u64 ns)
{
	u32 log = 0;

	ns >>= SHIFT;
	if (ns >> 32)
		return BUCKETS - 1;
	if (ns >> 16) {
		ns >>= 16;
		log += 16;
	}
	if (ns >> 8) {
		ns >>= 8;
		log += 8;
	}
	if (ns >> 4) {
		ns >>= 4;
		log += 4;
	}
	if (ns >> 2) {
		ns >>= 2;
		log += 2;
	}
	if (ns >> 1)
		log += 1;
	return log & (BUCKETS - 1);
}

static __always_inline int end(enum call call)
{
	struct inflight *task = bpf_task_storage_get(&inflight, bpf_get_current_task_btf(), 0, 0);
	struct latencies *mine, *zero;
	u64 cgroup, ns;
	u32 key = 0;

	if (!task || !task->start[call])
		return 0;
	ns = bpf_ktime_get_ns() - task->start[call];
	task->start[call] = 0;
	cgroup = bpf_get_current_cgroup_id();
	mine = bpf_map_lookup_elem(&latencies, &cgroup);
	if (!mine) {
		zero = bpf_map_lookup_elem(&zero_hist, &key);
		if (!zero)
			return 0;
		bpf_map_update_elem(&latencies, &cgroup, zero, BPF_NOEXIST);
		mine = bpf_map_lookup_elem(&latencies, &cgroup);
		if (!mine) {
			__sync_fetch_and_add(&dropped, 1);
			return 0;
		}
	}
	__sync_fetch_and_add(&mine->by_call[call].buckets[bucket(ns)], 1);
	__sync_fetch_and_add(&mine->by_call[call].sum_ns, ns);
	return 0;
}

#define TIMED(name, function, call)                                                                \
	SEC("fentry/" #function)                                                                   \
	int BPF_PROG(name##_begin, struct file *file)                                              \
	{                                                                                          \
		return begin(file, call);                                                          \
	}                                                                                          \
	SEC("fexit/" #function)                                                                    \
	int BPF_PROG(name##_end)                                                                   \
	{                                                                                          \
		return end(call);                                                                  \
	}

TIMED(read, vfs_read, READ)
TIMED(write, vfs_write, WRITE)
TIMED(readv, vfs_readv, READ)
TIMED(writev, vfs_writev, WRITE)
TIMED(sync, vfs_fsync_range, SYNC)
