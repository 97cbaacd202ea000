/* SPDX-License-Identifier: GPL-2.0-only */
/* Which files are counted: regular files whose content is on a disk or on a server. */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define OVERLAYFS_MAGIC 0x794c7630UL
#define BTRFS_MAGIC 0x9123683eUL

/* File systems that hold files without one block device of their own. */
static __always_inline bool is_file_fs(unsigned long magic)
{
	switch (magic) {
	case OVERLAYFS_MAGIC:
	case BTRFS_MAGIC:
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

static __always_inline bool is_counted_inode(struct inode *inode)
{
	struct super_block *sb;

	if ((inode->i_mode & S_IFMT) != S_IFREG)
		return 0;
	sb = inode->i_sb;
	return sb->s_bdev || is_file_fs(sb->s_magic);
}

static __always_inline bool is_counted_file(struct file *file)
{
	return is_counted_inode(file->f_inode);
}

static __always_inline bool is_overlay(struct file *file)
{
	return file->f_inode->i_sb->s_magic == OVERLAYFS_MAGIC;
}

static __always_inline bool is_direct(struct file *file)
{
	return (file->f_flags & O_DIRECT) != 0;
}

/* The same for a pointer that the verifier does not know to be an inode. */
static __always_inline bool is_counted_inode_untyped(struct inode *inode)
{
	if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFREG)
		return 0;
	return BPF_CORE_READ(inode, i_sb, s_bdev) ||
	       is_file_fs(BPF_CORE_READ(inode, i_sb, s_magic));
}
