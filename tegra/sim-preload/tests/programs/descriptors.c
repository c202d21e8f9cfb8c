// Counts the file descriptors of a program that allocates, maps, copies and frees buffers.
#define _GNU_SOURCE
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUFFERS = 200, MANY = 1500, BYTES = 8192, LIMIT = 64 };

static int nvmap;

// Open descriptors, without the one that lists them.
static int count(void) {
    DIR *directory = opendir("/proc/self/fd");
    int entries = 0;
    while (readdir(directory)) entries++;
    closedir(directory);
    return entries - 3;
}

static uint32_t create(void) {
    uint32_t made[2] = {BYTES, 0};
    assert(ioctl(nvmap, 0xc0084e00, made) == 0);
    uint32_t pages[5] = {made[1], 1u << 30, 1, 4096, 0};
    assert(ioctl(nvmap, 0x40144e03, pages) == 0);
    return made[1];
}

static int get_fd(uint32_t handle) {
    uint32_t words[2] = {0, handle};
    return ioctl(nvmap, 0xc0084e0f, words) == 0 ? (int)words[0] : -1;
}

static void destroy(uint32_t handle) { assert(ioctl(nvmap, 0x4e04, (unsigned long)handle) == 0); }

static uint32_t *map(int fd) {
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert(memory != MAP_FAILED);
    return memory;
}

// A copy of a descriptor, passed through a socket.
static int passed(int fd) {
    int pair[2];
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    char byte = 0, room[CMSG_SPACE(sizeof fd)];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    assert(sendmsg(pair[0], &message, 0) == 1 && recvmsg(pair[1], &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    close(pair[0]), close(pair[1]);
    return fd;
}

int main(void) {
    nvmap = open("/dev/nvmap", O_RDWR | O_CLOEXEC);
    destroy(create());
    const int before = count();

    static uint32_t handles[MANY];
    int fds[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) handles[i] = create();
    assert(count() == before && "a handle is no descriptor");
    for (int i = 0; i < BUFFERS; i++) {
        int lowest = dup(nvmap);
        close(lowest);
        fds[i] = get_fd(handles[i]);
        assert(fds[i] == lowest);
    }
    assert(count() == before + BUFFERS && "one for each GET_FD");

    struct stat first, again;
    assert(fstat(fds[0], &first) == 0 && first.st_size == BYTES && lseek(fds[0], 0, SEEK_END) == BYTES);
    uint32_t *one = map(fds[0]), *two = map(fds[0]);
    one[1024] = 7;
    int copy = dup(fds[0]), sent = passed(fds[0]);
    close(fds[0]);
    assert(count() == before + BUFFERS + 1);
    uint32_t from[2] = {sent, 0};
    assert(ioctl(nvmap, 0xc0084e10, from) == 0 && "a passed descriptor is the buffer's");
    destroy(from[1]);
    pid_t child = fork();
    if (child == 0) _exit(count() != before + BUFFERS + 1 || map(copy)[1024] != 7);
    int status = -1;
    assert(waitpid(child, &status, 0) == child && status == 0);
    close(copy), close(sent);
    assert(count() == before + BUFFERS - 1 && "none is kept for a buffer without any");
    fds[0] = get_fd(handles[0]);
    assert(fstat(fds[0], &again) == 0 && again.st_ino == first.st_ino && again.st_dev == first.st_dev);
    assert(map(fds[0])[1024] == 7 && two[1024] == 7 && one[0] == 0);

    // A buffer is freed with its handle, its descriptors and its mappings; others remain.
    for (int i = 0; i < BUFFERS; i++) close(fds[i]), destroy(handles[i]);
    assert(count() == before && one[1024] == 7 && get_fd(handles[0]) == -1);

    // Handles do not end with the descriptors.
    struct rlimit limit, low;
    assert(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = limit, low.rlim_cur = LIMIT;
    assert(setrlimit(RLIMIT_NOFILE, &low) == 0);
    for (int i = 0; i < MANY; i++) handles[i] = create();
    for (int i = 0; get_fd(handles[i]) >= 0; i++) assert(i < LIMIT);
    assert(errno == EMFILE && dup(nvmap) == -1);
    for (int fd = nvmap + 1; fd < LIMIT; fd++) {
        uint32_t given[2] = {fd, 0};
        if (ioctl(nvmap, 0xc0084e10, given) == 0) close(fd), destroy(given[1]);
    }
    for (int i = 0; i < MANY; i++) destroy(handles[i]);
    assert(count() == before);
    puts("as many descriptors as the driver gave");
    return 0;
}
