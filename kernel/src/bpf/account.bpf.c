/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bytes and calls on every path between an application and a regular file. Each path is counted once:
 * the functions below do not call one another for the same bytes.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "cgroups.h"
#include "curves.h"
#include "files.h"
#include "cache_miss.h"
#include "throttle.h"
#include "outstanding.h"

char LICENSE[] SEC("license") = "GPL";

/*
 * Files of one file system share their file operations. Each CPU caches those of the last counted file,
 * so that most files need no check. File operations only cease to exist when their module is unloaded;
 * the reader clears the cache at every sample, long before that.
 */
static __always_inline bool is_counted_file_cached(struct cpu_cache *cache, struct file *file)
{
	if (cache && cache->file_ops == (u64)file->f_op)
		return 1;
	if (!is_counted_file(file))
		return 0;
	if (cache)
		cache->file_ops = address(file->f_op);
	return 1;
}

/* vfs_read and vfs_write determine the cost: most calls are these. */
SEC("fexit/vfs_read")
int BPF_PROG(read, struct file *file, char *buffer, unsigned long count, void *position, long done)
{
	struct cpu_cache *cache = cpu_cache();
	struct counters *counters;

	if (done <= 0 || !is_counted_file_cached(cache, file))
		return 0;
	counters = current_counters_cached(cache);
	if (!counters)
		return 0;
	if (is_direct(file)) {
		counters->vfs_read.direct.bytes += done;
		counters->vfs_read.direct.operations++;
	} else {
		counters->vfs_read.buffered.bytes += done;
		counters->vfs_read.buffered.operations++;
		if (config.sampling && counters->curve_ref)
			counters->vfs_read_accesses += access(counters, &counters->last_read_block, key_of(file->f_inode),
						   file_position(position), done);
	}
	return 0;
}

SEC("fexit/vfs_write")
int BPF_PROG(write, struct file *file, char *buffer, unsigned long count, void *position, long done)
{
	struct cpu_cache *cache = cpu_cache();
	struct counters *counters;

	if (done <= 0 || !is_counted_file_cached(cache, file))
		return 0;
	counters = current_counters_cached(cache);
	if (!counters)
		return 0;
	if (is_direct(file)) {
		counters->vfs_write.direct.bytes += done;
		counters->vfs_write.direct.operations++;
	} else {
		counters->vfs_write.buffered.bytes += done;
		counters->vfs_write.buffered.operations++;
		if (config.sampling && counters->curve_ref)
			counters->vfs_write_accesses +=
				access(counters, &counters->last_written_block, key_of(file->f_inode),
				       file_position(position), done);
	}
	return 0;
}

static __always_inline int account_transfer(struct file *file, const void *position, long done, bool write)
{
	struct counters *counters;
	bool direct;

	if (done <= 0 || !is_counted_file(file))
		return 0;
	counters = current_counters();
	if (!counters)
		return 0;
	direct = is_direct(file);
	add_io(write ? &counters->written : &counters->read, direct, done);
	if (config.sampling && !direct && counters->curve_ref)
		access_atomic(counters, write, key_of(file->f_inode), file_position(position), done);
	return 0;
}

SEC("fexit/vfs_readv")
int BPF_PROG(readv, struct file *file, void *vec, unsigned long n, void *position, int flags,
	     long done)
{
	return account_transfer(file, position, done, 0);
}

SEC("fexit/vfs_writev")
int BPF_PROG(writev, struct file *file, void *vec, unsigned long n, void *position, int flags,
	     long done)
{
	return account_transfer(file, position, done, 1);
}

/*
 * splice, sendfile, copy_file_range. Since 6.5 overlayfs calls the same function for the file below:
 * that call is counted.
 */
SEC("fexit/do_splice_read")
int BPF_PROG(splice_read, struct file *file, void *position, void *pipe, unsigned long count,
	     unsigned int flags, long done)
{
	if (done <= 0 || is_overlay(file))
		return 0;
	return account_transfer(file, position, done, 0);
}

