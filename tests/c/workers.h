/* Workers whose sets watch a rotating set over a pipe. */
#ifndef WORKERS_H
#define WORKERS_H

#include "check.h"
#include <sys/syscall.h>

enum { WORKERS = 3, EVENTS = 30 };

/* A worker's state, which forked children that write the events share. */
struct worker {
	int tid, waits, served, ended;
};
static struct worker *workers;
static int source, sets[WORKERS];
static pthread_t threads[WORKERS];

static int read_shared(const int *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static void *works(void *which)
{
	int at = (int)(intptr_t)which;
	struct worker *me = &workers[at];
	struct epoll_event event;
	char byte;
	me->tid = (int)syscall(SYS_gettid);
	for (;;) {
		__atomic_store_n(&me->waits, 1, __ATOMIC_SEQ_CST);
		CHECK(epoll_wait(sets[at], &event, 1, -1) == 1);
		__atomic_store_n(&me->waits, 0, __ATOMIC_SEQ_CST);
		if (read(source, &byte, 1) != 1)
			continue;
		if (byte == 'q') {
			__atomic_store_n(&me->ended, 1, __ATOMIC_SEQ_CST);
			return NULL;
		}
		__atomic_add_fetch(&me->served, 1, __ATOMIC_SEQ_CST);
	}
}

/* Waits until all workers that have not ended sleep. A worker that does not wait has no place in
 * line, and a busy machine may take its time. */
static void wait_for_workers(void)
{
	int at;
	for (at = 0; at < WORKERS; at++) {
		struct worker *worker = &workers[at];
		while (!read_shared(&worker->waits) && !read_shared(&worker->ended))
			sleep_ms(1);
		if (!read_shared(&worker->ended))
			wait_until_asleep(worker->tid);
	}
}

/* Starts workers, which read from fd, the source of rotating. */
static void start_workers(int rotating, int fd)
{
	int at;
	workers = mmap(NULL, WORKERS * sizeof *workers, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(workers != MAP_FAILED);
	source = fd;
	CHECK(add(rotating, source, EPOLLIN, 0) == 0);
	for (at = 0; at < WORKERS; at++) {
		sets[at] = epoll_create1(0);
		CHECK(add(sets[at], rotating, EPOLLIN, 0) == 0);
		CHECK(pthread_create(&threads[at], NULL, works, (void *)(intptr_t)at) == 0);
	}
	wait_for_workers();
}

static int all_served(void)
{
	int at, all = 0;
	for (at = 0; at < WORKERS; at++)
		all += read_shared(&workers[at].served);
	return all;
}

/* Writes the events one at a time. */
static void write_events(int fd)
{
	int at;
	for (at = 0; at < EVENTS; at++) {
		wait_for_workers();
		CHECK(write(fd, "x", 1) == 1);
		while (all_served() == at)
			sleep_ms(1);
	}
}

/* Checks that each worker has had its share. A machine that counts a runnable worker as asleep,
 * like valgrind, may skip it; it makes up for that in later turns, except after the last one. */
static void end_workers(int fd)
{
	int at, ended, seen;
	CHECK(all_served() == EVENTS);
	for (at = 0; at < WORKERS; at++)
		CHECK(abs(workers[at].served - EVENTS / WORKERS) <= 2);
	/* Ends the workers one after the other. */
	for (ended = 0; ended < WORKERS; ended++) {
		wait_for_workers();
		CHECK(write(fd, "q", 1) == 1);
		do {
			sleep_ms(1);
			for (at = 0, seen = 0; at < WORKERS; at++)
				seen += read_shared(&workers[at].ended);
		} while (seen == ended);
	}
	for (at = 0; at < WORKERS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
}

#endif
