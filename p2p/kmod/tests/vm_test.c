// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The program that runs against the module inside a virtual machine, as root, with the module loaded and built with
 * SHOAL_LAN_TEST. `vm_test PID`: PID is a process in a second network namespace that has 10.0.0.2 and fd00::2 on a veth
 * pair, whose end here has 10.0.0.1 and fd00::1. `vm_test --cost` measures one message instead.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../shoal_lan.h"
#include "../shoal_lan_core.h"

#define DEVICE "/dev/shoal_lan"
#define PARAMETERS "/sys/module/shoal_lan/parameters/"
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

static unsigned long passed, failed;

#define NEED(what) need(!!(what), __LINE__, #what)
/* The call fails with this errno. */
#define FAILS(call, number) do { long r_ = (long)(call); int e_ = errno; \
	need(r_ == -1 && e_ == (number), __LINE__, #call " = " #number); \
	if (r_ != -1 || e_ != (number)) printf("  it returned %ld, errno %d (%s)\n", r_, e_, strerror(e_)); } while (0)
#define WORKS(call) do { long r_ = (long)(call); int e_ = errno; need(r_ != -1, __LINE__, #call); \
	if (r_ == -1) printf("  errno %d (%s)\n", e_, strerror(e_)); } while (0)

static bool need(bool so, int line, const char *what)
{
	if (so) {
		passed++;
	} else {
		printf("FAIL line %d: %s\n", line, what);
		if (++failed == 30)
			exit(1);
	}
	return so;
}

static void die(const char *what)
{
	printf("FAIL: %s: %s\n", what, strerror(errno));
	exit(1);
}

static u64 now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void parameter(const char *name, unsigned value)
{
	char path[128], text[16];
	int fd;

	snprintf(path, sizeof(path), PARAMETERS "%s", name);
	fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, text, snprintf(text, sizeof(text), "%u", value)) < 0)
		die(path);
	close(fd);
}

/* Which processor this thread runs on; -1: any. */
static void run_on(int processor)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (processor < 0 || i == processor)
			CPU_SET(i, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/*
 * Waits until what this thread has sent is received: packets of one processor to this machine wait in one line, so that a
 * datagram which is back was behind all of them. Nothing is asserted of how long it takes.
 */
static void settle(void)
{
	static int sock = -1;
	static struct sockaddr_in at = { .sin_family = AF_INET };
	static u64 number;
	u64 token[2] = { (u64)getpid(), ++number }, got[2] = {};
	socklen_t len = sizeof(at);

	if (sock < 0) {
		at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		sock = socket(AF_INET, SOCK_DGRAM, 0);
		if (bind(sock, (void *)&at, len) || getsockname(sock, (void *)&at, &len))
			die("settle");
	}
	if (sendto(sock, token, sizeof(token), 0, (void *)&at, sizeof(at)) != sizeof(token))
		die("settle");
	while (got[0] != token[0] || got[1] != token[1])
		if (recv(sock, got, sizeof(got), 0) != sizeof(got) && errno != EINTR)
			die("settle");
}

/* Waits for a counter that another thread moves. */
#define GROWS(end, count, least) do { \
	u64 until_ = now_ns() + 60000000000ull; \
	while (counter(end, count) < (least) && now_ns() < until_) \
		usleep(1000); \
	NEED(counter(end, count) >= (least)); } while (0)

/* ---- one end: a device file, its memory, its socket ---- */

#define RX 8
#define TX 2
#define SLOT (1u << 20)

struct end {
	int dev, sock;
	u8 *area;
	u64 area_bytes, tx_offset;
	struct sockaddr_in6 at; /* IPv4 is mapped */
	u64 session;
	u8 key[16]; /* of what comes here */
	u32 epoch, tx_epoch; /* of what comes here, of what is sent */
};

static int home_ns, other_ns;