/* Before 6.5. Overlayfs reads the file below by another function. */
SEC("fexit/do_splice_to")
int BPF_PROG(splice_to, struct file *file, void *position, void *pipe, unsigned long count,
	     unsigned int flags, long done)
{
	return account_transfer(file, position, done, 0);
}

/* Overlayfs calls this for the file below only. */
SEC("fexit/iter_file_splice_write")
int BPF_PROG(splice_write, void *pipe, struct file *file, void *position, unsigned long count,
	     unsigned int flags, long done)
{
	if (done <= 0 || is_overlay(file))
		return 0;
	return account_transfer(file, position, done, 1);
}

/* Runs in the submitter, in one of its workers, or in its polling thread: all are in its cgroup. */
SEC("tp_btf/io_uring_complete")
int io_uring(u64 *ctx)
{
	struct io_kiocb *request = (void *)ctx[1];
	struct file *file;
	struct counters *counters;
	bool write, direct;
	s32 done;

	if (!request)
		return 0;
	if (bpf_core_type_exists(btf_trace_io_uring_complete___entry)) {
		struct io_uring_cqe *entry = (void *)ctx[2];

		done = BPF_CORE_READ(entry, res);
	} else {
		done = (s32)ctx[3];
	}
	if (done <= 0)
		return 0;
	switch (BPF_CORE_READ(request, opcode)) {
	case 1: /* IORING_OP_READV */
	case 4: /* IORING_OP_READ_FIXED */
	case 22: /* IORING_OP_READ */
		write = 0;
		break;
	case 2: /* IORING_OP_WRITEV */
	case 5: /* IORING_OP_WRITE_FIXED */
	case 23: /* IORING_OP_WRITE */
		write = 1;
		break;
	default:
		return 0;
	}
	file = BPF_CORE_READ(request, file);
	if (!is_counted_inode_untyped(BPF_CORE_READ(file, f_inode)))
		return 0;
	counters = current_counters();
	if (!counters)
		return 0;
	direct = (BPF_CORE_READ(file, f_flags) & O_DIRECT) != 0;
	add_io(write ? &counters->written : &counters->read, direct, done);
	if (config.sampling && !direct && counters->curve_ref && bpf_core_type_exists(struct io_cmd_data)) {
		struct inode *inode = BPF_CORE_READ(file, f_inode);
		u64 key = file_key(BPF_CORE_READ(inode, i_ino), BPF_CORE_READ(inode, i_generation)) +
			  subvolume_key(BPF_CORE_READ(inode, i_sb, s_magic), address(inode));

		access_atomic(counters, write, key, BPF_CORE_READ((struct kiocb *)request, ki_pos), done);
	}
	return 0;
}

/* Direct requests complete in interrupts: the cgroup that submitted one is kept by its address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, u64);
} aio_submitters SEC(".maps");

static __always_inline int aio_submit(struct kiocb *request)
{
	u64 key = address(request), cgroup = bpf_get_current_cgroup_id();

	/* Allocates a slot while the cgroup is known to exist; on completion it may be removed. */
	current_counters();
	if (bpf_map_update_elem(&aio_submitters, &key, &cgroup, BPF_ANY))
		count_drop(DROP_EVENT);
	return 0;
}

/* A request that was refused will not complete. */
static __always_inline int aio_submit_result(struct kiocb *request, int error)
{
	u64 key = address(request);

	if (error < 0)
		bpf_map_delete_elem(&aio_submitters, &key);
	return 0;
}

SEC("fentry/aio_read")
int BPF_PROG(aio_read, struct kiocb *request)
{
	return aio_submit(request);
}

SEC("fentry/aio_write")
int BPF_PROG(aio_write, struct kiocb *request)
{
	return aio_submit(request);
}

SEC("fexit/aio_read")
int BPF_PROG(aio_read_refused, struct kiocb *request, void *iocb, int vectored, int compat,
	     int error)
{
	return aio_submit_result(request, error);
}

SEC("fexit/aio_write")
int BPF_PROG(aio_write_refused, struct kiocb *request, void *iocb, int vectored, int compat,
	     int error)
{
	return aio_submit_result(request, error);
}

