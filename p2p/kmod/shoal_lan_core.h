/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The pure part of the LAN fast path: what a datagram says, whether its tag is right, and which slot its payload goes
 * to. WIRE.md is the specification. This header includes nothing of the kernel's beyond integer types, so that the same
 * lines run in the module, under the sanitizers and in the fuzzer.
 *
 * Locking is the caller's: everything that takes a pool or a flow needs the lock of that pool.
 */
#ifndef SHOAL_LAN_CORE_H
#define SHOAL_LAN_CORE_H

#ifdef __KERNEL__
#include <linux/types.h>
#include <linux/string.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
#endif

#define SL_MAGIC 0x4e414c53u /* "SLAN" */
#define SL_VERSION 1
#define SL_HEADER 40
#define SL_TAGGED 32 /* header bytes below the tag */
#define SL_KEY 16
#define SL_SESSIONS 64 /* the low six bits of a session are its index */
#define SL_WINDOW 64
#define SL_OPEN 4 /* messages of one session that may be half filled */
#define SL_STALE_MS 2000
#define SL_CHUNK_MIN 64
#define SL_CHUNK_MAX 8896
#define SL_CHUNKS_MAX 65535u
#define SL_MESSAGE_MAX (16u << 20)

enum sl_type { SL_DATA, SL_ACK, SL_NACK, SL_PING, SL_PONG, SL_PROBE };

/* What becomes of a datagram. The values are indices of the counters that SHOAL_LAN_STAT returns. */
enum sl_verdict {
	SL_STORED,	/* payload written */
	SL_FOREIGN,	/* too short or another magic: the socket's */
	SL_OTHER,	/* another version, a control type, or a session that the module does not have: the socket's */
	SL_BAD_SOURCE,	/* right session from another address */
	SL_BAD_SHAPE,	/* lengths, chunk and total contradict each other or the limits */
	SL_BAD_EPOCH,	/* no key of that epoch */
	SL_BAD_TAG,
	SL_TOO_OLD,	/* behind the replay window */
	SL_SEEN,	/* of a message that is complete */
	SL_DIFFERS,	/* another total or epoch than the message's first datagram had */
	SL_DUPLICATE,	/* a chunk that is there */
	SL_OPEN_LIMIT,	/* four messages of the session are half filled */
	SL_QUOTA,	/* the session holds all the slots it may */
	SL_NO_SLOT,	/* every slot is taken */
	SL_VERDICTS
};

struct sl_header {
	u64 session;
	u64 tag;
	u32 message;
	u32 total;
	u32 epoch;
	u16 chunk;
	u16 chunks;
	u16 len;
	u8 version;
	u8 type;
};

static inline u16 sl_get16(const u8 *p)
{
	return (u16)(p[0] | p[1] << 8);
}

static inline u32 sl_get32(const u8 *p)
{
	return p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

static inline u64 sl_get64(const u8 *p)
{
	return sl_get32(p) | (u64)sl_get32(p + 4) << 32;
}

static inline void sl_put16(u8 *p, u16 v)
{
	p[0] = (u8)v;
	p[1] = (u8)(v >> 8);
}

static inline void sl_put32(u8 *p, u32 v)
{
	sl_put16(p, (u16)v);
	sl_put16(p + 2, (u16)(v >> 16));
}

static inline void sl_put64(u8 *p, u64 v)
{
	sl_put32(p, (u32)v);
	sl_put32(p + 4, (u32)(v >> 32));
}

/*
 * SipHash-2-4 with 64-bit output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012).
 * The input is `head` followed by `tail`; the length of `head` is a multiple of eight.
 */
#define SL_ROTL(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define SL_ROUND(a, b, c, d) do { \
	(a) += (b); (c) += (d); (b) = SL_ROTL(b, 13); (d) = SL_ROTL(d, 16); \
	(b) ^= (a); (d) ^= (c); (a) = SL_ROTL(a, 32); \
	(c) += (b); (a) += (d); (b) = SL_ROTL(b, 17); (d) = SL_ROTL(d, 21); \
	(b) ^= (c); (d) ^= (a); (c) = SL_ROTL(c, 32); \
} while (0)