static int socket_at(int family, const char *address, int ns, struct sockaddr_in6 *at)
{
	int sock, on = 1, size = 8 << 20;
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	socklen_t len = sizeof(v6);

	if (setns(ns, CLONE_NEWNET))
		die("setns");
	sock = socket(family, SOCK_DGRAM, 0);
	if (setns(home_ns, CLONE_NEWNET) || sock < 0)
		die("socket");
	setsockopt(sock, SOL_UDP, UDP_GRO, &on, sizeof(on));
	setsockopt(sock, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	setsockopt(sock, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	memset(at, 0, sizeof(*at));
	at->sin6_family = AF_INET6;
	if (family == AF_INET) {
		inet_pton(AF_INET, address, &v4.sin_addr);
		if (bind(sock, (void *)&v4, sizeof(v4)))
			die(address);
		len = sizeof(v4);
		getsockname(sock, (void *)&v4, &len);
		at->sin6_port = v4.sin_port;
		at->sin6_addr.s6_addr[10] = at->sin6_addr.s6_addr[11] = 0xff;
		memcpy(at->sin6_addr.s6_addr + 12, &v4.sin_addr, 4);
	} else {
		inet_pton(AF_INET6, address, &v6.sin6_addr);
		if (bind(sock, (void *)&v6, sizeof(v6)))
			die(address);
		getsockname(sock, (void *)&v6, &len);
		at->sin6_port = v6.sin6_port;
		at->sin6_addr = v6.sin6_addr;
	}
	return sock;
}

static struct end end_at(int family, const char *address, int ns, u32 rx, u32 slot)
{
	struct shoal_lan_setup setup = { .abi = SHOAL_LAN_ABI, .rx_slots = rx, .tx_slots = TX, .slot_bytes = slot };
	struct shoal_lan_attach attach = {};
	struct end e = { .dev = open(DEVICE, O_RDWR | O_CLOEXEC) };
	static u64 number = 0x1234567890ab0000ull;

	if (e.dev < 0 || ioctl(e.dev, SHOAL_LAN_SETUP, &setup))
		die("SETUP");
	e.area_bytes = setup.area_bytes;
	e.tx_offset = setup.tx_offset;
	e.area = mmap(NULL, setup.area_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, e.dev, 0);
	if (e.area == MAP_FAILED)
		die("mmap");
	e.sock = attach.fd = socket_at(family, address, ns, &e.at);
	if (ioctl(e.dev, SHOAL_LAN_ATTACH, &attach))
		die("ATTACH");
	e.session = number += 0x10001;
	for (u32 i = 0; i < 16; i++)
		e.key[i] = (u8)(number >> (i % 8) * 8) + i * 17;
	e.epoch = e.tx_epoch = 3;
	return e;
}

static struct shoal_lan_session session_for(const struct end *here, const struct end *peer, u32 chunk, u32 top)
{
	struct shoal_lan_session s = {
		.rx_session = here->session, .tx_session = peer->session, .port = ntohs(peer->at.sin6_port),
		.rx_epoch = here->epoch, .tx_epoch = peer->epoch, .chunk_bytes = chunk, .quota = 4, .top = top,
	};

	memcpy(s.rx_key, here->key, 16);
	memcpy(s.tx_key, peer->key, 16);
	memcpy(s.address, &peer->at.sin6_addr, 16);
	return s;
}

static void meet(struct end *a, struct end *b, u32 chunk, u32 top)
{
	struct shoal_lan_session to_b = session_for(a, b, chunk, top), to_a = session_for(b, a, chunk, top);

	WORKS(ioctl(a->dev, SHOAL_LAN_SESSION_ADD, &to_b));
	WORKS(ioctl(b->dev, SHOAL_LAN_SESSION_ADD, &to_a));
}

static void part(struct end *e)
{
	struct shoal_lan_id id = { .rx_session = e->session };

	WORKS(ioctl(e->dev, SHOAL_LAN_SESSION_DEL, &id));
}

static void leave(struct end *e)
{
	munmap(e->area, e->area_bytes);
	close(e->dev);
	close(e->sock);
}

static struct end pair_end[2];

static void pair(int family, u32 chunk, u32 top)
{
	const char *loopback = family == AF_INET ? "127.0.0.1" : "::1";

	for (int i = 0; i < 2; i++)
		pair_end[i] = end_at(family, loopback, home_ns, RX, SLOT);
	meet(&pair_end[0], &pair_end[1], chunk, top);
}

static void unpair(void)
{
	leave(&pair_end[0]);
	leave(&pair_end[1]);
}

static u64 counter(const struct end *e, u32 n)
{
	struct shoal_lan_stat stat;

	if (ioctl(e->dev, SHOAL_LAN_STAT, &stat))
		die("STAT");
	return stat.counters[n];
}

static u8 *fill(const struct end *e, u32 slot, u32 size, u32 bytes, u32 message)
{
	u8 *at = e->area + e->tx_offset + (u64)slot * size;

	for (u32 i = 0; i < bytes; i++)
		at[i] = (u8)(message * 31 + i + (i >> 8) * 3);
	return at;
}

static bool filled(const u8 *at, u32 bytes, u32 message)
{
	for (u32 i = 0; i < bytes; i++)
		if (at[i] != (u8)(message * 31 + i + (i >> 8) * 3))
			return false;
	return true;
}

static int send_some(const struct end *e, u32 message, u32 slot, u32 bytes, const u8 *bitmap, u32 flags, u32 *sent)
{
	struct shoal_lan_send s = {
		.rx_session = e->session, .message = message, .slot = slot, .bytes = bytes,
		.bitmap = (u64)(uintptr_t)bitmap, .flags = flags, .epoch = e->tx_epoch,
	};
	int r = ioctl(e->dev, SHOAL_LAN_SEND, &s), error = errno;

	settle();
	if (sent)
		*sent = s.sent;
	errno = error;
	return r;
}

static int wait_for(const struct end *e, u32 ms, struct shoal_lan_wait *w)
{
	memset(w, 0, sizeof(*w));
	w->timeout_ms = ms;
	return ioctl(e->dev, SHOAL_LAN_WAIT, w);
}

static int release(const struct end *e, u32 slot, u32 generation)
{
	struct shoal_lan_release r = { .slot = slot, .generation = generation };

	return ioctl(e->dev, SHOAL_LAN_RELEASE, &r);
}

/* One message from a to b, whole and right. */
static void deliver(const struct end *a, const struct end *b, u32 message, u32 bytes)
{
	struct shoal_lan_wait w;
	u32 sent;

	fill(a, message % TX, SLOT, bytes, message);
	WORKS(send_some(a, message, message % TX, bytes, NULL, 0, &sent));
	WORKS(wait_for(b, 50000, &w));
	if (!NEED(w.count == 1 && w.events[0].rx_session == b->session && w.events[0].message == message &&
		  w.events[0].bytes == bytes && w.events[0].slot < RX && w.events[0].epoch == a->tx_epoch))
		return;
	NEED(filled(b->area + (u64)w.events[0].slot * SLOT, bytes, message));
	FAILS(release(b, w.events[0].slot, w.events[0].generation + 1), ESTALE);
	WORKS(release(b, w.events[0].slot, w.events[0].generation));
	FAILS(release(b, w.events[0].slot, w.events[0].generation), ESTALE);
}

/* ---- what is refused ---- */

static void test_abi(void)
{
	static const unsigned long requests[] = {
		SHOAL_LAN_ATTACH, SHOAL_LAN_SESSION_ADD, SHOAL_LAN_REKEY, SHOAL_LAN_SESSION_DEL, SHOAL_LAN_SEND,
		SHOAL_LAN_WAIT, SHOAL_LAN_RELEASE, SHOAL_LAN_MISSING, SHOAL_LAN_FORGET, SHOAL_LAN_STAT,
	};
	struct shoal_lan_setup good = { .abi = SHOAL_LAN_ABI, .rx_slots = 4, .tx_slots = 2, .slot_bytes = 65536 };
	u8 zero[4096] = {};
	u32 i;
	int dev = open(DEVICE, O_RDWR);
	struct pollfd p = { .fd = dev, .events = POLLIN };

	NEED(dev >= 0);
	for (i = 0; i < sizeof(requests) / sizeof(*requests); i++)
		FAILS(ioctl(dev, requests[i], zero), ENXIO);
	FAILS(mmap(NULL, 65536, PROT_READ, MAP_SHARED, dev, 0), ENXIO);
	NEED(poll(&p, 1, 0) == 1 && p.revents & POLLERR);
	FAILS(read(dev, zero, 1), EINVAL);
	FAILS(write(dev, zero, 1), EINVAL);
	FAILS(ioctl(dev, SHOAL_LAN_SETUP, NULL), EFAULT);
#define BAD(field, value, number) do { struct shoal_lan_setup s = good; s.field = (value); \
	FAILS(ioctl(dev, SHOAL_LAN_SETUP, &s), number); } while (0)
	BAD(abi, 0, EPROTO);
	BAD(abi, SHOAL_LAN_ABI + 1, EPROTO);
	BAD(rx_slots, 0, EINVAL);
	BAD(rx_slots, SHOAL_LAN_SLOTS_MAX + 1, EINVAL);
	BAD(rx_slots, 0xffffffff, EINVAL);
	BAD(tx_slots, 0, EINVAL);
	BAD(tx_slots, SHOAL_LAN_SLOTS_MAX + 1, EINVAL);
	BAD(slot_bytes, 0, EINVAL);
	BAD(slot_bytes, 4095, EINVAL);
	BAD(slot_bytes, 65536 + 64, EINVAL);
	BAD(slot_bytes, SL_MESSAGE_MAX + 4096, EINVAL);
	BAD(slot_bytes, 0x80000000, EINVAL);
	BAD(slot_bytes, SL_MESSAGE_MAX, E2BIG);
	BAD(area_bytes, 1, EINVAL);
	BAD(tx_offset, 1, EINVAL);
#undef BAD
	WORKS(ioctl(dev, SHOAL_LAN_SETUP, &good));
	NEED(good.area_bytes == 6 * 65536 && good.tx_offset == 4 * 65536);
	good.area_bytes = good.tx_offset = 0;
	FAILS(ioctl(dev, SHOAL_LAN_SETUP, &good), EBUSY);
	for (i = 0; i < sizeof(requests) / sizeof(*requests); i++)
		FAILS(ioctl(dev, requests[i], (void *)8), EFAULT);
	FAILS(ioctl(dev, _IO('S', 0x01), zero), ENOTTY);
	FAILS(ioctl(dev, _IO('T', 0xa0), zero), ENOTTY);
	FAILS(ioctl(dev, _IOWR('S', 0xa0, char[4000]), zero), ENOTTY);
	FAILS(ioctl(dev, _IOWR('S', 0xa0, char[8]), zero), ENOTTY);
	NEED(poll(&p, 1, 0) == 0);
	close(dev);
}

static void test_map(void)
{
	struct end e = end_at(AF_INET, "127.0.0.1", home_ns, RX, SLOT);
	size_t size = e.area_bytes;
	int status;
	u32 i;

	FAILS(mmap(NULL, size, PROT_READ, MAP_PRIVATE, e.dev, 0), EINVAL);
	FAILS(mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_SHARED, e.dev, 0), EPERM);
	FAILS(mmap(NULL, size + 4096, PROT_READ, MAP_SHARED, e.dev, 0), EINVAL);
	FAILS(mmap(NULL, size - 4096, PROT_READ, MAP_SHARED, e.dev, 0), EINVAL);
	FAILS(mmap(NULL, size, PROT_READ, MAP_SHARED, e.dev, 4096), EINVAL);
	FAILS(mmap(NULL, 4096, PROT_READ, MAP_SHARED, e.dev, size), EINVAL);
	FAILS(mprotect(e.area, 4096, PROT_READ | PROT_EXEC), EACCES);
	FAILS(mremap(e.area, size, size + 4096, MREMAP_MAYMOVE), EFAULT);
	for (i = 0; i < size; i += 4096)
		if (e.area[i])
			break;
	NEED(i == size);
	/* A child has the file and not the memory. */
	if (!fork()) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		_exit(e.area[0] + 1);
	}
	wait(&status);
	NEED(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	leave(&e);
}

static long locked_kb(void)
{
	char line[256];
	long kb = -1;
	FILE *f = fopen("/proc/self/status", "r");

	while (fgets(line, sizeof(line), f))
		sscanf(line, "VmLck: %ld", &kb);
	fclose(f);
	return kb;
}

