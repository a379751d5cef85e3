// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The LAN fast path: takes the data datagrams of WIRE.md from a UDP socket, puts whole messages together in memory that
 * a program has mapped, and wakes it once a message. It sends messages as trains. Everything else (keys, sealing,
 * acknowledgements, timers, what to do about a loss) is the program's, and the module never has the key of a content.
 *
 * This half is the device file. What user space can write holds payload only: owners, lengths and bitmaps are in kernel
 * memory.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/poll.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/udp.h>
#include <linux/vmalloc.h>
#include <net/ipv6.h>

#include "shoal_lan_internal.h"

static uint max_area_mb = 64;
module_param(max_area_mb, uint, 0644);
MODULE_PARM_DESC(max_area_mb, "largest mapped area of one device file, in MiB");

/*
 * Set before rmmod: every device fails with ENODEV from then on and polls as hung up, so that programs close it and go on
 * with their sockets. A module that is in use cannot be taken away otherwise.
 */
static bool retire;
static DECLARE_WAIT_QUEUE_HEAD(sl_retired);

static int sl_set_retire(const char *value, const struct kernel_param *param)
{
	int err = param_set_bool(value, param);

	if (!err)
		wake_up_all(&sl_retired);
	return err;
}

static const struct kernel_param_ops sl_retire_ops = {
	.set = sl_set_retire,
	.get = param_get_bool,
};
module_param_cb(retire, &sl_retire_ops, &retire, 0644);
MODULE_PARM_DESC(retire, "have every program close its device, before rmmod");

/* ---- the area ---- */

static int sl_setup(struct sl_device *dev, struct shoal_lan_setup *req)
{
	u64 bytes = (u64)(req->rx_slots + req->tx_slots) * req->slot_bytes;
	struct mm_struct *mm = current->mm;
	int err = -ENOMEM;
	u8 *area;

	mutex_lock(&dev->config);
	if (dev->area) {
		err = -EBUSY;
		goto out;
	}
	if (!mm || account_locked_vm(mm, bytes >> PAGE_SHIFT, true))
		goto out;
	dev->slots = kvcalloc(req->rx_slots, sizeof(*dev->slots), GFP_KERNEL_ACCOUNT);
	dev->bitmaps = kvcalloc(req->rx_slots, sl_bitmap_bytes(req->slot_bytes), GFP_KERNEL_ACCOUNT);
	area = dev->slots && dev->bitmaps ? vmalloc_user(bytes) : NULL;
	if (!area) {
		kvfree(dev->slots);
		kvfree(dev->bitmaps);
		dev->slots = NULL;
		dev->bitmaps = NULL;
		account_locked_vm(mm, bytes >> PAGE_SHIFT, false);
		goto out;
	}
	sl_pool_start(&dev->pool, dev->slots, dev->bitmaps, req->rx_slots, req->slot_bytes);
	mmgrab(mm);
	dev->mm = mm;
	dev->area_bytes = bytes;
	dev->slot_bytes = req->slot_bytes;
	dev->rx_slots = req->rx_slots;
	dev->tx_slots = req->tx_slots;
	req->area_bytes = bytes;
	req->tx_offset = (u64)req->rx_slots * req->slot_bytes;
	smp_store_release(&dev->area, area); /* mmap() looks without a lock */
	err = 0;
out:
	mutex_unlock(&dev->config);
	return err;
}

static int sl_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct sl_device *dev = file->private_data;
	u8 *area = smp_load_acquire(&dev->area);

	if (!area)
		return -ENXIO;
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff || vma->vm_end - vma->vm_start != dev->area_bytes)
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
#ifdef SHOAL_LAN_VM_FLAGS_SET
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTDUMP | VM_DONTEXPAND, VM_MAYEXEC);
#else
	vma->vm_flags |= VM_DONTCOPY | VM_DONTDUMP | VM_DONTEXPAND;
	vma->vm_flags &= ~VM_MAYEXEC;
#endif
	return remap_vmalloc_range(vma, area, 0);
}

/* ---- sessions; the caller holds dev->config ---- */

static struct sl_session *sl_session_of(struct sl_device *dev, u64 rx)
{
	struct sl_session *session = rcu_dereference_protected(dev->sessions[rx % SL_SESSIONS],
							       lockdep_is_held(&dev->config));

	return session && session->rx == rx ? session : NULL;
}

