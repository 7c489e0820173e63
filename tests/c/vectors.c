/* readv(2) and writev(2). */
#include "check.h"

int main(void)
{
	uint64_t values[2] = {3, 4};
	char one[4], other[8];
	int fds[2], fd = eventfd(0, EFD_NONBLOCK);
	struct iovec whole[2] = {{&values[0], 8}, {&values[1], 8}};
	struct iovec halves[2] = {{one, 4}, {other, 4}};
	struct iovec bytes[3] = {{one, 3}, {NULL, 0}, {other, 8}};
	CHECK(writev(fd, whole, 2) == 16);
	CHECK(readv(fd, halves, 2) == 8);
	memcpy((char *)values, one, 4);
	memcpy((char *)values + 4, other, 4);
	CHECK(values[0] == 7);
	FAILS(readv(fd, whole, 1), EAGAIN);
	FAILS(writev(fd, halves, 2), EINVAL);
	FAILS(readv(fd, halves, 1), EINVAL);
	CHECK(pipe(fds) == 0);
	memcpy(one, "abc", 3);
	memcpy(other, "defghijk", 8);
	CHECK(writev(fds[1], bytes, 3) == 11);
	memset(one, 0, sizeof one);
	memset(other, 0, sizeof other);
	CHECK(readv(fds[0], bytes, 3) == 11);
	CHECK(memcmp(one, "abc", 3) == 0 && memcmp(other, "defghijk", 8) == 0);
	FAILS(readv(fds[1], bytes, 3), EBADF);
	FAILS(writev(fds[0], bytes, 3), EBADF);
	return 0;
}
