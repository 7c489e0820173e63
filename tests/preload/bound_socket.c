/* One socket of a pair gets an address: the other one receives it with each message, also with those that were sent
 * before. */
#include "../c/check.h"
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/un.h>

static int by_name(int fd, const struct sockaddr *address, socklen_t size)
{
	return bind(fd, address, size);
}

static int by_number(int fd, const struct sockaddr *address, socklen_t size)
{
	return syscall(SYS_bind, fd, address, size);
}

static void check_address(const struct sockaddr_un *found, socklen_t size, const struct sockaddr_un *address,
			  socklen_t expected)
{
	CHECK(size == expected && memcmp(found, address, size) == 0);
}

static void receives_the_address(int (*bind_to)(int, const struct sockaddr *, socklen_t))
{
	struct sockaddr_un address = {.sun_family = AF_UNIX}, found;
	/* A name in the abstract namespace, which begins with a zero. */
	int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "upoll-%d", getpid());
	socklen_t expected = offsetof(struct sockaddr_un, sun_path) + 1 + length, size;
	char byte;
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_name = &found, .msg_namelen = sizeof found, .msg_iov = &data, .msg_iovlen = 1};
	int ends[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	CHECK(send(ends[0], "ab", 2, 0) == 2);
	size = sizeof found;
	CHECK(recvfrom(ends[1], &byte, 1, 0, (struct sockaddr *)&found, &size) == 1 && byte == 'a' && size == 0);
	CHECK(bind_to(ends[0], (struct sockaddr *)&address, expected) == 0);
	FAILS(bind_to(ends[0], (struct sockaddr *)&address, expected), EINVAL);
	size = sizeof found;
	CHECK(recvfrom(ends[1], &byte, 1, 0, (struct sockaddr *)&found, &size) == 1 && byte == 'b');
	check_address(&found, size, &address, expected);
	CHECK(write(ends[0], "c", 1) == 1);
	memset(&found, 0, sizeof found);
	CHECK(recvmsg(ends[1], &message, 0) == 1 && byte == 'c');
	check_address(&found, message.msg_namelen, &address, expected);
	/* The other way there is none. */
	CHECK(write(ends[1], "d", 1) == 1);
	size = sizeof found;
	CHECK(recvfrom(ends[0], &byte, 1, 0, (struct sockaddr *)&found, &size) == 1 && byte == 'd' && size == 0);
	close(ends[0]), close(ends[1]);
	FAILS(bind_to(ends[0], (struct sockaddr *)&address, expected), EBADF);
}

int main(void)
{
	receives_the_address(by_name);
	receives_the_address(by_number);
	return 0;
}
