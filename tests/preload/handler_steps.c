/* A signal handler writes an eventfd that its thread is using, once after each few instructions of
 * a call. The write neither waits for its own thread nor is lost. */
#include "../c/check.h"

#ifdef __x86_64__
#include "stepped_calls.h"

/* Returns whether the interrupted thread makes another step. */
static int fires(void)
{
	uint64_t one = 1;
	if (--countdown > 0)
		return 1;
	CHECK(write(counter, &one, sizeof one) == sizeof one);
	has_fired = 1;
	return 0;
}

static void traps(int signal, siginfo_t *info, void *context)
{
	int saved = errno;
	(void)signal, (void)info;
	if (!fires())
		end_steps_of(context);
	errno = saved;
}

static void waits(void)
{
	struct epoll_event event;
	CHECK(epoll_wait(set, &event, 1, 1) >= 0);
}

static void waits_above(void)
{
	struct epoll_event event;
	CHECK(epoll_wait(outer, &event, 1, 1) >= 0);
}

static void polls(void)
{
	struct pollfd entry = {counter, POLLIN, 0};
	CHECK(poll(&entry, 1, 1) >= 0);
}

static void polls_with_others(void)
{
	struct pollfd entries[2] = {{counter, POLLIN, 0}, {pipes[0], POLLIN, 0}};
	CHECK(poll(entries, 2, 1) >= 0);
}

static void selects(void)
{
	struct timeval limit = {0, 1000};
	fd_set in;
	FD_ZERO(&in);
	FD_SET(counter, &in);
	CHECK(select(counter + 1, &in, NULL, NULL, &limit) >= 0);
}

static void duplicates(void)
{
	int fd = dup(counter);
	CHECK(fd >= 0 && close(fd) == 0);
}

static void makes(void)
{
	int fd = eventfd(0, 0), other = epoll_create1(0);
	CHECK(fd >= 0 && add(other, fd, EPOLLIN, 1) == 0);
	CHECK(add(other, counter, EPOLLIN, 1) == 0);
	CHECK(close(fd) == 0 && close(other) == 0);
}

static void interrupt_each(const char *name, void (*call)(void), long stride)
{
	long at;
	for (at = 1 + stride * part_of_today();; at += stride * PARTS) {
		struct epoll_event event;
		struct pollfd entry = {counter, POLLIN, 0};
		uint64_t value;
		if (!step_to(at, call))
			break;
		if (poll(&entry, 1, 0) == 1) {
			CHECK(epoll_wait(set, &event, 1, 0) == 1);
			CHECK(epoll_wait(outer, &event, 1, 0) == 1);
			CHECK(read(counter, &value, sizeof value) == sizeof value);
			CHECK(epoll_wait(set, &event, 1, 0) == 0);
			CHECK(epoll_wait(outer, &event, 1, 0) == 0);
		}
	}
	printf("%s: %ld instructions\n", name, at), fflush(stdout);
}

int main(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = traps;
	action.sa_flags = SA_SIGINFO;
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	make_objects();
	/* Ends a thread that waits for a lock of its own. */
	alarm(1500);
	interrupt_each("read, write", reads_and_writes, 7);
	interrupt_each("epoll_ctl", changes, 7);
	interrupt_each("epoll_wait", waits, 7);
	interrupt_each("epoll_wait above", waits_above, 7);
	interrupt_each("poll", polls, 7);
	interrupt_each("poll with a pipe", polls_with_others, 7);
	interrupt_each("select", selects, 7);
	interrupt_each("dup, close", duplicates, 7);
	interrupt_each("eventfd, close", makes, 61);
	return 0;
}
#else
int main(void)
{
	return 77;
}
#endif