static int sl_session_add(struct sl_device *dev, const struct shoal_lan_session *req)
{
	uint index = req->rx_session % SL_SESSIONS;
	struct sl_keys *rx, *tx;
	struct sl_session *session;
	struct in6_addr peer;

	memcpy(&peer, req->address, sizeof(peer));
	if (!dev->sock)
		return -ENXIO;
	if (req->reserved || req->reserved2 || !req->port || ipv6_addr_any(&peer) || !sl_chunk_bytes_valid(req->chunk_bytes) ||
	    !req->quota || req->quota > dev->rx_slots)
		return -EINVAL;
	if (dev->sock->sk->sk_family == AF_INET && !ipv6_addr_v4mapped(&peer))
		return -EAFNOSUPPORT;
	if (rcu_access_pointer(dev->sessions[index]))
		return -EEXIST;
	session = kzalloc(sizeof(*session), GFP_KERNEL_ACCOUNT);
	rx = kzalloc(sizeof(*rx), GFP_KERNEL_ACCOUNT);
	tx = kzalloc(sizeof(*tx), GFP_KERNEL_ACCOUNT);
	if (!session || !rx || !tx) {
		kfree(session);
		kfree(rx);
		kfree(tx);
		return -ENOMEM;
	}
	session->rx = req->rx_session;
	session->tx = req->tx_session;
	session->peer = peer;
	session->scope = req->scope;
	session->port = htons(req->port);
	rx->newest = req->rx_epoch;
	memcpy(rx->key[req->rx_epoch % 2], req->rx_key, SL_KEY);
	RCU_INIT_POINTER(session->keys[SHOAL_LAN_RX], rx);
	tx->newest = req->tx_epoch;
	memcpy(tx->key[req->tx_epoch % 2], req->tx_key, SL_KEY);
	RCU_INIT_POINTER(session->keys[SHOAL_LAN_TX], tx);
	sl_flow_start(&session->flow, req->quota, req->chunk_bytes, req->top);
	clear_bit(index, dev->no_gso);
	rcu_assign_pointer(dev->sessions[index], session);
	return 0;
}

static int sl_rekey(struct sl_device *dev, const struct shoal_lan_rekey *req)
{
	struct sl_session *session = sl_session_of(dev, req->rx_session);
	struct sl_keys *old, *keys;

	if (!session)
		return -ENOENT;
	if (req->direction > SHOAL_LAN_TX)
		return -EINVAL;
	old = rcu_dereference_protected(session->keys[req->direction], lockdep_is_held(&dev->config));
	if (req->epoch != old->newest + 1)
		return -EINVAL;
	keys = kmemdup(old, sizeof(*old), GFP_KERNEL_ACCOUNT);
	if (!keys)
		return -ENOMEM;
	keys->newest = req->epoch;
	keys->both = true;
	memcpy(keys->key[req->epoch % 2], req->key, SL_KEY);
	rcu_assign_pointer(session->keys[req->direction], keys);
	synchronize_net();
	kfree_sensitive(old);
	return 0;
}

static void sl_session_free(struct sl_device *dev, struct sl_session *session)
{
	spin_lock_bh(&dev->lock);
	sl_flow_end(&dev->pool, &session->flow);
	spin_unlock_bh(&dev->lock);
	kfree_sensitive(rcu_dereference_protected(session->keys[SHOAL_LAN_RX], true));
	kfree_sensitive(rcu_dereference_protected(session->keys[SHOAL_LAN_TX], true));
	kfree_sensitive(session);
}

static int sl_session_del(struct sl_device *dev, u64 rx)
{
	struct sl_session *session = sl_session_of(dev, rx);

	if (!session)
		return -ENOENT;
	RCU_INIT_POINTER(dev->sessions[rx % SL_SESSIONS], NULL);
	synchronize_net();
	sl_session_free(dev, session);
	return 0;
}

/* ---- sending ---- */

/* What a message needs of its session, copied so that the session may go meanwhile. */
struct sl_out {
	u64 tx;
	union {
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} to;
	int to_len;
	u32 epoch, chunk_bytes;
	u8 key[SL_KEY];
};

