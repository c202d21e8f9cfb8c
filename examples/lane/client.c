// A client of the control loop `policy`. Its shared memory has the observation (12 numbers) at byte
// 64 and the action (4 numbers) at byte 128: cc -O2 client.c -o client && ./client SOCKET LANE
// [STEPS]
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

int main(int argc, char** argv) {
    if (argc < 3) return fprintf(stderr, "usage: %s SOCKET LANE [STEPS]\n", argv[0]), 2;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
    int server = socket(AF_UNIX, SOCK_STREAM, 0), fds[3];
    if (connect(server, (struct sockaddr*)&address, sizeof address)) return perror(argv[1]), 1;
    dprintf(server, "%s\n", argv[2]);

    char line[65536] = "", control[CMSG_SPACE(sizeof fds)];
    struct iovec part = {line, sizeof line - 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(server, &message, 0) <= 0 || !CMSG_FIRSTHDR(&message)) return fputs(line, stderr), 1;
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fds);
    char* memory = mmap(NULL, lseek(fds[0], 0, SEEK_END), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (memory == MAP_FAILED) return perror("mmap"), 1;
    float *observation = (float*)(memory + 64), *action = (float*)(memory + 128);

    uint64_t due = now(), worst = 0, one = 1;
    for (int step = 0, steps = argc > 3 ? atoi(argv[3]) : 1000; step < steps; step++, due += 1000000) {
        while (now() < due) usleep((due - now()) / 1000 + 1);
        observation[0] = (float)step / steps;
        uint64_t began = *(volatile uint64_t*)memory = now();
        if (write(fds[1], &one, 8) != 8 || read(fds[2], &one, 8) != 8) return perror("lane"), 1;
        one = 1;
        if (now() - began > worst) worst = now() - began;
    }
    printf("action %g %g %g %g, worst %llu us\n", action[0], action[1], action[2], action[3], (unsigned long long)worst / 1000);
}