static inline u64 sl_siphash(const u8 *key, const u8 *head, size_t head_len, const u8 *tail, size_t tail_len)
{
	u64 k0 = sl_get64(key), k1 = sl_get64(key + 8);
	u64 a = k0 ^ 0x736f6d6570736575ull, b = k1 ^ 0x646f72616e646f6dull;
	u64 c = k0 ^ 0x6c7967656e657261ull, d = k1 ^ 0x7465646279746573ull;
	u64 word, last = (u64)(head_len + tail_len) << 56;
	size_t at;

	for (at = 0; at + 8 <= head_len + (tail_len & ~(size_t)7); at += 8) {
		word = sl_get64(at < head_len ? head + at : tail + (at - head_len));
		d ^= word;
		SL_ROUND(a, b, c, d);
		SL_ROUND(a, b, c, d);
		a ^= word;
	}
	for (at = 0; at < (tail_len & 7); at++)
		last |= (u64)tail[(tail_len & ~(size_t)7) + at] << (8 * at);
	d ^= last;
	SL_ROUND(a, b, c, d);
	SL_ROUND(a, b, c, d);
	a ^= last;
	c ^= 0xff;
	SL_ROUND(a, b, c, d);
	SL_ROUND(a, b, c, d);
	SL_ROUND(a, b, c, d);
	SL_ROUND(a, b, c, d);
	return a ^ b ^ c ^ d;
}

/* The tag of a datagram: data is tagged over its header alone, every other type over header and payload. */
static inline u64 sl_tag(const u8 *key, const u8 *datagram, u8 type, size_t payload)
{
	return sl_siphash(key, datagram, SL_TAGGED, datagram + SL_HEADER, type == SL_DATA ? 0 : payload);
}

/* Time independent of where the tags differ. */
static inline bool sl_tag_equal(u64 a, u64 b)
{
	u64 differs = a ^ b;

	return !((differs | (0 - differs)) >> 63);
}

/* Writes 40 bytes with the tag of a data datagram. */
static inline void sl_header_write(u8 *out, const struct sl_header *h, const u8 *key)
{
	sl_put32(out, SL_MAGIC);
	out[4] = h->version;
	out[5] = h->type;
	sl_put16(out + 6, h->chunk);
	sl_put64(out + 8, h->session);
	sl_put32(out + 16, h->message);
	sl_put32(out + 20, h->total);
	sl_put16(out + 24, h->chunks);
	sl_put16(out + 26, h->len);
	sl_put32(out + 28, h->epoch);
	sl_put64(out + 32, sl_siphash(key, out, SL_TAGGED, NULL, 0));
}

/* Reads a header of `len` bytes available: SL_STORED says that it is data of this version, with lengths unchecked. */
static inline enum sl_verdict sl_header_read(const u8 *in, size_t len, struct sl_header *h)
{
	if (len < SL_HEADER || sl_get32(in) != SL_MAGIC)
		return SL_FOREIGN;
	h->version = in[4];
	h->type = in[5];
	h->chunk = sl_get16(in + 6);
	h->session = sl_get64(in + 8);
	h->message = sl_get32(in + 16);
	h->total = sl_get32(in + 20);
	h->chunks = sl_get16(in + 24);
	h->len = sl_get16(in + 26);
	h->epoch = sl_get32(in + 28);
	h->tag = sl_get64(in + 32);
	return h->version == SL_VERSION && h->type == SL_DATA ? SL_STORED : SL_OTHER;
}

static inline bool sl_chunk_bytes_valid(u32 chunk_bytes)
{
	return chunk_bytes >= SL_CHUNK_MIN && chunk_bytes <= SL_CHUNK_MAX && !(chunk_bytes % 64);
}

/* Chunks of a message; 0 for a message that cannot be sent. `chunk_bytes` is valid. */
static inline u32 sl_chunks(u32 total, u32 chunk_bytes)
{
	u32 chunks;

	if (!total || total > SL_MESSAGE_MAX)
		return 0;
	chunks = (total + chunk_bytes - 1) / chunk_bytes;
	return chunks <= SL_CHUNKS_MAX ? chunks : 0;
}

