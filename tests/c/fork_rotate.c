/* fork(2) and rotating sets: the workers of the parent go on to take turns, while the child has sets of
 * its own in the place of the parent's, which watch the same. */
#include "check.h"
#include <sys/wait.h>

#ifndef KERNEL_ONLY
enum { WORKERS = 3, EVENTS = 30 };
static int source, sets[WORKERS], served[WORKERS];

static void *works(void *which)
{
	int me = *(int *)which;
	struct epoll_event event;
	char byte;
	for (;;) {
		CHECK(epoll_wait(sets[me], &event, 1, -1) == 1);
		if (read(source, &byte, 1) != 1)
			continue;
		if (byte == 'q')
			return NULL;
		served[me]++;
	}
}
#endif

int main(void)
{
#ifdef KERNEL_ONLY
	return 77;
#else
	pthread_t threads[WORKERS];
	struct epoll_event event;
	uint64_t maximum = 4;
	int numbers[WORKERS], fds[2], rotating = epoll_create1(EPOLL_ROTATE), at, status;
	int counter = eventfd(0, 0), counting = epoll_create1(EPOLL_ROTATE), counts = epoll_create1(0);
	pid_t child;
	CHECK(pipe2(fds, O_NONBLOCK) == 0);
	source = fds[0];
	CHECK(add(rotating, source, EPOLLIN, 0) == 0);
	for (at = 0; at < WORKERS; at++) {
		numbers[at] = at;
		sets[at] = epoll_create1(0);
		CHECK(add(sets[at], rotating, EPOLLIN, 0) == 0);
		CHECK(pthread_create(&threads[at], NULL, works, &numbers[at]) == 0);
	}
	CHECK(ioctl(counter, EFD_IOC_SET_MAXIMUM, &maximum) == 0);
	CHECK(add(counting, counter, EPOLLIN, 0) == 0 && add(counts, counting, EPOLLIN, 8) == 0);
	sleep_ms(50);
	child = fork();
	if (child == 0) {
		/* The child's own: without threads that wait in them they take nothing from the parent's. */
		CHECK(epoll_wait(sets[0], &event, 1, 0) == 0);
		FAILS(add(rotating, fds[0], EPOLLIN, 0), EEXIST);
		/* It rotates: there is one source. */
		FAILS(add(rotating, fds[1], EPOLLOUT, 0), EINVAL);
		CHECK(epoll_ctl(rotating, EPOLL_CTL_DEL, fds[0], NULL) == 0);
		CHECK(add(rotating, fds[1], EPOLLOUT, 0) == 0);
		CHECK(epoll_wait(sets[1], &event, 1, 0) == 1 && event.events == EPOLLIN);
		CHECK(close(sets[0]) == 0 && close(rotating) == 0);
		/* Its source is one count in both. */
		CHECK(epoll_wait(counts, &event, 1, 0) == 0 && eventfd_write(counter, 1) == 0);
		CHECK(epoll_wait(counts, &event, 1, 1000) == 1 && event.data.u64 == 8);
		/* One of its own over what it shares. */
		rotating = epoll_create1(EPOLL_ROTATE);
		CHECK(add(rotating, fds[1], EPOLLOUT, 7) == 0);
		CHECK(epoll_wait(rotating, &event, 1, 0) == 1 && event.data.u64 == 7);
		for (at = 0; at < EVENTS; at++) {
			sleep_ms(10);
			CHECK(write(fds[1], "x", 1) == 1);
		}
		_exit(0);
	}
	FAILS(upoll_demote(rotating), EOPNOTSUPP);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(epoll_wait(counts, &event, 1, 1000) == 1 && event.data.u64 == 8);
	sleep_ms(50);
	for (at = 0; at < WORKERS; at++) {
		CHECK(served[at] == EVENTS / WORKERS);
		/* One after the other. */
		CHECK(write(fds[1], "q", 1) == 1);
		sleep_ms(50);
	}
	for (at = 0; at < WORKERS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	return 0;
#endif
}
