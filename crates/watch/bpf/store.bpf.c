// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Requests of S3 clients on one interface, and connections of one cgroup to the store.
//
// The egress program sees requests to the store's port, the ingress program sees the responses. Both share the
// maps of this object. Only plain HTTP/1.1 can be read.
//
//   flows      {client, store} -> the request that waits for its response
//   chunks     {hash of the path, MiB} -> counts, status, latency, a decaying score
//   totals     sums of everything
//   latency    log2 histogram of the time from a request to the first byte of its response
//   round_trip log2 histogram of the connection's smoothed RTT
//   events     hot chunks; each wakes the reader
#include "kernel.h"
#include "packet.h"

#define ETH_HLEN 14
#define TCX_NEXT -1

// What the loader sets, by name.

// The store's port, in host byte order.
const volatile u16 port = 0;
// The length of the link header: 14, or 0 on a device without one.
const volatile u32 link_header = ETH_HLEN;
// A chunk is hot from this score on, in thousandths.
const volatile u32 hot_score = 2000;
// The score halves in this time, in nanoseconds. 0: never.
const volatile u64 half_life = 60000000000ULL;
// The longest delay of an acknowledgement on connections of the cgroup, in microseconds. 0: as it is.
const volatile u32 delack_max_us = 10000;

struct flow_key {
	// IPv4 addresses are in the last four bytes; the rest of both is 0.
	u32 client[4];
	u32 store[4];
	u16 client_port;
	u16 store_port;
};

struct flow {
	u64 object;
	u64 at;
	u64 requests;
	// The sequence number of the last request. One that is not newer is a retransmission.
	u32 seq;
	u32 chunk;
	// How many bytes were sent up to the end of the last segment.
	u32 waiting;
	u32 own;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

struct chunk_key {
	u64 object;
	u32 chunk;
	u32 zero;
};

#define PATH_MAX 128

struct chunk {
	u64 requests;
	u64 responses;
	u64 errors;
	u64 latency_ns;
	u64 last;
	u32 score;
	u32 hot;
	u32 status;
	u32 path_len;
	char path[PATH_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct chunk_key);
	__type(value, struct chunk);
} chunks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

// `src/store.rs` reads the same fields in the same order.
struct totals {
	u64 requests;
	u64 responses;
	u64 own_requests;
	u64 own_responses;
	u64 keepalive;
	u64 ranges;
	u64 get;
	u64 put;
	u64 other;
	// Responses by the first digit of their status, 2 to 5.
	u64 status[4];
	// A request line that does not end in its segment. It is not counted as a request.
	u64 split;
	u64 fragments;
	u64 retransmitted;
	// A map or the ring buffer had no room.
	u64 lost_chunks;
	u64 lost_events;
	u64 tuned;
	u64 not_tuned;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct totals);
} totals SEC(".maps");

#define BUCKETS 40

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BUCKETS);
	__type(key, u32);
	__type(value, u64);
} latency SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BUCKETS);
	__type(key, u32);
	__type(value, u64);
} round_trip SEC(".maps");

// The first bytes of a payload, and what was found in them. The functions that look for it are global: the
// verifier checks each once, for any text, and does not follow every position into its caller.
#define TEXT 1024

