/* A program that has used up its fds adds an eventfd to a set with kernel fds, and receives events
 * of both. The library serves the set without an fd of the program's range. The same with a set that
 * has one of the last fds, whichever member comes first, and with a set of eventfds that gets its first
 * other member when no fd is free. */
#include "../c/check.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>

enum { FDS = 40 };
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
	CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 2);
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
	CHECK(epoll_wait(set, events, 4, 60000) == 2);
	CHECK(eventfd_read(counter, &value) == 0 && value == 3);
	CHECK(epoll_wait(set, events, 4, 0) == 1 && events[0].data.u64 == 1);
	for (; first <= last; first++)
		close(first);
	close(set), close(counter), close(fds[0]), close(fds[1]);
}

/* All fds but those of the set and of `spare` more are used up. */
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

/* The set has eventfds in each state when it gets its first other member. */
static void other_member_comes_last(void)
{
	struct itimerspec soon = {{0, 0}, {0, 1}};
	struct epoll_event events[8];
	int edge, fired, copy, at, count;
	unsigned found = 0;
	uint64_t value;
	set = epoll_create1(EPOLL_CLOEXEC);
	counter = eventfd(5, EFD_NONBLOCK), edge = eventfd(0, EFD_NONBLOCK), fired = eventfd(1, 0);
	copy = dup(edge), fds[0] = timerfd_create(CLOCK_MONOTONIC, 0);
	CHECK(copy >= 0 && timerfd_settime(fds[0], 0, &soon, NULL) == 0);
	CHECK(add(set, counter, EPOLLIN, 2) == 0);
	CHECK(add(set, edge, EPOLLIN | EPOLLET, 3) == 0 && add(set, copy, EPOLLIN, 4) == 0);
	CHECK(add(set, fired, EPOLLIN | EPOLLONESHOT, 5) == 0);
	CHECK(epoll_wait(set, events, 8, 0) == 2 && epoll_wait(set, events, 8, 0) == 1);
	use_up();
	CHECK(add(set, fds[0], EPOLLIN, 1) == 0);
	CHECK(add(set, fds[0], EPOLLIN, 1) == -1 && errno == EEXIST);
	CHECK(add(set, counter, EPOLLIN, 2) == -1 && errno == EEXIST);
	CHECK(eventfd_write(edge, 7) == 0);
	count = epoll_wait(set, events, 8, -1);
	for (at = 0; at < count; at++)
		found |= 1u << events[at].data.u64;
	CHECK(count == 4 && found == (1u << 1 | 1u << 2 | 1u << 3 | 1u << 4));
	CHECK(eventfd_read(counter, &value) == 0 && value == 5);
	CHECK(eventfd_read(copy, &value) == 0 && value == 7);
	CHECK(epoll_wait(set, events, 8, 0) == 1 && events[0].data.u64 == 1);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, copy, NULL) == 0);
	for (; first <= last; first++)
		close(first);
	close(set), close(counter), close(edge), close(copy), close(fired), close(fds[0]);
}

enum { WRITES = 2000 };
static int blocked;

static void *writes(void *unused)
{
	int i;
	(void)unused;
	for (i = 0; i < WRITES; i++)
		CHECK(eventfd_write(counter, 1) == 0);
	return NULL;
}

static void *reads(void *unused)
{
	uint64_t value;
	(void)unused;
	CHECK(eventfd_read(blocked, &value) == 0 && value == 9);
	return NULL;
}

/* Threads write to a member, and one is blocked on another, when the set gets its first other member. */
static void other_member_comes_beside_writes(void)
{
	pthread_t threads[3];
	struct epoll_event events[4];
	uint64_t value, sum = 0;
	int at, timer = timerfd_create(CLOCK_MONOTONIC, 0);
	set = epoll_create1(EPOLL_CLOEXEC);
	counter = eventfd(0, EFD_NONBLOCK), blocked = eventfd(0, 0), fds[0] = timer;
	CHECK(timer >= 0 && set >= 0 && counter >= 0 && blocked >= 0);
	CHECK(add(set, counter, EPOLLIN, 2) == 0 && add(set, blocked, EPOLLOUT | EPOLLET, 3) == 0);
	CHECK(epoll_wait(set, events, 4, 0) >= 1);
	use_up();
	CHECK(pthread_create(&threads[2], NULL, reads, NULL) == 0);
	for (at = 0; at < 2; at++)
		CHECK(pthread_create(&threads[at], NULL, writes, NULL) == 0);
	CHECK(add(set, timer, EPOLLIN, 1) == 0);
	while (sum < 2 * WRITES) {
		int count = epoll_wait(set, events, 4, -1);
		CHECK(count >= 1 && events[0].data.u64 >= 2);
		if (eventfd_read(counter, &value) == 0)
			sum += value;
	}
	CHECK(eventfd_write(blocked, 9) == 0 && eventfd_read(counter, &value) == -1);
	for (at = 0; at < 3; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	for (; first <= last; first++)
		close(first);
	close(set), close(counter), close(blocked), close(timer);
}

int main(void)
{
	struct rlimit limit = {FDS, FDS};
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	add_the_last(0);
	add_the_last(1);
	other_member_comes_last();
	other_member_comes_beside_writes();
	for (int spare = 0; spare < 3; spare++) {
		with_one_of_the_last(spare, 0);
		with_one_of_the_last(spare, 1);
	}
	return 0;
}
