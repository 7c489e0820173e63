/* O_NONBLOCK belongs to the open file: all its fds share it, and FIONBIO sets it too. */
#include "check.h"

static void shared(int fd)
{
	uint64_t value;
	int copy = dup(fd), off = 0, on = 1;
	CHECK(fcntl(copy, F_SETFL, O_NONBLOCK) == 0);
	CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
	FAILS(read(fd, &value, 8), EAGAIN);
	CHECK(ioctl(fd, FIONBIO, &off) == 0);
	CHECK(!(fcntl(copy, F_GETFL) & O_NONBLOCK));
	CHECK(ioctl(copy, FIONBIO, &on) == 0);
	FAILS(read(fd, &value, 8), EAGAIN);
	CHECK(close(copy) == 0);
	FAILS(read(fd, &value, 8), EAGAIN);
}

int main(void)
{
	int fds[2];
	shared(eventfd(0, 0));
	CHECK(pipe(fds) == 0);
	shared(fds[0]);
	CHECK(!(fcntl(fds[1], F_GETFL) & O_NONBLOCK));
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	shared(fds[0]);
	CHECK(!(fcntl(fds[1], F_GETFL) & O_NONBLOCK));
	CHECK(pipe2(fds, O_NONBLOCK | O_CLOEXEC) == 0);
	CHECK(fcntl(fds[0], F_GETFL) == (O_RDONLY | O_NONBLOCK));
	CHECK(fcntl(fds[1], F_GETFL) == (O_WRONLY | O_NONBLOCK));
	CHECK(fcntl(fds[1], F_GETFD) == FD_CLOEXEC);
	return 0;
}