static __always_inline int aio_account(struct kiocb *request, long done, bool fallback)
{
	u64 key = address(request), *submitter = bpf_map_lookup_elem(&aio_submitters, &key), cgroup;
	struct counters *counters;
	bool direct, write;

	/*
	 * Submitted before the probes were attached, or while the map was full; or, for the fallback,
	 * counted already.
	 */
	if (!submitter)
		return 0;
	cgroup = *submitter;
	if (bpf_map_delete_elem(&aio_submitters, &key))
		return 0;
	if (fallback)
		count_drop(COUNTED_BY_FALLBACK);
	if (done <= 0 || !is_counted_file(request->ki_filp))
		return 0;
	counters = counters_of(cgroup, 0);
	if (!counters)
		return 0;
	direct = is_direct(request->ki_filp);
	write = (request->ki_flags & IOCB_WRITE) != 0;
	add_io(write ? &counters->written : &counters->read, direct, done);
	/* Completed in the task that submitted it: the counters have the curve. */
	if (config.sampling && !direct && counters->cgroup_ptr && counters->curve_ref)
		access_atomic(counters, write, key_of(request->ki_filp->f_inode), request->ki_pos, done);
	return 0;
}

/*
 * Requests complete in tasks and in interrupts, and the kernel skips a program that is already running
 * on the same CPU. Then the fallback program counts.
 */
SEC("fentry/aio_complete_rw")
int BPF_PROG(aio_complete, struct kiocb *request, long done)
{
	return aio_account(request, done, 0);
}

SEC("fentry/aio_complete_rw")
int BPF_PROG(aio_complete_fallback, struct kiocb *request, long done)
{
	return aio_account(request, done, 1);
}

/*
 * Of the whole block: a fault maps the pages around that are in memory, and accesses to them are not seen
 * afterwards.
 */
static __always_inline void fault_accesses(struct counters *counters, struct vm_fault *fault)
{
	if (config.sampling && counters->curve_ref)
		access_atomic(counters, 0, key_of(fault->vma->vm_file->f_inode),
			      ((fault->pgoff | 15) + 1) << PAGE_SHIFT, 16 << PAGE_SHIFT);
}

SEC("fexit/filemap_fault")
int BPF_PROG(fault, struct vm_fault *fault, unsigned int result)
{
	struct counters *counters;

	if (!is_counted_file(fault->vma->vm_file))
		return 0;
	counters = current_counters();
	if (!counters)
		return 0;
	__sync_fetch_and_add(&counters->faults, 1);
	if (result & VM_FAULT_MAJOR)
		__sync_fetch_and_add(&counters->major_faults, 1);
	fault_accesses(counters, fault);
	return 0;
}

/* Cached pages around a fault are mapped with it and do not fault themselves. */
SEC("fentry/filemap_map_pages")
int BPF_PROG(fault_around, struct vm_fault *fault)
{
	struct counters *counters;

	if (!config.sampling || !is_counted_file(fault->vma->vm_file))
		return 0;
	counters = current_counters();
	if (counters)
		fault_accesses(counters, fault);
	return 0;
}

SEC("fentry/page_cache_sync_ra")
int BPF_PROG(demand_miss, struct readahead_control *readahead)
{
	struct counters *counters;

	if (!is_counted_inode(readahead->mapping->host))
		return 0;
	counters = current_counters();
	if (counters)
		__sync_fetch_and_add(&counters->demand_misses, 1);
	return 0;
}

/* The last counts stay until the reader has read them. */
SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(cgroup_removed, struct cgroup *cgroup, const char *path)
{
	u64 id = cgroup->kn->id;
	u32 *known = bpf_map_lookup_elem(&slot_of_cgroup, &id), slot;
	struct slot *entry;

	if (!known)
		return 0;
	slot = *known;
	bpf_map_delete_elem(&slot_of_cgroup, &id);
	clear_cgroup_ptr(slot);
	entry = bpf_map_lookup_elem(&slots, &slot);
	if (entry)
		entry->removed = 1;
	return 0;
}
