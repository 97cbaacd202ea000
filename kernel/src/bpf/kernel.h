/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's types, as far as the probes read them, under the kernel's own names. Only names and
 * types of fields matter: the loader puts in the running kernel's offsets (CO-RE).
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u32 u32;
typedef __s32 s32;
typedef long long s64;
typedef __u64 u64;
typedef int bool;

/* From the kernel's stable interface (linux/bpf.h). */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum {
	BPF_F_NO_PREALLOC = 1U << 0,
	BPF_F_MMAPABLE = 1U << 10,
};
enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
};
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
enum {
	BPF_RB_NO_WAKEUP = 1U << 0,
	BPF_RB_FORCE_WAKEUP = 1U << 1,
};
enum { BPF_RB_AVAIL_DATA = 0 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
	unsigned int flags;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct mem_cgroup {
	struct cgroup_subsys_state css;
};

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
	void *s_bdev;
};

struct inode {
	unsigned short i_mode;
	unsigned long i_ino;
	u32 i_generation;
	struct super_block *i_sb;
};

struct rb_node {
	struct rb_node *rb_left;
};

struct rb_root {
	struct rb_node *rb_node;
};

struct rb_root_cached {
	struct rb_root rb_root;
};

struct address_space {
	struct inode *host;
	struct rb_root_cached i_mmap;
	unsigned long nrpages;
};

struct file_operations;

struct file {
	const struct file_operations *f_op;
	struct inode *f_inode;
	unsigned int f_flags;
};

struct kiocb {
	struct file *ki_filp;
	s64 ki_pos;
	int ki_flags;
};

struct io_cqe {
	int res;
};

struct io_uring_cqe {
	s32 res;
};

struct io_kiocb {
	struct file *file;
	u8 opcode;
};

/* Since 6.0 a request begins with the data of its opcode: a kiocb for reads and writes. */
struct io_cmd_data {
	struct file *file;
};

struct io_ring_ctx {
	unsigned int flags;
};

/* Since 6.15: the result is in a completion entry, not in an argument of its own. */
typedef void (*btf_trace_io_uring_complete___entry)(void *, struct io_ring_ctx *, void *,
						    struct io_uring_cqe *);

struct vm_area_struct {
	struct file *vm_file;
};

struct vm_fault {
	struct vm_area_struct *vma;
	unsigned long pgoff;
};

struct readahead_control {
	struct address_space *mapping;
};

struct page {
	unsigned long flags;
	unsigned long compound_head;
};

typedef struct {
	int counter;
} atomic_t;

struct folio {
	unsigned long flags;
	struct address_space *mapping;
	unsigned long index;
	atomic_t _refcount;
	unsigned long memcg_data;
	unsigned int _folio_nr_pages;
};

/* Since 6.15. */
struct folio___nr_pages {
	unsigned int _nr_pages;
};

/* Since 6.18 (memdesc_flags_t). */
struct memdesc_flags {
	unsigned long f;
};

struct folio___memdesc {
	struct memdesc_flags flags;
};

struct bio_vec {
	struct page *bv_page;
	unsigned int bv_len;
	unsigned int bv_offset;
};

struct bvec_iter {
	u64 bi_sector;
	unsigned int bi_size;
	unsigned int bi_idx;
	unsigned int bi_bvec_done;
} __attribute__((packed));

struct blkcg {
	struct cgroup_subsys_state css;
};

struct blkcg_gq {
	struct blkcg *blkcg;
};

struct bio {
	struct bio *bi_next;
	struct bvec_iter bi_iter;
	struct blkcg_gq *bi_blkg;
	struct bio_vec *bi_io_vec;
};

struct gendisk {
	int major;
	int first_minor;
};

struct request_queue {
	struct gendisk *disk;
};

struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	struct bio *bio;
	u64 start_time_ns;
};

enum req_flag_bits {
	__REQ_SYNC,
	__REQ_RAHEAD,
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
};

struct task_struct {
	struct css_set *cgroups;
};

enum cgroup_subsys_id {
	memory_cgrp_id,
};

enum pageflags {
	PG_locked,
	PG_uptodate,
	PG_dirty,
	PG_writeback,
	PG_head,
};

#pragma clang attribute pop

#define ENOENT 2
#define EEXIST 17
#define S_IFMT 0170000
#define S_IFREG 0100000
#define CSS_ONLINE (1U << 1)
#ifdef __TARGET_ARCH_arm64
#define O_DIRECT 0200000U
#else
#define O_DIRECT 040000U
#endif
#define IOCB_WRITE (1U << 18)
#define VM_FAULT_MAJOR 0x4U
#define REQ_OP_MASK 0xffU
#define REQ_OP_READ 0U
#define REQ_OP_WRITE 1U
#define LOOP_MAJOR 7
/* The low bits of a folio's memcg_data are flags. Those of a mapping are set if it is not a file's. */
#define MEMCG_DATA_FLAGS 7UL
#define MAPPING_FLAGS 3UL

/* A pointer as a number: the verifier forbids arithmetic on typed pointers. */
#define address(pointer)                                                                           \
	({                                                                                         \
		const void *known = (pointer);                                                     \
		u64 value = 0;                                                                     \
		bpf_probe_read_kernel(&value, sizeof(value), &known);                              \
		value;                                                                             \
	})
