/* fork(2) and rotating sets: the workers of the parent go on to take turns, while their source, a pipe,
 * is one that the child has, too. */
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
	int numbers[WORKERS], fds[2], rotating = epoll_create1(EPOLL_ROTATE), at, status;
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
	sleep_ms(50);
	child = fork();
	if (child == 0) {
		FAILS(epoll_wait(sets[0], &event, 1, 0), EBADF);
		FAILS(add(rotating, fds[0], EPOLLIN, 0), EBADF);
		CHECK(close(sets[0]) == 0 && close(rotating) == 0);
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
