// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One mount of Covey, as the kernel sees it: its page cache and its FUSE requests.
//
// The page cache answers most reads, and the daemon never hears of them. These programs count them for each
// file and MiB. When a MiB becomes hot, an event wakes the daemon.
//
//   heat       {inode, MiB} -> counts and a decaying score
//   events     hot chunks (they wake the reader); ended requests (the reader looks every few milliseconds)
//   in_flight  {number of a request} -> when it was sent
//   operations opcode -> how many, how long
//   unsynced   {process} -> files of the mount that it wrote and did not fsync
//   lost       what did not fit into a map
#include "kernel.h"

struct super_block {
	u32 s_dev;
} READS_KERNEL;

struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
} READS_KERNEL;

struct address_space {
	struct inode *host;
} READS_KERNEL;

struct folio {
	struct address_space *mapping;
	unsigned long index;
	unsigned long _flags_1;
	struct {
		unsigned long f;
	} flags;
} READS_KERNEL;

// Before Linux 6.18 the flags were a plain number.
struct folio___before {
	unsigned long flags;
} READS_KERNEL;

enum pageflags {
	PG_head = 6,
};

struct fuse_conn {
	u32 dev;
} READS_KERNEL;

struct fuse_mount {
	struct fuse_conn *fc;
} READS_KERNEL;

struct fuse_in_header {
	u32 opcode;
	u64 unique;
	u64 nodeid;
	u32 pid;
} READS_KERNEL;

struct fuse_out_header {
	int error;
} READS_KERNEL;

struct fuse_req {
	struct fuse_mount *fm;
	struct {
		struct fuse_in_header h;
	} in;
	struct {
		struct fuse_out_header h;
	} out;
} READS_KERNEL;

struct task_struct {
	int pid;
	int tgid;
} READS_KERNEL;

// What the loader sets, by name.

// The mount's device number, as the kernel writes it: major << 20 | minor.
const volatile u32 dev = 0;
// A chunk is hot from this score on, in thousandths.
const volatile u32 hot_score = 2000;
// The score halves in this time, in nanoseconds. 0: never.
const volatile u64 half_life = 60000000000ULL;
// Whether every ended request is reported.
const volatile u32 report_requests = 0;

struct heat_key {
	u64 ino;
	u32 chunk;
	u32 zero;
};

struct heat {
	// Reads by system calls, one per call and chunk.
	u64 reads;
	// Groups of mapped pages that a page fault brought in without I/O, and single faults.
	u64 maps;
	u64 faults;
	// Pages that entered and left the page cache.
	u64 fills;
	u64 evictions;
	u64 last;
	u32 score;
	u32 hot;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct heat_key);
	__type(value, struct heat);
} heat SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, u64);
} in_flight SEC(".maps");

#define OPCODES 64
#define BUCKETS 40

struct operation {
	u64 count;
	u64 errors;
	u64 ns;
	u64 histogram[BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OPCODES);
	__type(key, u32);
	__type(value, struct operation);
} operations SEC(".maps");

// A call of read(2) may take the pages in several steps. Only the first one is an access.
struct step {
	u64 ino;
	u64 index;
	u64 last;
	// The chunk in which the last read ended, and how many before it were read in order.
	u32 chunk;
	u32 run;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct step);
} steps SEC(".maps");

struct writer_key {
	u64 ino;
	u32 pid;
	u32 zero;
};

struct writer {
	// Pages of this file that became dirty since the process last synced it.
	u64 pages;
};

// The files that a process wrote and did not sync.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct writer_key);
	__type(value, struct writer);
} writers SEC(".maps");

// Processes that wrote: how many files, how many pages. An exit of any other process costs one lookup.
struct unsynced {
	u64 files;
	u64 pages;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct unsynced);
} unsynced SEC(".maps");

#define LOST_HEAT 0
#define LOST_EVENTS 1
#define LOST_IN_FLIGHT 2
#define LOST_KINDS 3

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOST_KINDS);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

static __always_inline void lose(u32 kind)
{
	u64 *count = bpf_map_lookup_elem(&lost, &kind);

	if (count)
		*count += 1;
}

static __always_inline bool is_ours(struct address_space *mapping)
{
	return mapping && mapping->host && mapping->host->i_sb && mapping->host->i_sb->s_dev == dev;
}

static __always_inline struct heat *heat_of(u64 ino, u32 chunk)
{
	struct heat_key key = { .ino = ino, .chunk = chunk };
	struct heat *found = bpf_map_lookup_elem(&heat, &key);
	struct heat new = {};

	if (found)
		return found;
	// E2BIG: the map is full.
	if (bpf_map_update_elem(&heat, &key, &new, BPF_NOEXIST) == -7)
		lose(LOST_HEAT);
	return bpf_map_lookup_elem(&heat, &key);
}

