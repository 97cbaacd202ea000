/* SPDX-License-Identifier: GPL-2.0-only */
/* Time for which I/O was throttled: bios by io.max, writers by the dirty throttle. */
#pragma once

#include "cgroups.h"
#include "files.h"

struct throttled_bio {
	u64 since;
	u64 cgroup;
};

/* Bios that io.max throttles, by their address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct throttled_bio);
} throttled_bios SEC(".maps");

/* How many there are: while there are none, no bio needs a lookup. */
u64 throttled_bio_count;

/* Called only for cgroups that have a limit. */
SEC("fentry/__blk_throtl_bio")
int BPF_PROG(bio_throttle, struct bio *bio)
{
	u64 key = address(bio);
	struct throttled_bio throttled_bio = { .since = bpf_ktime_get_ns() };
	struct cgroup *cgroup = bio->bi_blkg->blkcg->css.cgroup;
	int error;

	throttled_bio.cgroup = cgroup->kn->id;
	error = bpf_map_update_elem(&throttled_bios, &key, &throttled_bio, BPF_NOEXIST);
	switch (error) {
	case 0:
		__sync_fetch_and_add(&throttled_bio_count, 1);
		/* Allocates a slot while the cgroup is known to exist; when the bio is issued it may be removed. */
		counters_index(throttled_bio.cgroup, (cgroup->self.flags & CSS_ONLINE) != 0);
		break;
	case -EEXIST:
		break;
	default:
		count_drop(DROP_EVENT);
		break;
	}
	return 0;
}

SEC("fexit/__blk_throtl_bio")
int BPF_PROG(bio_throttle_decided, struct bio *bio, bool throttled)
{
	u64 key = address(bio);

	/* The kernel's bool is one byte of the register. */
	if (throttled & 0xff)
		return 0;
	if (!bpf_map_delete_elem(&throttled_bios, &key))
		__sync_fetch_and_add(&throttled_bio_count, -1);
	return 0;
}

SEC("fentry/submit_bio_noacct_nocheck")
int BPF_PROG(bio_throttle_end, struct bio *bio)
{
	u64 key, cgroup, since;
	struct throttled_bio *throttled_bio;
	struct counters *counters;

	if (!throttled_bio_count)
		return 0;
	key = address(bio);
	throttled_bio = bpf_map_lookup_elem(&throttled_bios, &key);
	if (!throttled_bio)
		return 0;
	cgroup = throttled_bio->cgroup;
	since = throttled_bio->since;
	if (bpf_map_delete_elem(&throttled_bios, &key))
		return 0;
	__sync_fetch_and_add(&throttled_bio_count, -1);
	counters = counters_of(cgroup, 0);
	if (!counters)
		return 0;
	__sync_fetch_and_add(&counters->throttled_ns, bpf_ktime_get_ns() - since);
	__sync_fetch_and_add(&counters->throttled_bios, 1);
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} dirty_throttle_start SEC(".maps");

SEC("fentry/balance_dirty_pages")
int BPF_PROG(dirty_throttle)
{
	u64 *since = bpf_task_storage_get(&dirty_throttle_start, bpf_get_current_task_btf(), 0,
					  BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (since)
		*since = bpf_ktime_get_ns();
	else
		count_drop(DROP_EVENT);
	return 0;
}

SEC("fexit/balance_dirty_pages")
int BPF_PROG(dirty_throttle_end)
{
	u64 *since = bpf_task_storage_get(&dirty_throttle_start, bpf_get_current_task_btf(), 0, 0);
	struct counters *counters;

	if (!since || !*since)
		return 0;
	counters = current_counters();
	if (counters)
		__sync_fetch_and_add(&counters->dirty_throttle_ns, bpf_ktime_get_ns() - *since);
	*since = 0;
	return 0;
}
