"""release.c in Python: nodes through os and fcntl, memory through mmap, the doorbell in four ways."""
import ctypes
import fcntl
import mmap
import os
import select
import struct
import subprocess


def ioctl(fd, request, layout, *values):
    buffer = bytearray(struct.pack(layout, *values))
    fcntl.ioctl(fd, request, buffer)
    return struct.unpack(layout, buffer)


def buffer(nvmap, size, caching):
    handle = ioctl(nvmap, 0xC0084E00, "<II", size, 0)[1]
    ioctl(nvmap, 0x40144E03, "<IIIIi", handle, 1 << 30, caching, 4096, 0)
    fd = ioctl(nvmap, 0xC0084E0F, "<iI", 0, handle)[0]
    memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[:] = bytes(size)
    return handle, fd, memory


nvmap = os.open("/dev/nvmap", os.O_RDWR | os.O_SYNC)
ctrl = os.open("/dev/nvgpu/igpu0/ctrl", os.O_RDWR)
space = ioctl(ctrl, 0xC0404708, "<IiIIQQQ24x", 0, 0, 2, 0, 0x200000, 0xFF00000000, 0)[1]
for window in (0xFD00000000, 0xFE00000000):
    ioctl(space, 0xC0204106, "<QIIQ8x", 0x40000, 4096, 1, window)
tsg = ioctl(ctrl, 0xC0184709, "<iIQQ", 0, 0, 0, 0)[0]
veid = ioctl(tsg, 0xC0105412, "<IiII", 1, space, 0, 0)[2]
ring, userd, work = buffer(nvmap, 8192, 1), buffer(nvmap, 4096, 1), buffer(nvmap, 65536, 2)
channel = ioctl(ctrl, 0xC004470B, "<i", -1)[0]
ioctl(space, 0xC0044101, "<i", channel)
ioctl(tsg, 0xC018540B, "<iI16x", channel, veid)
ioctl(channel, 0x40084877, "<II", 1, 0)
token = ioctl(channel, 0xC0684880, "<IIIiiI5Q36x", 1024, 0, 0xA, userd[1], ring[1], *[0] * 6)[5]
ioctl(channel, 0xC010486C, "<IIQ", 0xC7C0, 0, 0)
event = ioctl(tsg, 0xC0105407, "<IIiI", 1, 2, 0, 0)[2]
va = ioctl(space, 0xC0284107, "<IhhIIQQQ", 0, -1, 0, work[1], 4096, 0, 0, 0)[7]

page = mmap.mmap(ctrl, 0x10000, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
assert struct.unpack_from("<I", page, 0)[0] == 0xC461
words = (ctypes.c_uint32 * 0x4000).from_buffer(page)


def by_slice():
    page[0x90:0x94] = struct.pack("<I", token)


def by_view():
    memoryview(page).cast("I")[0x24] = token


def by_array():
    words[0x24] = token


def by_copy():
    ctypes.memmove(ctypes.addressof(words) + 0x90, struct.pack("<I", token), 4)


# A child that closes all inherited fds does not affect this process.
subprocess.run(["true"], check=True)

for number, ring_doorbell in enumerate((by_slice, by_view, by_array, by_copy), 1):
    semaphore, body = va + 0x8000, va + 0x1000 * number
    stream = (0x20050017, semaphore & 0xFFFFFFFF, semaphore >> 32, number, 0, 0x03100001, 0x20010008, 0)
    struct.pack_into("<8I", work[2], 0x1000 * number, *stream)
    struct.pack_into("<Q", ring[2], 8 * (number - 1), body | 8 << 42 | 1 << 41)
    struct.pack_into("<I", userd[2], 0x8C, number)
    ring_doorbell()
    while struct.unpack_from("<Q", work[2], 0x8000)[0] != number:
        assert select.select([event], [], [], 30)[0], f"{ring_doorbell.__name__}: no event in 30 s"

libc = ctypes.CDLL("libc.so.6", use_errno=True)
assert libc.ioctl(ctrl, 0xDEAD4701, 0) == -1, "a lookup in libc's handle is simulated too"
del words
page.close()
print(f"token {token}, semaphore written four times")