/* Payload bytes of one chunk of a message; `chunk` is below sl_chunks(). */
static inline u32 sl_chunk_len(u32 total, u32 chunk_bytes, u32 chunk)
{
	u32 from = chunk * chunk_bytes;

	return total - from < chunk_bytes ? total - from : chunk_bytes;
}

/* Do the figures of a data header agree with each other, with the datagram and with the session's limits? */
static inline enum sl_verdict sl_header_check(const struct sl_header *h, size_t payload, u32 chunk_bytes,
					      u32 slot_bytes)
{
	u32 chunks = sl_chunks(h->total, chunk_bytes);

	if (!chunks || h->total > slot_bytes || h->chunks != chunks || h->chunk >= chunks)
		return SL_BAD_SHAPE;
	if (h->len != payload || h->len != sl_chunk_len(h->total, chunk_bytes, h->chunk))
		return SL_BAD_SHAPE;
	return SL_STORED;
}

/* The replay window: `top` is the newest complete message, bit n of `seen` says that message top - n is complete. */
struct sl_window {
	u32 top;
	u64 seen;
};

/* As if every message up to `top` had been delivered. */
static inline void sl_window_start(struct sl_window *w, u32 top)
{
	w->top = top;
	w->seen = ~0ull;
}

static inline enum sl_verdict sl_window_look(const struct sl_window *w, u32 message)
{
	s32 ahead = (s32)(message - w->top);

	if (ahead > 0)
		return SL_STORED;
	if (ahead <= -SL_WINDOW)
		return SL_TOO_OLD;
	return w->seen >> -ahead & 1 ? SL_SEEN : SL_STORED;
}

static inline void sl_window_mark(struct sl_window *w, u32 message)
{
	s32 ahead = (s32)(message - w->top);

	if (ahead > 0) {
		w->seen = ahead < SL_WINDOW ? w->seen << ahead : 0;
		w->seen |= 1;
		w->top = message;
	} else if (ahead > -SL_WINDOW) {
		w->seen |= 1ull << -ahead;
	}
}

/* A slot is free, then the receiver fills it, then it waits to be read, then a reader has it, then it is free. */
enum sl_state { SL_FREE, SL_FILLING, SL_READY, SL_READ };

struct sl_flow;

struct sl_slot {
	struct sl_flow *flow; /* while it fills or counts against a quota */
	u8 *have; /* one bit a chunk, LSB first */
	u64 since_ms;
	u64 session;
	u32 generation; /* of this use of the slot: what a reader must name to release it */
	u32 message;
	u32 total;
	u32 epoch;
	u32 chunks;
	u32 missing;
	u32 next; /* in the list of those that are ready */
	u8 state;
};

#define SL_NONE 0xffffffffu

/* The receive slots of one device file. */
struct sl_pool {
	struct sl_slot *slots;
	u32 count;
	u32 slot_bytes;
	u32 free;
	u32 cursor; /* where the next search for a free slot begins */
	u32 head, tail; /* ready slots, oldest first */
	u64 reclaimed;
};

/* What a pool knows of one session. */
struct sl_flow {
	struct sl_window window;
	u32 open[SL_OPEN]; /* slots that fill, or SL_NONE */
	u32 held; /* slots, half filled or complete */
	u32 quota;
	u32 chunk_bytes;
};

static inline size_t sl_bitmap_bytes(u32 slot_bytes)
{
	u32 chunks = slot_bytes / SL_CHUNK_MIN;

	return ((chunks < SL_CHUNKS_MAX ? chunks : SL_CHUNKS_MAX) + 7) / 8;
}

/* `bitmaps` is count * sl_bitmap_bytes() long; both arrays are zero and outlive the pool. */
static inline void sl_pool_start(struct sl_pool *pool, struct sl_slot *slots, u8 *bitmaps, u32 count, u32 slot_bytes)
{
	u32 i;

	memset(pool, 0, sizeof(*pool));
	pool->slots = slots;
	pool->count = pool->free = count;
	pool->slot_bytes = slot_bytes;
	pool->head = pool->tail = SL_NONE;
	for (i = 0; i < count; i++)
		slots[i].have = bitmaps + i * sl_bitmap_bytes(slot_bytes);
}

