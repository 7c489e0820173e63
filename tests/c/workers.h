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

/* Each has had its share. */
static void end_workers(int fd)
{
	int at;
	sleep_ms(50);
	for (at = 0; at < WORKERS; at++) {
		CHECK(served[at] == EVENTS / WORKERS);
		/* One after the other. */
		CHECK(write(fd, "q", 1) == 1);
		sleep_ms(50);
	}
	for (at = 0; at < WORKERS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
}

#endif
