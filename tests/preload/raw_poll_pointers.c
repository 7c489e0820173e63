/* ppoll(2) and pselect6(2) as system calls: read-only limits, and pointers to unmapped memory. */
#include "../c/check.h"
#include <sys/syscall.h>

static long raw_ppoll(void *fds, long count, void *limit, void *mask, long size)
{
	return syscall(SYS_ppoll, fds, count, limit, mask, size);
}

static long raw_pselect(long n, void *read, void *limit, void *mask)
{
	return syscall(SYS_pselect6, n, read, NULL, NULL, limit, mask);
}

int main(void)
{
	static const struct timespec constant = {0, 1000000};
	struct timespec *read_only = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct timespec limit = {0, 1000000};
	struct { void *mask; size_t size; } bad = {NULL, 7}, none = {NULL, 8}, wild = {nowhere(), 8},
		wild_size = {nowhere(), 4};
	int counter = eventfd(0, 0), ready = eventfd(1, 0), round;
	alarm(200);
	CHECK(counter >= 0 && ready >= 0 && read_only != MAP_FAILED);
	read_only->tv_nsec = 1000000;
	/* While it can be written, both calls do so. */
	{
		struct pollfd entry = {counter, POLLIN, 0};
		fd_set set;
		FD_ZERO(&set);
		FD_SET(counter, &set);
		CHECK(raw_ppoll(&entry, 1, read_only, NULL, 8) == 0 && read_only->tv_nsec == 0);
		read_only->tv_nsec = 1000000;
		CHECK(raw_pselect(counter + 1, &set, read_only, NULL) == 0 && read_only->tv_nsec == 0);
		read_only->tv_nsec = 1000000;
	}
	CHECK(mprotect(read_only, 4096, PROT_READ) == 0);
	for (round = 0; round < 2; round++) {
		/* An eventfd, then a kernel fd. */
		int fd = round ? socket(AF_UNIX, SOCK_DGRAM, 0) : counter;
		struct pollfd entry = {fd, POLLIN, 0};
		fd_set set;
		CHECK(raw_ppoll(&entry, 1, read_only, NULL, 8) == 0);
		CHECK(raw_ppoll(&entry, 1, (void *)&constant, NULL, 8) == 0);
		FAILS(raw_ppoll(&entry, 1, nowhere(), NULL, 8), EFAULT);
		FAILS(raw_ppoll(&entry, 1, &limit, nowhere(), 8), EFAULT);
		FAILS(raw_ppoll(&entry, 1, &limit, &bad, 7), EINVAL);
		FAILS(raw_ppoll(nowhere(), 1, &limit, NULL, 8), EFAULT);
		limit.tv_sec = 0, limit.tv_nsec = 1000000000;
		FAILS(raw_ppoll(&entry, 1, &limit, NULL, 8), EINVAL);
		limit.tv_sec = -1, limit.tv_nsec = 0;
		FAILS(raw_ppoll(&entry, 1, &limit, NULL, 8), EINVAL);
		limit.tv_sec = 0, limit.tv_nsec = 1000000;

		FD_ZERO(&set);
		FD_SET(fd, &set);
		CHECK(raw_pselect(fd + 1, &set, read_only, NULL) == 0);
		FD_SET(fd, &set);
		CHECK(raw_pselect(fd + 1, &set, read_only, &none) == 0);
		FD_SET(fd, &set);
		FAILS(raw_pselect(fd + 1, &set, &limit, nowhere()), EFAULT);
		FAILS(raw_pselect(fd + 1, &set, &limit, &wild), EFAULT);
		FAILS(raw_pselect(fd + 1, &set, &limit, &wild_size), EINVAL);
		/* Without a mask its size is not checked. */
		CHECK(raw_pselect(fd + 1, &set, &limit, &bad) == 0);
		limit.tv_sec = 0, limit.tv_nsec = 1000000;
		FD_SET(fd, &set);
		FAILS(raw_pselect(fd + 1, &set, nowhere(), NULL), EFAULT);
		FAILS(raw_pselect(fd + 1, nowhere(), &limit, NULL), EFAULT);
		FAILS(raw_pselect(-1, &set, &limit, NULL), EINVAL);
	}
	/* The remaining time is written if the memory is writable. A call that does not sleep ignores
	 * read-only memory. */
	{
		struct pollfd entry = {ready, POLLIN, 0};
		fd_set set;
		limit.tv_sec = 100, limit.tv_nsec = 0;
		CHECK(raw_ppoll(&entry, 1, &limit, NULL, 8) == 1);
		CHECK(limit.tv_sec < 100 && limit.tv_sec > 10);
		CHECK(raw_ppoll(&entry, 1, read_only, NULL, 8) == 1);
		FD_ZERO(&set);
		FD_SET(ready, &set);
		limit.tv_sec = 100, limit.tv_nsec = 0;
		CHECK(raw_pselect(ready + 1, &set, &limit, NULL) == 1);
		CHECK(limit.tv_sec < 100 && limit.tv_sec > 10);
	}
	return 0;
}