static inline void sl_flow_start(struct sl_flow *flow, u32 quota, u32 chunk_bytes, u32 top)
{
	u32 i;

	memset(flow, 0, sizeof(*flow));
	sl_window_start(&flow->window, top);
	for (i = 0; i < SL_OPEN; i++)
		flow->open[i] = SL_NONE;
	flow->quota = quota;
	flow->chunk_bytes = chunk_bytes;
}

/* The open entry of a message, SL_OPEN where there is none. */
static inline u32 sl_open_of(const struct sl_pool *pool, const struct sl_flow *flow, u32 message)
{
	u32 i;

	for (i = 0; i < SL_OPEN; i++)
		if (flow->open[i] != SL_NONE && pool->slots[flow->open[i]].message == message)
			break;
	return i;
}

static inline void sl_slot_free(struct sl_pool *pool, struct sl_slot *slot)
{
	if (slot->flow)
		slot->flow->held--;
	slot->flow = NULL;
	slot->state = SL_FREE;
	pool->free++;
}

/* Gives back what is half filled: of `flow` (NULL: of every flow), since `before_ms` or earlier. */
static inline void sl_drop_filling(struct sl_pool *pool, const struct sl_flow *flow, u64 before_ms)
{
	u32 i, n;

	for (n = 0; n < pool->count; n++) {
		struct sl_slot *slot = &pool->slots[n];

		if (slot->state != SL_FILLING || slot->since_ms > before_ms || (flow && slot->flow != flow))
			continue;
		for (i = 0; i < SL_OPEN; i++)
			if (slot->flow->open[i] == n)
				slot->flow->open[i] = SL_NONE;
		sl_slot_free(pool, slot);
		pool->reclaimed++;
	}
}

/* Ends a flow: what is half filled is given back, what is complete stays until it is released. */
static inline void sl_flow_end(struct sl_pool *pool, struct sl_flow *flow)
{
	u32 n;

	sl_drop_filling(pool, flow, ~0ull);
	for (n = 0; n < pool->count; n++)
		if (pool->slots[n].flow == flow)
			pool->slots[n].flow = NULL;
}

static inline enum sl_verdict sl_open(struct sl_pool *pool, struct sl_flow *flow, const struct sl_header *h,
				      u64 now_ms, u32 *entry)
{
	struct sl_slot *slot;
	u32 e, n, tried;
	int round;

	for (round = 0;; round++) {
		enum sl_verdict refused = SL_STORED;

		for (e = 0; e < SL_OPEN && flow->open[e] != SL_NONE; e++)
			;
		if (e == SL_OPEN)
			refused = SL_OPEN_LIMIT;
		else if (flow->held >= flow->quota)
			refused = SL_QUOTA;
		else if (!pool->free)
			refused = SL_NO_SLOT;
		if (refused == SL_STORED)
			break;
		/* A sender that died in the middle of a message keeps nothing from the living. */
		if (round || now_ms < SL_STALE_MS)
			return refused;
		sl_drop_filling(pool, refused == SL_NO_SLOT ? NULL : flow, now_ms - SL_STALE_MS);
	}
	n = pool->cursor;
	for (tried = 0; tried < pool->count && pool->slots[n].state != SL_FREE; tried++)
		n = n + 1 == pool->count ? 0 : n + 1;
	pool->cursor = n + 1 == pool->count ? 0 : n + 1;
	slot = &pool->slots[n];
	pool->free--;
	flow->held++;
	flow->open[e] = n;
	slot->flow = flow;
	slot->session = h->session;
	slot->state = SL_FILLING;
	slot->generation++;
	slot->message = h->message;
	slot->total = h->total;
	slot->epoch = h->epoch;
	slot->chunks = slot->missing = h->chunks;
	memset(slot->have, 0, (h->chunks + 7u) / 8);
	*entry = e;
	return SL_STORED;
}

/*
 * Where the payload of an authentic, consistent header goes: window, then bitmap. On SL_STORED the caller copies
 * h->len bytes to offset chunk * chunk_bytes of slot flow->open[*entry], then calls sl_stored().
 */