static void test_memory_limit(void)
{
	struct shoal_lan_setup setup = { .abi = SHOAL_LAN_ABI, .rx_slots = 3, .tx_slots = 1, .slot_bytes = 1 << 20 };
	struct rlimit limit = { 4 << 20, 4 << 20 };
	int status, a = open(DEVICE, O_RDWR), b = open(DEVICE, O_RDWR);
	struct stat node;

	NEED(!stat(DEVICE, &node) && (node.st_mode & 07777) == 0600);
	NEED(locked_kb() == 0);
	WORKS(ioctl(a, SHOAL_LAN_SETUP, &setup));
	NEED(locked_kb() == 4096);
	close(a);
	NEED(locked_kb() == 0);
	a = open(DEVICE, O_RDWR);
	setup.area_bytes = setup.tx_offset = 0;
	if (!fork()) {
		int bad = setrlimit(RLIMIT_MEMLOCK, &limit) || setuid(65534);

		/* Without privilege the limit holds over all files, and the device opens for its group only. */
		bad |= ioctl(a, SHOAL_LAN_SETUP, &setup) ? 2 : 0;
		setup.area_bytes = setup.tx_offset = 0;
		bad |= ioctl(b, SHOAL_LAN_SETUP, &setup) == 0 || errno != ENOMEM ? 4 : 0;
		bad |= open(DEVICE, O_RDWR) >= 0 || errno != EACCES ? 8 : 0;
		close(a);
		_exit(bad);
	}
	wait(&status);
	NEED(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(a);
	close(b);
	NEED(locked_kb() == 0);
}

static void test_attach(void)
{
	struct shoal_lan_setup setup = { .abi = SHOAL_LAN_ABI, .rx_slots = 1, .tx_slots = 1, .slot_bytes = 4096 };
	struct end e = end_at(AF_INET, "127.0.0.1", home_ns, RX, SLOT);
	int dev = open(DEVICE, O_RDWR), pipes[2], many[80];
	struct sockaddr_in6 at;
	int i;

	WORKS(ioctl(dev, SHOAL_LAN_SETUP, &setup));
#define ATTACH(d, f, r) ({ struct shoal_lan_attach a_ = { .fd = (f), .reserved = (r) }; ioctl(d, SHOAL_LAN_ATTACH, &a_); })
	FAILS(ATTACH(dev, -1, 0), EBADF);
	FAILS(ATTACH(dev, 9999, 0), EBADF);
	FAILS(ATTACH(dev, dev, 0), ENOTSOCK);
	if (pipe(pipes))
		die("pipe");
	FAILS(ATTACH(dev, pipes[0], 0), ENOTSOCK);
	close(pipes[0]);
	close(pipes[1]);
#define SOCKET(family, type, protocol, number) do { int s_ = socket(family, type, protocol); NEED(s_ >= 0); \
	FAILS(ATTACH(dev, s_, 0), number); close(s_); } while (0)
	SOCKET(AF_UNIX, SOCK_DGRAM, 0, EPROTOTYPE);
	SOCKET(AF_INET, SOCK_STREAM, 0, EPROTOTYPE);
	SOCKET(AF_INET6, SOCK_STREAM, 0, EPROTOTYPE);
	SOCKET(AF_INET, SOCK_RAW, IPPROTO_UDP, EPROTOTYPE);
	SOCKET(AF_INET, SOCK_DGRAM, 0, ENOTCONN);
	SOCKET(AF_INET6, SOCK_DGRAM, 0, ENOTCONN);
#undef SOCKET
	FAILS(ATTACH(dev, e.sock, 1), EINVAL);
	FAILS(ATTACH(dev, e.sock, 0), EBUSY);
	FAILS(ATTACH(e.dev, e.sock, 0), EBUSY);
	/* As many as there may be, then one more, then one again when one has gone. */
	for (i = 0; i < 63; i++) {
		struct shoal_lan_setup s = setup;

		s.area_bytes = s.tx_offset = 0;
		many[i] = open(DEVICE, O_RDWR);
		int sock = socket_at(AF_INET, "127.0.0.1", home_ns, &at);

		if (ioctl(many[i], SHOAL_LAN_SETUP, &s) || ATTACH(many[i], sock, 0))
			break;
		close(sock);
	}
	NEED(i == 63);
	int sock = socket_at(AF_INET, "127.0.0.1", home_ns, &at);

	FAILS(ATTACH(dev, sock, 0), ENOSPC);
	close(many[0]);
	WORKS(ATTACH(dev, sock, 0));
	FAILS(ATTACH(dev, sock, 0), EBUSY);
	for (i = 1; i < 63; i++)
		close(many[i]);
	close(sock);
	close(dev);
	/* The device gone, the socket is a socket again, and another device may have it. */
	munmap(e.area, e.area_bytes);
	close(e.dev);
	dev = open(DEVICE, O_RDWR);
	setup.area_bytes = setup.tx_offset = 0;
	WORKS(ioctl(dev, SHOAL_LAN_SETUP, &setup));
	WORKS(ATTACH(dev, e.sock, 0));
	close(dev);
	close(e.sock);
}

static void test_sessions(void)
{
	struct end a = end_at(AF_INET, "127.0.0.1", home_ns, RX, SLOT);
	struct end b = end_at(AF_INET, "127.0.0.1", home_ns, RX, SLOT);
	struct shoal_lan_session good = session_for(&a, &b, 1408, 0), s;
	struct shoal_lan_rekey rekey = { .rx_session = a.session, .epoch = a.epoch + 1 };
	struct shoal_lan_id id = { .rx_session = a.session };
	u32 i;

#define BAD(field, value, number) do { s = good; s.field = (value); \
	FAILS(ioctl(a.dev, SHOAL_LAN_SESSION_ADD, &s), number); } while (0)
	BAD(reserved, 1, EINVAL);
	BAD(reserved2, 1, EINVAL);
	BAD(port, 0, EINVAL);
	BAD(chunk_bytes, 0, EINVAL);
	BAD(chunk_bytes, 63, EINVAL);
	BAD(chunk_bytes, 1400, EINVAL);
	BAD(chunk_bytes, 8960, EINVAL);
	BAD(chunk_bytes, 0xffffffc0, EINVAL);
	BAD(quota, 0, EINVAL);
	BAD(quota, RX + 1, EINVAL);
	BAD(address[0], 0x20, EAFNOSUPPORT);
	s = good;
	memset(s.address, 0, 16);
	FAILS(ioctl(a.dev, SHOAL_LAN_SESSION_ADD, &s), EINVAL);
#undef BAD
	FAILS(ioctl(a.dev, SHOAL_LAN_SESSION_DEL, &id), ENOENT);
	FAILS(ioctl(a.dev, SHOAL_LAN_REKEY, &rekey), ENOENT);
	FAILS(ioctl(a.dev, SHOAL_LAN_FORGET, &id), ENOENT);
	FAILS(send_some(&a, 1, 0, 1, NULL, 0, NULL), ENOENT);
	for (i = 0; i < 64; i++) {
		s = good;
		s.rx_session = (good.rx_session & ~63ull) | i;
		WORKS(ioctl(a.dev, SHOAL_LAN_SESSION_ADD, &s));
		s.rx_session += 64;
		FAILS(ioctl(a.dev, SHOAL_LAN_SESSION_ADD, &s), EEXIST);
	}
	FAILS(send_some(&a, 1, TX, 1, NULL, 0, NULL), EINVAL);
	FAILS(send_some(&a, 1, 0xffffffff, 1, NULL, 0, NULL), EINVAL);
	FAILS(send_some(&a, 1, 0, 0, NULL, 0, NULL), EINVAL);
	FAILS(send_some(&a, 1, 0, SLOT + 1, NULL, 0, NULL), EINVAL);
	FAILS(send_some(&a, 1, 0, 0xffffffff, NULL, 0, NULL), EINVAL);
	FAILS(send_some(&a, 1, 0, 1, NULL, 2, NULL), EINVAL);
	FAILS(send_some(&a, 1, 0, 1, (u8 *)8, 0, NULL), EFAULT);
	id.message = 1;
	FAILS(ioctl(a.dev, SHOAL_LAN_SESSION_DEL, &id), EINVAL);
	id.message = 0;
	id.reserved = 1;
	FAILS(ioctl(a.dev, SHOAL_LAN_SESSION_DEL, &id), EINVAL);
	FAILS(ioctl(a.dev, SHOAL_LAN_FORGET, &id), EINVAL);
	rekey.epoch = a.epoch;
	FAILS(ioctl(a.dev, SHOAL_LAN_REKEY, &rekey), EINVAL);
	rekey.epoch = a.epoch + 2;
	FAILS(ioctl(a.dev, SHOAL_LAN_REKEY, &rekey), EINVAL);
	rekey.epoch = a.epoch + 1;
	rekey.direction = 2;
	FAILS(ioctl(a.dev, SHOAL_LAN_REKEY, &rekey), EINVAL);
	rekey.direction = SHOAL_LAN_TX;
	WORKS(ioctl(a.dev, SHOAL_LAN_REKEY, &rekey));
	FAILS(ioctl(a.dev, SHOAL_LAN_REKEY, &rekey), EINVAL);
	rekey.direction = SHOAL_LAN_RX;
	rekey.epoch = a.epoch + 1;
	WORKS(ioctl(a.dev, SHOAL_LAN_REKEY, &rekey));
	for (i = 0; i < 64; i++) {
		id = (struct shoal_lan_id){ .rx_session = (good.rx_session & ~63ull) | i };
		WORKS(ioctl(a.dev, SHOAL_LAN_SESSION_DEL, &id));
		FAILS(ioctl(a.dev, SHOAL_LAN_SESSION_DEL, &id), ENOENT);
	}
	leave(&a);
	leave(&b);
}

