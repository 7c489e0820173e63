/* Many threads fork while others make, duplicate, write, watch and close objects. Each child has
 * its eventfd and its pipe, with their contents, and the parent is notified by each child. No
 * thread hangs. */
#include "check.h"
#include <sys/wait.h>

enum { FORKERS = 6, CHILDREN = 25, OTHERS = 3 };

static int counter;
static volatile int is_over;

static void *forks(void *nothing)
{
	int round;
	for (round = 0; round < CHILDREN; round++) {
		uint64_t value = 7, back = 0;
		int own = eventfd(0, 0), ends[2], status;
		char byte = 0;
		pid_t child;
		CHECK(own >= 0 && pipe(ends) == 0);
		CHECK(write(own, &value, sizeof value) == sizeof value && write(ends[1], "x", 1) == 1);
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			uint64_t one = 1;
			if (read(own, &back, sizeof back) != sizeof back || back != 7)
				_exit(1);
			if (read(ends[0], &byte, 1) != 1 || byte != 'x')
				_exit(2);
			_exit(write(counter, &one, sizeof one) == sizeof one ? 0 : 3);
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		CHECK(close(own) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
	}
	return nothing;
}

static void *disturbs(void *nothing)
{
	while (!is_over) {
		struct epoll_event event;
		uint64_t value = 0;
		int one = eventfd(0, EFD_NONBLOCK), set = epoll_create1(0), copy;
		CHECK(one >= 0 && set >= 0 && add(set, one, EPOLLIN, 1) == 0);
		copy = dup(one);
		CHECK(copy >= 0 && eventfd_write(copy, 3) == 0);
		CHECK(epoll_wait(set, &event, 1, 60000) == 1);
		CHECK(eventfd_read(one, &value) == 0 && value == 3);
		CHECK(dup2(set, copy) == copy && close(set) == 0 && close(one) == 0 && close(copy) == 0);
	}
	return nothing;
}

int main(void)
{
	pthread_t forkers[FORKERS], others[OTHERS];
	uint64_t value = 0;
	int at;
	alarm(200);
	counter = eventfd(0, EFD_NONBLOCK);
	CHECK(counter >= 0);
	for (at = 0; at < OTHERS; at++)
		CHECK(pthread_create(&others[at], NULL, disturbs, NULL) == 0);
	for (at = 0; at < FORKERS; at++)
		CHECK(pthread_create(&forkers[at], NULL, forks, NULL) == 0);
	for (at = 0; at < FORKERS; at++)
		CHECK(pthread_join(forkers[at], NULL) == 0);
	is_over = 1;
	for (at = 0; at < OTHERS; at++)
		CHECK(pthread_join(others[at], NULL) == 0);
	CHECK(eventfd_read(counter, &value) == 0 && value == FORKERS * CHILDREN);
	CHECK(close(counter) == 0);
	return 0;
}
