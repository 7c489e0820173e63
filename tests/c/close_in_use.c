/* A close does not end calls of other threads that use the fd. They keep the open file. */
#include "check.h"
#include <sys/syscall.h>

static int fds[2], epfd;
static volatile int tid;

/* Starts a thread, and waits until it sleeps: a call that begins later finds its fd closed. */
static void begin(pthread_t *thread, void *(*calls)(void *), void *result)
{
	tid = 0;
	CHECK(pthread_create(thread, NULL, calls, result) == 0);
	while (tid == 0)
		sleep_ms(1);
	sleep_ms(100);
	wait_until_asleep(tid);
}

static void *reads(void *result)
{
	tid = (int)syscall(SYS_gettid);
	*(ssize_t *)result = read(fds[0], (char *)result + 8, 8);
	return NULL;
}

static void *waits(void *result)
{
	struct epoll_event event;
	tid = (int)syscall(SYS_gettid);
	*(ssize_t *)result = epoll_wait(epfd, &event, 1, -1);
	return NULL;
}

static void *waits_a_while(void *result)
{
	struct epoll_event event;
	*(ssize_t *)result = epoll_wait(epfd, &event, 1, 300);
	return NULL;
}

int main(void)
{
	pthread_t thread;
	char result[16];
	ssize_t count;
	uint64_t value;
	int fd, copy;

	/* A read of an eventfd gets the value that is written to a duplicate. */
	fds[0] = eventfd(0, 0);
	copy = dup(fds[0]);
	begin(&thread, reads, result);
	CHECK(close(fds[0]) == 0);
	CHECK(eventfd_write(copy, 4) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	memcpy(&count, result, sizeof count);
	memcpy(&value, result + 8, sizeof value);
	CHECK(count == 8 && value == 4);
	CHECK(close(copy) == 0);

	/* A read of a pipe gets bytes that are written after its fd was closed. */
	CHECK(pipe(fds) == 0);
	begin(&thread, reads, result);
	CHECK(close(fds[0]) == 0);
	CHECK(write(fds[1], "late", 4) == 4);
	CHECK(pthread_join(thread, NULL) == 0);
	memcpy(&count, result, sizeof count);
	CHECK(count == 4 && memcmp(result + 8, "late", 4) == 0);
	signal(SIGPIPE, SIG_IGN);
	FAILS(write(fds[1], "x", 1), EPIPE);
	CHECK(close(fds[1]) == 0);

	/* A wait in a set that is closed still reports events. */
	epfd = epoll_create1(0);
	fd = eventfd(0, 0);
	CHECK(add(epfd, fd, EPOLLIN, 1) == 0);
	begin(&thread, waits, &count);
	CHECK(close(epfd) == 0);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL), EBADF);
	CHECK(eventfd_write(fd, 1) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(count == 1);

	/* Closing the last file of a set does not end the wait. */
	epfd = epoll_create1(0);
	CHECK(eventfd_read(fd, &value) == 0);
	CHECK(add(epfd, fd, EPOLLIN, 1) == 0);
	CHECK(pthread_create(&thread, NULL, waits_a_while, &count) == 0);
	sleep_ms(100);
	CHECK(close(fd) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(count == 0);
	return 0;
}
