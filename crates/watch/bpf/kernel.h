// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the programs of this folder share: the few kernel types that they read, and small helpers.
//
// The structs list only the members that are used. `preserve_access_index` makes the loader put the offsets of
// the running kernel in (CO-RE), so one object fits all kernels that have these members.
#ifndef COVEY_KERNEL_H
#define COVEY_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#define READS_KERNEL __attribute__((preserve_access_index))

#define MIB_SHIFT 20
// Pages of 4 KiB. A kernel with other pages is refused by the loader.
#define PAGE_SHIFT 12
#define CHUNK_SHIFT (MIB_SHIFT - PAGE_SHIFT)

// An access is worth this much. Scores are kept in thousandths because they decay.
#define ONE 1000

// The kinds of events in a ring buffer. `src/event.rs` has the same numbers.
#define EVENT_HOT 1
#define EVENT_REQUEST 2
#define EVENT_UNSYNCED 3
#define EVENT_STREAM 4

// One event. 64 bytes, native byte order. The fields that a kind does not use are 0.
struct event {
	u32 kind;
	// Which MiB of the file or object.
	u32 chunk;
	// The inode number, or the hash of the object's path.
	u64 object;
	// CLOCK_MONOTONIC, in nanoseconds.
	u64 at;
	// EVENT_HOT: accesses so far. EVENT_STREAM: the chunks before this one that were read in order. EVENT_REQUEST: the request's number. EVENT_UNSYNCED: files.
	u64 count;
	// EVENT_REQUEST: when the request entered the queue. EVENT_UNSYNCED: pages that became dirty.
	u64 value;
	// EVENT_HOT: the score in thousandths. EVENT_REQUEST: the opcode.
	u32 score;
	// The process. 0 if it is not known.
	u32 pid;
	// EVENT_UNSYNCED: the name of the process.
	char name[16];
};

// Halves a score once for every half-life that has passed. Within a half-life it falls in a straight line.
static __always_inline u32 decayed(u32 score, u64 since, u64 half_life)
{
	u64 halvings, rest;

	if (!half_life || !score)
		return score;
	halvings = since / half_life;
	if (halvings > 31)
		return 0;
	rest = since - halvings * half_life;
	score >>= halvings;
	return score - (u32)((u64)score * rest / (2 * half_life));
}

// The power of two below a time in nanoseconds: bucket n counts times from 2^n.
static __always_inline u32 bucket_of(u64 ns, u32 buckets)
{
	u32 n = 0, i;

	for (i = 32; i; i >>= 1)
		if (ns >> i) {
			ns >>= i;
			n += i;
		}
	return n < buckets ? n : buckets - 1;
}

#endif
