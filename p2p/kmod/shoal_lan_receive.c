// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The receiving half: a hook behind the firewall takes the data datagrams of WIRE.md from the attached sockets and puts
 * them where their message is. Nothing is stored before its source, its figures and its tag are right.
 */
#include <linux/delay.h>
#include <linux/hashtable.h>
#include <linux/netfilter.h>
#include <linux/netfilter_ipv4.h>
#include <linux/poll.h>
#include <linux/udp.h>
#include <net/inet_sock.h>
#include <net/ip.h>
#include <net/ipv6.h>

#include "shoal_lan_internal.h"

/* Sockets of one network namespace: the receive path of all its UDP looks through those of a port. */
#define SL_SOCKETS_MAX 64
#define SL_PORT_BITS 6

#ifdef SHOAL_LAN_TEST
static uint drop_every;
module_param(drop_every, uint, 0644);
static uint rx_delay_us;
module_param(rx_delay_us, uint, 0644);
static atomic_t drop_count;
#define sl_test_drop() (READ_ONCE(drop_every) && !((u32)atomic_inc_return(&drop_count) % READ_ONCE(drop_every)))
#define sl_test_delay() do { if (READ_ONCE(rx_delay_us)) udelay(min(READ_ONCE(rx_delay_us), 1000u)); } while (0)
#else
#define sl_test_drop() false
#define sl_test_delay() do { } while (0)
#endif

/* The hooks of one network namespace, there while a socket of it is attached. */
struct sl_net {
	struct list_head list;
	struct net *net;
	uint sockets;
	struct nf_hook_ops hooks[2];
	DECLARE_HASHTABLE(ports, SL_PORT_BITS);
};

static DEFINE_MUTEX(sl_nets_lock);
static LIST_HEAD(sl_nets);

struct sl_packet {
	struct in6_addr from;
	__be16 from_port, to_port;
	u32 interface;
	u8 hops;
	int offset; /* of the payload */
	u32 payload, each; /* bytes in all, and of each datagram of a train but the last */
};

/* False: nothing that could be a datagram of ours. */
static bool sl_packet_read(struct sl_packet *p, const struct sk_buff *skb, const struct nf_hook_state *state)
{
	int network = skb_network_offset(skb);
	struct udphdr copy;
	const struct udphdr *udp;

	if (state->pf == NFPROTO_IPV4) {
		const struct iphdr *ip = ip_hdr(skb);

		if (ip->protocol != IPPROTO_UDP || ip_is_fragment(ip))
			return false;
		ipv6_addr_set_v4mapped(ip->saddr, &p->from);
		p->hops = ip->ttl;
		p->offset = network + ip_hdrlen(skb);
	} else {
		const struct ipv6hdr *ip = ipv6_hdr(skb);

		if (ip->nexthdr != IPPROTO_UDP)
			return false;
		p->from = ip->saddr;
		p->hops = ip->hop_limit;
		p->offset = network + sizeof(*ip);
	}
	udp = skb_header_pointer(skb, p->offset, sizeof(copy), &copy);
	if (!udp || skb->len < p->offset + sizeof(copy) + SL_HEADER)
		return false;
	p->from_port = udp->source;
	p->to_port = udp->dest;
	p->interface = state->in ? state->in->ifindex : 0;
	p->payload = p->each = skb->len - p->offset - sizeof(copy);
	if (skb_is_gso(skb)) {
		p->each = skb_shinfo(skb)->gso_size;
		if (!(skb_shinfo(skb)->gso_type & SKB_GSO_UDP_L4) || p->each < SL_HEADER)
			return false;
	} else if (ntohs(udp->len) != sizeof(copy) + p->payload) {
		return false;
	}
	/* IPv6 has no datagram without a checksum; the stack refuses it. */
	if (!udp->check && state->pf == NFPROTO_IPV6)
		return false;
	p->offset += sizeof(copy);
	return true;
}

/* Is this a packet that the stack would give to the socket of the device? */
static bool sl_addressed(const struct sl_device *dev, const struct sk_buff *skb, const struct sl_packet *p,
			 const struct nf_hook_state *state)
{
	const struct sock *sk = dev->sock->sk;
	int bound = READ_ONCE(sk->sk_bound_dev_if);

	if (dev->port != p->to_port || (bound && bound != p->interface))
		return false;
	if (state->pf == NFPROTO_IPV4) {
		__be32 own = READ_ONCE(inet_sk(sk)->inet_rcv_saddr);

		return !own || own == ip_hdr(skb)->daddr;
	}
	return sk->sk_family == AF_INET6 &&
	       (ipv6_addr_any(&sk->sk_v6_rcv_saddr) || ipv6_addr_equal(&sk->sk_v6_rcv_saddr, &ipv6_hdr(skb)->daddr));
}