static int sl_out_read(struct sl_device *dev, u64 rx, u32 epoch, struct sl_out *out)
{
	struct sl_session *session;
	const u8 *key;

	memset(out, 0, sizeof(*out));
	rcu_read_lock();
	session = rcu_dereference(dev->sessions[rx % SL_SESSIONS]);
	if (!session || session->rx != rx) {
		rcu_read_unlock();
		return -ENOENT;
	}
	key = sl_key_of(rcu_dereference(session->keys[SHOAL_LAN_TX]), epoch);
	if (!key) {
		rcu_read_unlock();
		return -EKEYEXPIRED;
	}
	out->tx = session->tx;
	out->epoch = epoch;
	out->chunk_bytes = session->flow.chunk_bytes;
	memcpy(out->key, key, SL_KEY);
	if (dev->sock->sk->sk_family == AF_INET) {
		out->to.v4.sin_family = AF_INET;
		out->to.v4.sin_port = session->port;
		out->to.v4.sin_addr.s_addr = session->peer.s6_addr32[3];
		out->to_len = sizeof(out->to.v4);
	} else {
		out->to.v6.sin6_family = AF_INET6;
		out->to.v6.sin6_port = session->port;
		out->to.v6.sin6_addr = session->peer;
		out->to.v6.sin6_scope_id = session->scope;
		out->to_len = sizeof(out->to.v6);
	}
	rcu_read_unlock();
	return 0;
}

/* `n` datagrams of the pieces in one go; all but the last have the session's chunk. */
static int sl_transmit(struct sl_device *dev, struct sl_out *out, struct kvec *pieces, u32 n, u32 flags)
{
	struct msghdr msg = {
		.msg_name = &out->to,
		.msg_namelen = out->to_len,
		.msg_flags = flags & SHOAL_LAN_DONTWAIT ? MSG_DONTWAIT : 0,
	};
	union {
		struct cmsghdr head;
		u8 bytes[CMSG_SPACE(sizeof(u16))];
	} control = {};
	size_t bytes = 0;
	int sent;
	u32 i;

	for (i = 0; i < 2 * n; i++)
		bytes += pieces[i].iov_len;
	if (n > 1) {
		control.head.cmsg_level = SOL_UDP;
		control.head.cmsg_type = UDP_SEGMENT;
		control.head.cmsg_len = CMSG_LEN(sizeof(u16));
		*(u16 *)CMSG_DATA(&control.head) = SL_HEADER + out->chunk_bytes;
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
	}
	sent = kernel_sendmsg(dev->sock, &msg, pieces, 2 * n, bytes);
	if (sent < 0)
		return sent;
	sl_count(dev, SHOAL_LAN_SENT, n);
	sl_count(dev, SHOAL_LAN_SENT_TRAINS, n > 1);
	return 0;
}

/* A train; where the device cannot send one (EIO), its datagrams one by one. */
static int sl_transmit_train(struct sl_device *dev, struct sl_out *out, u32 n, uint index,
			     struct shoal_lan_send *req)
{
	int err = sl_transmit(dev, out, dev->pieces, n, req->flags);
	u32 i;

	if (err == -EIO && n > 1) {
		set_bit(index, dev->no_gso);
		sl_count(dev, SHOAL_LAN_NO_GSO, 1);
		for (i = 0, err = 0; i < n && !err; i++) {
			err = sl_transmit(dev, out, dev->pieces + 2 * i, 1, req->flags);
			req->sent += !err;
		}
		return err;
	}
	req->sent += err ? 0 : n;
	return err;
}

static int sl_send_chunks(struct sl_device *dev, struct sl_out *out, struct shoal_lan_send *req, const u8 *bitmap,
			  u32 chunks)
{
	u8 *message = dev->area + (u64)(dev->rx_slots + req->slot) * dev->slot_bytes;
	uint index = req->rx_session % SL_SESSIONS;
	struct sl_header h = {
		.version = SL_VERSION,
		.type = SL_DATA,
		.session = out->tx,
		.message = req->message,
		.total = req->bytes,
		.chunks = chunks,
		.epoch = out->epoch,
	};
	u32 chunk = 0;

	while (chunk < chunks) {
		u32 most = test_bit(index, dev->no_gso) ? 1 : SL_TRAIN, n = 0, bytes = 0;
		int err;

		for (; chunk < chunks && n < most; chunk++) {
			if (bitmap && !(bitmap[chunk / 8] >> (chunk % 8) & 1))
				continue;
			h.chunk = chunk;
			h.len = sl_chunk_len(req->bytes, out->chunk_bytes, chunk);
			if (n && bytes + SL_HEADER + h.len > SL_TRAIN_BYTES)
				break;
			sl_header_write(dev->headers[n], &h, out->key);
			dev->pieces[2 * n].iov_base = dev->headers[n];
			dev->pieces[2 * n].iov_len = SL_HEADER;
			dev->pieces[2 * n + 1].iov_base = message + chunk * out->chunk_bytes;
			dev->pieces[2 * n + 1].iov_len = h.len;
			bytes += SL_HEADER + h.len;
			n++;
		}
		if (!n)
			break;
		err = sl_transmit_train(dev, out, n, index, req);
		if (!err && fatal_signal_pending(current))
			err = -EINTR;
		if (err) {
			sl_count(dev, SHOAL_LAN_SEND_ERRORS, err != -EAGAIN);
			return err;
		}
		cond_resched();
	}
	return 0;
}

