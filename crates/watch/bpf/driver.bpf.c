// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What other machines ask of this one, seen in the driver of one interface (XDP).
//
// Two things: requests of S3 clients to a port of this machine are counted for each client, and go on. A
// question of another node, which blobs this node has, is answered here: the packet is sent back with the
// answer in it. So it is answered while the daemon is busy or stopped.
//
//   held     {keyed name of a blob} -> the proof that this node has it; the daemon fills it
//   clients  {address} -> requests
//   totals   sums of everything
#include "kernel.h"
#include "packet.h"

// What the loader sets, by name.

// The TCP port whose requests are counted. 0: none are.
const volatile u16 served_port = 0;
// The UDP port to which other nodes send questions. 0: none are answered.
const volatile u16 asked_port = 0;
// Names that `held` has room for.
#define HELD_MAX (1 << 20)

// A question, and its answer. `crates/fleet/src/directory.rs` has the same layout.
#define NAMES 8
#define QUESTION_VERSION 3
#define QUESTION 0
#define ANSWER 1

struct name {
	u64 first;
	u64 second;
};

struct question {
	u8 version;
	u8 kind;
	u8 count;
	u8 zero;
	// The number that the answer repeats, and the names. Not aligned to eight bytes.
	u32 number[2];
	u32 names[NAMES][4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HELD_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct name);
	__type(value, u64);
} held SEC(".maps");

// Whether `held` has everything that this node has. If not, the daemon answers questions about other names.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} complete SEC(".maps");

struct address {
	// IPv4 addresses are in the last word; the rest is 0.
	u32 words[4];
};

struct client {
	u64 requests;
	u64 get;
	u64 put;
	u64 last;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct address);
	__type(value, struct client);
} clients SEC(".maps");

// `src/driver.rs` reads the same fields in the same order.
struct totals {
	u64 packets;
	u64 requests;
	u64 get;
	u64 put;
	u64 other;
	u64 questions;
	u64 answered;
	// Names in answered questions, and those of them that this node has.
	u64 names;
	u64 found;
	// Questions that were left to the daemon.
	u64 passed;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct totals);
} totals SEC(".maps");

struct ethernet {
	u8 destination[6];
	u8 source[6];
	__be16 kind;
};

struct vlan {
	__be16 tag;
	__be16 kind;
};

struct udp {
	__be16 source;
	__be16 destination;
	__be16 len;
	__be16 sum;
};

struct tcp {
	__be16 source;
	__be16 destination;
	__be32 seq;
	__be32 ack;
	u8 header;
	u8 flags;
	__be16 window;
	__be16 sum;
	__be16 urgent;
};

// Where the layers of a packet begin. A pointer is null if the layer is not there.
struct layers {
	struct ethernet *ethernet;
	struct ipv4 *ipv4;
	struct ipv6 *ipv6;
	void *next;
	u8 protocol;
};

static __always_inline bool read_layers(struct xdp_md *ctx, struct layers *out)
{
	void *end = (void *)(long)ctx->data_end, *at = (void *)(long)ctx->data;
	__be16 kind;
	u32 i;

	out->ethernet = at;
	if (at + sizeof(struct ethernet) > end)
		return false;
	kind = out->ethernet->kind;
	at += sizeof(struct ethernet);
	for (i = 0; i < 2; i++) {
		if (kind != bpf_htons(ETH_P_8021Q) && kind != bpf_htons(ETH_P_8021AD))
			break;
		if (at + sizeof(struct vlan) > end)
			return false;
		kind = ((struct vlan *)at)->kind;
		at += sizeof(struct vlan);
	}
	if (kind == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = at;

		// Without options, and no fragment.
		if (at + sizeof(*ip) > end || ip->version_header != 0x45 || ip->fragment & bpf_htons(0x3fff))
			return false;
		out->ipv4 = ip;
		out->protocol = ip->protocol;
		out->next = at + sizeof(*ip);
		return true;
	}
	if (kind == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = at;

		if (at + sizeof(*ip) > end)
			return false;
		out->ipv6 = ip;
		out->protocol = ip->next;
		out->next = at + sizeof(*ip);
		return true;
	}
	return false;
}

static __always_inline void count_request(struct xdp_md *ctx, struct layers *layers, struct totals *sum)
{
	void *end = (void *)(long)ctx->data_end;
	struct tcp *tcp = layers->next;
	struct client new = {}, *client;
	struct address from = {};
	u32 header, word, rest;
	u8 *text;

	if ((void *)tcp + sizeof(*tcp) > end || tcp->destination != bpf_htons(served_port))
		return;
	sum->packets += 1;
	header = (tcp->header >> 4) * 4;
	if (header < sizeof(*tcp) || header > 60)
		return;
	text = (void *)tcp + header;
	// The shortest request line that means something: "GET / HTTP/1.1".
	if ((void *)text + 14 > end)
		return;
	__builtin_memcpy(&word, text, 4);
	__builtin_memcpy(&rest, text + 4, 4);
	// Little-endian words.
	if (word == 0x20544547 && (rest & 0xff) == '/') { // "GET /"
		new.get = 1;
		sum->get += 1;
	} else if (word == 0x20545550 && (rest & 0xff) == '/') { // "PUT /"
		new.put = 1;
		sum->put += 1;
	} else if ((word == 0x44414548 && (rest & 0xffff) == 0x2f20) || // "HEAD /"
		   (word == 0x54534f50 && (rest & 0xffff) == 0x2f20) || // "POST /"
		   (word == 0x454c4544 && rest == 0x2f204554)) { // "DELETE /"
		sum->other += 1;
	} else {
		return;
	}
	sum->requests += 1;
	if (layers->ipv4)
		from.words[3] = layers->ipv4->source;
	else if (layers->ipv6)
		__builtin_memcpy(from.words, layers->ipv6->source, sizeof(from.words));
	new.requests = 1;
	new.last = bpf_ktime_get_ns();
	client = bpf_map_lookup_elem(&clients, &from);
	if (!client) {
		bpf_map_update_elem(&clients, &from, &new, BPF_ANY);
		return;
	}
	__sync_fetch_and_add(&client->requests, 1);
	__sync_fetch_and_add(&client->get, new.get);
	__sync_fetch_and_add(&client->put, new.put);
	client->last = new.last;
}