/* ---- messages ---- */

static const u32 sizes[] = { 1, 2, 63, 64, 65, 1407, 1408, 1409, 2815, 2816, 2817, 4096, 16384, 65535, 65536, 262144 };
#define SIZES (sizeof(sizes) / sizeof(*sizes))

static void test_messages(int family)
{
	u32 i;

	/* Over the wrap of the message number: 0xfffffff0 and on. */
	pair(family, 1408, 0xffffffef);
	for (i = 0; i < 2 * SIZES; i++)
		deliver(&pair_end[i % 2], &pair_end[1 - i % 2], 0xfffffff0 + i, sizes[i / 2]);
	deliver(&pair_end[0], &pair_end[1], 0xfffffff0 + i, SLOT);
	NEED(counter(&pair_end[1], SHOAL_LAN_MESSAGES) == SIZES + 1);
	NEED(counter(&pair_end[1], SHOAL_LAN_FREE_SLOTS) == RX);
	NEED(counter(&pair_end[1], SHOAL_LAN_TRAINS) > 0 && counter(&pair_end[0], SHOAL_LAN_SENT_TRAINS) > 0);
	NEED(counter(&pair_end[1], SL_BAD_TAG) + counter(&pair_end[1], SL_BAD_SHAPE) == 0);
	unpair();
	pair(family, 64, 0);
	for (i = 1; i < 10; i++)
		deliver(&pair_end[0], &pair_end[1], i, i * 777);
	unpair();
	pair(family, 8896, 0);
	for (i = 1; i < 10; i++)
		deliver(&pair_end[0], &pair_end[1], i, i * 7777);
	unpair();
}

static void rekey(const struct end *e, u32 direction, u32 epoch, int key)
{
	struct shoal_lan_rekey r = { .rx_session = e->session, .epoch = epoch, .direction = direction };

	memset(r.key, key, 16);
	WORKS(ioctl(e->dev, SHOAL_LAN_REKEY, &r));
}

/* The epochs of the two directions are independent. */
static void test_rekey(void)
{
	struct end *a = &pair_end[0], *b = &pair_end[1];
	u32 step;

	pair(AF_INET, 1408, 0);
	for (step = 1; step < 8; step++) {
		deliver(a, b, 3 * step, 5000);
		deliver(b, a, 3 * step, 5000);
		rekey(b, SHOAL_LAN_RX, 3 + step, (int)step);
		/* The sender is an epoch behind. */
		deliver(a, b, 3 * step + 1, 5000);
		deliver(b, a, 3 * step + 1, 5000);
		rekey(a, SHOAL_LAN_TX, 3 + step, (int)step);
		/* A message that is sealed under the epoch before goes under it, again and again. */
		deliver(a, b, 3 * step + 2, 5000);
		a->tx_epoch++;
	}
	a->tx_epoch -= 2;
	FAILS(send_some(a, 200, 0, 100, NULL, 0, NULL), EKEYEXPIRED);
	a->tx_epoch += 3;
	FAILS(send_some(a, 200, 0, 100, NULL, 0, NULL), EKEYEXPIRED);
	a->tx_epoch--;
	NEED(counter(b, SL_BAD_EPOCH) == 0 && counter(a, SL_BAD_EPOCH) == 0);
	/* Two epochs behind is too far. */
	rekey(b, SHOAL_LAN_RX, 3 + step, 1);
	WORKS(send_some(a, 98, 0, 1408, NULL, 0, NULL));
	NEED(counter(b, SL_BAD_EPOCH) == 0);
	rekey(b, SHOAL_LAN_RX, 4 + step, 1);
	WORKS(send_some(a, 99, 0, 1408, NULL, 0, NULL));
	NEED(counter(b, SL_BAD_EPOCH) == 1);
	/* The right epoch under another key. */
	rekey(a, SHOAL_LAN_TX, 3 + step, 2);
	a->tx_epoch++;
	WORKS(send_some(a, 99, 0, 1408, NULL, 0, NULL));
	NEED(counter(b, SL_BAD_EPOCH) == 1 && counter(b, SL_BAD_TAG) == 1);
	unpair();
}

/* ---- datagrams by hand ---- */

static struct sl_header header_of(const struct end *to, u32 message, u32 total, u32 chunk)
{
	return (struct sl_header){
		.session = to->session, .message = message, .total = total, .epoch = to->epoch, .chunk = chunk,
		.chunks = (total + 1407) / 1408, .len = total - chunk * 1408 < 1408 ? total - chunk * 1408 : 1408,
		.version = SL_VERSION, .type = SL_DATA,
	};
}

static void raw_send_now(int sock, const struct end *to, const void *bytes, size_t len)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = to->at.sin6_port };

	memcpy(&v4.sin_addr, to->at.sin6_addr.s6_addr + 12, 4);
	if (sendto(sock, bytes, len, 0, (void *)&v4, sizeof(v4)) != (ssize_t)len)
		die("sendto");
}

static void raw_send(int sock, const struct end *to, const void *bytes, size_t len)
{
	raw_send_now(sock, to, bytes, len);
	settle();
}

/* Sends a datagram with a right tag, then the counter has grown by one and nothing is in the socket. */
static void raw_counts(int sock, const struct end *to, struct sl_header h, size_t len, u32 count, int line)
{
	u8 bytes[SL_HEADER + 2000] = {};
	u64 before = counter(to, count);

	sl_header_write(bytes, &h, to->key);
	raw_send(sock, to, bytes, SL_HEADER + len);
	need(counter(to, count) == before + 1, line, "the counter grows by one");
	need(recv(to->sock, bytes, sizeof(bytes), MSG_DONTWAIT) == -1 && errno == EAGAIN, line, "nothing in the socket");
}

