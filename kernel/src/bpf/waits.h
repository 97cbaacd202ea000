/* SPDX-License-Identifier: GPL-2.0-only */
/* Time in which I/O was held back: requests by io.max, writers until dirty pages are written. */
#pragma once

#include "tenants.h"
#include "files.h"

struct held {
	u64 since;
	u64 cgroup;
};

/* Requests that io.max holds back, by their address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct held);
} held_back SEC(".maps");

/* How many there are, so that every other request is let go without a lookup. */
u64 held_count;

/* Called only for cgroups that have a limit. */
SEC("fentry/__blk_throtl_bio")
int BPF_PROG(throttle, struct bio *bio)
{
	u64 key = address(bio);
	struct held held = { .since = bpf_ktime_get_ns() };
	struct cgroup *cgroup = bio->bi_blkg->blkcg->css.cgroup;
	int error;

	held.cgroup = cgroup->kn->id;
	error = bpf_map_update_elem(&held_back, &key, &held, BPF_NOEXIST);
	switch (error) {
	case 0:
		__sync_fetch_and_add(&held_count, 1);
		/* Writeback may be the first that is seen of it; when this is let go, it may be gone. */
		index_of(held.cgroup, (cgroup->self.flags & CSS_ONLINE) != 0);
		break;
	case -EEXIST:
		break;
	default:
		lose(MISSED);
		break;
	}
	return 0;
}

SEC("fexit/__blk_throtl_bio")
int BPF_PROG(throttle_decided, struct bio *bio, bool throttled)
{
	u64 key = address(bio);

	/* The kernel's bool is one byte of the register. */
	if (throttled & 0xff)
		return 0;
	if (!bpf_map_delete_elem(&held_back, &key))
		__sync_fetch_and_add(&held_count, -1);
	return 0;
}

SEC("fentry/submit_bio_noacct_nocheck")
int BPF_PROG(throttle_end, struct bio *bio)
{
	u64 key, cgroup, since;
	struct held *held;
	struct row *row;

	if (!held_count)
		return 0;
	key = address(bio);
	held = bpf_map_lookup_elem(&held_back, &key);
	if (!held)
		return 0;
	cgroup = held->cgroup;
	since = held->since;
	if (bpf_map_delete_elem(&held_back, &key))
		return 0;
	__sync_fetch_and_add(&held_count, -1);
	row = row_of(cgroup, 0);
	if (!row)
		return 0;
	__sync_fetch_and_add(&row->throttled_ns, bpf_ktime_get_ns() - since);
	__sync_fetch_and_add(&row->throttled, 1);
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} dirty_since SEC(".maps");

SEC("fentry/balance_dirty_pages")
int BPF_PROG(dirty_wait)
{
	u64 *since = bpf_task_storage_get(&dirty_since, bpf_get_current_task_btf(), 0,
					  BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (since)
		*since = bpf_ktime_get_ns();
	else
		lose(MISSED);
	return 0;
}

SEC("fexit/balance_dirty_pages")
int BPF_PROG(dirty_waited)
{
	u64 *since = bpf_task_storage_get(&dirty_since, bpf_get_current_task_btf(), 0, 0);
	struct row *row;

	if (!since || !*since)
		return 0;
	row = my_row();
	if (row)
		__sync_fetch_and_add(&row->dirty_wait_ns, bpf_ktime_get_ns() - *since);
	*since = 0;
	return 0;
}