static __always_inline __be16 folded(u64 sum)
{
	u32 i;

	for (i = 0; i < 4; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	// No checksum is written as 0, so a sum of 0 is written as its other form.
	return sum == 0xffff ? 0xffff : ~sum;
}

// The checksum of the datagram from the beginning: a sum that the sender left to its device is not in the
// packet.
static __always_inline void sign(struct layers *layers, struct udp *udp, struct question *question)
{
	u32 pseudo[10] = {};
	u64 sum;

	udp->sum = 0;
	if (layers->ipv4) {
		pseudo[0] = layers->ipv4->source;
		pseudo[1] = layers->ipv4->destination;
	} else if (layers->ipv6) {
		__builtin_memcpy(pseudo, layers->ipv6->source, 16);
		__builtin_memcpy(pseudo + 4, layers->ipv6->destination, 16);
	}
	pseudo[8] = bpf_htonl(sizeof(*udp) + sizeof(*question));
	pseudo[9] = bpf_htonl(IPPROTO_UDP);
	sum = bpf_csum_diff(0, 0, pseudo, sizeof(pseudo), 0);
	sum = bpf_csum_diff(0, 0, (void *)udp, sizeof(*udp), sum);
	sum = bpf_csum_diff(0, 0, (void *)question, sizeof(*question), sum);
	udp->sum = folded(sum);
}

static __always_inline void turn_round(struct layers *layers, struct udp *udp)
{
	u8 mac[6];
	__be16 port = udp->source;
	u32 address[4];

	udp->source = udp->destination;
	udp->destination = port;
	__builtin_memcpy(mac, layers->ethernet->source, 6);
	__builtin_memcpy(layers->ethernet->source, layers->ethernet->destination, 6);
	__builtin_memcpy(layers->ethernet->destination, mac, 6);
	if (layers->ipv4) {
		address[0] = layers->ipv4->source;
		layers->ipv4->source = layers->ipv4->destination;
		layers->ipv4->destination = address[0];
	} else if (layers->ipv6) {
		__builtin_memcpy(address, layers->ipv6->source, 16);
		__builtin_memcpy(layers->ipv6->source, layers->ipv6->destination, 16);
		__builtin_memcpy(layers->ipv6->destination, address, 16);
	}
}

// Whether the packet was a question and now holds the answer.
static __always_inline bool answer(struct xdp_md *ctx, struct layers *layers, struct totals *sum)
{
	void *end = (void *)(long)ctx->data_end;
	struct udp *udp = layers->next;
	struct question *question;
	u64 proofs[NAMES] = {};
	u32 i, zero = 0, *all, found = 0;

	question = (void *)udp + sizeof(*udp);
	if ((void *)question + sizeof(*question) > end || udp->destination != bpf_htons(asked_port) ||
	    udp->len != bpf_htons(sizeof(*udp) + sizeof(*question)))
		return false;
	if (question->version != QUESTION_VERSION || question->kind != QUESTION || !question->count ||
	    question->count > NAMES)
		return false;
	sum->questions += 1;
	for (i = 0; i < NAMES; i++) {
		struct name name;
		u64 *proof;

		if (i >= question->count)
			break;
		__builtin_memcpy(&name, question->names[i], sizeof(name));
		proof = bpf_map_lookup_elem(&held, &name);
		if (proof) {
			proofs[i] = *proof;
			found += 1;
		}
	}
	all = bpf_map_lookup_elem(&complete, &zero);
	if (found < question->count && (!all || !*all)) {
		sum->passed += 1;
		return false;
	}
	sum->answered += 1;
	sum->names += question->count;
	sum->found += found;
	question->kind = ANSWER;
	for (i = 0; i < NAMES; i++) {
		__builtin_memcpy(question->names[i], &proofs[i], sizeof(proofs[i]));
		question->names[i][2] = 0;
		question->names[i][3] = 0;
	}
	turn_round(layers, udp);
	sign(layers, udp, question);
	return true;
}

SEC("xdp")
int asked_of_us(struct xdp_md *ctx)
{
	struct layers layers = {};
	struct totals *sum;
	u32 zero = 0;

	if (!read_layers(ctx, &layers))
		return XDP_PASS;
	sum = bpf_map_lookup_elem(&totals, &zero);
	if (!sum)
		return XDP_PASS;
	if (served_port && layers.protocol == IPPROTO_TCP)
		count_request(ctx, &layers, sum);
	else if (asked_port && layers.protocol == IPPROTO_UDP && answer(ctx, &layers, sum))
		return XDP_TX;
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
