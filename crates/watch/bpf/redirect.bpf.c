// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connections of one cgroup to the store go to this node's S3 gateway instead.
//
// If nothing listens at the gateway's address, in the network namespace of the program that connects, the
// connection is left as it is and goes to the store. The program that connects sees the store's address as its
// peer.
//
//   peers   {socket} -> the address that the program asked for
//   counts  redirected, left alone because the gateway did not listen
#include "kernel.h"

#define SOCK_STREAM 1
#define LISTEN 10

// What the loader sets, by name.

// Addresses in network byte order. IPv4 addresses are mapped: ::ffff:a.b.c.d. Ports in host byte order.
const volatile u32 store[4] = {};
const volatile u16 store_port = 0;
const volatile u32 gateway[4] = {};
const volatile u16 gateway_port = 0;

struct peer {
	u32 address[4];
	u32 port;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct peer);
} peers SEC(".maps");

#define REDIRECTED 0
#define DIRECT 1

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps");

static __always_inline void count(u32 what)
{
	u64 *found = bpf_map_lookup_elem(&counts, &what);

	if (found)
		*found += 1;
}

static __always_inline bool gateway_is_ipv4(void)
{
	return !gateway[0] && !gateway[1] && gateway[2] == bpf_htonl(0xffff);
}

// Whether a socket listens at the gateway's address.
static __always_inline bool gateway_listens(struct bpf_sock_addr *ctx)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	bool listens;

	if (gateway_is_ipv4()) {
		tuple.ipv4.daddr = gateway[3];
		tuple.ipv4.dport = bpf_htons(gateway_port);
		sk = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		tuple.ipv6.daddr[0] = gateway[0];
		tuple.ipv6.daddr[1] = gateway[1];
		tuple.ipv6.daddr[2] = gateway[2];
		tuple.ipv6.daddr[3] = gateway[3];
		tuple.ipv6.dport = bpf_htons(gateway_port);
		sk = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return false;
	listens = sk->state == LISTEN;
	bpf_sk_release(sk);
	return listens;
}

// Remembers the address that the program asked for. Without memory for it, the connection is left alone.
static __always_inline bool remember(struct bpf_sock_addr *ctx, const u32 *address)
{
	struct peer *peer;
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return false;
	peer = bpf_sk_storage_get(&peers, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!peer)
		return false;
	peer->address[0] = address[0];
	peer->address[1] = address[1];
	peer->address[2] = address[2];
	peer->address[3] = address[3];
	peer->port = bpf_htons(store_port);
	return true;
}

SEC("cgroup/connect4")
int connect_ipv4(struct bpf_sock_addr *ctx)
{
	u32 address[4] = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 };

	if (ctx->type != SOCK_STREAM || ctx->user_port != bpf_htons(store_port) || store[0] || store[1] ||
	    store[2] != address[2] || store[3] != address[3] || !gateway_is_ipv4())
		return 1;
	if (!gateway_listens(ctx) || !remember(ctx, address)) {
		count(DIRECT);
		return 1;
	}
	ctx->user_ip4 = gateway[3];
	ctx->user_port = bpf_htons(gateway_port);
	count(REDIRECTED);
	return 1;
}

SEC("cgroup/connect6")
int connect_ipv6(struct bpf_sock_addr *ctx)
{
	u32 address[4] = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] };

	if (ctx->type != SOCK_STREAM || ctx->user_port != bpf_htons(store_port) || store[0] != address[0] ||
	    store[1] != address[1] || store[2] != address[2] || store[3] != address[3])
		return 1;
	if (!gateway_listens(ctx) || !remember(ctx, address)) {
		count(DIRECT);
		return 1;
	}
	ctx->user_ip6[0] = gateway[0];
	ctx->user_ip6[1] = gateway[1];
	ctx->user_ip6[2] = gateway[2];
	ctx->user_ip6[3] = gateway[3];
	ctx->user_port = bpf_htons(gateway_port);
	count(REDIRECTED);
	return 1;
}

SEC("cgroup/getpeername4")
int peer_ipv4(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct peer *peer = sk ? bpf_sk_storage_get(&peers, sk, 0, 0) : 0;

	if (peer) {
		ctx->user_ip4 = peer->address[3];
		ctx->user_port = peer->port;
	}
	return 1;
}

SEC("cgroup/getpeername6")
int peer_ipv6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct peer *peer = sk ? bpf_sk_storage_get(&peers, sk, 0, 0) : 0;

	if (peer) {
		ctx->user_ip6[0] = peer->address[0];
		ctx->user_ip6[1] = peer->address[1];
		ctx->user_ip6[2] = peer->address[2];
		ctx->user_ip6[3] = peer->address[3];
		ctx->user_port = peer->port;
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
