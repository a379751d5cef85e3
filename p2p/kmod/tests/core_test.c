// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The pure part of the module as an ordinary program, for the sanitizers:
 *   core_test                unit tests, then the fuzzer with its fixed seed
 *   core_test ROUNDS SEED    the fuzzer alone
 *   core_test --vectors      prints vectors.txt
 */
#include <stdio.h>
#include <stdlib.h>

#include "../shoal_lan_core.h"

#define CHECK(what) do { checks++; if (!(what)) { \
	fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

static unsigned long checks;

/* xorshift64*: the same numbers everywhere. */
static u64 state = 1;

static u32 draw(u32 below)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (u32)((state * 0x2545f4914f6cdd1dull) >> 32) % below;
}

static void count_up(u8 *out, size_t len, u8 from)
{
	while (len--)
		*out++ = from++;
}

/* ---- vectors ---- */

static void print_hex(const char *name, const u8 *bytes, size_t len)
{
	printf("%s = ", name);
	while (len--)
		printf("%02x", *bytes++);
	printf("\n");
}

static void print_header(const char *name, const u8 *key, struct sl_header h, size_t payload, u8 fill)
{
	u8 datagram[SL_HEADER + SL_CHUNK_MAX];

	sl_header_write(datagram, &h, key);
	count_up(datagram + SL_HEADER, payload, fill);
	sl_put64(datagram + 32, sl_tag(key, datagram, h.type, payload));
	print_hex(name, datagram, SL_HEADER + (h.type == SL_DATA ? 0 : payload));
}