// Adds an access to a chunk's score, and says so when it becomes hot.
static __always_inline void warm(struct heat *at, u64 ino, u32 chunk)
{
	u64 now = bpf_ktime_get_ns();
	u32 score = decayed(at->score, now - at->last, half_life);
	struct event event = {};

	if (at->hot && score < hot_score / 2)
		at->hot = 0;
	score += ONE;
	at->score = score;
	at->last = now;
	if (at->hot || score < hot_score)
		return;
	at->hot = 1;
	event.kind = EVENT_HOT;
	event.chunk = chunk;
	event.object = ino;
	event.at = now;
	event.count = at->reads + at->maps + at->faults;
	event.score = score;
	event.pid = bpf_get_current_pid_tgid() >> 32;
	if (bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP))
		lose(LOST_EVENTS);
}

// A file that is read in order this far is read on.
#define STREAM_CHUNKS 2

// Says that a file is read in order, unless the page cache has the next chunk already.
static __always_inline void stream(u64 ino, u32 chunk, u32 run)
{
	struct heat_key next = { .ino = ino, .chunk = chunk + 1 };
	struct heat *there = bpf_map_lookup_elem(&heat, &next);
	struct event event = {};

	if (there && there->fills > there->evictions)
		return;
	event.kind = EVENT_STREAM;
	event.chunk = chunk;
	event.object = ino;
	event.at = bpf_ktime_get_ns();
	event.count = run;
	event.pid = bpf_get_current_pid_tgid() >> 32;
	if (bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP))
		lose(LOST_EVENTS);
}

// Whether this is a later step of a read that was counted. Remembers the step, and says when a file is read in
// order.
static __always_inline bool goes_on(u64 ino, u64 index, u64 last)
{
	u32 thread = (u32)bpf_get_current_pid_tgid();
	struct step *before = bpf_map_lookup_elem(&steps, &thread);
	struct step step = { .ino = ino, .index = index, .last = last, .chunk = last >> CHUNK_SHIFT };

	if (before) {
		bool same = before->ino == ino, later = same && before->last == last && index > before->index;
		u32 from = index >> CHUNK_SHIFT;

		if (same && (from == before->chunk || from == before->chunk + 1))
			step.run = before->run + (step.chunk - before->chunk);
		if (step.run > before->run && step.run >= STREAM_CHUNKS)
			stream(ino, step.chunk, step.run);
		*before = step;
		return later;
	}
	bpf_map_update_elem(&steps, &thread, &step, BPF_ANY);
	return false;
}

// A read(2) that crosses more chunks than this counts for the first ones only.
#define CHUNKS_MAX 16

SEC("tp_btf/mm_filemap_get_pages")
int pages_read(u64 *ctx)
{
	struct address_space *mapping = (void *)ctx[0];
	u64 index = ctx[1], last = ctx[2], ino;
	u32 chunk, end, i;

	if (!is_ours(mapping))
		return 0;
	ino = mapping->host->i_ino;
	if (goes_on(ino, index, last))
		return 0;
	chunk = index >> CHUNK_SHIFT;
	end = last >> CHUNK_SHIFT;
	for (i = 0; i < CHUNKS_MAX && chunk <= end; i++, chunk++) {
		struct heat *at = heat_of(ino, chunk);

		if (!at)
			return 0;
		__sync_fetch_and_add(&at->reads, 1);
		warm(at, ino, chunk);
	}
	return 0;
}

SEC("tp_btf/mm_filemap_map_pages")
int pages_mapped(u64 *ctx)
{
	struct address_space *mapping = (void *)ctx[0];
	struct heat *at;
	u32 chunk;
	u64 ino;

	if (!is_ours(mapping))
		return 0;
	ino = mapping->host->i_ino;
	chunk = ctx[1] >> CHUNK_SHIFT;
	at = heat_of(ino, chunk);
	if (at) {
		__sync_fetch_and_add(&at->maps, 1);
		warm(at, ino, chunk);
	}
	return 0;
}

SEC("tp_btf/mm_filemap_fault")
int pages_faulted(u64 *ctx)
{
	struct address_space *mapping = (void *)ctx[0];
	struct heat *at;
	u32 chunk;
	u64 ino;

	if (!is_ours(mapping))
		return 0;
	ino = mapping->host->i_ino;
	chunk = ctx[1] >> CHUNK_SHIFT;
	at = heat_of(ino, chunk);
	if (at) {
		__sync_fetch_and_add(&at->faults, 1);
		warm(at, ino, chunk);
	}
	return 0;
}

