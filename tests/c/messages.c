/* send, recv and their longer forms on a socketpair. */
#include "check.h"

static int sockets[2];

static void *sends_the_rest(void *nothing)
{
	sleep_ms(20);
	CHECK(send(sockets[0], "rest", 4, 0) == 4);
	return nothing;
}

/* Flags that decide whether a call waits. */
static void waits(void)
{
	static char bytes[1 << 16];
	char buffer[8];
	pthread_t thread;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	CHECK(send(sockets[0], "part", 4, 0) == 4);
	CHECK(pthread_create(&thread, NULL, sends_the_rest, NULL) == 0);
	CHECK(recv(sockets[1], buffer, 8, MSG_WAITALL) == 8 && memcmp(buffer, "partrest", 8) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	while (send(sockets[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
		;
	CHECK(errno == EAGAIN);
	CHECK(close(sockets[0]) == 0 && close(sockets[1]) == 0);
}

int main(void)
{
	char bytes[6] = "hello", buffer[16];
	struct iovec list[2] = {{buffer, 2}, {buffer + 2, 14}};
	struct sockaddr address;
	socklen_t size = sizeof address;
	struct msghdr message;
	int fds[2];
	/* A call that waits for ever ends the test. */
	alarm(300);
	waits();
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	FAILS(recv(fds[1], buffer, 16, MSG_DONTWAIT), EAGAIN);
	CHECK(send(fds[0], bytes, 5, MSG_NOSIGNAL) == 5);
	CHECK(recv(fds[1], buffer, 16, MSG_PEEK) == 5);
	CHECK(recvfrom(fds[1], buffer, 5, MSG_WAITALL, &address, &size) == 5 && size == 0);
	CHECK(memcmp(buffer, "hello", 5) == 0);
	memset(&address, 0, sizeof address);
	FAILS(sendto(fds[0], bytes, 5, 0, &address, sizeof address), EISCONN);
	FAILS(send(fds[0], nowhere(), 5, 0), EFAULT);
	memset(&message, 0, sizeof message);
	message.msg_iov = list;
	message.msg_iovlen = 1;
	CHECK(sendmsg(fds[0], &message, 0) == 2);
	message.msg_iovlen = 2;
	message.msg_flags = -1;
	CHECK(recvmsg(fds[1], &message, 0) == 2 && message.msg_flags == 0);
	CHECK(send(fds[0], bytes, 5, 0) == 5);
	CHECK(recvmsg(fds[1], &message, MSG_CMSG_CLOEXEC) == 5);
	CHECK(message.msg_flags == MSG_CMSG_CLOEXEC);
	message.msg_iovlen = 1025;
	FAILS(recvmsg(fds[1], &message, 0), EMSGSIZE);
	CHECK(close(fds[0]) == 0);
	FAILS(send(fds[1], bytes, 5, MSG_NOSIGNAL), EPIPE);
	CHECK(recv(fds[1], buffer, 16, 0) == 0);
	FAILS(send(0x7fffffff, bytes, 5, 0), EBADF);
	CHECK(close(fds[1]) == 0);
	return 0;
}