static void test_forged(void)
{
	struct end *a = &pair_end[0], *b = &pair_end[1], stranger;
	struct shoal_lan_wait w;
	struct sl_header h;
	u8 bytes[SL_HEADER + 1408] = {};
	u32 bit;

	pair(AF_INET, 1408, 100);
	stranger = end_at(AF_INET, "127.0.0.1", home_ns, RX, SLOT);
	h = header_of(b, 101, 4000, 0);
#define COUNTS(changes, len, count) do { struct sl_header keep_ = h; changes; \
	raw_counts(a->sock, b, h, len, count, __LINE__); h = keep_; } while (0)
	raw_counts(stranger.sock, b, h, 1408, SL_BAD_SOURCE, __LINE__);
	COUNTS(h.total = 0, 1408, SL_BAD_SHAPE);
	COUNTS(h.total = 1, 1408, SL_BAD_SHAPE);
	COUNTS(h.total = 4225, 1408, SL_BAD_SHAPE);
	COUNTS(h.total = SLOT + 1, 1408, SL_BAD_SHAPE);
	COUNTS(h.total = SLOT + 1; h.chunks = (SLOT + 1408) / 1408, 1408, SL_BAD_SHAPE);
	COUNTS(h.total = 65537 * 1408u, 1408, SL_BAD_SHAPE);
	COUNTS(h.total = 0xffffffff, 1408, SL_BAD_SHAPE);
	COUNTS(h.chunks = 0, 1408, SL_BAD_SHAPE);
	COUNTS(h.chunks = 2, 1408, SL_BAD_SHAPE);
	COUNTS(h.chunks = 4, 1408, SL_BAD_SHAPE);
	COUNTS(h.chunks = 65535, 1408, SL_BAD_SHAPE);
	COUNTS(h.chunk = 2, 1408, SL_BAD_SHAPE);
	COUNTS(h.chunk = 3, 1408, SL_BAD_SHAPE);
	COUNTS(h.chunk = 65535, 1408, SL_BAD_SHAPE);
	COUNTS(h.len = 0, 1408, SL_BAD_SHAPE);
	COUNTS(h.len = 1407, 1408, SL_BAD_SHAPE);
	COUNTS(h.len = 1409, 1408, SL_BAD_SHAPE);
	COUNTS(h.len = 65535, 1408, SL_BAD_SHAPE);
	COUNTS(, 1407, SL_BAD_SHAPE);
	COUNTS(, 1409, SL_BAD_SHAPE);
	COUNTS(, 0, SL_BAD_SHAPE);
	COUNTS(h.len = 0, 0, SL_BAD_SHAPE);
	COUNTS(h.chunk = 2; h.len = 1184, 1183, SL_BAD_SHAPE);
	COUNTS(h.epoch = 2, 1408, SL_BAD_EPOCH);
	COUNTS(h.epoch = 4, 1408, SL_BAD_EPOCH);
	COUNTS(h.epoch = 0xffffffff, 1408, SL_BAD_EPOCH);
	COUNTS(h.message = 100, 1408, SL_SEEN);
	COUNTS(h.message = 37, 1408, SL_SEEN);
	COUNTS(h.message = 36, 1408, SL_TOO_OLD);
	COUNTS(h.message = 101 + 0x80000000u, 1408, SL_TOO_OLD);
	NEED(counter(b, SL_STORED) == 0 && counter(b, SHOAL_LAN_FREE_SLOTS) == RX);
	/* Every bit of the header: magic and version make it foreign, the session another's, the rest is refused. */
	for (bit = 0; bit < SL_HEADER * 8; bit++) {
		sl_header_write(bytes, &h, b->key);
		bytes[bit / 8] ^= 1u << bit % 8;
		raw_send(a->sock, b, bytes, sizeof(bytes));
		NEED(counter(b, SL_STORED) == 0);
	}
	NEED(counter(b, SHOAL_LAN_FREE_SLOTS) == RX);
	NEED(counter(b, SL_FOREIGN) == 32 && counter(b, SL_OTHER) == 8 + 8 + 64);
	for (bit = 0; bit < 32 + 8 + 8 + 64; bit++)
		NEED(recv(b->sock, bytes, sizeof(bytes), MSG_DONTWAIT) == (ssize_t)sizeof(bytes));
	NEED(recv(b->sock, bytes, sizeof(bytes), MSG_DONTWAIT) == -1);
	/* Then the truth, with repetition and contradiction in between. */
	COUNTS(, 1408, SL_STORED);
	COUNTS(, 1408, SL_DUPLICATE);
	COUNTS(h.total = 4001; h.chunk = 1, 1408, SL_DIFFERS);
	struct shoal_lan_rekey next = { .rx_session = b->session, .epoch = b->epoch + 1, .direction = SHOAL_LAN_RX };

	memcpy(next.key, b->key, 16);
	WORKS(ioctl(b->dev, SHOAL_LAN_REKEY, &next));
	COUNTS(h.epoch++; h.chunk = 1, 1408, SL_DIFFERS);
	COUNTS(h.chunk = 2; h.len = 1184, 1184, SL_STORED);
	FAILS(wait_for(b, 0, &w), EAGAIN);
	COUNTS(h.chunk = 1, 1408, SL_STORED);
	COUNTS(h.chunk = 1, 1408, SL_SEEN);
	WORKS(wait_for(b, 0, &w));
	NEED(w.count == 1 && w.events[0].bytes == 4000 && w.events[0].message == 101);
	WORKS(release(b, w.events[0].slot, w.events[0].generation));
	/* A session that has gone is foreign at once. */
	part(b);
	sl_header_write(bytes, &h, b->key);
	raw_send(a->sock, b, bytes, sizeof(bytes));
	NEED(recv(b->sock, bytes, sizeof(bytes), MSG_DONTWAIT) == (ssize_t)sizeof(bytes));
	leave(&stranger);
	unpair();
}

static void test_hops(void)
{
	struct end *a = &pair_end[0], *b = &pair_end[1];
	int hops = 255;

	pair(AF_INET, 1408, 0);
	WORKS(setsockopt(b->sock, IPPROTO_IP, IP_MINTTL, &hops, sizeof(hops)));
	raw_counts(a->sock, b, header_of(b, 1, 100, 0), 100, SHOAL_LAN_BAD_HOPS, __LINE__);
	WORKS(setsockopt(a->sock, IPPROTO_IP, IP_TTL, &hops, sizeof(hops)));
	raw_counts(a->sock, b, header_of(b, 1, 100, 0), 100, SL_STORED, __LINE__);
	unpair();
	pair(AF_INET6, 1408, 0);
	WORKS(setsockopt(b->sock, IPPROTO_IPV6, IPV6_MINHOPCOUNT, &hops, sizeof(hops)));
	WORKS(send_some(a, 1, 0, 1000, NULL, 0, NULL));
	NEED(counter(b, SHOAL_LAN_BAD_HOPS) == 1 && counter(b, SL_STORED) == 0);
	WORKS(setsockopt(a->sock, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &hops, sizeof(hops)));
	deliver(a, b, 1, 1000);
	unpair();
}

/* What is not data of a session arrives as if there were no module. */
static void test_foreign(void)
{
	struct end *a = &pair_end[0], *b = &pair_end[1];
	struct msghdr msg = {};
	struct iovec piece;
	union { struct cmsghdr head; u8 bytes[CMSG_SPACE(2)]; } control = {};
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	u8 out[3000], in[4000];
	struct sl_header h;
	u32 n, type;

	pair(AF_INET, 1408, 0);
	for (n = 0; n < 64; n++) {
		memset(out, (int)n, sizeof(out));
		raw_send(a->sock, b, out, n < 50 ? n : n * 40);
		NEED(recv(b->sock, in, sizeof(in), MSG_DONTWAIT) == (ssize_t)(n < 50 ? n : n * 40) &&
		     !memcmp(in, out, n < 50 ? n : n * 40));
	}
	for (type = 1; type < 8; type++) {
		h = header_of(b, 5, 100, 0);
		h.type = type;
		sl_header_write(out, &h, b->key);
		raw_send(a->sock, b, out, SL_HEADER + 8);
		NEED(recv(b->sock, in, sizeof(in), MSG_DONTWAIT) == SL_HEADER + 8 && !memcmp(in, out, SL_HEADER + 8));
	}
	h = header_of(b, 1, 100, 0);
	h.version = 2;
	sl_header_write(out, &h, b->key);
	raw_send(a->sock, b, out, SL_HEADER + 100);
	NEED(recv(b->sock, in, sizeof(in), MSG_DONTWAIT) == SL_HEADER + 100);
	NEED(counter(b, SL_STORED) == 0);
	/* A train of one datagram of data and one for the socket: the data is stored, the socket has the train. */
	h = header_of(b, 1, 100, 0);
	sl_header_write(out, &h, b->key);
	h.type = SL_PING;
	sl_header_write(out + SL_HEADER + 100, &h, b->key);
	v4.sin_port = b->at.sin6_port;
	memcpy(&v4.sin_addr, b->at.sin6_addr.s6_addr + 12, 4);
	msg.msg_name = &v4;
	msg.msg_namelen = sizeof(v4);
	piece = (struct iovec){ out, 2 * SL_HEADER + 108 };
	msg.msg_iov = &piece;
	msg.msg_iovlen = 1;
	control.head = (struct cmsghdr){ .cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(2) };
	*(uint16_t *)CMSG_DATA(&control.head) = SL_HEADER + 100;
	msg.msg_control = &control;
	msg.msg_controllen = sizeof(control);
	NEED(sendmsg(a->sock, &msg, 0) == 2 * SL_HEADER + 108);
	settle();
	NEED(recv(b->sock, in, sizeof(in), MSG_DONTWAIT) == 2 * SL_HEADER + 108);
	NEED(counter(b, SL_STORED) == 1 && counter(b, SHOAL_LAN_MIXED) == 1 && counter(b, SHOAL_LAN_MESSAGES) == 1);
	/* The device closed, data too is the socket's. */
	munmap(b->area, b->area_bytes);
	close(b->dev);
	h = header_of(b, 2, 100, 0);
	sl_header_write(out, &h, b->key);
	raw_send(a->sock, b, out, SL_HEADER + 100);
	NEED(recv(b->sock, in, sizeof(in), MSG_DONTWAIT) == SL_HEADER + 100);
	close(b->sock);
	leave(a);
}

/* ---- loss, full memory, waiting ---- */