static int sl_send(struct sl_device *dev, struct shoal_lan_send *req)
{
	u8 *bitmap = NULL;
	struct sl_out out;
	u32 chunks;
	int err;

	req->sent = 0;
	if (req->flags & ~SHOAL_LAN_DONTWAIT || req->slot >= dev->tx_slots ||
	    req->bytes > dev->slot_bytes)
		return -EINVAL;
	err = sl_out_read(dev, req->rx_session, req->epoch, &out);
	if (err)
		return err;
	chunks = sl_chunks(req->bytes, out.chunk_bytes);
	err = chunks ? 0 : -EINVAL;
	if (!err && req->bitmap) {
		bitmap = memdup_user(u64_to_user_ptr(req->bitmap), (chunks + 7) / 8);
		err = PTR_ERR_OR_ZERO(bitmap);
		if (err)
			bitmap = NULL;
	}
	if (!err)
		err = mutex_lock_interruptible(&dev->sending) ? -EINTR : 0;
	if (!err) {
		err = sl_send_chunks(dev, &out, req, bitmap, chunks);
		mutex_unlock(&dev->sending);
	}
	/* A signal that would restart the call would send twice what has left. */
	if (err == -ERESTARTSYS)
		err = -EINTR;
	kfree(bitmap);
	memzero_explicit(&out, sizeof(out));
	return err;
}

/* ---- reading ---- */

static bool sl_any_ready(struct sl_device *dev)
{
	return READ_ONCE(dev->pool.head) != SL_NONE;
}

static int sl_wait_ready(struct sl_device *dev, const struct shoal_lan_wait *req)
{
	u64 until = ktime_get_ns() + req->spin_us * 1000ull;
	long left;

	while (req->spin_us && !sl_any_ready(dev) && !need_resched() && !signal_pending(current) &&
	       ktime_get_ns() < until)
		cpu_relax();
	if (!req->timeout_ms)
		return 0;
	left = wait_event_interruptible_timeout(dev->wait, sl_any_ready(dev), msecs_to_jiffies(req->timeout_ms));
	if (left < 0)
		return -EINTR;
	return left ? 0 : -ETIMEDOUT;
}

static int sl_wait(struct sl_device *dev, struct shoal_lan_wait __user *user)
{
	struct shoal_lan_wait req;
	u32 n, i;
	int err;

	if (copy_from_user(&req, user, offsetof(struct shoal_lan_wait, events)))
		return -EFAULT;
	if (req.reserved || req.timeout_ms > SHOAL_LAN_TIMEOUT_MAX_MS || req.spin_us > SHOAL_LAN_SPIN_MAX_US)
		return -EINVAL;
	err = sl_wait_ready(dev, &req);
	if (err)
		return err;
	memset(req.events, 0, sizeof(req.events));
	spin_lock_bh(&dev->lock);
	for (req.count = 0; req.count < SHOAL_LAN_EVENTS; req.count++) {
		struct shoal_lan_event *event = &req.events[req.count];

		n = sl_take(&dev->pool);
		if (n == SL_NONE)
			break;
		event->rx_session = dev->slots[n].session;
		event->message = dev->slots[n].message;
		event->slot = n;
		event->generation = dev->slots[n].generation;
		event->bytes = dev->slots[n].total;
		event->epoch = dev->slots[n].epoch;
	}
	spin_unlock_bh(&dev->lock);
	if (!req.count)
		return -EAGAIN;
	if (!copy_to_user(user, &req, sizeof(req)))
		return 0;
	spin_lock_bh(&dev->lock);
	for (i = req.count; i--;)
		sl_untake(&dev->pool, req.events[i].slot);
	spin_unlock_bh(&dev->lock);
	return -EFAULT;
}

