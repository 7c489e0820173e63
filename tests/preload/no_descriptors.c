/* A program that has used up its fds adds an eventfd to a set with kernel fds, and receives events
 * of both. The library serves the set without an fd of the program's range. The same with a set that
 * has one of the last fds, whichever member comes first. */
#include "../c/check.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>

enum { NUMBERS = 40 };
static int set, counter, fds[2], first, last;

static void use_up(void)
{
	int fd;
	first = last = -1;
	while ((fd = dup(fds[0])) >= 0)
		last = fd, first = first < 0 ? fd : first;
	CHECK(errno == EMFILE && first > 0);
}

static void *waits(void *unused)
{
	struct epoll_event event;
	(void)unused;
	CHECK(epoll_wait(set, &event, 1, 10000) == 1 && event.data.u64 == 2);
	return NULL;
}

static void add_the_last(int with_waiter)
{
	pthread_t thread;
	struct epoll_event events[4];
	uint64_t value = 0;
	set = epoll_create1(EPOLL_CLOEXEC);
	counter = eventfd(0, EFD_NONBLOCK);
	CHECK(set >= 0 && counter >= 0 && pipe(fds) == 0);
	CHECK(add(set, fds[0], EPOLLIN, 1) == 0);
	use_up();
	if (with_waiter) {
		CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
		sleep_ms(50);
	}
	CHECK(add(set, counter, EPOLLIN, 2) == 0);
	CHECK(add(set, counter, EPOLLIN, 2) == -1 && errno == EEXIST);
	CHECK(eventfd_write(counter, 3) == 0);
	if (with_waiter)
		CHECK(pthread_join(thread, NULL) == 0);
	CHECK(write(fds[1], "x", 1) == 1);
	CHECK(epoll_wait(set, events, 4, 1000) == 2);
	CHECK(eventfd_read(counter, &value) == 0 && value == 3);
	CHECK(epoll_wait(set, events, 4, 0) == 1 && events[0].data.u64 == 1);
	for (; first <= last; first++)
		close(first);
	close(set), close(counter), close(fds[0]), close(fds[1]);
}

/* All numbers but those of the set and of `spare` more are used up. */
static void with_one_of_the_last(int spare, int counter_first)
{
	struct itimerspec soon = {{0, 0}, {0, 1}};
	struct epoll_event events[4];
	uint64_t value;
	int timer = timerfd_create(CLOCK_MONOTONIC, 0);
	counter = eventfd(0, EFD_NONBLOCK);
	CHECK(timer >= 0 && counter >= 0 && timerfd_settime(timer, 0, &soon, NULL) == 0);
	fds[0] = timer;
	use_up();
	for (int i = 0; i <= spare; i++)
		CHECK(close(last--) == 0);
	set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0);
	for (int i = 0; i < 2; i++) {
		if (i == !counter_first)
			CHECK(add(set, counter, EPOLLIN, 2) == 0);
		else
			CHECK(add(set, timer, EPOLLIN, 1) == 0);
	}
	CHECK(add(set, counter, EPOLLIN, 2) == -1 && errno == EEXIST);
	CHECK(add(set, timer, EPOLLIN, 1) == -1 && errno == EEXIST);
	CHECK(eventfd_write(counter, 3) == 0);
	CHECK(read(timer, &value, sizeof value) == 8);
	CHECK(epoll_wait(set, events, 4, 0) == 1 && events[0].data.u64 == 2);
	CHECK(timerfd_settime(timer, 0, &soon, NULL) == 0);
	CHECK(eventfd_read(counter, &value) == 0 && value == 3);
	CHECK(epoll_wait(set, events, 4, -1) == 1 && events[0].data.u64 == 1);
	for (; first <= last; first++)
		close(first);
	close(set), close(counter), close(timer);
}

int main(void)
{
	struct rlimit limit = {NUMBERS, NUMBERS};
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	add_the_last(0);
	add_the_last(1);
	for (int spare = 0; spare < 3; spare++) {
		with_one_of_the_last(spare, 0);
		with_one_of_the_last(spare, 1);
	}
	return 0;
}
