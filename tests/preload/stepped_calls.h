/* Objects and calls of the tests in which a signal handler uses the objects of the call that it
 * interrupts. */
#ifndef STEPPED_CALLS_H
#define STEPPED_CALLS_H

#include "steps.h"

static int counter = -1, set = -1, outer = -1, pipes[2];
static long countdown;
static volatile int has_fired;

static inline void changes(void)
{
	struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = 1}};
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, counter, NULL) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
	event.events = EPOLLIN;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, counter, &event) == 0);
}

static inline void reads_and_writes(void)
{
	uint64_t value = 1;
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	CHECK(read(counter, &value, sizeof value) == sizeof value);
}

static inline void make_objects(void)
{
	CHECK(pipe(pipes) == 0);
	counter = eventfd(0, EFD_NONBLOCK);
	set = epoll_create1(0), outer = epoll_create1(0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && add(outer, set, EPOLLIN, 2) == 0);
}

/* Makes the call. Returns whether it was interrupted at its instruction `at`. */
static inline int step_to(long at, void (*call)(void))
{
	countdown = at, has_fired = 0;
	begin_steps();
	call();
	end_steps();
	return has_fired;
}

#endif
