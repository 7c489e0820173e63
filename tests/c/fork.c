/* fork(2): parent and child share eventfds and sets, and calls of other threads continue. */
#include "check.h"
#include <sys/wait.h>

static int waited[3];

static void *reads(void *unused)
{
	uint64_t value = 0;
	(void)unused;
	CHECK(eventfd_read(waited[0], &value) == 0 && value == 3);
	return NULL;
}

static void *polls(void *unused)
{
	struct pollfd entry = {0, POLLIN, 0};
	(void)unused;
	entry.fd = waited[1];
	CHECK(poll(&entry, 1, 60000) == 1 && entry.revents == POLLIN);
	return NULL;
}

static void *waits(void *unused)
{
	struct epoll_event event;
	int epfd = epoll_create1(0);
	(void)unused;
	CHECK(add(epfd, waited[2], EPOLLIN, 8) == 0);
	CHECK(epoll_wait(epfd, &event, 1, 60000) == 1 && event.data.u64 == 8);
	return NULL;
}

static void *selects(void *unused)
{
	struct timeval limit = {30, 0};
	fd_set in;
	(void)unused;
	FD_ZERO(&in);
	FD_SET(waited[1], &in);
	CHECK(select(waited[1] + 1, &in, NULL, NULL, &limit) == 1 && FD_ISSET(waited[1], &in));
	return NULL;
}

int main(void)
{
	pthread_t threads[4];
	struct epoll_event events[4];
	uint64_t value;
	int status, at, fd = eventfd(5, EFD_NONBLOCK), copy = dup(fd), epfd = epoll_create1(0);
	int semaphore = eventfd(3, EFD_SEMAPHORE), fds[2];
	pid_t child;
	for (at = 0; at < 3; at++)
		waited[at] = eventfd(0, 0);
	CHECK(pipe(fds) == 0);
	CHECK(add(epfd, fd, EPOLLIN, 9) == 0 && add(epfd, copy, EPOLLIN | EPOLLONESHOT, 10) == 0);
	CHECK(epoll_wait(epfd, events, 4, 0) == 2);
	CHECK(pthread_create(&threads[0], NULL, reads, NULL) == 0);
	CHECK(pthread_create(&threads[1], NULL, polls, NULL) == 0);
	CHECK(pthread_create(&threads[2], NULL, waits, NULL) == 0);
	CHECK(pthread_create(&threads[3], NULL, selects, NULL) == 0);
	sleep_ms(100);

	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(eventfd_read(copy, &value) == 0 && value == 5);
		FAILS(eventfd_read(fd, &value), EAGAIN);
		CHECK(eventfd_write(fd, 7) == 0);
		CHECK(eventfd_read(semaphore, &value) == 0 && value == 1);
		for (at = 0; at < 3; at++)
			CHECK(eventfd_write(waited[at], 3) == 0);
		CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
		CHECK(epoll_wait(epfd, events, 4, 0) == 1 && events[0].data.u64 == 9);
		CHECK(close(epfd) == 0);
		/* The child's own pipe. */
		CHECK(pipe(fds) == 0 && write(fds[1], "y", 1) == 1 && read(fds[0], events, 1) == 1);
		epfd = epoll_create1(0);
		CHECK(add(epfd, fds[1], EPOLLOUT, 3) == 0 && epoll_wait(epfd, events, 4, 0) == 1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	for (at = 0; at < 4; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	/* The oneshot interest had fired before. */
	CHECK(epoll_wait(epfd, events, 4, 0) == 1 && events[0].data.u64 == 9);
	CHECK(epoll_ctl(epfd, EPOLL_CTL_DEL, copy, NULL) == 0);
	CHECK(eventfd_read(fd, &value) == 0 && value == 7);
	CHECK(epoll_wait(epfd, events, 4, 0) == 0);
	CHECK(eventfd_read(semaphore, &value) == 0 && value == 1);
	CHECK(eventfd_read(semaphore, &value) == 0 && value == 1);
	/* The parent's pipe is unchanged. */
	CHECK(write(fds[1], "z", 1) == 1 && read(fds[0], events, 1) == 1);
	return 0;
}
