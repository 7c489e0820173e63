/* fork(2) in a process with thousands of eventfds and pipes takes time in proportion to their number. */
#include "check.h"
#include <sys/resource.h>
#include <sys/wait.h>

/* With this factor a quadratic call takes 64 times as long. */
#define TIMES 8
#define AT_MOST (TIMES * 4)

static int fds[8192];

/* Returns the processor time of this process and of the children that it has waited for. */
static double seconds_used(void)
{
	struct rusage own, children;
	getrusage(RUSAGE_SELF, &own);
	getrusage(RUSAGE_CHILDREN, &children);
	return (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec + children.ru_utime.tv_sec +
			children.ru_stime.tv_sec) +
	       1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec +
			       children.ru_utime.tv_usec + children.ru_stime.tv_usec);
}

static void forks(void)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Returns the processor time of a fork with this many eventfds. */
static double with_eventfds(int count)
{
	double before;
	uint64_t value;
	int at;
	for (at = 0; at < count; at++)
		CHECK((fds[at] = eventfd((unsigned)at % 3, EFD_NONBLOCK)) >= 0);
	before = seconds_used();
	forks();
	before = seconds_used() - before;
	for (at = 0; at < count; at++) {
		if (at % 3)
			CHECK(eventfd_read(fds[at], &value) == 0 && value == (uint64_t)at % 3);
		else
			FAILS(eventfd_read(fds[at], &value), EAGAIN);
		CHECK(close(fds[at]) == 0);
	}
	return before;
}

/* The same with half of them in a set, and every fourth one a duplicate. */
static double in_a_set(int count)
{
	double before;
	struct epoll_event events[64];
	int epfd = epoll_create1(0), at, reported = 0, found;
	CHECK(epfd >= 0);
	for (at = 0; at < count; at++) {
		fds[at] = at % 4 == 3 ? dup(fds[at - 1]) : eventfd(at % 4 == 0, EFD_NONBLOCK);
		CHECK(fds[at] >= 0);
		if (at % 2 == 0)
			CHECK(add(epfd, fds[at], EPOLLIN | EPOLLONESHOT, (uint64_t)fds[at]) == 0);
	}
	before = seconds_used();
	forks();
	before = seconds_used() - before;
	while ((found = epoll_wait(epfd, events, 64, 0)) > 0)
		reported += found;
	CHECK(reported == count / 4);
	for (at = 0; at < count; at++)
		CHECK(close(fds[at]) == 0);
	close(epfd);
	return before;
}

static double with_pipes(int count)
{
	double before;
	char byte;
	int at;
	for (at = 0; at < count; at += 2) {
		CHECK(pipe(fds + at) == 0);
		CHECK(write(fds[at + 1], "x", 1) == 1);
	}
	before = seconds_used();
	forks();
	before = seconds_used() - before;
	for (at = 0; at < count; at += 2) {
		CHECK(read(fds[at], &byte, 1) == 1 && byte == 'x');
		CHECK(close(fds[at]) == 0 && close(fds[at + 1]) == 0);
	}
	return before;
}

static double with_sets(int count)
{
	double before;
	int fd = eventfd(0, 0), at;
	for (at = 0; at < count; at++) {
		CHECK((fds[at] = epoll_create1(0)) >= 0);
		CHECK(at % 2 || add(fds[at], fd, EPOLLIN, 1) == 0);
	}
	before = seconds_used();
	forks();
	before = seconds_used() - before;
	for (at = 0; at < count; at++)
		CHECK(close(fds[at]) == 0);
	close(fd);
	return before;
}

static int is_in_proportion(const char *what, double (*with)(int), int many)
{
	/* Several tries: one of them may include other costs, for instance page faults. */
	int tries;
	double few_take = 0, many_take = 0;
	for (tries = 0; tries < 3; tries++) {
		const double few = with(many / TIMES), all = with(many);
		few_take = tries == 0 || few > few_take ? few : few_take;
		many_take = tries == 0 || all < many_take ? all : many_take;
	}
	printf("%s: %.1f ms, %d times as many: %.1f ms\n", what, few_take * 1e3, TIMES, many_take * 1e3);
	/* A shorter time cannot be measured. */
	return many_take < 0.1 || many_take < few_take * AT_MOST;
}

int main(void)
{
	const struct {
		const char *what;
		double (*with)(int);
	} kinds[] = {
		{"eventfds", with_eventfds},
		{"eventfds in a set", in_a_set},
		{"pipes", with_pipes},
		{"sets", with_sets},
	};
	struct rlimit limit;
	unsigned at;
	int fails = 0, most;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	most = limit.rlim_cur > 8700 ? 8000 : 2000;
	for (at = 0; at < sizeof kinds / sizeof *kinds; at++)
		/* A set may take several fds. */
		fails += !is_in_proportion(kinds[at].what, kinds[at].with,
					   kinds[at].with == with_sets ? most / 4 : most);
	return fails > 0;
}
