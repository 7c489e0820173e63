/* A waiting call sleeps: it uses almost no processor time, whatever it waits for. */
#include "check.h"
#include <sys/resource.h>

enum { LIMIT_MS = 400, MOST_US = 100000 };

static long processor_time(void)
{
	struct rusage usage;
	CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000L + usage.ru_utime.tv_usec +
	       usage.ru_stime.tv_usec;
}

static int set, fds[4];

static void in_epoll_wait(int ms)
{
	struct epoll_event event;
	CHECK(epoll_wait(set, &event, 1, ms) == 0);
}

static void in_poll(int ms)
{
	struct pollfd entries[5];
	int at;
	for (at = 0; at < 4; at++)
		entries[at] = (struct pollfd){fds[at], POLLIN, 0};
	entries[4] = (struct pollfd){set, POLLIN, 0};
	CHECK(poll(entries, 5, ms) == 0);
}

static void in_select(int ms)
{
	struct timeval limit = {0, ms * 1000};
	fd_set readable;
	int at;
	FD_ZERO(&readable);
	for (at = 0; at < 4; at++)
		FD_SET(fds[at], &readable);
	FD_SET(set, &readable);
	CHECK(select(set + 1, &readable, NULL, NULL, &limit) == 0);
}

static void *writes(void *ms)
{
	sleep_ms(*(int *)ms);
	CHECK(eventfd_write(fds[0], 1) == 0);
	return NULL;
}

static void in_read(int ms)
{
	pthread_t writer;
	uint64_t value;
	CHECK(pthread_create(&writer, NULL, writes, &ms) == 0);
	CHECK(read(fds[0], &value, sizeof value) == sizeof value);
	CHECK(pthread_join(writer, NULL) == 0);
}

static void sleeps(void (*wait)(int))
{
	long begun;
	int tries = 0;
	wait(1);
	/* A call that spins does so each time. */
	do {
		CHECK(tries++ < 3);
		begun = processor_time();
		wait(LIMIT_MS);
	} while (processor_time() - begun >= MOST_US);
}

int main(void)
{
	int ends[2], at;
	fds[0] = eventfd(0, 0);
	CHECK(pipe(ends) == 0);
	fds[1] = ends[0];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	fds[2] = ends[0];
	/* A kernel fd in both variants. */
	fds[3] = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(fds[3] >= 0 && bind(fds[3], &(struct sockaddr){.sa_family = AF_UNIX}, 2) == 0);
	CHECK(listen(fds[3], 1) == 0);
	for (at = 0; at < 4; at++) {
		/* Adds the members one by one: user-level ones first, then a kernel fd. */
		set = epoll_create1(0);
		for (int member = 0; member <= at; member++)
			CHECK(add(set, fds[member], EPOLLIN, 0) == 0);
		sleeps(in_epoll_wait);
		if (at != 3)
			close(set);
	}
	sleeps(in_poll);
	sleeps(in_select);
	sleeps(in_read);
	return 0;
}
