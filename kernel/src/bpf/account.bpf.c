/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bytes and calls on every path between an application and a regular file, each path once: the
 * functions below do not call one another for the same bytes.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "tenants.h"
#include "curves.h"
#include "files.h"
#include "fills.h"
#include "waits.h"

char LICENSE[] SEC("license") = "GPL";

/*
 * Files of one kind share their operations. Those that counted last on this processor are
 * remembered, so that most files are looked at once. A kind can only cease to exist with the
 * module that it belongs to; by then the reader, who clears this at every sample, has long done so.
 */
static __always_inline bool file_counts_by(struct short_cut *cut, struct file *file)
{
	if (cut && cut->operations == (u64)file->f_op)
		return 1;
	if (!file_counts(file))
		return 0;
	if (cut)
		cut->operations = address(file->f_op);
	return 1;
}

/* The two that matter for cost: most calls are these. */
SEC("fexit/vfs_read")
int BPF_PROG(read, struct file *file, char *buffer, unsigned long count, void *position, long done)
{
	struct short_cut *cut = short_cut();
	struct row *row;

	if (done <= 0 || !file_counts_by(cut, file))
		return 0;
	row = my_row_by(cut);
	if (!row)
		return 0;
	if (is_direct(file)) {
		row->plain_read.direct.bytes += done;
		row->plain_read.direct.operations++;
	} else {
		row->plain_read.buffered.bytes += done;
		row->plain_read.buffered.operations++;
		if (config.sampling && row->sampled)
			row->visits_read += access(row, &row->last_read, key_of(file->f_inode),
						   position_at(position), done);
	}
	return 0;
}

SEC("fexit/vfs_write")
int BPF_PROG(write, struct file *file, char *buffer, unsigned long count, void *position, long done)
{
	struct short_cut *cut = short_cut();
	struct row *row;

	if (done <= 0 || !file_counts_by(cut, file))
		return 0;
	row = my_row_by(cut);
	if (!row)
		return 0;
	if (is_direct(file)) {
		row->plain_written.direct.bytes += done;
		row->plain_written.direct.operations++;
	} else {
		row->plain_written.buffered.bytes += done;
		row->plain_written.buffered.operations++;
		if (config.sampling && row->sampled)
			row->visits_written +=
				access(row, &row->last_written, key_of(file->f_inode),
				       position_at(position), done);
	}
	return 0;
}

static __always_inline int moved(struct file *file, const void *position, long done, bool write)
{
	struct row *row;
	bool direct;

	if (done <= 0 || !file_counts(file))
		return 0;
	row = my_row();
	if (!row)
		return 0;
	direct = is_direct(file);
	add(write ? &row->written : &row->read, direct, done);
	if (config.sampling && !direct && row->sampled)
		access_by(row, write, key_of(file->f_inode), position_at(position), done);
	return 0;
}

SEC("fexit/vfs_readv")
int BPF_PROG(readv, struct file *file, void *vec, unsigned long n, void *position, int flags,
	     long done)
{
	return moved(file, position, done, 0);
}

SEC("fexit/vfs_writev")
int BPF_PROG(writev, struct file *file, void *vec, unsigned long n, void *position, int flags,
	     long done)
{
	return moved(file, position, done, 1);
}

/*
 * splice, sendfile, copy_file_range. Since 6.5 overlayfs passes the reading on to the file below
 * through the same function: that one counts.
 */
SEC("fexit/do_splice_read")
int BPF_PROG(splice_read, struct file *file, void *position, void *pipe, unsigned long count,
	     unsigned int flags, long done)
{
	if (done <= 0 || is_overlay(file))
		return 0;
	return moved(file, position, done, 0);
}

/* Before 6.5: overlayfs reads the file below by other means. */
SEC("fexit/do_splice_to")
int BPF_PROG(splice_to, struct file *file, void *position, void *pipe, unsigned long count,
	     unsigned int flags, long done)
{
	return moved(file, position, done, 0);
}

/* overlayfs calls this for the file below only. */
SEC("fexit/iter_file_splice_write")
int BPF_PROG(splice_write, void *pipe, struct file *file, void *position, unsigned long count,
	     unsigned int flags, long done)
{
	if (done <= 0 || is_overlay(file))
		return 0;
	return moved(file, position, done, 1);
}

/* Runs in the submitter, in one of its workers, or in its polling thread: all of its cgroup. */
SEC("tp_btf/io_uring_complete")
int uring(u64 *ctx)
{
	struct io_kiocb *request = (void *)ctx[1];
	struct file *file;
	struct row *row;
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
	if (!unknown_inode_counts(BPF_CORE_READ(file, f_inode)))
		return 0;
	row = my_row();
	if (!row)
		return 0;
	direct = (BPF_CORE_READ(file, f_flags) & O_DIRECT) != 0;
	add(write ? &row->written : &row->read, direct, done);
	if (config.sampling && !direct && row->sampled && bpf_core_type_exists(struct io_cmd_data)) {
		struct inode *inode = BPF_CORE_READ(file, f_inode);
		u64 key = file_key(BPF_CORE_READ(inode, i_ino), BPF_CORE_READ(inode, i_generation));

		access_by(row, write, key, BPF_CORE_READ((struct kiocb *)request, ki_pos), done);
	}
	return 0;
}

