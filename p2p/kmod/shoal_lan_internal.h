/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the two halves of the module share: shoal_lan_receive.c (the hook, the sockets and their namespaces) and
 * shoal_lan_device.c (the device file: memory, sessions, sending, reading).
 *
 * Lifetimes: a socket stays open while a device file has it, so its network namespace outlives the hooks. Receivers run
 * under RCU; what is taken out of their sight is freed after synchronize_net().
 * Locks: sl_nets_lock, then config, then mmap_lock (for the memory limit); sending, then the socket's own; `lock` is
 * innermost and guards the pool. mmap() takes none of them, and user memory is read before, or written after, any is
 * held.
 */
#ifndef SHOAL_LAN_INTERNAL_H
#define SHOAL_LAN_INTERNAL_H

#include <linux/in6.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/socket.h>
#include <linux/spinlock.h>
#include <linux/uio.h>
#include <linux/wait.h>
#include <net/sock.h>

#include "shoal_lan.h"
#include "shoal_lan_core.h"

/* Datagrams of a train: fewer than UDP_MAX_SEGMENTS of every kernel, and bytes below the longest UDP datagram. */
#define SL_TRAIN 64
#define SL_TRAIN_BYTES 64000

/* Header keys of one direction: of the newest epoch and, once there was another, of the one before, at epoch % 2. */
struct sl_keys {
	u32 newest;
	bool both;
	u8 key[2][SL_KEY];
};

/* The key of an epoch, NULL where there is none. */
static inline const u8 *sl_key_of(const struct sl_keys *keys, u32 epoch)
{
	return epoch == keys->newest || (keys->both && epoch == keys->newest - 1) ? keys->key[epoch % 2] : NULL;
}

struct sl_session {
	u64 rx;
	u64 tx;
	struct in6_addr peer; /* IPv4 as ::ffff:a.b.c.d */
	u32 scope;
	__be16 port;
	struct sl_keys __rcu *keys[2]; /* SHOAL_LAN_RX, SHOAL_LAN_TX */
	struct sl_flow flow; /* under the device's lock */
};

struct sl_net;

/* One open device file. */
struct sl_device {
	struct mutex config; /* set-up, attachment, the table of sessions */
	struct mutex sending; /* headers, pieces */
	spinlock_t lock; /* pool, flows */
	wait_queue_head_t wait;

	u8 *area; /* published last, with release */
	u64 area_bytes;
	u32 slot_bytes, rx_slots, tx_slots;
	struct sl_pool pool;
	struct sl_slot *slots;
	u8 *bitmaps;
	struct mm_struct *mm; /* that is charged for the area */

	struct socket *sock;
	struct sl_net *net;
	struct hlist_node node;
	__be16 port;

	struct sl_session __rcu *sessions[SL_SESSIONS];
	DECLARE_BITMAP(no_gso, SL_SESSIONS);
	atomic64_t counters[SHOAL_LAN_COUNTERS];

	u8 headers[SL_TRAIN][SL_HEADER];
	struct kvec pieces[2 * SL_TRAIN];
};

static inline void sl_count(struct sl_device *dev, uint counter, u64 n)
{
	if (n)
		atomic64_add(n, &dev->counters[counter]);
}

/* The socket is bound; the device keeps the caller's reference where this succeeds. */
int sl_attach(struct sl_device *dev, struct socket *sock);
/* After it nothing is received, and the reference is given back. */
void sl_detach(struct sl_device *dev);

#endif
