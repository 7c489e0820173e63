/* EPOLL_ROTATE: sets that watch a rotating set take turns at its source. */
#include "check.h"

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
	int numbers[WORKERS], fds[2], rotating = epoll_create1(EPOLL_ROTATE | EPOLL_CLOEXEC), at;
	CHECK(rotating >= 0 && fcntl(rotating, F_GETFD) == FD_CLOEXEC);
	CHECK(pipe2(fds, O_NONBLOCK) == 0);
	source = fds[0];
	CHECK(add(rotating, source, EPOLLIN, 0) == 0);
	FAILS(add(rotating, eventfd(0, 0), EPOLLIN, 0), EINVAL);
	for (at = 0; at < WORKERS; at++) {
		numbers[at] = at;
		sets[at] = epoll_create1(0);
		CHECK(add(sets[at], rotating, EPOLLIN, 0) == 0);
		CHECK(pthread_create(&threads[at], NULL, works, &numbers[at]) == 0);
	}
	for (at = 0; at < EVENTS; at++) {
		sleep_ms(10);
		CHECK(write(fds[1], "x", 1) == 1);
	}
	sleep_ms(50);
	for (at = 0; at < WORKERS; at++) {
		CHECK(served[at] == EVENTS / WORKERS);
		CHECK(write(fds[1], "q", 1) == 1);
	}
	for (at = 0; at < WORKERS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	return 0;
#endif
}
