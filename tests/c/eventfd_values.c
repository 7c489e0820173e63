/* The values that eventfds add and return, and the lengths that fail. */
#include "check.h"

int main(void)
{
	uint64_t value[2] = {3, 4};
	int fd = eventfd(2, EFD_NONBLOCK | EFD_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(fcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
	CHECK(write(fd, value, 8) == 8);
	CHECK(read(fd, value, sizeof value) == 8 && value[0] == 5);
	FAILS(read(fd, value, 8), EAGAIN);
	FAILS(read(fd, value, 4), EINVAL);
	FAILS(read(fd, value, 0), EINVAL);
	FAILS(write(fd, value, 4), EINVAL);
	FAILS(write(fd, value, 16), EINVAL);
	FAILS(write(fd, NULL, 4), EINVAL);
	value[0] = UINT64_MAX;
	FAILS(write(fd, value, 8), EINVAL);
	value[0] = UINT64_MAX - 1;
	CHECK(write(fd, value, 8) == 8);
	value[0] = 1;
	FAILS(write(fd, value, 8), EAGAIN);
	value[0] = 0;
	CHECK(write(fd, value, 8) == 8);
	CHECK(eventfd_read(fd, value) == 0 && value[0] == UINT64_MAX - 1);
	CHECK(eventfd_write(fd, 9) == 0);
	FAILS(ioctl(fd, FIONREAD, value), ENOTTY);
	CHECK(close(fd) == 0);
	FAILS(close(fd), EBADF);
	FAILS(read(fd, value, 8), EBADF);
	FAILS(write(fd, value, 8), EBADF);

	fd = eventfd(2, EFD_SEMAPHORE);
	CHECK(eventfd_read(fd, value) == 0 && value[0] == 1);
	CHECK(eventfd_read(fd, value) == 0 && value[0] == 1);
	CHECK(close(fd) == 0);
	FAILS(eventfd(0, 4), EINVAL);
	return 0;
}
