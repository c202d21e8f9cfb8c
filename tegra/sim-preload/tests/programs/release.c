/* A program without knowledge of the simulator: it sets up one channel, makes the GPU write a
 * semaphore, waits for it on an event fd, and tears everything down again. */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(what) do { if ((what) < 0) { perror(#what); exit(1); } } while (0)

struct buffer { uint32_t handle; int fd; volatile uint32_t *cpu; };

static struct buffer buffer(int nvmap, uint32_t bytes, uint32_t caching)
{
	struct buffer b;
	struct { uint32_t size, handle; } create = { bytes, 0 };
	struct { uint32_t handle, heap, flags, align; int32_t node; } alloc = { 0, 1u << 30, caching, 4096, 0 };
	struct { int32_t fd; uint32_t handle; } get = { 0, 0 };

	CHECK(ioctl(nvmap, 0xc0084e00, &create));
	b.handle = get.handle = alloc.handle = create.handle;
	CHECK(ioctl(nvmap, 0x40144e03, &alloc));
	CHECK(ioctl(nvmap, 0xc0084e0f, &get));
	b.fd = get.fd;
	b.cpu = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b.fd, 0);
	if (b.cpu == MAP_FAILED) { perror("mmap of a buffer"); exit(1); }
	memset((void *)b.cpu, 0, bytes);
	return b;
}

int main(void)
{
	int nvmap = open("/dev/nvmap", O_RDWR | O_SYNC | O_CLOEXEC);
	int ctrl = open("/dev/nvgpu/igpu0/ctrl", O_RDWR | O_CLOEXEC);
	CHECK(nvmap);
	CHECK(ctrl);

	struct { uint32_t big_page; int32_t fd; uint32_t flags, r; uint64_t start, end, split; uint32_t pad[6]; }
		space = { 0, 0, 2, 0, 0x200000, 0xff00000000, 0, { 0 } };
	CHECK(ioctl(ctrl, 0xc0404708, &space));
	for (int i = 0; i < 2; i++) {
		struct { uint64_t pages; uint32_t page_size, flags; uint64_t offset; uint32_t pad[2]; }
			window = { 0x40000, 4096, 1, i ? 0xfe00000000 : 0xfd00000000, { 0 } };
		CHECK(ioctl(space.fd, 0xc0204106, &window));
	}
	struct { int32_t fd; uint32_t flags; uint64_t device, token; } tsg = { 0 };
	CHECK(ioctl(ctrl, 0xc0184709, &tsg));
	struct { uint32_t type; int32_t space; uint32_t veid, r; } sub = { 1, space.fd, 0, 0 };
	CHECK(ioctl(tsg.fd, 0xc0105412, &sub));

	struct buffer ring = buffer(nvmap, 8192, 1), userd = buffer(nvmap, 4096, 1), work = buffer(nvmap, 65536, 2);
	int32_t channel = -1;
	CHECK(ioctl(ctrl, 0xc004470b, &channel));
	CHECK(ioctl(space.fd, 0xc0044101, &channel));
	struct { int32_t channel; uint32_t veid; uint8_t r[16]; } bind = { channel, sub.veid, { 0 } };
	CHECK(ioctl(tsg.fd, 0xc018540b, &bind));
	struct { uint32_t status, ms; } watchdog = { 1, 0 };
	CHECK(ioctl(channel, 0x40084877, &watchdog));
	struct { uint32_t entries, jobs, flags; int32_t userd, ring; uint32_t token; uint64_t v[5]; uint32_t r[9]; }
		setup = { 1024, 0, 0xa, userd.fd, ring.fd, 0, { 0 }, { 0 } };
	CHECK(ioctl(channel, 0xc0684880, &setup));
	struct { uint32_t class, flags; uint64_t id; } object = { 0xc7c0, 0, 0 };
	CHECK(ioctl(channel, 0xc010486c, &object));
	struct { uint32_t command, event; int32_t fd; uint32_t r; } event = { 1, 2, 0, 0 };
	CHECK(ioctl(tsg.fd, 0xc0105407, &event));

	struct { uint32_t flags; int16_t compressed, kind; uint32_t fd, page; uint64_t at, bytes, va; }
		map = { 0, -1, 0, (uint32_t)work.fd, 4096, 0, 0, 0 };
	CHECK(ioctl(space.fd, 0xc0284107, &map));

	volatile uint32_t *page = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, ctrl, 0);
	if (page == MAP_FAILED) { perror("mmap of the doorbell"); return 1; }
	if (mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, ctrl, 0) != MAP_FAILED) {
		fprintf(stderr, "a second doorbell page was given\n");
		return 1;
	}
	if (page[0] != 0xc461) { fprintf(stderr, "class %#x\n", page[0]); return 1; }

	for (uint32_t round = 1; round <= 3; round++) {
		uint64_t semaphore = map.va + 0x8000, body = map.va + 0x1000 * round;
		volatile uint32_t *words = work.cpu + 0x400 * round;
		words[0] = 0x20050017;
		words[1] = (uint32_t)semaphore;
		words[2] = (uint32_t)(semaphore >> 32);
		words[3] = round;
		words[4] = 0;
		words[5] = 0x03100001;
		words[6] = 0x20010008;
		words[7] = 0;
		uint64_t entry = body | (uint64_t)8 << 42 | (uint64_t)1 << 41;
		ring.cpu[2 * (round - 1)] = (uint32_t)entry;
		ring.cpu[2 * (round - 1) + 1] = (uint32_t)(entry >> 32);
		userd.cpu[0x8c / 4] = round;
		__sync_synchronize();
		page[0x90 / 4] = setup.token;

		volatile uint32_t *value = work.cpu + 0x8000 / 4;
		while (*value != round) {
			struct pollfd wait = { event.fd, POLLIN | POLLPRI, 0 };
			if (poll(&wait, 1, 30000) == 0) {
				fprintf(stderr, "round %u: no event in 30 s, semaphore %u\n", round, *value);
				return 1;
			}
		}
		uint64_t stamp;
		memcpy(&stamp, (void *)(value + 2), 8);
		if (stamp == 0 || stamp % 32) { fprintf(stderr, "timestamp %#lx\n", (long)stamp); return 1; }
	}
	uint64_t now = page[0x80 / 4] | (uint64_t)page[0x84 / 4] << 32;

	uint64_t va = map.va;
	munmap((void *)page, 65536);
	close(event.fd);
	close(channel);
	CHECK(ioctl(space.fd, 0xc0084105, &va));
	struct buffer all[] = { ring, userd, work };
	uint32_t bytes[] = { 8192, 4096, 65536 };
	for (int i = 0; i < 3; i++) {
		munmap((void *)all[i].cpu, bytes[i]);
		close(all[i].fd);
		CHECK(ioctl(nvmap, 0x00004e04, (unsigned long)all[i].handle));
	}
	close(tsg.fd);
	close(space.fd);
	close(ctrl);
	close(nvmap);
	printf("token %u, semaphore written three times, time %s\n", setup.token, now ? "runs" : "stands");
	return 0;
}