static bool sl_few_hops(const struct sl_device *dev, const struct sl_packet *p, u8 pf)
{
	const struct sock *sk = dev->sock->sk;

	if (pf == NFPROTO_IPV4)
		return p->hops >= READ_ONCE(inet_sk(sk)->min_ttl);
	return p->hops >= READ_ONCE(inet6_sk(sk)->min_hopcount);
}

static bool sl_sum_right(struct sk_buff *skb, const struct sl_packet *p, u8 pf)
{
	struct udphdr copy;
	int at = p->offset - sizeof(copy);
	const struct udphdr *udp = skb_header_pointer(skb, at, sizeof(copy), &copy);

	return udp && (!udp->check || !nf_checksum(skb, NF_INET_LOCAL_IN, at, IPPROTO_UDP, pf));
}

/* Everything that is checked before the lock is taken; SL_STORED: it is authentic. */
static enum sl_verdict sl_authentic(struct sl_device *dev, const struct sl_packet *p, const u8 *raw, u32 len,
				    struct sl_header *h, struct sl_session **found)
{
	enum sl_verdict verdict = sl_header_read(raw, len, h);
	struct sl_session *session;
	const u8 *key;

	if (verdict != SL_STORED)
		return verdict;
	session = rcu_dereference(dev->sessions[h->session % SL_SESSIONS]);
	if (!session || session->rx != h->session)
		return SL_OTHER;
	if (session->port != p->from_port || !ipv6_addr_equal(&session->peer, &p->from) ||
	    (session->scope && session->scope != p->interface))
		return SL_BAD_SOURCE;
	verdict = sl_header_check(h, len - SL_HEADER, session->flow.chunk_bytes, dev->slot_bytes);
	if (verdict != SL_STORED)
		return verdict;
	key = sl_key_of(rcu_dereference(session->keys[SHOAL_LAN_RX]), h->epoch);
	if (!key)
		return SL_BAD_EPOCH;
	sl_test_delay();
	if (!sl_tag_equal(h->tag, sl_tag(key, raw, SL_DATA, 0)))
		return SL_BAD_TAG;
	*found = session;
	return SL_STORED;
}

/* Walks the datagrams of a packet. True: none of them is for the socket. */
static bool sl_receive(struct sl_device *dev, struct sk_buff *skb, const struct sl_packet *p, u8 pf)
{
	u32 counts[SL_VERDICTS] = {}, at, len, entry, others, messages = 0, dropped = 0;
	bool summed = false, locked = false;
	u64 bytes = 0, now_ms = 0;

	for (at = 0; at < p->payload; at += p->each) {
		u8 copy[SL_HEADER];
		const u8 *raw;
		struct sl_header h;
		struct sl_session *session;
		enum sl_verdict verdict;

		len = min(p->each, p->payload - at);
		raw = len < SL_HEADER ? NULL : skb_header_pointer(skb, p->offset + at, SL_HEADER, copy);
		verdict = raw ? sl_authentic(dev, p, raw, len, &h, &session) : SL_FOREIGN;
		if (verdict != SL_STORED) {
			counts[verdict]++;
			continue;
		}
		if (!summed) {
			if (!sl_few_hops(dev, p, pf)) {
				sl_count(dev, SHOAL_LAN_BAD_HOPS, 1);
				return true;
			}
			if (!sl_sum_right(skb, p, pf)) {
				sl_count(dev, SHOAL_LAN_BAD_SUM, 1);
				return false; /* the stack drops it and counts it as its own */
			}
			summed = true;
		}
		if (sl_test_drop()) {
			dropped++;
			continue;
		}
		sl_test_delay();
		if (!locked) {
			spin_lock_bh(&dev->lock);
			locked = true;
			now_ms = ktime_get_ns() / NSEC_PER_MSEC;
		}
		verdict = sl_place(&dev->pool, &session->flow, &h, now_ms, &entry);
		if (verdict == SL_STORED) {
			u64 to = (u64)session->flow.open[entry] * dev->slot_bytes +
				 (u32)h.chunk * session->flow.chunk_bytes;

			if (skb_copy_bits(skb, p->offset + at + SL_HEADER, dev->area + to, h.len)) {
				counts[SL_BAD_SHAPE]++;
				continue;
			}
			bytes += h.len;
			messages += sl_stored(&dev->pool, &session->flow, h.chunk, entry);
		}
		counts[verdict]++;
	}
	if (locked)
		spin_unlock_bh(&dev->lock);
	others = counts[SL_FOREIGN] + counts[SL_OTHER];
	for (at = 0; at < SL_VERDICTS; at++)
		sl_count(dev, at, counts[at]);
	sl_count(dev, SHOAL_LAN_BYTES, bytes);
	sl_count(dev, SHOAL_LAN_MESSAGES, messages);
	sl_count(dev, SHOAL_LAN_DROPPED, dropped);
	if (p->payload > p->each) {
		sl_count(dev, SHOAL_LAN_TRAINS, 1);
		sl_count(dev, SHOAL_LAN_MIXED, others && others * (u64)p->each < p->payload);
	}
	if (messages && wq_has_sleeper(&dev->wait)) {
		sl_count(dev, SHOAL_LAN_WAKES, 1);
		wake_up_interruptible_poll(&dev->wait, EPOLLIN | EPOLLRDNORM);
	}
	return !others;
}

