/* Calls that sleep for the tests of signal handlers that end them: no object of these is ready. */
#ifndef SLEEPING_CALLS_H
#define SLEEPING_CALLS_H

#include "../c/check.h"

static int set, counter, pair[2], pipes[2];

static inline void waits(void)
{
	struct epoll_event event;
	epoll_wait(set, &event, 1, -1);
}

static inline void waits_with_a_mask(void)
{
	struct epoll_event event;
	sigset_t mask, now;
	sigemptyset(&mask), sigemptyset(&now);
	sigaddset(&now, SIGUSR1);
	CHECK(pthread_sigmask(SIG_BLOCK, &now, NULL) == 0);
	epoll_pwait(set, &event, 1, -1, &mask);
}

static inline void polls_with_a_mask(void)
{
	struct pollfd entries[2] = {{counter, POLLIN, 0}, {pipes[0], POLLIN, 0}};
	sigset_t mask;
	sigemptyset(&mask);
	ppoll(entries, 2, NULL, &mask);
}

static inline void selects(void)
{
	fd_set in;
	FD_ZERO(&in);
	FD_SET(counter, &in);
	select(counter + 1, &in, NULL, NULL, NULL);
}

static inline void reads(void)
{
	uint64_t value;
	CHECK(read(counter, &value, sizeof value) == -1);
}

static inline void reads_a_pipe(void)
{
	char byte;
	CHECK(read(pipes[0], &byte, 1) == -1);
}

static inline void receives(void)
{
	char byte;
	CHECK(recv(pair[0], &byte, 1, 0) == -1);
}

#endif