static void print_vectors(void)
{
	u8 key[SL_KEY], input[64], tag[8];
	struct sl_header h = {
		.session = 0xfedcba98765432c5ull, .message = 1, .total = 4000, .epoch = 7,
		.chunk = 0, .chunks = 3, .len = 1408, .version = SL_VERSION, .type = SL_DATA,
	};
	char name[32];
	size_t len;

	puts("# Test vectors of WIRE.md: `name = hex`. Made by `core_test --vectors`, read by both implementations.");
	puts("# siphash.N is the tag of the bytes 00 01 02 .. (N of them). Keys are header keys.");
	puts("# header.* are whole control datagrams, or the header of a data datagram; session fedcba98765432c5,");
	puts("# chunks of 1,408 bytes, epoch 7 unless the name says otherwise. refused.* have a right tag and are refused");
	puts("# for their figures. window.*: pairs of (message, verdict: 0 new, 1 seen, 2 too old) in turn, from a start at");
	puts("# the message of the first four bytes; a new message is complete at once.");
	count_up(key, SL_KEY, 0);
	count_up(input, sizeof(input), 0);
	print_hex("siphash.key", key, SL_KEY);
	for (len = 0; len < sizeof(input); len++) {
		size_t head = len & ~(size_t)7;

		sl_put64(tag, sl_siphash(key, input, head, input + head, len - head));
		snprintf(name, sizeof(name), "siphash.%zu", len);
		print_hex(name, tag, 8);
	}
	count_up(key, SL_KEY, 0xa0);
	print_hex("header.key", key, SL_KEY);
	print_header("header.data.first", key, h, 1408, 0);
	h.chunk = 2;
	h.len = 4000 - 2 * 1408;
	print_header("header.data.last", key, h, h.len, 0);
	h.chunk = 0;
	h.chunks = 1;
	h.total = h.len = 17;
	h.message = 0xffffffffu;
	print_header("header.data.single", key, h, 17, 0);
	h.chunks = (SL_MESSAGE_MAX + 1407) / 1408;
	h.chunk = h.chunks - 1;
	h.total = SL_MESSAGE_MAX;
	h.len = SL_MESSAGE_MAX - h.chunk * 1408;
	print_header("header.data.longest", key, h, h.len, 0);
	h.chunk = h.chunks = 0;
	h.total = 0;
	h.message = 5;
	h.type = SL_ACK;
	h.len = 2;
	print_header("header.ack", key, h, 2, 0x11);
	h.type = SL_NACK;
	h.len = 7;
	print_header("header.nack", key, h, 7, 0x01);
	h.type = SL_PING;
	h.len = 8;
	print_header("header.ping", key, h, 8, 0x31);
	h.type = SL_PONG;
	print_header("header.pong", key, h, 8, 0x31);
	h.type = SL_PROBE;
	h.len = 0;
	print_header("header.probe", key, h, 0, 0);

	h = (struct sl_header){
		.session = 0xfedcba98765432c5ull, .message = 1, .total = 4000, .epoch = 7,
		.chunk = 0, .chunks = 3, .len = 1408, .version = SL_VERSION, .type = SL_DATA,
	};
#define REFUSED(field, value) do { struct sl_header bad = h; bad.field = (value); \
	CHECK(sl_header_check(&bad, bad.len, 1408, SL_MESSAGE_MAX) == SL_BAD_SHAPE); \
	print_header("refused." #field "." #value, key, bad, bad.len, 0); } while (0)
	REFUSED(total, 0);
	REFUSED(total, 1408);
	REFUSED(total, 4225);
	REFUSED(total, 0xffffffff);
	REFUSED(chunks, 0);
	REFUSED(chunks, 2);
	REFUSED(chunks, 65535);
	REFUSED(chunk, 2);
	REFUSED(chunk, 3);
	REFUSED(chunk, 65535);
	REFUSED(len, 0);
	REFUSED(len, 1407);

	{
		static const u32 walk[] = { 0xfffffffe, 0xffffffff, 0xffffffff, 0, 1, 0xfffffffe, 0xffffffc0, 40,
					    0xffffffe8, 0xffffffe9, 41, 2, 2, 0x7fffffff, 1, 0x80000029 };
		struct sl_window window;
		u8 bytes[4 + 5 * sizeof(walk) / 4];
		size_t i;

		sl_window_start(&window, walk[0]);
		sl_put32(bytes, walk[0]);
		for (i = 1; i < sizeof(walk) / 4; i++) {
			enum sl_verdict verdict = sl_window_look(&window, walk[i]);
			u8 *at = bytes + 4 + 5 * (i - 1);

			sl_put32(at, walk[i]);
			at[4] = verdict == SL_STORED ? 0 : verdict == SL_SEEN ? 1 : 2;
			if (verdict == SL_STORED)
				sl_window_mark(&window, walk[i]);
		}
		print_hex("window.walk", bytes, 4 + 5 * (i - 1));
	}
}

/* ---- unit tests ---- */

static void test_siphash(void)
{
	/* The example of the paper's appendix: key 00..0f, input 00..0e. */
	u8 key[SL_KEY], input[15];

	count_up(key, SL_KEY, 0);
	count_up(input, sizeof(input), 0);
	CHECK(sl_siphash(key, input, 8, input + 8, 7) == 0xa129ca6149be45e5ull);
	CHECK(sl_siphash(key, NULL, 0, input, 15) == 0xa129ca6149be45e5ull);
	CHECK(sl_tag_equal(5, 5) && !sl_tag_equal(5, 5 ^ 1ull << 63) && !sl_tag_equal(4, 5));
}

static void test_window(void)
{
	struct sl_window w;
	u32 base, n;

	for (base = 0; base < 3; base++) {
		u32 start = base == 0 ? 0 : base == 1 ? 0xfffffff0u : 0x7ffffff0u;

		sl_window_start(&w, start);
		CHECK(sl_window_look(&w, start) == SL_SEEN && sl_window_look(&w, start + 1) == SL_STORED);
		CHECK(sl_window_look(&w, start - 63) == SL_SEEN && sl_window_look(&w, start - 64) == SL_TOO_OLD);
		for (n = 2; n <= 200; n += 2) {
			sl_window_mark(&w, start + n);
			CHECK(sl_window_look(&w, start + n) == SL_SEEN);
			CHECK(sl_window_look(&w, start + n - 1) == SL_STORED);
		}
		for (n = 199; n > 200 - 64; n -= 2) {
			sl_window_mark(&w, start + n);
			CHECK(sl_window_look(&w, start + n) == SL_SEEN);
		}
		for (n = 137; n <= 200; n++)
			CHECK(sl_window_look(&w, start + n) == SL_SEEN);
		CHECK(sl_window_look(&w, start + 136) == SL_TOO_OLD);
		sl_window_mark(&w, start + 1000);
		CHECK(sl_window_look(&w, start + 999) == SL_STORED && sl_window_look(&w, start + 200) == SL_TOO_OLD);
	}
}

/* ---- a receiver, as the module has one ---- */

#define FLOWS 3
#define SLOTS 6
#define SLOT 4096
#define CHUNK 64
#define MESSAGES 4096 /* a model remembers what each message of a flow is */

struct world {
	struct sl_pool pool;
	struct sl_slot *slots;
	u8 *bitmaps, *area;
	struct sl_flow flows[FLOWS];
	u8 keys[FLOWS][SL_KEY];
	u64 now_ms;
	unsigned long stored, delivered, refused;
	u8 arrived[FLOWS][MESSAGES]; /* 1: delivered */
};

static u64 session_of(u32 flow)
{
	return 0x1122334455667700ull | flow;
}

static u32 length_of(u32 flow, u32 message)
{
	u32 pick = (message * 2654435761u + flow * 97) >> 8;

	return pick % 16 ? 1 + pick % 700 : 1 + pick % SLOT;
}

static u8 byte_of(u32 flow, u32 message, u32 at)
{
	return (u8)(message * 31 + flow * 7 + at + (at >> 8));
}

static void start(struct world *w)
{
	u32 f;

	memset(w, 0, sizeof(*w));
	/* Exact sizes: one byte beyond is the sanitizer's. */
	w->slots = calloc(SLOTS, sizeof(*w->slots));
	w->bitmaps = calloc(SLOTS, sl_bitmap_bytes(SLOT));
	w->area = calloc(SLOTS, SLOT);
	w->now_ms = 10000;
	sl_pool_start(&w->pool, w->slots, w->bitmaps, SLOTS, SLOT);
	for (f = 0; f < FLOWS; f++) {
		count_up(w->keys[f], SL_KEY, (u8)(f * 50));
		sl_flow_start(&w->flows[f], f == 2 ? 2 : SLOTS, CHUNK, 0);
	}
}

static void stop(struct world *w)
{
	free(w->slots);
	free(w->bitmaps);
	free(w->area);
}

static enum sl_verdict receive(struct world *w, const u8 *datagram, size_t len)
{
	struct sl_header h;
	enum sl_verdict verdict = sl_header_read(datagram, len, &h);
	struct sl_flow *flow;
	u32 f, entry;

	if (verdict != SL_STORED)
		return verdict;
	f = h.session % SL_SESSIONS;
	if (f >= FLOWS || session_of(f) != h.session)
		return SL_OTHER;
	flow = &w->flows[f];
	verdict = sl_header_check(&h, len - SL_HEADER, flow->chunk_bytes, SLOT);
	if (verdict != SL_STORED)
		return verdict;
	if (!sl_tag_equal(h.tag, sl_tag(w->keys[f], datagram, SL_DATA, 0)))
		return SL_BAD_TAG;
	verdict = sl_place(&w->pool, flow, &h, w->now_ms, &entry);
	if (verdict != SL_STORED)
		return verdict;
	memcpy(w->area + (size_t)flow->open[entry] * SLOT + (size_t)h.chunk * CHUNK, datagram + SL_HEADER, h.len);
	sl_stored(&w->pool, flow, h.chunk, entry);
	return SL_STORED;
}

static size_t make(struct world *w, u8 *out, u32 f, u32 message, u32 chunk)
{
	u32 total = length_of(f, message), i;
	struct sl_header h = {
		.session = session_of(f), .message = message, .total = total, .epoch = 1,
		.chunk = chunk, .chunks = sl_chunks(total, CHUNK), .version = SL_VERSION, .type = SL_DATA,
	};

	h.len = sl_chunk_len(total, CHUNK, chunk);
	sl_header_write(out, &h, w->keys[f]);
	for (i = 0; i < h.len; i++)
		out[SL_HEADER + i] = byte_of(f, message, chunk * CHUNK + i);
	return SL_HEADER + h.len;
}

/* What must hold whatever happened. */
static void invariants(const struct world *w)
{
	u32 n, f, free = 0, held[FLOWS] = { 0 }, ready = 0, filling = 0;

	for (n = 0; n < SLOTS; n++) {
		const struct sl_slot *slot = &w->slots[n];

		free += slot->state == SL_FREE;
		filling += slot->state == SL_FILLING;
		ready += slot->state == SL_READY;
		if (slot->flow)
			held[slot->flow - w->flows]++;
		CHECK(slot->state != SL_FREE || !slot->flow);
		CHECK(slot->state != SL_FILLING || (slot->flow && slot->missing && slot->missing <= slot->chunks));
	}
	CHECK(free == w->pool.free);
	for (n = w->pool.head; n != SL_NONE; n = w->slots[n].next, ready--)
		CHECK(ready && w->slots[n].state == SL_READY);
	CHECK(!ready);
	for (f = 0; f < FLOWS; f++) {
		CHECK(held[f] == w->flows[f].held && held[f] <= w->flows[f].quota);
		for (n = 0; n < SL_OPEN; n++)
			if (w->flows[f].open[n] != SL_NONE) {
				CHECK(w->slots[w->flows[f].open[n]].flow == &w->flows[f]);
				CHECK(w->slots[w->flows[f].open[n]].state == SL_FILLING);
				filling--;
			}
	}
	CHECK(!filling);
}

static void read_one(struct world *w)
{
	u32 n = sl_take(&w->pool), f, i;
	struct sl_slot *slot;

	if (n == SL_NONE)
		return;
	slot = &w->slots[n];
	if (draw(8) == 0) {
		sl_untake(&w->pool, n);
		CHECK(sl_take(&w->pool) == n);
	}
	f = slot->session % SL_SESSIONS;
	CHECK(slot->message < MESSAGES && !w->arrived[f][slot->message]);
	w->arrived[f][slot->message] = 1;
	CHECK(slot->total == length_of(f, slot->message));
	for (i = 0; i < slot->total; i++)
		CHECK(w->area[(size_t)n * SLOT + i] == byte_of(f, slot->message, i));
	w->delivered++;
	CHECK(!sl_release(&w->pool, n, slot->generation + 1));
	CHECK(sl_release(&w->pool, n, slot->generation));
	CHECK(!sl_release(&w->pool, n, slot->generation));
	CHECK(!sl_release(&w->pool, SLOTS, 0));
}

static void test_receiver(void)
{
	struct world w;
	u8 out[SL_HEADER + CHUNK], bits[SLOT / CHUNK / 8 + 1];
	u32 m, c, chunks, reported;

	start(&w);
	/* Backwards, each chunk twice, and what is missing told at every step. */
	for (m = 1; m < 40; m++) {
		chunks = sl_chunks(length_of(0, m), CHUNK);
		CHECK(sl_missing(&w.pool, &w.flows[0], m, bits, &reported) == SL_UNKNOWN && !reported);
		for (c = chunks; c--;) {
			CHECK(receive(&w, out, make(&w, out, 0, m, c)) == SL_STORED);
			if (c) {
				CHECK(receive(&w, out, make(&w, out, 0, m, c)) == SL_DUPLICATE);
				CHECK(sl_missing(&w.pool, &w.flows[0], m, bits, &reported) == SL_HALF);
				CHECK(reported == chunks && !(bits[c / 8] >> (c % 8) & 1) && (bits[0] & 1));
				CHECK(chunks % 8 == 0 || !(bits[chunks / 8] >> (chunks % 8)));
			}
		}
		CHECK(receive(&w, out, make(&w, out, 0, m, 0)) == SL_SEEN);
		CHECK(sl_missing(&w.pool, &w.flows[0], m, bits, &reported) == SL_WHOLE);
		invariants(&w);
		read_one(&w);
	}
	/* Four open at most; the fifth has to wait until one is stale. */
	for (m = 100, c = 0; c < SL_OPEN; m++)
		if (sl_chunks(length_of(0, m), CHUNK) > 1) {
			CHECK(receive(&w, out, make(&w, out, 0, m, 0)) == SL_STORED);
			c++;
		}
	CHECK(receive(&w, out, make(&w, out, 0, m, 0)) == SL_OPEN_LIMIT);
	w.now_ms += SL_STALE_MS - 1;
	CHECK(receive(&w, out, make(&w, out, 0, m, 0)) == SL_OPEN_LIMIT);
	w.now_ms += 1;
	CHECK(receive(&w, out, make(&w, out, 0, m, 0)) == SL_STORED && w.pool.reclaimed == SL_OPEN);
	/* The third flow may hold two slots, read or not, however many are free. */
	sl_forget(&w.pool, &w.flows[0], m);
	CHECK(receive(&w, out, make(&w, out, 0, m, 0)) == SL_SEEN);
	for (m = 1, c = 0; c < 2; m++)
		if (sl_chunks(length_of(2, m), CHUNK) == 1) {
			CHECK(receive(&w, out, make(&w, out, 2, m, 0)) == SL_STORED);
			c++;
		}
	CHECK(receive(&w, out, make(&w, out, 2, m, 0)) == SL_QUOTA);
	CHECK(sl_take(&w.pool) != SL_NONE);
	CHECK(receive(&w, out, make(&w, out, 2, m, 0)) == SL_QUOTA);
	/* Slots of a session that has gone count against no other. */
	sl_flow_end(&w.pool, &w.flows[2]);
	sl_flow_start(&w.flows[2], 2, CHUNK, 0);
	invariants(&w);
	for (c = 0; w.pool.free; m++)
		if (sl_chunks(length_of(1, m), CHUNK) == 1) {
			CHECK(receive(&w, out, make(&w, out, 1, m, 0)) == SL_STORED);
			c++;
		}
	CHECK(receive(&w, out, make(&w, out, 2, m, 0)) == SL_NO_SLOT && c == SLOTS - 2);
	invariants(&w);
	stop(&w);
}

/* ---- the fuzzer: real traffic with loss, disorder, repetition, and every kind of lie ---- */

static void fuzz(unsigned long rounds, u64 seed)
{
	struct world w;
	u8 out[SL_HEADER + CHUNK + 8];
	u32 newest[FLOWS] = { 1, 1, 1 };
	unsigned long round;

	state = seed ? seed : 1;
	start(&w);
	for (round = 0; round < rounds; round++) {
		u32 f = draw(FLOWS), back = draw(6), m, chunks, lie = draw(8), i;
		enum sl_verdict verdict;
		size_t len;

		m = newest[f] > back ? newest[f] - back : newest[f];
		chunks = sl_chunks(length_of(f, m), CHUNK);
		len = make(&w, out, f, m, draw(chunks));
		if (lie < 2) {
			/* Without the key: no change of the header is believed. */
			for (i = 0; i <= draw(3); i++)
				out[lie ? draw(SL_TAGGED) : draw(SL_HEADER)] ^= 1u << draw(8);
			if (draw(4) == 0)
				len = draw((u32)len + 1);
			u8 *exact = malloc(len ? len : 1);

			memcpy(exact, out, len);
			verdict = receive(&w, exact, len);
			free(exact);
			w.refused += verdict != SL_STORED;
		} else if (lie == 2) {
			/* With the key: figures that contradict each other are refused before anything is written. */
			struct sl_header h;
			u32 field = draw(10);

			out[field < 2 ? 6 + field : 18 + field] = (u8)draw(256);
			sl_put64(out + 32, sl_tag(w.keys[f], out, SL_DATA, 0));
			sl_header_read(out, len, &h);
			verdict = sl_header_check(&h, len - SL_HEADER, CHUNK, SLOT);
			if (verdict == SL_STORED && h.total == length_of(f, m))
				verdict = receive(&w, out, make(&w, out, f, m, h.chunk));
			else if (verdict != SL_STORED || sl_open_of(&w.pool, &w.flows[f], m) != SL_OPEN)
				verdict = receive(&w, out, len);
			w.refused += verdict != SL_STORED;
		} else {
			verdict = receive(&w, out, len);
			w.stored += verdict == SL_STORED;
		}
		CHECK(verdict < SL_VERDICTS);
		w.now_ms += draw(3) ? 0 : draw(20);
		if (draw(40) == 0)
			w.now_ms += SL_STALE_MS;
		if (draw(3) == 0)
			read_one(&w);
		if (draw(12) == 0 && newest[f] + 1 < MESSAGES)
			newest[f]++;
		if (draw(5000) == 0) {
			while (w.pool.head != SL_NONE)
				read_one(&w);
			sl_forget(&w.pool, &w.flows[f], newest[f]);
			w.arrived[f][newest[f]] = 1;
		}
		if (newest[f] + 1 == MESSAGES) {
			/* A new session in the same place. Complete messages of the old one are read first. */
			while (w.pool.head != SL_NONE)
				read_one(&w);
			sl_flow_end(&w.pool, &w.flows[f]);
			sl_flow_start(&w.flows[f], w.flows[f].quota, CHUNK, 0);
			memset(w.arrived[f], 0, MESSAGES);
			newest[f] = 1;
		}
		if (draw(16) == 0)
			invariants(&w);
	}
	invariants(&w);
	CHECK(rounds < 100000 || (w.delivered > rounds / 100 && w.refused > rounds / 10));
	printf("fuzz: %lu datagrams, %lu stored, %lu messages, %lu refused\n", rounds, w.stored, w.delivered, w.refused);
	stop(&w);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--vectors")) {
		print_vectors();
		return 0;
	}
	if (argc == 3) {
		fuzz(strtoul(argv[1], NULL, 0), strtoull(argv[2], NULL, 0));
	} else {
		test_siphash();
		test_window();
		test_receiver();
		fuzz(6000000, 0x5eed);
	}
	printf("core: %lu checks, 0 failed\n", checks);
	return 0;
}