static unsigned int sl_hook(void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	struct sl_net *net = priv;
	struct sl_device *dev;
	struct sl_packet p;

	if (!sl_packet_read(&p, skb, state))
		return NF_ACCEPT;
	hash_for_each_possible_rcu(net->ports, dev, node, (__force u16)p.to_port) {
		if (sl_addressed(dev, skb, &p, state) && sl_receive(dev, skb, &p, state->pf)) {
			consume_skb(skb);
			return NF_STOLEN;
		}
	}
	return NF_ACCEPT;
}

/* ---- sockets and namespaces ---- */

static struct sl_net *sl_net_get(struct net *net)
{
	static const u8 families[2] = { NFPROTO_IPV4, NFPROTO_IPV6 };
	struct sl_net *n;
	int err, i;

	list_for_each_entry(n, &sl_nets, list)
		if (n->net == net)
			return n;
	n = kzalloc(sizeof(*n), GFP_KERNEL_ACCOUNT);
	if (!n)
		return ERR_PTR(-ENOMEM);
	n->net = net;
	hash_init(n->ports);
	for (i = 0; i < ARRAY_SIZE(families); i++) {
		n->hooks[i].hook = sl_hook;
		n->hooks[i].priv = n;
		n->hooks[i].pf = families[i];
		n->hooks[i].hooknum = NF_INET_LOCAL_IN;
		n->hooks[i].priority = NF_IP_PRI_LAST; /* after the firewall */
	}
	err = nf_register_net_hooks(net, n->hooks, ARRAY_SIZE(n->hooks));
	if (err) {
		kfree(n);
		return ERR_PTR(err);
	}
	list_add(&n->list, &sl_nets);
	return n;
}

/* Takes the hooks away with the last socket. */
static void sl_net_put(struct sl_net *n)
{
	if (n->sockets)
		return;
	list_del(&n->list);
	nf_unregister_net_hooks(n->net, n->hooks, ARRAY_SIZE(n->hooks));
	synchronize_net();
	kfree(n);
}

int sl_attach(struct sl_device *dev, struct socket *sock)
{
	struct sock *sk = sock->sk;
	struct sl_device *other;
	struct sl_net *n;
	int err = 0, bucket;

	if ((sk->sk_family != AF_INET && sk->sk_family != AF_INET6) || sk->sk_type != SOCK_DGRAM ||
	    sk->sk_protocol != IPPROTO_UDP)
		return -EPROTOTYPE;
	if (!inet_sk(sk)->inet_num)
		return -ENOTCONN;
	mutex_lock(&sl_nets_lock);
	mutex_lock(&dev->config);
	if (!dev->area || dev->sock) {
		err = dev->area ? -EBUSY : -ENXIO;
		goto out;
	}
	n = sl_net_get(sock_net(sk));
	if (IS_ERR(n)) {
		err = PTR_ERR(n);
		goto out;
	}
	hash_for_each(n->ports, bucket, other, node)
		if (other->sock == sock)
			err = -EBUSY;
	if (n->sockets >= SL_SOCKETS_MAX)
		err = -ENOSPC;
	if (err) {
		sl_net_put(n);
		goto out;
	}
	n->sockets++;
	dev->net = n;
	dev->sock = sock;
	dev->port = htons(inet_sk(sk)->inet_num);
	hash_add_rcu(n->ports, &dev->node, (__force u16)dev->port);
out:
	mutex_unlock(&dev->config);
	mutex_unlock(&sl_nets_lock);
	return err;
}

void sl_detach(struct sl_device *dev)
{
	mutex_lock(&sl_nets_lock);
	hash_del_rcu(&dev->node);
	synchronize_net();
	dev->net->sockets--;
	sl_net_put(dev->net);
	mutex_unlock(&sl_nets_lock);
	sockfd_put(dev->sock);
}