static void test_loss(void)
{
	struct end *a = &pair_end[0], *b = &pair_end[1];
	struct shoal_lan_wait w;
	u32 n, rounds = 0, bytes, sent;
	u8 bitmap[256];

	pair(AF_INET, 1408, 0);
	parameter("drop_every", 7);
	for (n = 1; n <= 20; n++) {
		bytes = n % 4 ? 65536 : SLOT;
		fill(a, 0, SLOT, bytes, n);
		WORKS(send_some(a, n, 0, bytes, NULL, 0, &sent));
		while (wait_for(b, 0, &w)) {
			struct shoal_lan_missing m = {
				.rx_session = b->session, .message = n, .bitmap = (u64)(uintptr_t)bitmap,
				.bitmap_bytes = sizeof(bitmap),
			};
			u32 bits = 0, i;

			if (errno != EAGAIN || ioctl(b->dev, SHOAL_LAN_MISSING, &m) || ++rounds > 1000)
				die("resending");
			/* Every datagram of a short message may be lost. */
			for (i = 0; m.known == 1 && i < m.chunks; i++)
				bits += bitmap[i / 8] >> (i % 8) & 1;
			if (m.known == 1)
				NEED(m.chunks == (bytes + 1407) / 1408 && bits > 0 && bits < m.chunks);
			WORKS(send_some(a, n, 0, bytes, m.known == 1 ? bitmap : NULL, 0, &sent));
			NEED(m.known != 1 || sent == bits);
		}
		NEED(w.count == 1 && w.events[0].message == n && w.events[0].bytes == bytes &&
		     filled(b->area + (u64)w.events[0].slot * SLOT, bytes, n));
		WORKS(release(b, w.events[0].slot, w.events[0].generation));
	}
	NEED(rounds >= 20 && counter(b, SHOAL_LAN_DROPPED) > 300 && counter(b, SL_DUPLICATE) == 0);
	printf("loss: 20 messages, %u rounds of resending, %llu dropped\n", rounds,
	       (unsigned long long)counter(b, SHOAL_LAN_DROPPED));
	parameter("drop_every", 0);
	/* What is told of a message that is complete, or unknown, or longer than the answer has room for. */
	struct shoal_lan_missing m = { .rx_session = b->session, .message = 20 };

	WORKS(ioctl(b->dev, SHOAL_LAN_MISSING, &m));
	NEED(m.known == 2 && m.chunks == 0);
	m.message = 21;
	WORKS(ioctl(b->dev, SHOAL_LAN_MISSING, &m));
	NEED(m.known == 0 && m.chunks == 0);
	memset(bitmap, 0, sizeof(bitmap));
	bitmap[0] = 0x82;
	WORKS(send_some(a, 21, 0, 65536, bitmap, 0, &sent));
	NEED(sent == 2);
	FAILS(ioctl(b->dev, SHOAL_LAN_MISSING, &m), ENOSPC);
	NEED(m.known == 1 && m.chunks == 47);
	m.bitmap_bytes = 6;
	m.bitmap = 8;
	FAILS(ioctl(b->dev, SHOAL_LAN_MISSING, &m), EFAULT);
	m.bitmap = (u64)(uintptr_t)bitmap;
	WORKS(ioctl(b->dev, SHOAL_LAN_MISSING, &m));
	NEED(bitmap[0] == 0x7d && bitmap[1] == 0xff && bitmap[5] == 0x7f && bitmap[6] == 0);
	/* It came another way: the number is used up, the slot is free. */
	struct shoal_lan_id id = { .rx_session = b->session, .message = 21 };

	NEED(counter(b, SHOAL_LAN_FREE_SLOTS) == RX - 1);
	WORKS(ioctl(b->dev, SHOAL_LAN_FORGET, &id));
	NEED(counter(b, SHOAL_LAN_FREE_SLOTS) == RX);
	WORKS(send_some(a, 21, 0, 65536, NULL, 0, &sent));
	NEED(sent == 47 && counter(b, SL_SEEN) == 47);
	m.rx_session++;
	FAILS(ioctl(b->dev, SHOAL_LAN_MISSING, &m), ENOENT);
	unpair();
}

static void test_full(void)
{
	struct end *a = &pair_end[0], *b = &pair_end[1], c;
	struct shoal_lan_session s;
	struct shoal_lan_wait w, rest;
	u8 first = 1;
	u32 n;

	pair(AF_INET, 1408, 0);
	c = end_at(AF_INET, "127.0.0.1", home_ns, RX, SLOT);
	/* The quota is four: complete, unread, read and not released count alike. */
	for (n = 1; n <= 5; n++)
		WORKS(send_some(a, n, 0, 100, NULL, 0, NULL));
	NEED(counter(b, SHOAL_LAN_MESSAGES) == 4 && counter(b, SL_QUOTA) == 1);
	WORKS(wait_for(b, 0, &w));
	NEED(w.count == 4);
	for (n = 0; n < w.count; n++)
		NEED(w.events[n].message == n + 1);
	WORKS(send_some(a, 5, 0, 100, NULL, 0, NULL));
	NEED(counter(b, SL_QUOTA) == 2);
	/* Another session still has room, until all eight slots are taken. */
	s = session_for(&c, b, 1408, 0);
	WORKS(ioctl(c.dev, SHOAL_LAN_SESSION_ADD, &s));
	struct end b2 = *b;

	b2.session++;
	s = session_for(&b2, &c, 1408, 0);
	s.quota = RX;
	WORKS(ioctl(b->dev, SHOAL_LAN_SESSION_ADD, &s));
	struct sl_header h = header_of(&b2, 1, 100, 0);

	for (n = 1; n <= 4; n++, h.message++)
		raw_counts(c.sock, &b2, h, 100, SL_STORED, __LINE__);
	raw_counts(c.sock, &b2, h, 100, SL_NO_SLOT, __LINE__);
	NEED(counter(b, SHOAL_LAN_FREE_SLOTS) == 0);
	for (n = 0; n < w.count; n++)
		WORKS(release(b, w.events[n].slot, w.events[n].generation));
	raw_counts(c.sock, &b2, h, 100, SL_STORED, __LINE__);
	deliver_rest:
	while (!wait_for(b, 0, &rest))
		for (n = 0; n < rest.count; n++)
			WORKS(release(b, rest.events[n].slot, rest.events[n].generation));
	NEED(counter(b, SHOAL_LAN_FREE_SLOTS) == RX);
	if (first == 2)
		goto done;
	/* Four half-filled messages, the fifth is refused; two seconds later they give way. */
	u64 began = now_ns();

	for (n = 10; n < 14; n++)
		WORKS(send_some(a, n, 0, 5000, &first, 0, NULL));
	NEED(counter(b, SHOAL_LAN_FREE_SLOTS) == RX - 4);
	WORKS(send_some(a, 14, 0, 5000, &first, 0, NULL));
	/* Unless this machine was held up for so long. */
	if (now_ns() - began < 1900000000ull)
		NEED(counter(b, SL_OPEN_LIMIT) == 1 && counter(b, SHOAL_LAN_RECLAIMED) == 0);
	usleep(2100000);
	fill(a, 0, SLOT, 5000, 14);
	WORKS(send_some(a, 14, 0, 5000, NULL, 0, NULL));
	NEED(counter(b, SHOAL_LAN_RECLAIMED) >= 4);
	first = 2;
	goto deliver_rest;
done:
	/* A session that goes gives back what is half filled; what is complete can still be read and released. */
	first = 1;
	WORKS(send_some(a, 20, 0, 100, NULL, 0, NULL));
	WORKS(send_some(a, 21, 0, 5000, &first, 0, NULL));
	NEED(counter(b, SHOAL_LAN_FREE_SLOTS) == RX - 2);
	part(b);
	NEED(counter(b, SHOAL_LAN_FREE_SLOTS) == RX - 1);
	WORKS(wait_for(b, 0, &w));
	NEED(w.count == 1 && w.events[0].message == 20);
	WORKS(release(b, w.events[0].slot, w.events[0].generation));
	NEED(counter(b, SHOAL_LAN_FREE_SLOTS) == RX);
	FAILS(release(b, RX, 0), ESTALE);
	FAILS(release(b, 0xffffffff, 0), ESTALE);
	leave(&c);
	unpair();
}

static void on_alarm(int number)
{
	(void)number;
}

static void *send_later(void *arg)
{
	struct end *a = arg;
	struct shoal_lan_send s = { .rx_session = a->session, .message = 9, .bytes = 3000, .epoch = a->tx_epoch };

	run_on(-1);
	usleep(20000);
	fill(a, 0, SLOT, 3000, 9);
	ioctl(a->dev, SHOAL_LAN_SEND, &s);
	return NULL;
}