/* Direct requests complete in interrupts: who submitted one is remembered by its address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, u64);
} aio_submitters SEC(".maps");

static __always_inline int aio_submit(struct kiocb *request)
{
	u64 key = address(request), cgroup = bpf_get_current_cgroup_id();

	/* It has its row now that it is known to be there; on completion it may be gone. */
	my_row();
	if (bpf_map_update_elem(&aio_submitters, &key, &cgroup, BPF_ANY))
		lose(MISSED);
	return 0;
}

/* Refused: it will not complete. */
static __always_inline int aio_submitted(struct kiocb *request, int error)
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
	return aio_submitted(request, error);
}

SEC("fexit/aio_write")
int BPF_PROG(aio_write_refused, struct kiocb *request, void *iocb, int vectored, int compat,
	     int error)
{
	return aio_submitted(request, error);
}

static __always_inline int aio_completed(struct kiocb *request, long done, int twin)
{
	u64 key = address(request), *submitter = bpf_map_lookup_elem(&aio_submitters, &key), cgroup;
	struct row *row;
	bool direct, write;

	/*
	 * Submitted before the probes were attached, or beyond the map's room; or, for the twin, counted
	 * already.
	 */
	if (!submitter)
		return 0;
	cgroup = *submitter;
	if (bpf_map_delete_elem(&aio_submitters, &key))
		return 0;
	if (twin)
		lose(BY_TWIN);
	if (done <= 0 || !file_counts(request->ki_filp))
		return 0;
	row = row_of(cgroup, 0);
	if (!row)
		return 0;
	direct = is_direct(request->ki_filp);
	write = (request->ki_flags & IOCB_WRITE) != 0;
	add(write ? &row->written : &row->read, direct, done);
	/* In the task that has just submitted it, whose row knows its curve. */
	if (config.sampling && !direct && row->cgroup && row->sampled)
		access_by(row, write, key_of(request->ki_filp->f_inode), request->ki_pos, done);
	return 0;
}

/*
 * Requests complete in tasks and in interrupts of them, and the kernel skips a program that is
 * running already on the same processor: then its twin counts.
 */
SEC("fentry/aio_complete_rw")
int BPF_PROG(aio_complete, struct kiocb *request, long done)
{
	return aio_completed(request, done, 0);
}

SEC("fentry/aio_complete_rw")
int BPF_PROG(aio_complete_twin, struct kiocb *request, long done)
{
	return aio_completed(request, done, 1);
}

static __always_inline void fault_accesses(struct row *row, struct vm_fault *fault)
{
	if (config.sampling && row->sampled)
		access_by(row, 0, key_of(fault->vma->vm_file->f_inode), (fault->pgoff + 1) << 12, 1);
}

SEC("fexit/filemap_fault")
int BPF_PROG(fault, struct vm_fault *fault, unsigned int result)
{
	struct row *row;

	if (!file_counts(fault->vma->vm_file))
		return 0;
	row = my_row();
	if (!row)
		return 0;
	__sync_fetch_and_add(&row->faults, 1);
	if (result & VM_FAULT_MAJOR)
		__sync_fetch_and_add(&row->major_faults, 1);
	fault_accesses(row, fault);
	return 0;
}

/* Pages around a fault that are cached are mapped with it: these do not fault themselves. */
SEC("fentry/filemap_map_pages")
int BPF_PROG(fault_around, struct vm_fault *fault)
{
	struct row *row;

	if (!config.sampling || !file_counts(fault->vma->vm_file))
		return 0;
	row = my_row();
	if (row)
		fault_accesses(row, fault);
	return 0;
}

SEC("fentry/page_cache_sync_ra")
int BPF_PROG(demand_miss, struct readahead_control *readahead)
{
	struct row *row;

	if (!inode_counts(readahead->mapping->host))
		return 0;
	row = my_row();
	if (row)
		__sync_fetch_and_add(&row->demand_misses, 1);
	return 0;
}

/* Its last counts stay until the reader has seen them. */
SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(removal, struct cgroup *cgroup, const char *path)
{
	u64 id = cgroup->kn->id;
	u32 *known = bpf_map_lookup_elem(&slot_of, &id), slot;
	struct slot *entry;

	if (!known)
		return 0;
	slot = *known;
	bpf_map_delete_elem(&slot_of, &id);
	forget_address(slot);
	entry = bpf_map_lookup_elem(&slots, &slot);
	if (entry)
		entry->removed = 1;
	return 0;
}
