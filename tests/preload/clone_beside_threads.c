/* A child made by clone(2) with a copy of the memory, while other threads change fds and allocate.
 * It waits for none of these threads, because they do not exist in it. */
#include "../c/check.h"
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { ROUNDS = 2000 };

static char stack[1 << 18] __attribute__((aligned(16)));
static volatile int is_over;

static void *churns(void *unused)
{
	while (!is_over) {
		int counter = eventfd(0, 0), set = epoll_create1(0), copy = dup(counter);
		/* A limit of upoll(1): the set was made during a fork, the counter before, and the child shares its count. */
		CHECK(add(set, counter, EPOLLIN, 1) == 0 || (errno == EPERM && getenv("LD_PRELOAD")));
		CHECK(dup2(set, copy) == copy);
		CHECK(close(counter) == 0 && close(copy) == 0 && close(set) == 0);
	}
	return unused;
}

static int uses(void *unused)
{
	struct epoll_event event;
	uint64_t value = 5;
	int counter, set, copy;
	(void)unused;
	alarm(300);
	/* The fds of the other threads. */
	for (int fd = 3; fd < 16; fd++)
		close(fd);
	counter = eventfd(0, EFD_NONBLOCK), set = epoll_create1(0);
	if (counter < 0 || set < 0 || add(set, counter, EPOLLIN, 1) != 0)
		return 1;
	if (write(counter, &value, sizeof value) != sizeof value)
		return 2;
	if (epoll_wait(set, &event, 1, 0) != 1 || read(counter, &value, sizeof value) != 8 || value != 5)
		return 3;
	copy = dup(counter);
	return dup2(set, copy) == copy && close(counter) == 0 && close(copy) == 0 ? 7 : 4;
}

static int by_number(void)
{
	int place, child = (int)syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, 0L, &place, 0L, 0L);
	if (child == 0)
		_exit(uses(NULL));
	return child;
}

int main(void)
{
	pthread_t threads[2];
	int status;
	alarm(200);
	for (int at = 0; at < 2; at++)
		CHECK(pthread_create(&threads[at], NULL, churns, NULL) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		int child = round % 2 == 0 ? clone(uses, stack + sizeof stack, SIGCHLD, NULL) : by_number();
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
	is_over = 1;
	for (int at = 0; at < 2; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	return 0;
}