static void test_wait(void)
{
	struct end *a = &pair_end[0], *b = &pair_end[1];
	struct sigaction action = { .sa_handler = on_alarm };
	struct timeval soon = { 0, 30000 };
	struct itimerval timer = { .it_value = soon };
	struct pollfd p;
	struct shoal_lan_wait w = {};
	pthread_t thread;
	u64 before;
	u32 n;

	pair(AF_INET, 1408, 0);
	p = (struct pollfd){ .fd = b->dev, .events = POLLIN };
	FAILS(wait_for(b, 0, &w), EAGAIN);
	before = now_ns();
	FAILS(wait_for(b, 30, &w), ETIMEDOUT);
	NEED(now_ns() > before);
	FAILS(wait_for(b, SHOAL_LAN_TIMEOUT_MAX_MS + 1, &w), EINVAL);
	w = (struct shoal_lan_wait){ .spin_us = SHOAL_LAN_SPIN_MAX_US + 1 };
	FAILS(ioctl(b->dev, SHOAL_LAN_WAIT, &w), EINVAL);
	w = (struct shoal_lan_wait){ .reserved = 1 };
	FAILS(ioctl(b->dev, SHOAL_LAN_WAIT, &w), EINVAL);
	w = (struct shoal_lan_wait){ .spin_us = 100 };
	FAILS(ioctl(b->dev, SHOAL_LAN_WAIT, &w), EAGAIN);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	FAILS(wait_for(b, 50000, &w), EINTR);
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	FAILS(wait_for(b, 50000, &w), EINTR);
	NEED(poll(&p, 1, 0) == 0);
	/* A sleeper is woken by the message, not by its datagrams. */
	for (n = 0; n < 2; n++) {
		struct end *to = b;
		u64 wakes = counter(to, SHOAL_LAN_WAKES);

		part(a);
		part(b);
		meet(a, b, 1408, 0);
		pthread_create(&thread, NULL, send_later, a);
		if (n)
			NEED(poll(&p, 1, 50000) == 1 && p.revents == POLLIN);
		WORKS(wait_for(to, 50000, &w));
		pthread_join(thread, NULL);
		NEED(w.count == 1 && w.events[0].message == 9);
		NEED(filled(to->area + (u64)w.events[0].slot * SLOT, 3000, 9));
		NEED(counter(to, SHOAL_LAN_WAKES) <= wakes + 1);
		WORKS(release(to, w.events[0].slot, w.events[0].generation));
	}
	/* An answer that cannot be written takes nothing. */
	u8 *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (n = 10; n < 13; n++)
		WORKS(send_some(a, n, 0, n, NULL, 0, NULL));
	memset(page, 0, 4096);
	mprotect(page, 4096, PROT_READ);
	FAILS(ioctl(b->dev, SHOAL_LAN_WAIT, page), EFAULT);
	NEED(poll(&p, 1, 0) == 1);
	WORKS(wait_for(b, 0, &w));
	NEED(w.count == 3);
	for (n = 0; n < 3; n++)
		NEED(w.events[n].message == 10 + n && w.events[n].bytes == 10 + n);
	NEED(poll(&p, 1, 0) == 0);
	unpair();
}

/* ---- races ---- */

static volatile bool flooding;
static struct end flood_from, flood_to;
static volatile u32 flood_epoch;

static void *flood(void *arg)
{
	u8 bytes[SL_HEADER + 1408] = {};
	struct sl_header h = header_of(&flood_to, 1, 1408 * 40, 0);

	(void)arg;
	/* Not where the test runs: there, no datagram is under way while a session ends. */
	run_on(1);
	while (flooding) {
		h.message = 1 + rand() % 1000;
		h.chunk = rand() % 40;
		h.epoch = flood_epoch;
		sl_header_write(bytes, &h, flood_to.key);
		raw_send_now(flood_from.sock, &flood_to, bytes, sizeof(bytes));
	}
	return NULL;
}

static void test_races(void)
{
	struct shoal_lan_setup setup = { .abi = SHOAL_LAN_ABI, .rx_slots = RX, .tx_slots = 1, .slot_bytes = 65536 };
	struct shoal_lan_session s;
	pthread_t thread;
	u64 stored = 0;
	u32 n, step;

	flood_from = end_at(AF_INET, "127.0.0.1", home_ns, RX, SLOT);
	flood_to = end_at(AF_INET, "127.0.0.1", home_ns, RX, SLOT);
	munmap(flood_to.area, flood_to.area_bytes);
	close(flood_to.dev);
	parameter("rx_delay_us", 200);
	flood_epoch = flood_to.epoch;
	flooding = true;
	pthread_create(&thread, NULL, flood, NULL);
	/* Attached and closed under the flood. */
	for (n = 0; n < 60; n++) {
		struct shoal_lan_setup fresh = setup;

		flood_to.dev = open(DEVICE, O_RDWR);
		NEED(!ioctl(flood_to.dev, SHOAL_LAN_SETUP, &fresh) && !ATTACH(flood_to.dev, flood_to.sock, 0));
		s = session_for(&flood_to, &flood_from, 1408, 0);
		s.quota = RX;
		WORKS(ioctl(flood_to.dev, SHOAL_LAN_SESSION_ADD, &s));
		GROWS(&flood_to, SL_STORED, 1);
		usleep(n * 100);
		stored += counter(&flood_to, SL_STORED);
		close(flood_to.dev);
	}
	printf("race: 60 times attached and closed under a flood, %llu chunks stored\n", (unsigned long long)stored);
	NEED(stored >= 60);
	/* Sessions and keys that come and go under the flood. */
	flood_to.dev = open(DEVICE, O_RDWR);
	setup.area_bytes = setup.tx_offset = 0;
	NEED(!ioctl(flood_to.dev, SHOAL_LAN_SETUP, &setup) && !ATTACH(flood_to.dev, flood_to.sock, 0));
	for (n = 0; n < 20; n++) {
		struct shoal_lan_rekey rekey = { .rx_session = flood_to.session };

		flood_epoch = flood_to.epoch;
		s = session_for(&flood_to, &flood_from, 1408, 0);
		WORKS(ioctl(flood_to.dev, SHOAL_LAN_SESSION_ADD, &s));
		usleep(2000);
		for (step = 1; step <= 20; step++) {
			/* One key for all epochs: whichever a datagram meets is right as long as its memory is. */
			memcpy(rekey.key, flood_to.key, SL_KEY);
			rekey.epoch = flood_to.epoch + step;
			WORKS(ioctl(flood_to.dev, SHOAL_LAN_REKEY, &rekey));
			flood_epoch = rekey.epoch;
			usleep(300);
		}
		part(&flood_to);
		/* Long enough for a receiver that still has the session to go on, before its memory is used again. */
		usleep(1000);
	}
	/* Sessions that end under it, at each step of a datagram. */
	for (n = 0; n < 60; n++) {
		flood_epoch = flood_to.epoch;
		s = session_for(&flood_to, &flood_from, 1408, 0);
		WORKS(ioctl(flood_to.dev, SHOAL_LAN_SESSION_ADD, &s));
		usleep(1000 + n * 10);
		part(&flood_to);
		usleep(1000);
	}
	/* The keys of the time were right, whichever a datagram met. */
	NEED(counter(&flood_to, SL_BAD_TAG) == 0);
	NEED(counter(&flood_to, SHOAL_LAN_FREE_SLOTS) == RX);
	flooding = false;
	pthread_join(thread, NULL);
	parameter("rx_delay_us", 0);
	close(flood_to.dev);
	close(flood_to.sock);
	leave(&flood_from);
}