struct scratch {
	u32 path_end;
	u32 line_end;
	u32 range;
	u32 len;
	u32 own;
	u32 zero;
	u64 hash;
	u8 text[TEXT];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline struct totals *total(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

struct segment {
	u32 source[4];
	u32 destination[4];
	u16 source_port;
	u16 destination_port;
	u32 seq;
	// Where the payload begins, and its length.
	u32 at;
	u32 len;
};

struct ports {
	__be16 source;
	__be16 destination;
	__be32 seq;
	__be32 ack;
	u8 header;
	u8 flags;
};

// Reads the ports and the place of the payload of a TCP segment whose IP packet ends at `end`.
static __always_inline bool read_tcp(struct __sk_buff *skb, u32 at, u32 end, struct segment *out)
{
	struct ports tcp;
	u32 header;

	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return false;
	out->source_port = bpf_ntohs(tcp.source);
	out->destination_port = bpf_ntohs(tcp.destination);
	out->seq = bpf_ntohl(tcp.seq);
	header = (tcp.header >> 4) * 4;
	if (header < 20 || at + header > end)
		return false;
	out->at = at + header;
	out->len = end - out->at;
	return true;
}

static __always_inline bool read_ipv4(struct __sk_buff *skb, u32 at, struct segment *out)
{
	struct ipv4 ip;
	struct totals *sum;
	u32 end;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP)
		return false;
	// Not the first fragment, or more to come: the ports or the rest of the text are elsewhere.
	if (ip.fragment & bpf_htons(0x3fff)) {
		sum = total();
		if (sum)
			sum->fragments += 1;
		return false;
	}
	out->source[3] = ip.source;
	out->destination[3] = ip.destination;
	// A packet that the device cuts up later has its length in the buffer only.
	end = ip.len ? at + bpf_ntohs(ip.len) : skb->len;
	return read_tcp(skb, at + (ip.version_header & 15) * 4, end, out);
}

struct extension {
	u8 next;
	u8 len;
};

#define EXTENSIONS_MAX 4
#define NEXT_HOP 0
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_OPTIONS 60

static __always_inline bool read_ipv6(struct __sk_buff *skb, u32 at, struct segment *out)
{
	struct ipv6 ip;
	struct extension extension;
	struct totals *sum;
	u32 end, i;
	u8 next;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return false;
	__builtin_memcpy(out->source, ip.source, sizeof(ip.source));
	__builtin_memcpy(out->destination, ip.destination, sizeof(ip.destination));
	end = ip.len ? at + sizeof(ip) + bpf_ntohs(ip.len) : skb->len;
	next = ip.next;
	at += sizeof(ip);
	for (i = 0; i < EXTENSIONS_MAX; i++) {
		if (next == IPPROTO_TCP)
			return read_tcp(skb, at, end, out);
		if (next == NEXT_FRAGMENT) {
			sum = total();
			if (sum)
				sum->fragments += 1;
			return false;
		}
		if (next != NEXT_HOP && next != NEXT_ROUTING && next != NEXT_OPTIONS)
			return false;
		if (bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
			return false;
		next = extension.next;
		at += (extension.len + 1) * 8;
	}
	return false;
}

// Finds the TCP segment of a packet: behind a link header, up to two VLAN tags, and IPv4 or IPv6.
static __always_inline bool read_segment(struct __sk_buff *skb, struct segment *out)
{
	u32 at = link_header, i;
	__be16 kind = skb->protocol;
	u8 first;

	if (link_header) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN - 2, &kind, sizeof(kind)))
			return false;
		for (i = 0; i < 2; i++) {
			if (kind != bpf_htons(ETH_P_8021Q) && kind != bpf_htons(ETH_P_8021AD))
				break;
			if (bpf_skb_load_bytes(skb, at + 2, &kind, sizeof(kind)))
				return false;
			at += 4;
		}
	} else {
		if (bpf_skb_load_bytes(skb, 0, &first, 1))
			return false;
		kind = first >> 4 == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	}
	if (kind == bpf_htons(ETH_P_IP))
		return read_ipv4(skb, at, out);
	if (kind == bpf_htons(ETH_P_IPV6))
		return read_ipv6(skb, at, out);
	return false;
}

#define METHOD_NONE 0
#define METHOD_GET 1
#define METHOD_PUT 2
#define METHOD_OTHER 3

