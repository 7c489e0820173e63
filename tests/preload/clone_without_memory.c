/* A child made by clone(2) that has a copy of its parent's memory, like a child of fork. Parent and
 * child each sleep by wake fds of their own. */
#include "../c/check.h"
#include <sched.h>
#include <sys/wait.h>

enum { ROUNDS = 20000 };

static int there, back, others[2];

/* Sleeps until the counter is written, in a wait for a kernel fd as well. */
static void await(int counter)
{
	struct pollfd entries[2] = {{counter, POLLIN, 0}, {others[0], POLLIN, 0}};
	uint64_t count;
	CHECK(poll(entries, 2, -1) == 1);
	CHECK(read(counter, &count, sizeof count) == sizeof count);
}

static void *answers(void *nothing)
{
	uint64_t one = 1, count;
	int round;
	for (round = 0; round < ROUNDS; round++) {
		CHECK(read(there, &count, sizeof count) == sizeof count);
		CHECK(write(back, &one, sizeof one) == sizeof one);
	}
	return nothing;
}

static void asks(void)
{
	uint64_t one = 1;
	pthread_t thread;
	int round;
	there = eventfd(0, 0), back = eventfd(0, EFD_NONBLOCK);
	CHECK(there >= 0 && back >= 0);
	CHECK(pthread_create(&thread, NULL, answers, NULL) == 0);
	for (round = 0; round < ROUNDS; round++) {
		CHECK(write(there, &one, sizeof one) == sizeof one);
		await(back);
	}
	CHECK(pthread_join(thread, NULL) == 0);
}

static int in_the_child(void *nothing)
{
	(void)nothing;
	/* The child does not inherit an alarm. */
	alarm(200);
	asks();
	return 7;
}

int main(void)
{
	static char stack[1 << 18] __attribute__((aligned(16)));
	struct pollfd entries[2];
	int status, child;
	alarm(200);
	CHECK(pipe(others) == 0);
	/* From now on the thread has a wake fd of its own. */
	there = eventfd(0, 0);
	entries[0].fd = there, entries[1].fd = others[0];
	entries[0].events = entries[1].events = POLLIN;
	CHECK(poll(entries, 2, 1) == 0);
	child = clone(in_the_child, stack + sizeof stack, SIGCHLD, NULL);
	CHECK(child > 0);
	asks();
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	return 0;
}
