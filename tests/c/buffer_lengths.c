/* Impossible lengths, and vectors of empty buffers: the order of the checks. */
#include "check.h"

int main(void)
{
	int counter = eventfd(0, EFD_NONBLOCK), epfd = epoll_create1(0), ends[2], pair[2];
	char byte = 0;
	struct iovec empty[2] = {{&byte, 0}, {&byte, 0}}, endless = {&byte, (size_t)-1};
	struct iovec one = {&byte, 1};
	uint64_t value = 1;
	struct iovec with_empty[3] = {{&value, 0}, {&value, 8}, {&value, 0}};
	size_t half = (size_t)-1 >> 1;

	CHECK(counter >= 0 && epfd >= 0);
	CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	/* A member that is user-level in libupoll also makes the set user-level. */
	CHECK(add(epfd, counter, EPOLLIN, 0) == 0);

	/* The length is checked against the address space before the rest of the buffer. */
	FAILS(read(counter, &byte, -1), EFAULT);
	FAILS(write(counter, &byte, -1), EFAULT);
	FAILS(read(counter, &byte, half), EFAULT);
	FAILS(write(counter, &byte, half), EFAULT);
	FAILS(read(ends[0], &byte, -1), EFAULT);
	FAILS(write(ends[1], &byte, -1), EFAULT);
	FAILS(read(pair[0], &byte, -1), EFAULT);
	FAILS(write(pair[1], &byte, -1), EFAULT);

	/* The access mode of the file is checked before that. */
	FAILS(read(ends[1], &byte, -1), EBADF);
	FAILS(write(ends[0], &byte, -1), EBADF);
	FAILS(read(epfd, &byte, -1), EINVAL);
	FAILS(write(epfd, &byte, -1), EINVAL);
	FAILS(read(epfd, &byte, 0), EINVAL);
	FAILS(write(epfd, &byte, 0), EINVAL);
	FAILS(writev(epfd, empty, 2), EINVAL);
	FAILS(readv(epfd, empty, 2), EINVAL);
	FAILS(writev(epfd, empty, 0), EINVAL);
	FAILS(readv(epfd, empty, 0), EINVAL);
	FAILS(writev(epfd, &one, 1), EINVAL);
	FAILS(readv(epfd, &one, 1), EINVAL);
	FAILS(writev(epfd, NULL, 1), EINVAL);
	FAILS(readv(epfd, NULL, 1), EINVAL);
	FAILS(writev(ends[0], empty, 2), EBADF);
	FAILS(readv(ends[1], empty, 2), EBADF);

	/* In a vector an impossible length fails with EINVAL. */
	FAILS(writev(counter, &endless, 1), EINVAL);
	FAILS(readv(counter, &endless, 1), EINVAL);
	FAILS(writev(ends[1], &endless, 1), EINVAL);
	FAILS(readv(pair[0], &endless, 1), EINVAL);

	/* Moving no bytes succeeds if the file could move some. */
	CHECK(writev(counter, empty, 2) == 0 && readv(counter, empty, 2) == 0);
	CHECK(writev(counter, empty, 0) == 0 && readv(counter, empty, 0) == 0);
	CHECK(writev(ends[1], empty, 2) == 0 && readv(ends[0], empty, 2) == 0);
	CHECK(writev(pair[0], empty, 2) == 0 && readv(pair[1], empty, 2) == 0);
	/* To an eventfd each buffer is a write of its own. Only behind the first one an empty buffer is skipped. */
	CHECK(writev(counter, with_empty + 1, 2) == 8);
	FAILS(writev(counter, with_empty, 2), EINVAL);
	FAILS(write(counter, &byte, 0), EINVAL);
	FAILS(read(counter, &byte, 0), EINVAL);
	return 0;
}
