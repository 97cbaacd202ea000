/* SPDX-License-Identifier: GPL-2.0-only */
/* Which files count: regular ones whose content lives on a disk or behind a network. */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define OVERLAYFS_MAGIC 0x794c7630UL

/* Filesystems that hold files without one block device of their own. */
static __always_inline bool holds_files(unsigned long magic)
{
	switch (magic) {
	case OVERLAYFS_MAGIC:
	case 0x9123683eUL: /* btrfs */
	case 0x2fc12fc1UL: /* ZFS */
	case 0xca451a4eUL: /* bcachefs */
	case 0x6969UL: /* NFS */
	case 0x65735546UL: /* FUSE, virtiofs */
	case 0xff534d42UL: /* CIFS */
	case 0xfe534d42UL: /* SMB2 */
	case 0x00c36400UL: /* Ceph */
	case 0x01021997UL: /* 9p */
		return 1;
	default:
		return 0;
	}
}

static __always_inline bool inode_counts(struct inode *inode)
{
	struct super_block *sb;

	if ((inode->i_mode & S_IFMT) != S_IFREG)
		return 0;
	sb = inode->i_sb;
	return sb->s_bdev || holds_files(sb->s_magic);
}

static __always_inline bool file_counts(struct file *file)
{
	return inode_counts(file->f_inode);
}

static __always_inline bool is_overlay(struct file *file)
{
	return file->f_inode->i_sb->s_magic == OVERLAYFS_MAGIC;
}

static __always_inline bool is_direct(struct file *file)
{
	return (file->f_flags & O_DIRECT) != 0;
}

/* The same for pointers that the verifier does not know to be what they are. */
static __always_inline bool unknown_inode_counts(struct inode *inode)
{
	if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFREG)
		return 0;
	return BPF_CORE_READ(inode, i_sb, s_bdev) ||
	       holds_files(BPF_CORE_READ(inode, i_sb, s_magic));
}
