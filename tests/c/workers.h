/* Workers whose sets watch a rotating set over a pipe. */
#ifndef WORKERS_H
#define WORKERS_H

#include "check.h"

enum { WORKERS = 3, EVENTS = 30 };
static int source, sets[WORKERS], served[WORKERS];
static pthread_t threads[WORKERS];

static void *works(void *which)
{
	int me = (int)(intptr_t)which;
	struct epoll_event event;
	char byte;
	for (;;) {
		CHECK(epoll_wait(sets[me], &event, 1, -1) == 1);
		if (read(source, &byte, 1) != 1)
			continue;
		if (byte == 'q')
			return NULL;
		served[me]++;
	}
}

/* They take what comes out of fd, which rotating watches. */
static void start_workers(int rotating, int fd)
{
	int at;
	source = fd;
	CHECK(add(rotating, source, EPOLLIN, 0) == 0);
	for (at = 0; at < WORKERS; at++) {
		sets[at] = epoll_create1(0);
		CHECK(add(sets[at], rotating, EPOLLIN, 0) == 0);
		CHECK(pthread_create(&threads[at], NULL, works, (void *)(intptr_t)at) == 0);
	}
	sleep_ms(50);
}

/* One at a time. */
static void write_events(int fd)
{
	int at;
	for (at = 0; at < EVENTS; at++) {
		sleep_ms(10);
		CHECK(write(fd, "x", 1) == 1);
	}
}

static int all_served(void)
{
	int at, all = 0;
	for (at = 0; at < WORKERS; at++)
		all += served[at];
	return all;
}

/* Each has had its share. One that a busy machine did not let come back in time makes up for it in the
 * turns that follow, of which there are none after the last. */
static void end_workers(int fd)
{
	int at, tries;
	for (tries = 0; tries < 1000 && all_served() != EVENTS; tries++)
		sleep_ms(10);
	CHECK(all_served() == EVENTS);
	for (at = 0; at < WORKERS; at++)
		CHECK(abs(served[at] - EVENTS / WORKERS) <= 2);
	for (at = 0; at < WORKERS; at++) {
		/* One after the other. */
		CHECK(write(fd, "q", 1) == 1);
		sleep_ms(50);
	}
	for (at = 0; at < WORKERS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
}

#endif
