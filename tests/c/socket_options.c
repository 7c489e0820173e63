/* Socket options of pairs. */
#include "check.h"

int main(void)
{
	struct timeval limit = {0, 50000}, got;
	socklen_t size = sizeof got;
	int pair[2], value = 0, plain;
	char byte;
	alarm(200);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(write(pair[1], "ab", 2) == 2);
	CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	CHECK(getsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &got, &size) == 0);
	CHECK(size == sizeof got && got.tv_sec == 0 && got.tv_usec >= 50000);
	CHECK(recv(pair[0], &byte, 1, 0) == 1 && byte == 'a');
	CHECK(read(pair[0], &byte, 1) == 1 && byte == 'b');
	FAILS(recv(pair[0], &byte, 1, 0), EAGAIN);
	FAILS(read(pair[0], &byte, 1), EAGAIN);

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	size = sizeof value;
	CHECK(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &value, &size) == 0 && value == SOCK_STREAM);
	CHECK(getsockopt(pair[0], SOL_SOCKET, SO_ERROR, &value, &size) == 0 && value == 0);
	CHECK(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &value, &size) == 0 && value > 0);
	/* The peer closes with a byte unread. The error is returned once. */
	CHECK(write(pair[0], "c", 1) == 1 && close(pair[1]) == 0);
	CHECK(getsockopt(pair[0], SOL_SOCKET, SO_ERROR, &value, &size) == 0 && value == ECONNRESET);
	CHECK(getsockopt(pair[0], SOL_SOCKET, SO_ERROR, &value, &size) == 0 && value == 0);
	CHECK(read(pair[0], &byte, 1) == 0);
	CHECK(pipe(pair) == 0);
	FAILS(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), ENOTSOCK);
	FAILS(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &value, &size), ENOTSOCK);
	FAILS(setsockopt(-1, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), EBADF);

	plain = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(plain >= 0);
	value = 1;
	CHECK(setsockopt(plain, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value) == 0);
	return 0;
}
