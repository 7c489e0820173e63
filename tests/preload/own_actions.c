/* A child made by clone(2) shares its parent's memory, but has signal actions of its own. Actions
 * that the child sets, and those of its one-shot handlers, do not change the parent's. */
#include "../c/check.h"
#include <sched.h>
#include <sys/wait.h>

static char stack[1 << 18] __attribute__((aligned(16)));
static volatile int first, second;

static void counts_first(int signal)
{
	(void)signal;
	first++;
}

static void counts_second(int signal)
{
	(void)signal;
	second++;
}

static struct sigaction once(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = counts_first;
	action.sa_flags = SA_RESETHAND;
	return action;
}

static int sets(void *unused)
{
	struct sigaction known;
	(void)unused;
	if (signal(SIGUSR1, counts_second) != counts_first || raise(SIGUSR1) != 0 || second != 1)
		return 1;
	if (sigaction(SIGUSR1, NULL, &known) != 0 || known.sa_handler != counts_second)
		return 2;
	/* Restores the first handler. */
	if (signal(SIGUSR1, counts_first) != counts_second || raise(SIGUSR1) != 0 || first != 1)
		return 3;
	return signal(SIGUSR1, counts_second) == counts_first ? 7 : 4;
}

static int is_called_once(void *unused)
{
	struct sigaction known;
	(void)unused;
	if (raise(SIGUSR2) != 0 || first != 2)
		return 1;
	return sigaction(SIGUSR2, NULL, &known) == 0 && known.sa_handler == SIG_DFL ? 7 : 2;
}

static int forks(void *unused)
{
	struct sigaction action = once();
	int status, child = fork();
	(void)unused;
	if (child == 0) {
		/* This child has a copy of the memory. */
		first = 0;
		CHECK(sigaction(SIGUSR2, &action, NULL) == 0 && raise(SIGUSR2) == 0 && first == 1);
		CHECK(sigaction(SIGUSR2, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
		CHECK(signal(SIGUSR1, counts_second) == counts_first);
		CHECK(raise(SIGUSR1) == 0 && second == 2);
		_exit(7);
	}
	if (child == -1 || waitpid(child, &status, 0) != child)
		return 1;
	return WIFEXITED(status) && WEXITSTATUS(status) == 7 ? 7 : 2;
}

static void in_a_child(int (*function)(void *))
{
	int status, child;
	child = clone(function, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

int main(void)
{
	struct sigaction action = once();
	alarm(200);
	/* The library calls the handlers itself once there is a user-level object. */
	CHECK(eventfd(0, 0) >= 0);
	CHECK(signal(SIGUSR1, counts_first) != SIG_ERR);
	CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
	in_a_child(sets);
	in_a_child(is_called_once);
	in_a_child(forks);
	CHECK(raise(SIGUSR1) == 0 && first == 3 && second == 1);
	CHECK(raise(SIGUSR2) == 0 && first == 4);
	CHECK(sigaction(SIGUSR2, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
	return 0;
}
