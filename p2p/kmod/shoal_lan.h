/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What a program says to /dev/shoal_lan. Integers are of the machine's order; every reserved field is zero, and a
 * request with another value there is refused with EINVAL, so that it can mean something later.
 *
 * Order: open, SETUP, mmap, ATTACH (a bound UDP socket), SESSION_ADD; then SEND, WAIT, RELEASE.
 * The area has rx_slots then tx_slots, slot_bytes each. Data for a session of the device goes into receive slots; every
 * other datagram goes into the socket as if the module were not there. Closing the device file leaves the socket alone.
 * Once the parameter `retire` is set, every request fails with ENODEV and poll() says POLLHUP.
 */
#ifndef SHOAL_LAN_H
#define SHOAL_LAN_H

#ifdef __KERNEL__
#include <linux/ioctl.h>
#include <linux/types.h>
#else
#include <linux/types.h>
#include <sys/ioctl.h>
#endif

#define SHOAL_LAN_ABI 1
#define SHOAL_LAN_EVENTS 8
#define SHOAL_LAN_SLOTS_MAX 1024
#define SHOAL_LAN_SPIN_MAX_US 1000
#define SHOAL_LAN_TIMEOUT_MAX_MS 60000
#define SHOAL_LAN_COUNTERS 32

struct shoal_lan_setup {
	__u32 abi;	 /* SHOAL_LAN_ABI, else EPROTO */
	__u32 rx_slots;	 /* 1..=1024 */
	__u32 tx_slots;	 /* 1..=1024 */
	__u32 slot_bytes; /* a multiple of the page size, at most 16 MiB: the longest message */
	__u64 area_bytes; /* out: what to map, at offset 0, shared */
	__u64 tx_offset; /* out: where the send slots begin */
};

struct shoal_lan_attach {
	__s32 fd; /* a bound UDP socket of IPv4 or IPv6 */
	__u32 reserved;
};

struct shoal_lan_session {
	__u64 rx_session; /* chosen here at random; its low six bits are its index, EEXIST if that is taken */
	__u64 tx_session; /* chosen by the peer */
	__u8 rx_key[16];
	__u8 tx_key[16];
	__u8 address[16]; /* of the peer: IPv6, or IPv4 as ::ffff:a.b.c.d */
	__u32 scope;	  /* interface index of a link-local address, else 0 */
	__u16 port;	  /* of the peer */
	__u16 reserved;
	__u32 rx_epoch;
	__u32 tx_epoch;
	__u32 chunk_bytes; /* a multiple of 64, 64..=8896 */
	__u32 quota;	   /* receive slots it may hold, 1..=rx_slots */
	__u32 top;	   /* the last message that counts as delivered: 0 for a new session */
	__u32 reserved2;
};

#define SHOAL_LAN_RX 0u
#define SHOAL_LAN_TX 1u

/*
 * The key of one direction for the epoch after its newest. Data that comes is accepted under the newest epoch and the one
 * before, so that the key of the next epoch can be there before its first datagram.
 */
struct shoal_lan_rekey {
	__u64 rx_session;
	__u8 key[16];
	__u32 epoch;
	__u32 direction; /* SHOAL_LAN_RX or SHOAL_LAN_TX */
};

struct shoal_lan_id {
	__u64 rx_session;
	__u32 message; /* FORGET: the message that came another way; SESSION_DEL: 0 */
	__u32 reserved;
};

#define SHOAL_LAN_DONTWAIT 1u

/* Sends the chunks of a message. On an error `sent` says how many datagrams left before it. EKEYEXPIRED: the epoch. */
struct shoal_lan_send {
	__u64 rx_session; /* names the session on this side */
	__u64 bitmap;	  /* address of (chunks + 7) / 8 bytes, a bit for each chunk to send; 0 for all */
	__u32 message;
	__u32 slot; /* a send slot */
	__u32 bytes;
	__u32 flags;
	__u32 sent;  /* out */
	__u32 epoch; /* the newest of this direction or the one before: the one that the message is sealed under */
};

