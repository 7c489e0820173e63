/* Fds: the lowest free one is used, and dup2(2) accepts any two fds. */
#include "check.h"

int main(void)
{
	char byte = 0;
	uint64_t value;
	int fds[2], socks[2], fd, kernel, base, at;
	CHECK(close_range(3, ~0U, 0) == 0);
	kernel = open("/dev/zero", O_RDONLY);
	base = dup(0);
	CHECK(close(base) == 0);
	CHECK(eventfd(0, 0) == base);
	CHECK(epoll_create1(0) == base + 1);
	CHECK(pipe(fds) == 0 && fds[0] == base + 2 && fds[1] == base + 3);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, socks) == 0 && socks[1] == base + 5);
	CHECK(close(base + 1) == 0);
	CHECK(dup(base) == base + 1);
	CHECK(fcntl(base, F_DUPFD, base + 3) == base + 6);

	/* Duplicates an eventfd to a pipe's end, which closes the end. */
	CHECK(dup2(base, fds[1]) == fds[1]);
	CHECK(read(fds[0], &byte, 1) == 0);
	CHECK(eventfd_write(fds[1], 5) == 0);
	CHECK(eventfd_read(base, &value) == 0 && value == 5);
	/* Duplicates a kernel file to an eventfd, and back. */
	CHECK(dup2(kernel, fds[1]) == fds[1]);
	byte = 1;
	CHECK(read(fds[1], &byte, 1) == 1 && byte == 0);
	FAILS(dup3(base, base, 0), EINVAL);
	FAILS(dup3(base, fds[1], 1), EINVAL);
	CHECK(read(fds[1], &byte, 1) == 1);
	CHECK(dup3(base, fds[1], O_CLOEXEC) == fds[1]);
	CHECK(fcntl(fds[1], F_GETFD) == FD_CLOEXEC);
	CHECK(eventfd_write(fds[1], 6) == 0);
	CHECK(eventfd_read(base + 6, &value) == 0 && value == 6);
	CHECK(dup2(base, base) == base);
	FAILS(dup2(900, 900), EBADF);
	FAILS(dup2(900, base), EBADF);
	FAILS(dup2(base, -1), EBADF);
	FAILS(dup(900), EBADF);
	CHECK(eventfd_write(base, 7) == 0);
	CHECK(eventfd_read(base, &value) == 0 && value == 7);

	/* Closes several fds together. */
	CHECK(close_range(base, base + 3, 0) == 0);
	for (at = base; at <= base + 3; at++)
		FAILS(fcntl(at, F_GETFD), EBADF);
	CHECK(write(socks[0], "x", 1) == 1 && read(socks[1], &byte, 1) == 1);
	CHECK(eventfd_write(base + 6, 1) == 0);
	CHECK(close_range(base, ~0U, CLOSE_RANGE_CLOEXEC) == 0);
	CHECK(fcntl(base + 6, F_GETFD) == FD_CLOEXEC);
	CHECK(eventfd_read(base + 6, &value) == 0 && value == 1);
	FAILS(close_range(5, 4, 0), EINVAL);
	CHECK(close_range(base, ~0U, 0) == 0);
	fd = eventfd(3, 0);
	CHECK(fd == base);
	CHECK(eventfd_read(fd, &value) == 0 && value == 3);
	return 0;
}
