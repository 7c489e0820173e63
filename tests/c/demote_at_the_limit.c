/* A process that has as many descriptors as it may have forks, and sends an eventfd. The eventfds that a set watches
 * reach the child and the receiver with their counts, and the set goes on. */
#include "rights.h"
#include <sys/resource.h>
#include <sys/wait.h>

enum { LIMIT = 60 };

static int set, counters[LIMIT];

/* Makes a set of eventfds, each with the count 3, until no descriptor is left. Returns how many there are. */
static int fill(void)
{
	int count = 0;
	CHECK((set = epoll_create1(0)) >= 0);
	for (; (counters[count] = eventfd(3, EFD_NONBLOCK)) >= 0; count++) {
		struct epoll_event event = {EPOLLIN, {.u32 = (uint32_t)count}};
		CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counters[count], &event) == 0);
	}
	CHECK(errno == EMFILE && count > LIMIT / 2);
	return count;
}

static void check_all(int count, uint64_t value)
{
	struct epoll_event events[LIMIT];
	CHECK(epoll_wait(set, events, LIMIT, 0) == count);
	for (int at = 0; at < count; at++) {
		uint64_t found = 0;
		CHECK(read(counters[at], &found, sizeof found) == sizeof found && found == value);
	}
	CHECK(epoll_wait(set, events, LIMIT, 0) == 0);
}

static void empty(int count)
{
	for (int at = 0; at < count; at++)
		CHECK(close(counters[at]) == 0);
	CHECK(close(set) == 0);
}

static void forks(void)
{
	uint64_t more = 4;
	int count = fill(), status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		check_all(count, 3);
		for (int at = 0; at < count; at++)
			CHECK(write(counters[at], &more, sizeof more) == sizeof more);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	check_all(count, more);
	empty(count);
}

/* An interest whose descriptor was closed while its file lives on needs none either. */
static void forks_with_a_closed_descriptor(void)
{
	struct epoll_event event = {EPOLLIN, {.u32 = 99}};
	int status, copy, count;
	CHECK((counters[0] = eventfd(0, 0)) >= 0 && (copy = dup(counters[0])) >= 0);
	CHECK((set = epoll_create1(0)) >= 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, copy, &event) == 0);
	CHECK(close(copy) == 0);
	for (count = 0; dup(0) >= 0; count++)
		;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(eventfd_write(counters[0], 5) == 0 ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(epoll_wait(set, &event, 1, 0) == 1 && event.data.u32 == 99);
	uint64_t found = 0;
	CHECK(read(counters[0], &found, sizeof found) == sizeof found && found == 5);
}

#ifdef UPOLL_REDIRECT
static void demote_object(int fd)
{
	CHECK(upoll_demote(fd) == 0);
}
#else
/* Sends the descriptor over `pair`, and takes no copy of it. */
static int pair[2];
static void demote_object(int fd)
{
	send_fd(pair[0], fd);
}
#endif

/* The receiver, which has the descriptor alone, gets the count, and the set sees what it writes. */
static void sends(void)
{
	int count = fill();
	demote_object(counters[7]);
#ifndef UPOLL_REDIRECT
	uint64_t found = 0;
	int copy;
	CHECK(close(counters[--count]) == 0);
	copy = receive_fd(pair[1]);
	CHECK(read(copy, &found, sizeof found) == sizeof found && found == 3);
	CHECK(eventfd_write(copy, 3) == 0 && close(copy) == 0);
#endif
	check_all(count, 3);
	empty(count);
}

int main(void)
{
	struct rlimit limit;
#ifndef UPOLL_REDIRECT
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
#endif
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	/* The hard limit stays, because valgrind does not allow a change. */
	limit.rlim_cur = LIMIT;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	forks();
	sends();
	forks_with_a_closed_descriptor();
	return 0;
}