static int sl_tell_missing(struct sl_device *dev, struct shoal_lan_missing *req)
{
	u32 bytes = sl_bitmap_bytes(dev->slot_bytes);
	u8 *bits = kvzalloc(bytes, GFP_KERNEL_ACCOUNT);
	struct sl_session *session;
	int err = 0;

	if (!bits)
		return -ENOMEM;
	rcu_read_lock();
	session = rcu_dereference(dev->sessions[req->rx_session % SL_SESSIONS]);
	if (session && session->rx == req->rx_session) {
		spin_lock_bh(&dev->lock);
		req->known = sl_missing(&dev->pool, &session->flow, req->message, bits, &req->chunks);
		spin_unlock_bh(&dev->lock);
	} else {
		err = -ENOENT;
	}
	rcu_read_unlock();
	bytes = (req->chunks + 7) / 8;
	if (!err && bytes > req->bitmap_bytes)
		err = -ENOSPC;
	if (!err && bytes && copy_to_user(u64_to_user_ptr(req->bitmap), bits, bytes))
		err = -EFAULT;
	kvfree(bits);
	return err;
}

static int sl_forget_message(struct sl_device *dev, const struct shoal_lan_id *req)
{
	struct sl_session *session;
	int err = -ENOENT;

	rcu_read_lock();
	session = rcu_dereference(dev->sessions[req->rx_session % SL_SESSIONS]);
	if (session && session->rx == req->rx_session) {
		spin_lock_bh(&dev->lock);
		sl_forget(&dev->pool, &session->flow, req->message);
		spin_unlock_bh(&dev->lock);
		err = 0;
	}
	rcu_read_unlock();
	return err;
}

static void sl_stat(struct sl_device *dev, struct shoal_lan_stat *stat)
{
	uint i;

	for (i = 0; i < SHOAL_LAN_COUNTERS; i++)
		stat->counters[i] = atomic64_read(&dev->counters[i]);
	spin_lock_bh(&dev->lock);
	stat->counters[SHOAL_LAN_RECLAIMED] = dev->pool.reclaimed;
	stat->counters[SHOAL_LAN_FREE_SLOTS] = dev->pool.free;
	spin_unlock_bh(&dev->lock);
}

/* ---- the file ---- */

union sl_request {
	struct shoal_lan_setup setup;
	struct shoal_lan_attach attach;
	struct shoal_lan_session session;
	struct shoal_lan_rekey rekey;
	struct shoal_lan_id id;
	struct shoal_lan_send send;
	struct shoal_lan_release release;
	struct shoal_lan_missing missing;
	struct shoal_lan_stat stat;
};

static long sl_configure(struct sl_device *dev, unsigned int cmd, union sl_request *req)
{
	long err;

	if (mutex_lock_interruptible(&dev->config))
		return -EINTR;
	if (cmd == SHOAL_LAN_SESSION_ADD)
		err = sl_session_add(dev, &req->session);
	else if (cmd == SHOAL_LAN_REKEY)
		err = sl_rekey(dev, &req->rekey);
	else
		err = req->id.message || req->id.reserved ? -EINVAL : sl_session_del(dev, req->id.rx_session);
	mutex_unlock(&dev->config);
	return err;
}

static long sl_request_setup(struct sl_device *dev, struct shoal_lan_setup *req)
{
	u64 most = (u64)READ_ONCE(max_area_mb) << 20;

	if (req->abi != SHOAL_LAN_ABI)
		return -EPROTO;
	if (!req->rx_slots || req->rx_slots > SHOAL_LAN_SLOTS_MAX || !req->tx_slots ||
	    req->tx_slots > SHOAL_LAN_SLOTS_MAX || !req->slot_bytes || req->slot_bytes % PAGE_SIZE ||
	    req->slot_bytes > SL_MESSAGE_MAX || req->area_bytes || req->tx_offset)
		return -EINVAL;
	if ((u64)(req->rx_slots + req->tx_slots) * req->slot_bytes > most)
		return -E2BIG;
	return sl_setup(dev, req);
}

static long sl_request_attach(struct sl_device *dev, const struct shoal_lan_attach *req)
{
	struct socket *sock;
	int err;

	if (req->reserved)
		return -EINVAL;
	sock = sockfd_lookup(req->fd, &err);
	if (!sock)
		return err;
	err = sl_attach(dev, sock);
	if (err)
		sockfd_put(sock);
	return err;
}