// The method at the beginning of a text, and the length of its name with the blank.
static __always_inline u32 method_of(const u8 *text, u32 *len)
{
	u32 word = *(u32 *)text, rest = *(u32 *)(text + 4);

	*len = 4;
	// Little-endian words.
	if (word == 0x20544547) // "GET "
		return METHOD_GET;
	if (word == 0x20545550) // "PUT "
		return METHOD_PUT;
	*len = 5;
	if (word == 0x44414548 && (rest & 0xff) == ' ') // "HEAD "
		return METHOD_OTHER;
	if (word == 0x54534f50 && (rest & 0xff) == ' ') // "POST "
		return METHOD_OTHER;
	*len = 7;
	if (word == 0x454c4544 && (rest & 0xffffff) == 0x204554) // "DELETE "
		return METHOD_OTHER;
	return METHOD_NONE;
}

// Copies the first bytes of the payload. The buffer is zeroed behind them as far as anything looks.
static __always_inline u32 load_text(struct __sk_buff *skb, struct segment *segment, struct scratch *s)
{
	u32 len = segment->len;

	if (len >= TEXT)
		len = TEXT - 1;
	if (len < 16)
		return 0;
	// For the verifier, which forgets bounds across the branches above.
	len &= TEXT - 1;
	if (len == 0 || bpf_skb_load_bytes(skb, segment->at, s->text, len))
		return 0;
	s->text[len] = 0;
	return len;
}

#define FNV_START 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL
// Longer paths are hashed up to here.
#define PATH_SCAN 512

// Hashes the path, which ends at a blank or a question mark.
__noinline int hash_path(struct scratch *s, u32 start)
{
	u64 hash = FNV_START;
	u32 i, at;

	if (!s)
		return 0;
	s->path_end = 0;
	for (i = 0; i < PATH_SCAN; i++) {
		u8 c;

		at = (start + i) & (TEXT - 1);
		c = s->text[at];
		if (c <= ' ' || c == '?') {
			s->path_end = at;
			break;
		}
		hash = (hash ^ c) * FNV_PRIME;
	}
	s->hash = hash;
	return 0;
}

// Looks for the end of the request line, from where the path ended.
__noinline int find_line_end(struct scratch *s)
{
	u32 i, start;

	if (!s)
		return 0;
	start = s->path_end;
	s->line_end = 0;
	for (i = 0; i < PATH_SCAN; i++) {
		u32 at = (start + i) & (TEXT - 1);
		u8 c = s->text[at];

		if (c == '\r' || c == 0) {
			s->line_end = c ? at : 0;
			break;
		}
	}
	return 0;
}

#define AGENT "agent: covey/"
#define AGENT_LEN (sizeof(AGENT) - 1)

// Whether the name of Covey's client stands there. `at` is where "covey/" begins.
static __always_inline bool names_covey(struct scratch *s, u32 at)
{
	u32 i;

	if (at < AGENT_LEN || at >= TEXT - 8)
		return false;
	at -= AGENT_LEN - 6;
	for (i = 0; i < AGENT_LEN; i++)
		if (s->text[(at + i) & (TEXT - 1)] != AGENT[i])
			return false;
	return true;
}

// Looks for a Range header and for the User-Agent of Covey, four bytes at a time: one of these words lies at a
// multiple of four inside of "ange: bytes=" or of " covey/", wherever that begins.
__noinline int find_headers(struct scratch *s)
{
	u32 i, len;

	if (!s)
		return 0;
	len = s->len;
	s->range = 0;
	s->own = 0;
	for (i = 0; i < TEXT; i += 4) {
		u32 word = *(u32 *)(s->text + i), at;

		if (i >= len)
			break;
		// "cove", "ovey", "vey/", " cov"
		if (word == 0x65766f63 || word == 0x7965766f || word == 0x2f796576 || word == 0x766f6320) {
			at = word == 0x65766f63 ? i : word == 0x7965766f ? i - 1 : word == 0x2f796576 ? i - 2 : i + 1;
			if (names_covey(s, at))
				s->own = 1;
			continue;
		}
		if (word == 0x65676e61) // "ange"
			at = i;
		else if (word == 0x3a65676e) // "nge:"
			at = i - 1;
		else if (word == 0x203a6567) // "ge: "
			at = i - 2;
		else if (word == 0x62203a65) // "e: b"
			at = i - 3;
		else
			continue;
		at &= TEXT - 1;
		if (at < TEXT - 16 && s->text[at] == 'a' && s->text[at + 2] == 'g' && s->text[at + 6] == 'b' &&
		    s->text[at + 7] == 'y' && s->text[at + 11] == '=')
			s->range = at + 12;
	}
	return 0;
}