struct shoal_lan_event {
	__u64 rx_session;
	__u32 message;
	__u32 slot;
	__u32 generation; /* RELEASE wants it back */
	__u32 bytes;
	__u32 epoch; /* that all of its datagrams had */
	__u32 reserved;
};

/* ETIMEDOUT: none came; EAGAIN: none is there and timeout_ms is 0; EINTR: a signal. */
struct shoal_lan_wait {
	__u32 timeout_ms; /* at most 60,000 */
	__u32 spin_us;	  /* looks without sleeping at first, at most 1,000 */
	__u32 count;	  /* out: events that follow */
	__u32 reserved;
	struct shoal_lan_event events[SHOAL_LAN_EVENTS];
};

struct shoal_lan_release {
	__u32 slot;
	__u32 generation;
};

/* What a message lacks. known: 0 never heard of, 1 half there, 2 complete or too old. */
struct shoal_lan_missing {
	__u64 rx_session;
	__u64 bitmap;	  /* address of bitmap_bytes bytes */
	__u32 message;
	__u32 bitmap_bytes; /* less than (chunks + 7) / 8: ENOSPC, and chunks says how many */
	__u32 known;	  /* out */
	__u32 chunks;	  /* out */
};

enum shoal_lan_counter {
	/* 0..=13 are what became of datagrams, in the order of `enum sl_verdict`: stored, foreign, other, bad source,
	 * bad shape, bad epoch, bad tag, too old, seen, differs, duplicate, open limit, quota, no slot. */
	SHOAL_LAN_BYTES = 16,	/* stored */
	SHOAL_LAN_MESSAGES,	/* complete */
	SHOAL_LAN_TRAINS,	/* packets of several datagrams */
	SHOAL_LAN_MIXED,	/* trains with something for the socket */
	SHOAL_LAN_BAD_SUM,	/* wrong or missing UDP checksum */
	SHOAL_LAN_BAD_HOPS,	/* came over a router, see IP_MINTTL */
	SHOAL_LAN_SENT,		/* datagrams */
	SHOAL_LAN_SENT_TRAINS,
	SHOAL_LAN_NO_GSO,	/* trains that the device could not send */
	SHOAL_LAN_SEND_ERRORS,
	SHOAL_LAN_WAKES,
	SHOAL_LAN_RECLAIMED,	/* half-filled slots given back */
	SHOAL_LAN_DROPPED,	/* by a test */
	SHOAL_LAN_FREE_SLOTS,	/* now: the credit of an acknowledgement */
};

struct shoal_lan_stat {
	__u64 counters[SHOAL_LAN_COUNTERS];
};

#define SHOAL_LAN_SETUP _IOWR('S', 0xa0, struct shoal_lan_setup)
#define SHOAL_LAN_ATTACH _IOW('S', 0xa1, struct shoal_lan_attach)
#define SHOAL_LAN_SESSION_ADD _IOW('S', 0xa2, struct shoal_lan_session)
#define SHOAL_LAN_REKEY _IOW('S', 0xa3, struct shoal_lan_rekey)
#define SHOAL_LAN_SESSION_DEL _IOW('S', 0xa4, struct shoal_lan_id)
#define SHOAL_LAN_SEND _IOWR('S', 0xa5, struct shoal_lan_send)
#define SHOAL_LAN_WAIT _IOWR('S', 0xa6, struct shoal_lan_wait)
#define SHOAL_LAN_RELEASE _IOW('S', 0xa7, struct shoal_lan_release)
#define SHOAL_LAN_MISSING _IOWR('S', 0xa8, struct shoal_lan_missing)
#define SHOAL_LAN_FORGET _IOW('S', 0xa9, struct shoal_lan_id)
#define SHOAL_LAN_STAT _IOR('S', 0xaa, struct shoal_lan_stat)

#endif