/* A process that is killed while it sends leaves nothing behind. */
static void test_kill(void)
{
	int status;
	u32 n;

	for (n = 0; n < 8; n++) {
		int ready[2];
		u8 go = 0;
		pid_t child;

		if (pipe(ready))
			die("pipe");
		child = fork();
		if (!child) {
			pair(AF_INET, 1408, 0);
			for (u32 m = 1;; m++) {
				send_some(&pair_end[0], m, 0, SLOT, NULL, 0, NULL);
				if (m == 2 && write(ready[1], &go, 1) < 1)
					_exit(1);
			}
		}
		NEED(read(ready[0], &go, 1) == 1);
		usleep(n * 1500);
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		NEED(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		close(ready[0]);
		close(ready[1]);
	}
}

static void test_rmmod(void)
{
	int dev = open(DEVICE, O_RDWR);

	FAILS(syscall(SYS_delete_module, "shoal_lan", O_NONBLOCK), EAGAIN);
	close(dev);
	pair(AF_INET, 1408, 0);
	close(pair_end[1].sock); /* the device keeps it */
	FAILS(syscall(SYS_delete_module, "shoal_lan", O_NONBLOCK), EAGAIN);
	deliver(&pair_end[0], &pair_end[1], 1, 5000);
	close(pair_end[1].dev); /* the mapping keeps the file */
	FAILS(syscall(SYS_delete_module, "shoal_lan", O_NONBLOCK), EAGAIN);
	NEED(pair_end[1].area[0] == (u8)31);
	munmap(pair_end[1].area, pair_end[1].area_bytes);
	leave(&pair_end[0]);
}

/* ---- namespaces ---- */

static void set_checksums(bool on)
{
	struct ethtool_value value = { .cmd = ETHTOOL_STXCSUM, .data = on };
	struct ifreq request = { .ifr_name = "va", .ifr_data = (void *)&value };
	int sock = socket(AF_INET, SOCK_DGRAM, 0);

	WORKS(ioctl(sock, SIOCETHTOOL, &request));
	close(sock);
}

static void test_namespaces(void)
{
	static const char *here[] = { "10.0.0.1", "fd00::1" }, *there[] = { "10.0.0.2", "fd00::2" };
	struct end a, b;
	u32 n, i, message;

	for (n = 0; n < 2; n++) {
		a = end_at(n ? AF_INET6 : AF_INET, here[n], home_ns, RX, SLOT);
		b = end_at(n ? AF_INET6 : AF_INET, there[n], other_ns, RX, SLOT);
		meet(&a, &b, 1408, 0);
		message = 1;
		for (i = 0; i < SIZES; i++, message++) {
			deliver(&a, &b, message, sizes[i]);
			deliver(&b, &a, message, sizes[i]);
		}
		/* A device that cannot split trains, nor make checksums. */
		NEED(counter(&a, SHOAL_LAN_NO_GSO) == 0);
		set_checksums(false);
		for (i = 0; i < SIZES; i++, message++)
			deliver(&a, &b, message, sizes[i]);
		NEED(counter(&a, SHOAL_LAN_NO_GSO) == 1);
		set_checksums(true);
		NEED(counter(&b, SHOAL_LAN_BAD_SUM) == 0);
		leave(&a);
		leave(&b);
	}
	/* A dual-stack socket with a peer of IPv4. */
	a = end_at(AF_INET6, "::", home_ns, RX, SLOT);
	b = end_at(AF_INET, "10.0.0.2", other_ns, RX, SLOT);
	inet_pton(AF_INET6, "::ffff:10.0.0.1", &a.at.sin6_addr);
	meet(&a, &b, 1408, 0);
	for (i = 0; i < SIZES; i++) {
		deliver(&a, &b, i + 1, sizes[i]);
		deliver(&b, &a, i + 1, sizes[i]);
	}
	leave(&a);
	leave(&b);
}

/* A neighbor without the key sends as fast as it can; honest messages arrive. */
static void test_neighbor(void)
{
	struct end *a = &pair_end[0], *b = &pair_end[1];
	pthread_t thread;
	u32 n;

	pair(AF_INET, 1408, 0);
	flood_from = end_at(AF_INET, "127.0.0.1", home_ns, RX, SLOT);
	flood_to = *b;
	flood_to.key[3] ^= 1;
	flood_epoch = flood_to.epoch;
	flooding = true;
	pthread_create(&thread, NULL, flood, NULL);
	for (n = 1; n <= 20; n++)
		deliver(a, b, n, n * 3000);
	GROWS(b, SL_BAD_SOURCE, 1);
	flooding = false;
	pthread_join(thread, NULL);
	NEED(counter(b, SL_BAD_SOURCE) > 0 && counter(b, SHOAL_LAN_FREE_SLOTS) == RX);
	leave(&flood_from);
	/* One that has the address too is stopped by the tag. */
	flood_from = *a;
	flooding = true;
	pthread_create(&thread, NULL, flood, NULL);
	for (; n <= 40; n++)
		deliver(a, b, n, n * 3000);
	GROWS(b, SL_BAD_TAG, 1);
	flooding = false;
	pthread_join(thread, NULL);
	NEED(counter(b, SL_BAD_TAG) > 0 && counter(b, SHOAL_LAN_FREE_SLOTS) == RX);
	unpair();
}

/* ---- cost: in a virtual machine that counts a nanosecond an instruction ---- */

static int compare(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

static void print_cost(const char *what, u32 bytes, u64 *took)
{
	qsort(took, 200, sizeof(*took), compare);
	printf("COST %u bytes over %s: %llu instructions\n", bytes, what, (unsigned long long)took[100]);
}

static void cost(u32 bytes)
{
	struct end *a = &pair_end[0], *b = &pair_end[1];
	struct shoal_lan_wait w;
	u64 took[200], before;
	u32 n;

	pair(AF_INET, 1408, 0);
	fill(a, 0, SLOT, bytes, 1);
	for (n = 0; n < 200; n++) {
		struct shoal_lan_send s = {
			.rx_session = a->session, .message = n + 1, .bytes = bytes, .epoch = a->tx_epoch,
		};

		before = now_ns();
		if (ioctl(a->dev, SHOAL_LAN_SEND, &s) || wait_for(b, 0, &w))
			die("cost");
		took[n] = now_ns() - before;
		if (!filled(b->area + (u64)w.events[0].slot * SLOT, bytes, 1))
			die("content");
		release(b, w.events[0].slot, w.events[0].generation);
	}
	print_cost("the module", bytes, took);
	unpair();
}

/* The same bytes over what there is without the module. */
static void cost_sockets(u32 bytes, bool trains)
{
	static u8 out[1 << 17], in[1 << 17];
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int one = 1, segment = 1448, type = trains ? SOCK_DGRAM : SOCK_STREAM;
	int to = socket(AF_INET, type, 0), from = socket(AF_INET, type, 0), end = to;
	socklen_t len = sizeof(at);
	u64 took[200], before;
	u32 n, have;

	if (bind(to, (void *)&at, len) || getsockname(to, (void *)&at, &len) || (!trains && listen(to, 1)) ||
	    connect(from, (void *)&at, len))
		die("sockets");
	if (trains) {
		setsockopt(from, SOL_UDP, UDP_SEGMENT, &segment, sizeof(segment));
		setsockopt(to, SOL_UDP, UDP_GRO, &one, sizeof(one));
	} else {
		end = accept(to, NULL, NULL);
		setsockopt(from, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof(one));
	}
	for (n = 0; n < 200; n++) {
		before = now_ns();
		/* The longest datagram is shorter than 64 KiB. */
		for (have = 0; have < bytes; have += 32768)
			if (send(from, out, bytes - have < 32768 ? bytes - have : 32768, 0) < 1)
				die("send");
		for (have = 0; have < bytes;) {
			ssize_t got = recv(end, in, sizeof(in), 0);

			if (got < 1)
				die("recv");
			have += got;
		}
		took[n] = now_ns() - before;
	}
	print_cost(trains ? "UDP trains" : "TCP", bytes, took);
	close(end);
	close(from);
	close(to);
}

int main(int argc, char **argv)
{
	char path[64];
	u64 began = now_ns();

	setvbuf(stdout, NULL, _IOLBF, 0);
	run_on(0);
	home_ns = open("/proc/self/ns/net", O_RDONLY);
	if (argc == 2 && !strcmp(argv[1], "--datagram")) {
		struct end e = {};

		e.sock = socket_at(AF_INET, "127.0.0.1", home_ns, &e.at);
		raw_send(e.sock, &e, "a datagram as any, longer than a header of ours", 48);
		return recv(e.sock, path, sizeof(path), MSG_DONTWAIT) != 48;
	}
	if (argc == 2 && !strcmp(argv[1], "--cost")) {
		for (u32 bytes = 4096; bytes <= 65536; bytes *= 4) {
			cost(bytes);
			cost_sockets(bytes, false);
			cost_sockets(bytes, true);
		}
		return 0;
	}
	snprintf(path, sizeof(path), "/proc/%s/ns/net", argc > 1 ? argv[1] : "self");
	other_ns = open(path, O_RDONLY);
	if (home_ns < 0 || other_ns < 0)
		die(path);
#define RUN(test) do { u64 from_ = now_ns(); test; \
	printf("%-28s %6lu checks so far, %5llu ms\n", #test, passed, (unsigned long long)(now_ns() - from_) / 1000000); } while (0)
	RUN(test_abi());
	RUN(test_map());
	RUN(test_memory_limit());
	RUN(test_attach());
	RUN(test_sessions());
	RUN(test_messages(AF_INET));
	RUN(test_messages(AF_INET6));
	RUN(test_rekey());
	RUN(test_forged());
	RUN(test_hops());
	RUN(test_foreign());
	RUN(test_loss());
	RUN(test_full());
	RUN(test_wait());
	RUN(test_races());
	RUN(test_kill());
	RUN(test_rmmod());
	RUN(test_namespaces());
	RUN(test_neighbor());
	NEED(locked_kb() == 0);
	printf("VM-TEST %lu checks, %lu failed, %llu ms\n", passed, failed,
	       (unsigned long long)(now_ns() - began) / 1000000);
	return failed != 0;
}