// The MiB in which the range begins.
__noinline int range_chunk(struct scratch *s)
{
	u64 offset = 0;
	u32 start, i;

	if (!s)
		return 0;
	start = s->range;
	for (i = 0; i < 15; i++) {
		u8 c = s->text[(start + i) & (TEXT - 1)] - '0';

		if (c > 9)
			break;
		offset = offset * 10 + c;
	}
	return offset >> MIB_SHIFT;
}

static __always_inline void warm(struct chunk *at, struct chunk_key *key, u64 now, struct totals *sum)
{
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
	event.chunk = key->chunk;
	event.object = key->object;
	event.at = now;
	event.count = at->requests;
	event.score = score;
	if (bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP))
		sum->lost_events += 1;
}

// A new chunk, with the path as people know it.
static __always_inline struct chunk *new_chunk(struct chunk_key *key, struct scratch *s, u32 start,
					       struct totals *sum)
{
	struct chunk *at;
	static const struct chunk none;
	u32 i;

	if (bpf_map_update_elem(&chunks, key, &none, BPF_NOEXIST) == -7)
		sum->lost_chunks += 1;
	at = bpf_map_lookup_elem(&chunks, key);
	if (!at)
		return 0;
	for (i = 0; i < PATH_MAX; i++) {
		u32 from = (start + i) & (TEXT - 1);

		if (from >= s->path_end)
			break;
		at->path[i] = s->text[from];
	}
	at->path_len = s->path_end - start;
	return at;
}

static __always_inline void count_request(struct __sk_buff *skb, struct segment *segment)
{
	struct flow_key key = { .client_port = segment->source_port, .store_port = segment->destination_port };
	struct flow new = {}, *flow;
	struct chunk_key chunk_key = {};
	struct totals *sum = total();
	struct chunk *chunk;
	struct scratch *s;
	u32 zero = 0, method, start;
	u64 now;

	s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s || !sum)
		return;
	s->len = load_text(skb, segment, s);
	if (!s->len)
		return;
	method = method_of(s->text, &start);
	if (!method)
		return;
	hash_path(s, start);
	find_line_end(s);
	// " HTTP/1." stands before the end of the line.
	if (!s->path_end || !s->line_end || s->line_end < s->path_end + 9) {
		sum->split += 1;
		return;
	}
	if (s->text[(s->line_end - 4) & (TEXT - 1)] != '/' || s->text[(s->line_end - 8) & (TEXT - 1)] != 'H')
		return;
	__builtin_memcpy(key.client, segment->source, sizeof(key.client));
	__builtin_memcpy(key.store, segment->destination, sizeof(key.store));
	flow = bpf_map_lookup_elem(&flows, &key);
	if (flow && (int)(segment->seq - flow->seq) <= 0 && flow->requests) {
		sum->retransmitted += 1;
		return;
	}
	now = bpf_ktime_get_ns();
	find_headers(s);
	chunk_key.object = s->hash;
	if (s->range)
		chunk_key.chunk = range_chunk(s);
	new.object = s->hash;
	new.at = now;
	new.requests = flow ? flow->requests + 1 : 1;
	new.seq = segment->seq;
	new.chunk = chunk_key.chunk;
	new.waiting = 1;
	new.own = s->own;
	if (flow)
		*flow = new;
	else
		bpf_map_update_elem(&flows, &key, &new, BPF_ANY);
	// Covey's own requests are fetches from the origin and no accesses.
	if (new.own) {
		sum->own_requests += 1;
		return;
	}
	sum->requests += 1;
	if (new.requests > 1)
		sum->keepalive += 1;
	if (s->range)
		sum->ranges += 1;
	if (method == METHOD_GET)
		sum->get += 1;
	else if (method == METHOD_PUT)
		sum->put += 1;
	else
		sum->other += 1;
	chunk = bpf_map_lookup_elem(&chunks, &chunk_key);
	if (!chunk)
		chunk = new_chunk(&chunk_key, s, start, sum);
	if (!chunk)
		return;
	__sync_fetch_and_add(&chunk->requests, 1);
	warm(chunk, &chunk_key, now, sum);
}