static long sl_handle(struct sl_device *dev, unsigned int cmd, union sl_request *req)
{
	bool released;

	if (cmd == SHOAL_LAN_SETUP)
		return sl_request_setup(dev, &req->setup);
	if (!smp_load_acquire(&dev->area))
		return -ENXIO;
	switch (cmd) {
	case SHOAL_LAN_ATTACH:
		return sl_request_attach(dev, &req->attach);
	case SHOAL_LAN_SESSION_ADD:
	case SHOAL_LAN_REKEY:
	case SHOAL_LAN_SESSION_DEL:
		return sl_configure(dev, cmd, req);
	case SHOAL_LAN_SEND:
		return sl_send(dev, &req->send);
	case SHOAL_LAN_MISSING:
		return sl_tell_missing(dev, &req->missing);
	case SHOAL_LAN_FORGET:
		return req->id.reserved ? -EINVAL : sl_forget_message(dev, &req->id);
	case SHOAL_LAN_STAT:
		sl_stat(dev, &req->stat);
		return 0;
	case SHOAL_LAN_RELEASE:
		spin_lock_bh(&dev->lock);
		released = sl_release(&dev->pool, req->release.slot, req->release.generation);
		spin_unlock_bh(&dev->lock);
		return released ? 0 : -ESTALE;
	}
	return -ENOTTY;
}

static long sl_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct sl_device *dev = file->private_data;
	void __user *user = (void __user *)arg;
	union sl_request req = {};
	long err;

	if (READ_ONCE(retire))
		return -ENODEV;
	if (cmd == SHOAL_LAN_WAIT)
		return smp_load_acquire(&dev->area) ? sl_wait(dev, user) : -ENXIO;
	if (_IOC_TYPE(cmd) != 'S' || _IOC_SIZE(cmd) > sizeof(req))
		return -ENOTTY;
	if (_IOC_DIR(cmd) & _IOC_WRITE && copy_from_user(&req, user, _IOC_SIZE(cmd)))
		return -EFAULT;
	err = sl_handle(dev, cmd, &req);
	if (_IOC_DIR(cmd) & _IOC_READ && err != -ENOTTY && copy_to_user(user, &req, _IOC_SIZE(cmd)))
		err = -EFAULT;
	if (cmd == SHOAL_LAN_SESSION_ADD || cmd == SHOAL_LAN_REKEY)
		memzero_explicit(&req, sizeof(req));
	return err;
}

static __poll_t sl_poll(struct file *file, poll_table *table)
{
	struct sl_device *dev = file->private_data;

	poll_wait(file, &dev->wait, table);
	poll_wait(file, &sl_retired, table);
	if (READ_ONCE(retire))
		return EPOLLIN | EPOLLERR | EPOLLHUP;
	if (!smp_load_acquire(&dev->area))
		return EPOLLERR;
	return sl_any_ready(dev) ? EPOLLIN | EPOLLRDNORM : 0;
}

static int sl_file_open(struct inode *inode, struct file *file)
{
	struct sl_device *dev = READ_ONCE(retire) ? NULL : kvzalloc(sizeof(*dev), GFP_KERNEL_ACCOUNT);

	if (!dev)
		return READ_ONCE(retire) ? -ENODEV : -ENOMEM;
	mutex_init(&dev->config);
	mutex_init(&dev->sending);
	spin_lock_init(&dev->lock);
	init_waitqueue_head(&dev->wait);
	file->private_data = dev;
	return stream_open(inode, file);
}

static int sl_file_release(struct inode *inode, struct file *file)
{
	struct sl_device *dev = file->private_data;
	uint i;

	if (dev->sock)
		sl_detach(dev);
	for (i = 0; i < SL_SESSIONS; i++) {
		struct sl_session *session = rcu_dereference_protected(dev->sessions[i], true);

		if (session)
			sl_session_free(dev, session);
	}
	if (dev->area) {
		vfree(dev->area);
		kvfree(dev->slots);
		kvfree(dev->bitmaps);
		account_locked_vm(dev->mm, dev->area_bytes >> PAGE_SHIFT, false);
		mmdrop(dev->mm);
	}
	kvfree(dev);
	return 0;
}

static const struct file_operations sl_fops = {
	.owner = THIS_MODULE,
	.open = sl_file_open,
	.release = sl_file_release,
	.unlocked_ioctl = sl_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = sl_mmap,
	.poll = sl_poll,
};

static struct miscdevice sl_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "shoal_lan",
	.fops = &sl_fops,
	.mode = 0600, /* the udev rule gives it to a group */
};

module_misc_device(sl_misc);

MODULE_DESCRIPTION("Shoal's LAN fast path: whole messages from UDP datagrams, in mapped memory");
MODULE_AUTHOR("The Shoal authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("1");
