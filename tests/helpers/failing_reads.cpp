// A disk that fails: preloaded into a process, it makes reads of one file fail from an offset on.
//
// FAILING_FILE is the file's real path and FAILING_FROM the offset. With FAILING_HOW=truncate the
// file is cut off there by the first read that would go beyond it; else such reads fail with EIO.
// A read that begins before the offset ends there, as one that meets a bad sector does.

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

const char *const file = getenv("FAILING_FILE");
const off64_t from = getenv("FAILING_FROM") ? atoll(getenv("FAILING_FROM")) : 0;
const bool truncates = getenv("FAILING_HOW") && !strcmp(getenv("FAILING_HOW"), "truncate");

bool is_the_file(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (!file || size < 0) return false;
  path[size] = 0;
  return !strcmp(path, file);
}

// How many of `size` bytes at `offset` may be read; -1 if none, with errno.
ssize_t allowed(int fd, size_t size, off64_t offset) {
  off64_t end = offset + static_cast<off64_t>(size);
  if (end <= from || !is_the_file(fd)) return static_cast<ssize_t>(size);
  if (truncates) {
    if (truncate64(file, from)) perror(file);
    return static_cast<ssize_t>(size);
  }
  if (offset < from) return static_cast<ssize_t>(from - offset);
  errno = EIO;
  return -1;
}

ssize_t read_at(int fd, void *data, size_t size, off64_t offset) {
  static auto real = reinterpret_cast<ssize_t (*)(int, void *, size_t, off64_t)>(
      dlsym(RTLD_NEXT, "pread64"));
  ssize_t wanted = allowed(fd, size, offset);
  return wanted < 0 ? -1 : real(fd, data, static_cast<size_t>(wanted), offset);
}

// Fills the first buffers only, as a read may that ends early.
ssize_t read_parts_at(int fd, const iovec *parts, int count, off64_t offset) {
  ssize_t total = 0;
  for (int i = 0; i < count; i++) {
    ssize_t got = read_at(fd, parts[i].iov_base, parts[i].iov_len, offset + total);
    if (got < 0) return total ? total : -1;
    total += got;
    if (static_cast<size_t>(got) < parts[i].iov_len) break;
  }
  return total;
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void *data, size_t size, off_t offset) {
  return read_at(fd, data, size, offset);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset) {
  return read_at(fd, data, size, offset);
}

ssize_t preadv(int fd, const iovec *parts, int count, off_t offset) {
  return read_parts_at(fd, parts, count, offset);
}

ssize_t preadv64(int fd, const iovec *parts, int count, off64_t offset) {
  return read_parts_at(fd, parts, count, offset);
}

ssize_t preadv2(int fd, const iovec *parts, int count, off_t offset, int) {
  return read_parts_at(fd, parts, count, offset);
}

ssize_t preadv64v2(int fd, const iovec *parts, int count, off64_t offset, int) {
  return read_parts_at(fd, parts, count, offset);
}

ssize_t read(int fd, void *data, size_t size) {
  static auto real =
      reinterpret_cast<ssize_t (*)(int, void *, size_t)>(dlsym(RTLD_NEXT, "read"));
  if (!file || !is_the_file(fd)) return real(fd, data, size);
  ssize_t wanted = allowed(fd, size, lseek64(fd, 0, SEEK_CUR));
  return wanted < 0 ? -1 : real(fd, data, static_cast<size_t>(wanted));
}
}
