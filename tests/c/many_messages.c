/* sendmmsg and recvmmsg on a socketpair: they find what came before, and sets and the other end go on. */
#include "check.h"
#include <sys/resource.h>

enum { COUNT = 3 };

static int pair[2];
static char bytes[COUNT];
static struct iovec parts[COUNT];
static struct mmsghdr messages[COUNT];

/* A new pair, and messages of one byte each. */
static void begin(int type)
{
	memset(messages, 0, sizeof messages);
	for (int at = 0; at < COUNT; at++) {
		parts[at] = (struct iovec){bytes + at, 1};
		messages[at].msg_hdr.msg_iov = &parts[at], messages[at].msg_hdr.msg_iovlen = 1;
		messages[at].msg_len = 77;
	}
	CHECK(socketpair(AF_UNIX, type, 0, pair) == 0);
}

static void end(void)
{
	CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
}

static void *sends_later(void *nothing)
{
	sleep_ms(20);
	memcpy(bytes, "abc", COUNT);
	CHECK(sendmmsg(pair[1], messages, COUNT, 0) == COUNT);
	return nothing;
}

static void wakes_a_set(void)
{
	struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = 7}};
	int set = epoll_create1(0);
	pthread_t thread;
	begin(SOCK_STREAM);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair[0], &event) == 0);
	CHECK(pthread_create(&thread, NULL, sends_later, NULL) == 0);
	CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 7);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(messages[COUNT - 1].msg_len == 1);
	CHECK(recv(pair[0], bytes, sizeof bytes, 0) == COUNT && memcmp(bytes, "abc", COUNT) == 0);
	CHECK(close(set) == 0);
	end();
}

static void finds_what_came_before(void)
{
	struct timespec limit = {600, 0};
	begin(SOCK_STREAM);
	CHECK(write(pair[1], "xy", 2) == 2);
	CHECK(recvmmsg(pair[0], messages, COUNT, MSG_PEEK, &limit) == COUNT && bytes[1] == 'x' && bytes[2] == 'x');
	CHECK(recvmmsg(pair[0], messages, COUNT, MSG_WAITFORONE, NULL) == 2 && memcmp(bytes, "xy", 2) == 0);
	FAILS(recvmmsg(pair[0], messages, COUNT, MSG_DONTWAIT, NULL), EAGAIN);
	CHECK(shutdown(pair[1], SHUT_WR) == 0);
	CHECK(recvmmsg(pair[0], messages, 1, 0, NULL) == 1 && messages[0].msg_len == 0);
	end();
}

static void fails(void)
{
	struct timespec limit = {0, 1000000000};
	int ends[2];
	begin(SOCK_STREAM);
	FAILS(recvmmsg(pair[0], messages, 1, 0, &limit), EINVAL);
	FAILS(sendmmsg(0x7fffffff, messages, 1, 0), EBADF);
	FAILS(recvmmsg(0x7fffffff, messages, 1, 0, NULL), EBADF);
	CHECK(pipe(ends) == 0);
	FAILS(sendmmsg(ends[1], messages, 1, 0), ENOTSOCK);
	FAILS(recvmmsg(ends[0], messages, 1, 0, NULL), ENOTSOCK);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	CHECK(close(pair[1]) == 0);
	FAILS(sendmmsg(pair[0], messages, 1, MSG_NOSIGNAL), EPIPE);
	CHECK(close(pair[0]) == 0);
}

/* Where there is no fd to demote the socket with, the call may fail, but nothing that was sent overtakes. */
static void overtakes_nothing(void)
{
	struct epoll_event event = {EPOLLIN, {.u64 = 7}};
	int set = epoll_create1(0), were_sent[2], found;
	struct rlimit limit, low;
	char sent[8] = {0}, received[8] = {0};
	begin(SOCK_STREAM);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair[0], &event) == 0);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	low = limit, low.rlim_cur = 3;
	CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
	CHECK(write(pair[1], "u", 1) == 1);
	bytes[0] = 'x';
	were_sent[0] = sendmmsg(pair[1], messages, 1, 0);
	CHECK(were_sent[0] == 1 || (were_sent[0] == -1 && errno == ENOBUFS));
	were_sent[1] = send(pair[1], "y", 1, MSG_CONFIRM);
	CHECK(were_sent[1] == 1 || (were_sent[1] == -1 && errno == ENOBUFS));
	CHECK(write(pair[1], "v", 1) == 1);
	found = recvmmsg(pair[0], messages, 1, MSG_DONTWAIT, NULL);
	CHECK(found == 1 ? bytes[0] == 'u' : found == -1 && errno == ENOBUFS);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	snprintf(sent, sizeof sent, "%s%s%sv", found == 1 ? "" : "u", were_sent[0] == 1 ? "x" : "", were_sent[1] == 1 ? "y" : "");
	CHECK(recv(pair[0], received, sizeof received - 1, 0) == (ssize_t)strlen(sent) && strcmp(sent, received) == 0);
	CHECK(close(set) == 0);
	end();
}

/* Sockets of the kernel's keep the limits between messages. */
static void passes(void)
{
	begin(SOCK_DGRAM);
	memcpy(bytes, "xyz", COUNT);
	CHECK(sendmmsg(pair[1], messages, COUNT, 0) == COUNT);
	memset(bytes, 0, COUNT);
	CHECK(recvmmsg(pair[0], messages, COUNT, MSG_WAITFORONE, NULL) == COUNT && memcmp(bytes, "xyz", COUNT) == 0);
	end();
}

int main(void)
{
	/* A call that waits for ever ends the test. */
	alarm(300);
	wakes_a_set();
	finds_what_came_before();
	fails();
	overtakes_nothing();
	passes();
	return 0;
}