// How many pages of 4 KiB a folio has.
static __always_inline u64 pages_of(struct folio *folio)
{
	struct folio___before *before = (void *)folio;
	unsigned long flags;

	if (bpf_core_field_exists(folio->flags.f))
		flags = BPF_CORE_READ(folio, flags.f);
	else
		flags = BPF_CORE_READ(before, flags);
	if (!(flags & 1UL << bpf_core_enum_value(enum pageflags, PG_head)))
		return 1;
	return 1UL << (BPF_CORE_READ(folio, _flags_1) & 0xff & 31);
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int page_filled(u64 *ctx)
{
	struct folio *folio = (void *)ctx[0];
	struct address_space *mapping = folio->mapping;
	struct heat *at;

	if (!is_ours(mapping))
		return 0;
	at = heat_of(mapping->host->i_ino, folio->index >> CHUNK_SHIFT);
	if (at)
		__sync_fetch_and_add(&at->fills, pages_of(folio));
	return 0;
}

SEC("tp_btf/mm_filemap_delete_from_page_cache")
int page_evicted(u64 *ctx)
{
	struct folio *folio = (void *)ctx[0];
	struct address_space *mapping = folio->mapping;
	struct heat_key key = {};
	struct heat *at;

	if (!is_ours(mapping))
		return 0;
	// A chunk that nobody counted stays uncounted: a large unmount must not fill the map.
	key.ino = mapping->host->i_ino;
	key.chunk = folio->index >> CHUNK_SHIFT;
	at = bpf_map_lookup_elem(&heat, &key);
	if (at)
		__sync_fetch_and_add(&at->evictions, pages_of(folio));
	return 0;
}

#define FUSE_FSYNC 20

// The process has synced a file: what it wrote there is durable.
static __always_inline void synced(u64 ino)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct writer_key key = { .ino = ino, .pid = pid };
	struct writer *writer = bpf_map_lookup_elem(&writers, &key);
	struct unsynced *all;

	if (!writer)
		return;
	all = bpf_map_lookup_elem(&unsynced, &pid);
	if (all) {
		__sync_fetch_and_add(&all->files, -1);
		__sync_fetch_and_add(&all->pages, -writer->pages);
	}
	bpf_map_delete_elem(&writers, &key);
}

SEC("tp_btf/fuse_request_send")
int request_sent(u64 *ctx)
{
	struct fuse_req *request = (void *)ctx[0];
	u64 unique, now = bpf_ktime_get_ns();

	if (request->fm->fc->dev != dev)
		return 0;
	unique = request->in.h.unique;
	if (request->in.h.opcode == FUSE_FSYNC)
		synced(request->in.h.nodeid);
	if (bpf_map_update_elem(&in_flight, &unique, &now, BPF_ANY))
		lose(LOST_IN_FLIGHT);
	return 0;
}

SEC("tp_btf/fuse_request_end")
int request_ended(u64 *ctx)
{
	struct fuse_req *request = (void *)ctx[0];
	u64 unique, now = bpf_ktime_get_ns(), sent, *found;
	struct operation *operation;
	struct event event = {};
	u32 opcode, bucket;

	if (request->fm->fc->dev != dev)
		return 0;
	unique = request->in.h.unique;
	opcode = request->in.h.opcode;
	found = bpf_map_lookup_elem(&in_flight, &unique);
	if (!found)
		return 0;
	sent = *found;
	bpf_map_delete_elem(&in_flight, &unique);
	operation = bpf_map_lookup_elem(&operations, &opcode);
	if (operation) {
		operation->count += 1;
		operation->ns += now - sent;
		if (request->out.h.error < 0)
			operation->errors += 1;
		bucket = bucket_of(now - sent, BUCKETS);
		if (bucket < BUCKETS)
			operation->histogram[bucket] += 1;
	}
	if (!report_requests)
		return 0;
	event.kind = EVENT_REQUEST;
	event.object = request->in.h.nodeid;
	event.at = now;
	event.count = unique;
	event.value = sent;
	event.score = opcode;
	event.pid = request->in.h.pid;
	if (bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_NO_WAKEUP))
		lose(LOST_EVENTS);
	return 0;
}

SEC("tp_btf/writeback_dirty_folio")
int page_dirtied(u64 *ctx)
{
	struct folio *folio = (void *)ctx[0];
	struct address_space *mapping = (void *)ctx[1];
	u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct writer_key key = { .pid = pid };
	struct writer *writer, new = {};
	struct unsynced *all, none = {};
	u64 pages;

	if (!is_ours(mapping))
		return 0;
	key.ino = mapping->host->i_ino;
	pages = pages_of(folio);
	all = bpf_map_lookup_elem(&unsynced, &pid);
	if (!all) {
		bpf_map_update_elem(&unsynced, &pid, &none, BPF_NOEXIST);
		all = bpf_map_lookup_elem(&unsynced, &pid);
		if (!all)
			return 0;
	}
	writer = bpf_map_lookup_elem(&writers, &key);
	if (writer) {
		__sync_fetch_and_add(&writer->pages, pages);
	} else {
		new.pages = pages;
		if (!bpf_map_update_elem(&writers, &key, &new, BPF_NOEXIST))
			__sync_fetch_and_add(&all->files, 1);
	}
	__sync_fetch_and_add(&all->pages, pages);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int process_ended(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	u32 pid = task->tgid;
	struct unsynced *all;
	struct event event = {};

	// Only the process's own end counts, not that of one of its threads.
	if (task->pid != task->tgid)
		return 0;
	all = bpf_map_lookup_elem(&unsynced, &pid);
	if (!all)
		return 0;
	if ((long)all->files > 0) {
		event.kind = EVENT_UNSYNCED;
		event.at = bpf_ktime_get_ns();
		event.count = all->files;
		event.value = all->pages;
		event.pid = pid;
		bpf_get_current_comm(event.name, sizeof(event.name));
		if (bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_NO_WAKEUP))
			lose(LOST_EVENTS);
	}
	bpf_map_delete_elem(&unsynced, &pid);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
