// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The headers of packets that the programs of interfaces read.
#ifndef COVEY_PACKET_H
#define COVEY_PACKET_H

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88A8
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17

struct ipv4 {
	u8 version_header;
	u8 tos;
	__be16 len;
	__be16 id;
	__be16 fragment;
	u8 ttl;
	u8 protocol;
	__be16 sum;
	u32 source;
	u32 destination;
};

struct ipv6 {
	u32 first;
	__be16 len;
	u8 next;
	u8 hops;
	u32 source[4];
	u32 destination[4];
};

#endif
