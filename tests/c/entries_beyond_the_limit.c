/* poll and ppoll with more entries than RLIMIT_NOFILE allows fail with EINVAL. This holds for any
 * number of entries, for calls that would sleep and others, and directly after the program has
 * changed the limit. */
#include "check.h"
#include <sys/resource.h>
#include <sys/syscall.h>

enum { MOST = 40 };

static struct pollfd entries[MOST];

static int look(unsigned count)
{
	return poll(entries, count, 0);
}

static int wait_for_ready(unsigned count)
{
	return poll(entries, count, -1);
}

static int look_by_ppoll(unsigned count)
{
	struct timespec now = {0, 0};
	return ppoll(entries, count, &now, NULL);
}

/* Only the preload sees system calls by number. */
#ifndef UPOLL_REDIRECT
static int look_by_number(unsigned count)
{
	struct timespec now = {0, 0};
	return (int)syscall(SYS_ppoll, entries, count, &now, NULL, 8);
}
#endif

static int (*const calls[])(unsigned) = {
	look, wait_for_ready, look_by_ppoll,
#ifndef UPOLL_REDIRECT
	look_by_number,
#endif
};

static void check_at(unsigned limit)
{
	unsigned count, at;
	for (at = 0; at < sizeof calls / sizeof *calls; at++)
		for (count = 1; count <= MOST; count++) {
			if (count <= limit)
				CHECK(calls[at](count) == (int)count);
			else
				FAILS(calls[at](count), EINVAL);
		}
}

/* Changes the limit in one of several ways. */
static void set_limit(int way, unsigned limit)
{
	struct rlimit new;
	CHECK(getrlimit(RLIMIT_NOFILE, &new) == 0);
	new.rlim_cur = limit;
	switch (way % 3) {
	case 0:
		CHECK(setrlimit(RLIMIT_NOFILE, &new) == 0);
		break;
	case 1:
		CHECK(prlimit(0, RLIMIT_NOFILE, &new, NULL) == 0);
		break;
	default:
#ifdef UPOLL_REDIRECT
		CHECK(prlimit(getpid(), RLIMIT_NOFILE, &new, NULL) == 0);
#else
		CHECK(syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &new, NULL) == 0);
#endif
	}
}

int main(void)
{
	static const unsigned limits[] = {1024, 7, 64, 0, 8, 1, 9, 3, 30};
	const unsigned number = sizeof limits / sizeof *limits;
	unsigned at;
	int counter = eventfd(1, 0);
	CHECK(counter >= 0);
	for (at = 0; at < MOST; at++)
		entries[at] = (struct pollfd){counter, POLLIN, 0};
	/* Sets each limit in each way. */
	for (at = 0; at < 3 * number; at++) {
		unsigned limit = limits[at / 3];
		set_limit((int)at, limit);
		check_at(limit < MOST ? limit : MOST);
		set_limit((int)at + 1, 1024);
		CHECK(look(3) == 3);
	}
	return close(counter);
}
