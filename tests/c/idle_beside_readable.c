/* A call sleeps if it waits for an event that a set never reports, even if a member of the set is
 * readable. */
#include "check.h"
#include <sys/resource.h>

/* A call that spins takes all of its limit, each time. Under valgrind the first call of its kind takes some 60 ms to be translated. */
enum { LIMIT_MS = 300, MOST_US = 150000, SETS = 4 };

static long processor_time(void)
{
	struct rusage usage;
	CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000L + usage.ru_utime.tv_usec +
	       usage.ru_stime.tv_usec;
}

static long begun;

#define SLEEPS(call)                                                                          \
	do {                                                                                  \
		int tries = 0;                                                                \
		do {                                                                          \
			CHECK(tries++ < 3);                                                   \
			begun = processor_time();                                             \
			CHECK((call) == 0);                                                   \
		} while (processor_time() - begun >= MOST_US);                                \
	} while (0)

static int polled(int set, int idle, short events)
{
	struct pollfd entries[3] = {{set, events, 0}, {idle, POLLIN, 0}, {set, POLLPRI, 0}};
	return poll(entries, 3, LIMIT_MS);
}

static int polled_with_mask(int set)
{
	struct timespec limit = {0, LIMIT_MS * 1000000L};
	struct pollfd entry = {set, POLLOUT, 0};
	sigset_t none;
	sigemptyset(&none);
	return ppoll(&entry, 1, &limit, &none);
}

static int selected(int set)
{
	struct timeval limit = {0, LIMIT_MS * 1000};
	fd_set writable, exceptional;
	FD_ZERO(&writable);
	FD_ZERO(&exceptional);
	FD_SET(set, &writable);
	FD_SET(set, &exceptional);
	return select(set + 1, NULL, &writable, &exceptional, &limit);
}

static void all_sleep(int set, int idle)
{
	struct pollfd entry = {set, POLLIN, 0};
	SLEEPS(polled(set, idle, POLLOUT));
	SLEEPS(polled(set, idle, 0));
	SLEEPS(polled_with_mask(set));
	SLEEPS(selected(set));
	CHECK(poll(&entry, 1, LIMIT_MS) == 1);
}

/* Uses up an interest in the set that reports once only. */
static void used_up(int set, uint32_t events)
{
	struct epoll_event event;
	int above = epoll_create1(0);
	struct pollfd entry = {above, POLLIN, 0};
	CHECK(add(above, set, events, 0) == 0);
	CHECK(epoll_wait(above, &event, 1, LIMIT_MS) == 1);
	SLEEPS(epoll_wait(above, &event, 1, LIMIT_MS));
	SLEEPS(poll(&entry, 1, LIMIT_MS));
	close(above);
}

int main(void)
{
	int ends[2], sets[SETS], at, idle = eventfd(0, 0);
	/* Datagram sockets: kernel fds in both variants. */
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
	CHECK(write(ends[1], "x", 1) == 1);
	for (at = 0; at < SETS; at++) {
		sets[at] = epoll_create1(0);
		CHECK(add(sets[at], at == 0 ? ends[0] : sets[at - 1], EPOLLIN, 0) == 0);
		CHECK(at != 0 || add(sets[at], idle, EPOLLIN, 0) == 0);
	}
	all_sleep(sets[0], idle);
	all_sleep(sets[SETS - 1], idle);
	used_up(sets[SETS - 1], EPOLLIN | EPOLLET);
	used_up(sets[SETS - 1], EPOLLIN | EPOLLONESHOT);
	return 0;
}
