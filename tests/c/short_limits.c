/* A time limit below a millisecond is neither dropped nor rounded to a millisecond in epoll_pwait2,
 * ppoll and pselect, whatever the call waits for. The shortest of many waits counts, because a busy
 * machine delays some. */
#include "check.h"
#include <limits.h>
#include <sys/syscall.h>

enum { LIMIT_US = 100, TRIES = 1000 };

static int set, fds[2];
static const struct timespec limit = {0, LIMIT_US * 1000};

static long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static int in_epoll_pwait2(void)
{
	struct epoll_event event;
	return epoll_pwait2(set, &event, 1, &limit, NULL);
}

static int in_ppoll(void)
{
	struct pollfd entries[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
	return ppoll(entries, 2, &limit, NULL);
}

static int in_pselect(void)
{
	fd_set readable;
	FD_ZERO(&readable);
	FD_SET(fds[0], &readable);
	FD_SET(fds[1], &readable);
	return pselect(fds[1] + 1, &readable, NULL, NULL, &limit, NULL);
}

static void is_short(int (*wait)(void))
{
	long shortest = LONG_MAX;
	int attempt;
	for (attempt = 0; attempt < TRIES && shortest >= 1000; attempt++) {
		long begun = now(), took;
		CHECK(wait() == 0);
		took = now() - begun;
		CHECK(took >= LIMIT_US - 1);
		if (took < shortest)
			shortest = took;
	}
	CHECK(shortest < 1000);
}

int main(void)
{
	/* Kernels before 5.11 have no such limits for sets, and valgrind has none either. */
	long found = syscall(SYS_epoll_pwait2, -1, NULL, 1, NULL, NULL, 8);
	if (found == -1 && errno == ENOSYS)
		return 77;
	set = epoll_create1(0);
	fds[0] = eventfd(0, 0);
	fds[1] = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(fds[1] >= 0 && bind(fds[1], &(struct sockaddr){.sa_family = AF_UNIX}, 2) == 0);
	CHECK(listen(fds[1], 1) == 0);
	CHECK(add(set, fds[0], EPOLLIN, 0) == 0);
	is_short(in_epoll_pwait2);
	CHECK(add(set, fds[1], EPOLLIN, 0) == 0);
	is_short(in_epoll_pwait2);
	is_short(in_ppoll);
	is_short(in_pselect);
	return 0;
}