static inline enum sl_verdict sl_place(struct sl_pool *pool, struct sl_flow *flow, const struct sl_header *h,
				       u64 now_ms, u32 *entry)
{
	enum sl_verdict verdict = sl_window_look(&flow->window, h->message);
	struct sl_slot *slot;

	if (verdict != SL_STORED)
		return verdict;
	*entry = sl_open_of(pool, flow, h->message);
	if (*entry == SL_OPEN) {
		verdict = sl_open(pool, flow, h, now_ms, entry);
		if (verdict != SL_STORED)
			return verdict;
	}
	slot = &pool->slots[flow->open[*entry]];
	if (slot->total != h->total || slot->epoch != h->epoch)
		return SL_DIFFERS;
	if (slot->have[h->chunk / 8] >> (h->chunk % 8) & 1)
		return SL_DUPLICATE;
	slot->since_ms = now_ms;
	return SL_STORED;
}

static inline void sl_ready(struct sl_pool *pool, u32 n)
{
	pool->slots[n].state = SL_READY;
	pool->slots[n].next = SL_NONE;
	if (pool->head == SL_NONE)
		pool->head = n;
	else
		pool->slots[pool->tail].next = n;
	pool->tail = n;
}

/* Marks a chunk as there. True: the message is complete and waits to be read. */
static inline bool sl_stored(struct sl_pool *pool, struct sl_flow *flow, u16 chunk, u32 entry)
{
	u32 n = flow->open[entry];
	struct sl_slot *slot = &pool->slots[n];

	slot->have[chunk / 8] |= (u8)(1u << (chunk % 8));
	if (--slot->missing)
		return false;
	sl_window_mark(&flow->window, slot->message);
	flow->open[entry] = SL_NONE;
	sl_ready(pool, n);
	return true;
}

/* The oldest complete message, now the reader's; SL_NONE where there is none. */
static inline u32 sl_take(struct sl_pool *pool)
{
	u32 n = pool->head;

	if (n != SL_NONE) {
		pool->head = pool->slots[n].next;
		pool->slots[n].state = SL_READ;
	}
	return n;
}

/* Puts a message that could not be handed out back to the front. */
static inline void sl_untake(struct sl_pool *pool, u32 n)
{
	if (pool->head == SL_NONE)
		pool->tail = n;
	pool->slots[n].state = SL_READY;
	pool->slots[n].next = pool->head;
	pool->head = n;
}

/* False: the slot is not the reader's, or was released and used again. */
static inline bool sl_release(struct sl_pool *pool, u32 n, u32 generation)
{
	if (n >= pool->count || pool->slots[n].state != SL_READ || pool->slots[n].generation != generation)
		return false;
	sl_slot_free(pool, &pool->slots[n]);
	return true;
}

/* What is known of a message: open (its lacking chunks are put into `bits`, LSB first), complete, or neither. */
enum sl_known { SL_UNKNOWN, SL_HALF, SL_WHOLE };

static inline enum sl_known sl_missing(const struct sl_pool *pool, const struct sl_flow *flow, u32 message, u8 *bits,
				       u32 *chunks)
{
	u32 entry = sl_open_of(pool, flow, message), i;
	const struct sl_slot *slot;

	*chunks = 0;
	if (entry == SL_OPEN)
		return sl_window_look(&flow->window, message) == SL_STORED ? SL_UNKNOWN : SL_WHOLE;
	slot = &pool->slots[flow->open[entry]];
	*chunks = slot->chunks;
	for (i = 0; i < (slot->chunks + 7) / 8; i++)
		bits[i] = (u8)~slot->have[i];
	if (slot->chunks % 8)
		bits[i - 1] &= (u8)((1u << (slot->chunks % 8)) - 1);
	return SL_HALF;
}

/* A message that came another way: its slot is given back and its number counts as delivered. */
static inline void sl_forget(struct sl_pool *pool, struct sl_flow *flow, u32 message)
{
	u32 entry = sl_open_of(pool, flow, message);

	if (entry != SL_OPEN) {
		sl_slot_free(pool, &pool->slots[flow->open[entry]]);
		flow->open[entry] = SL_NONE;
	}
	sl_window_mark(&flow->window, message);
}

#endif