static __always_inline void count_response(struct __sk_buff *skb, struct segment *segment)
{
	struct flow_key key = { .client_port = segment->destination_port, .store_port = segment->source_port };
	struct chunk_key chunk_key = {};
	struct totals *sum = total();
	struct chunk *chunk;
	struct flow *flow;
	u32 status, bucket;
	u64 *count, waited;
	u8 text[12];

	if (!sum || segment->len < sizeof(text) || bpf_skb_load_bytes(skb, segment->at, text, sizeof(text)))
		return;
	// "HTTP/1.x NNN"
	if (*(u32 *)text != 0x50545448 || text[4] != '/' || text[8] != ' ')
		return;
	status = (text[9] - '0') * 100 + (text[10] - '0') * 10 + (text[11] - '0');
	// An interim answer: the real one follows.
	if (status < 200 || status > 599)
		return;
	__builtin_memcpy(key.client, segment->destination, sizeof(key.client));
	__builtin_memcpy(key.store, segment->source, sizeof(key.store));
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || !flow->waiting)
		return;
	flow->waiting = 0;
	if (flow->own) {
		sum->own_responses += 1;
		return;
	}
	sum->responses += 1;
	sum->status[(status / 100 - 2) & 3] += 1;
	waited = bpf_ktime_get_ns() - flow->at;
	bucket = bucket_of(waited, BUCKETS);
	count = bpf_map_lookup_elem(&latency, &bucket);
	if (count)
		*count += 1;
	chunk_key.object = flow->object;
	chunk_key.chunk = flow->chunk;
	chunk = bpf_map_lookup_elem(&chunks, &chunk_key);
	if (!chunk)
		return;
	__sync_fetch_and_add(&chunk->responses, 1);
	__sync_fetch_and_add(&chunk->latency_ns, waited);
	if (status >= 400)
		__sync_fetch_and_add(&chunk->errors, 1);
	chunk->status = status;
}

SEC("classifier/egress")
int store_requests(struct __sk_buff *skb)
{
	struct segment segment = {};

	if (read_segment(skb, &segment) && segment.destination_port == port && segment.len)
		count_request(skb, &segment);
	return TCX_NEXT;
}

SEC("classifier/ingress")
int store_responses(struct __sk_buff *skb)
{
	struct segment segment = {};

	if (read_segment(skb, &segment) && segment.source_port == port && segment.len)
		count_response(skb, &segment);
	return TCX_NEXT;
}

#define SOL_TCP 6
#define TCP_NODELAY 1
#define DELACK_MAX 1003

SEC("sockops")
int store_connections(struct bpf_sock_ops *ops)
{
	struct totals *sum;
	u32 bucket;
	u64 *count;
	int one = 1, delack = delack_max_us;

	if (bpf_ntohl(ops->remote_port) != port)
		return 1;
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		sum = total();
		if (!sum)
			break;
		if (bpf_setsockopt(ops, SOL_TCP, TCP_NODELAY, &one, sizeof(one)) ||
		    (delack && bpf_setsockopt(ops, SOL_TCP, DELACK_MAX, &delack, sizeof(delack))))
			sum->not_tuned += 1;
		else
			sum->tuned += 1;
		bpf_sock_ops_cb_flags_set(ops, BPF_SOCK_OPS_RTT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		// In eighths of a microsecond.
		bucket = bucket_of((u64)ops->srtt_us * 125, BUCKETS);
		count = bpf_map_lookup_elem(&round_trip, &bucket);
		if (count)
			*count += 1;
		break;
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
